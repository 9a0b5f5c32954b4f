//! A write that a client was told of survives: in the log that was committed, and in every store
//! that has applied it.
//!
//! At the end each acknowledged request must be an entry that made the revision which the client
//! was told. And whenever a member has applied something, has started, or has got a raft snapshot,
//! all that its store holds is compared with what the log up to there makes of a plain map: a store
//! that has lost or changed something has lost what was reported to a client.

use super::committed_model::CommittedModel;
use super::{Rule, Violation};
use crate::history::StoreModel;

/// The writes that clients were told of.
#[derive(Debug, Default)]
pub struct Acknowledged {
    writes: Vec<(u64, i64)>,
}

impl Acknowledged {
    /// A client is told: this request has made this revision.
    pub fn acknowledge(&mut self, id: u64, revision: i64) {
        self.writes.push((id, revision));
    }

    /// At the end: all of them are in the log.
    pub fn check(&self, ledger: &CommittedModel) -> Result<(), Violation> {
        for (id, revision) in &self.writes {
            let entry = ledger.applied_request(*id);
            if entry.is_none_or(|place| !place.changed || place.revision != *revision) {
                let seen = format!(
                    "request {id:x} was acknowledged at revision {revision}; in the log: {entry:?}"
                );
                return Err(Violation::new(Rule::Acknowledged, seen));
            }
        }
        Ok(())
    }
}

/// A store that has applied so much holds what the log makes of nothing.
pub fn check_store(
    member: u64,
    index: u64,
    holds: &StoreModel,
    ledger: &CommittedModel,
) -> Result<(), Violation> {
    let expected = ledger.at_index(index);
    if expected == Some(holds) {
        return Ok(());
    }
    let seen = format!("{member} has applied {index} and holds {holds:?}, not {expected:?}");
    Err(Violation::new(Rule::Acknowledged, seen))
}

#[cfg(test)]
mod tests {
    use super::super::committed_model::tests::committed_model;
    use super::*;

    #[test]
    fn what_is_lost_is_found() {
        let told = |id, revision| {
            let mut acknowledged = Acknowledged::default();
            acknowledged.acknowledge(12, 2);
            acknowledged.acknowledge(id, revision);
            acknowledged.check(&committed_model())
        };
        assert_eq!(told(14, 3), Ok(()));
        assert_eq!(told(14, 2).unwrap_err().rule, Rule::Acknowledged);
        assert_eq!(told(15, 4).unwrap_err().rule, Rule::Acknowledged);
    }

    #[test]
    fn a_store_that_differs_is_found() {
        let ledger = committed_model();
        let state = ledger.at_revision(2).unwrap();
        assert_eq!(check_store(1, 2, state, &ledger), Ok(()));
        assert_eq!(check_store(1, 3, state, &ledger), Ok(()));
        for (index, holds) in [(4, state), (1, state), (2, &StoreModel::default()), (9, state)] {
            let told = check_store(1, index, holds, &ledger);
            assert_eq!(told.unwrap_err().rule, Rule::Acknowledged);
        }
    }
}
