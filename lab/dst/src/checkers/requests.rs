//! A request is proposed at most once and gets at most one outcome. It gets no outcome before the
//! member's store shows the request's effect.

use std::collections::{BTreeMap, BTreeSet};

use clearlane_replica::RequestId;

use super::{CheckResult, Rule, Violation};

/// The requests of a member in one incarnation.
#[derive(Debug, Default)]
pub struct RequestChecker {
    /// For each proposed request: the request ID in the header of its entry.
    proposed: BTreeMap<RequestId, u64>,
    completed: BTreeSet<RequestId>,
}

impl RequestChecker {
    /// Records that a request is proposed in the entry with the ID `entry`. Returns whether this is
    /// the first time. Fails if the request was proposed with another ID before.
    pub fn on_propose(
        &mut self,
        member: u64,
        request: RequestId,
        entry: u64,
    ) -> Result<bool, Violation> {
        let before = self.proposed.insert(request, entry);
        let is_same = before.is_none_or(|before| before == entry);
        Rule::Requests
            .check(is_same, || format!("{request:?} is proposed twice at {member}"))
            .map(|()| before.is_none())
    }

    pub fn entry_of(&self, request: RequestId) -> Option<u64> {
        self.proposed.get(&request).copied()
    }

    pub fn proposed_as(&self, entry: u64) -> Option<RequestId> {
        let found = self.proposed.iter().find(|(_, proposed)| **proposed == entry);
        found.map(|(request, _)| *request)
    }

    /// Checks that the request is completed for the first time, and that the store shows its
    /// effect. `revision` is the revision in the response, if it has one. `shows` is the current
    /// revision of the member's store.
    pub fn on_complete(
        &mut self,
        member: u64,
        request: RequestId,
        revision: Option<i64>,
        shows: i64,
    ) -> CheckResult {
        Rule::Requests.check(revision.is_none_or(|revision| revision <= shows), || {
            format!("{member} answers {request:?} with {revision:?}, but its store is at {shows}")
        })?;
        let is_first = self.completed.insert(request);
        Rule::Requests.check(is_first, || format!("{request:?} is completed twice at {member}"))
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
        let early = requests.on_complete(1, request(2), Some(6), 5);
        assert_eq!(early.unwrap_err().rule, Rule::Requests);
    }
}
