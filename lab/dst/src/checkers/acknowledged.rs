//! An acknowledged write is in the committed log, and in every store that has applied its entry.
//!
//! At the end of a run, each acknowledged request must be in an entry of the log, and this entry
//! must have made the acknowledged revision. In addition, a member's store is compared with a plain
//! map that has applied the same part of the log. The comparison runs whenever a member has applied
//! entries, has started, or has installed a snapshot.

use super::committed_model::CommittedModel;
use super::{CheckResult, Rule};
use crate::history::StoreModel;

/// Checks that each acknowledged request is in the log and made the acknowledged revision. `writes`
/// are pairs of request ID and revision.
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

/// Checks that the store equals the plain map that has applied the log up to `index`.
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
