//! An acknowledged write survives in the committed log, and in every store that has applied it.
//!
//! At the end each acknowledged request must be an entry that made the acknowledged revision. And
//! whenever a member has applied something, has started, or has got a snapshot, its store is
//! compared with what the log up to there makes of a plain map.

use super::committed_model::CommittedModel;
use super::{CheckResult, Rule};
use crate::history::StoreModel;

/// Each acknowledged request is in the log and made the acknowledged revision. `writes` are pairs
/// of request id and revision.
pub fn check_writes(writes: &[(u64, i64)], model: &CommittedModel) -> CheckResult {
    for (id, revision) in writes {
        let entry = model.applied_request(*id);
        let made_it = entry.is_some_and(|entry| entry.changed && entry.revision == *revision);
        Rule::Acknowledged.check(made_it, || {
            format!("request {id:x} was acknowledged at revision {revision}; in the log: {entry:?}")
        })?;
    }
    Ok(())
}

/// The store equals what the log up to `index` makes of an empty one.
pub fn check_store(
    member: u64,
    index: u64,
    store: &StoreModel,
    model: &CommittedModel,
) -> CheckResult {
    let expected = model.at_index(index);
    Rule::Acknowledged.check(expected == Some(store), || {
        format!("{member} has applied {index} and holds {store:?}, not {expected:?}")
    })
}

#[cfg(test)]
mod tests {
    use super::super::committed_model::tests::committed_model;
    use super::*;

    #[test]
    fn what_is_lost_is_found() {
        let told = |id, revision| check_writes(&[(12, 2), (id, revision)], &committed_model());
        assert_eq!(told(14, 3), Ok(()));
        assert_eq!(told(14, 2).unwrap_err().rule, Rule::Acknowledged);
        assert_eq!(told(15, 4).unwrap_err().rule, Rule::Acknowledged);
    }

    #[test]
    fn a_store_that_differs_is_found() {
        let model = committed_model();
        let state = model.at_revision(2).unwrap();
        assert_eq!(check_store(1, 2, state, &model), Ok(()));
        assert_eq!(check_store(1, 3, state, &model), Ok(()));
        for (index, holds) in [(4, state), (1, state), (2, &StoreModel::default()), (9, state)] {
            let told = check_store(1, index, holds, &model);
            assert_eq!(told.unwrap_err().rule, Rule::Acknowledged);
        }
    }
}
