//! An acknowledged write survives in the committed log, and in every store that has applied it.
//!
//! At the end each acknowledged request must be an entry that made the acknowledged revision. And
//! whenever a member has applied something, has started, or has got a snapshot, its store is
//! compared with what the log up to there makes of a plain map.

use super::committed_model::CommittedModel;
use super::{Rule, Violation};
use crate::history::StoreModel;

/// The revision of each acknowledged write, by request id.
#[derive(Debug, Default)]
pub struct Acknowledged {
    writes: Vec<(u64, i64)>,
}

impl Acknowledged {
    pub fn acknowledge(&mut self, id: u64, revision: i64) {
        self.writes.push((id, revision));
    }

    /// Each acknowledged request is in the log and made the acknowledged revision.
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

/// The store equals what the log up to `index` makes of an empty one.
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
