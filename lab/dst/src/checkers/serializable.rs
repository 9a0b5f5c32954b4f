//! A serializable read may return old data. But its reply must be the committed state at the
//! revision in its header, even if the member had no connection to the other members for a long
//! time.

use super::committed_model::CommittedModel;
use super::{CheckResult, Rule};
use crate::history::Operation;

pub fn check(operations: &[Operation], model: &CommittedModel) -> CheckResult {
    let reads = operations.iter().enumerate();
    for (number, operation) in reads.filter(|(_, it)| it.request.is_serializable()) {
        let Some(reply) = operation.reply() else { continue };
        let state = model.at_revision(reply.revision);
        let expected = state.map(|state| state.expected_reply(&operation.request));
        Rule::Serializable.check(expected.as_ref() == Some(reply), || {
            format!("#{number} {operation:?}; at that revision: {expected:?}")
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::committed_model::tests::committed_model;
    use super::*;
    use crate::history::{History, OperationOutcome, Reply, Request};

    fn check_reply(reply: Reply) -> CheckResult {
        let mut history = History::default();
        let number = history.invoke(0, 1, 1, Request::Read { key: None, serializable: true });
        history.complete(1, number, OperationOutcome::Completed(reply));
        check(&history.operations, &committed_model())
    }

    #[test]
    fn the_past_is_fine_and_a_mixture_is_not() {
        let model = committed_model();
        let at = |revision: i64| {
            let state = model.at_revision(revision).unwrap();
            Reply { revision, changed: false, records: state.records.values().cloned().collect() }
        };
        for revision in 1..=3 {
            assert_eq!(check_reply(at(revision)), Ok(()));
        }
        for wrong in [
            Reply { revision: 3, ..at(2) },
            Reply { revision: 1, ..at(2) },
            Reply { revision: 4, ..at(3) },
        ] {
            assert_eq!(check_reply(wrong).unwrap_err().rule, Rule::Serializable);
        }
    }
}
