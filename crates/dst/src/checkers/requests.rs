//! What becomes of a request on its way through a member: it is proposed once at most, it gets one
//! outcome at most, and none before the member shows what it has done.

use std::collections::{BTreeMap, BTreeSet};

use clearlane_server::replica::RequestId;

use super::{Rule, Violation};

/// The requests of one life of a member.
#[derive(Debug, Default)]
pub struct RequestChecker {
    /// With the id of its entry.
    proposed: BTreeMap<RequestId, u64>,
    completed: BTreeSet<RequestId>,
}

impl RequestChecker {
    /// A request waits for an entry. Says whether that is new.
    pub fn on_propose(
        &mut self,
        member: u64,
        request: RequestId,
        entry: u64,
    ) -> Result<bool, Violation> {
        let before = self.proposed.insert(request, entry);
        let is_same = before.is_none_or(|before| before == entry);
        check_first(is_same, member, request, "proposed").map(|()| before.is_none())
    }

    /// The request that was proposed as this entry.
    pub fn proposed_as(&self, entry: u64) -> Option<RequestId> {
        let found = self.proposed.iter().find(|(_, proposed)| **proposed == entry);
        found.map(|(request, _)| *request)
    }

    /// A request has its outcome. If that says a revision, the store shows this one.
    pub fn on_complete(
        &mut self,
        member: u64,
        request: RequestId,
        revision: Option<i64>,
        shows: i64,
    ) -> Result<(), Violation> {
        if revision.is_some_and(|revision| revision > shows) {
            let seen = format!("{member} answers {request:?} with {revision:?} and shows {shows}");
            return Err(Violation::new(Rule::Requests, seen));
        }
        let is_first = self.completed.insert(request);
        check_first(is_first, member, request, "completed")
    }
}

fn check_first(
    is_first: bool,
    member: u64,
    request: RequestId,
    done: &str,
) -> Result<(), Violation> {
    match is_first {
        true => Ok(()),
        false => {
            let seen = format!("{request:?} is {done} twice at {member}");
            Err(Violation::new(Rule::Requests, seen))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_twice_or_early_is_found() {
        let request = |slot| RequestId { queue: 0, slot, generation: 1 };
        let mut requests = RequestChecker::default();
        assert_eq!(requests.on_propose(1, request(1), 7), Ok(true));
        assert_eq!(requests.on_propose(1, request(1), 7), Ok(false));
        assert_eq!(requests.on_propose(1, request(1), 8).unwrap_err().rule, Rule::Requests);
        assert_eq!(requests.on_complete(1, request(1), Some(5), 5), Ok(()));
        assert_eq!(requests.on_complete(1, request(1), None, 5).unwrap_err().rule, Rule::Requests);
        assert_eq!(
            requests.on_complete(1, request(2), Some(6), 5).unwrap_err().rule,
            Rule::Requests
        );
    }
}
