//! A serializable read may be old, but what it shows was true once: all of it, at one revision.
//!
//! A member answers it from what it has, without asking anybody, also when it was cut off an hour
//! ago. It must still be a *prefix* of what was committed: the state at the revision that the reply
//! names, and not a mixture, and nothing that was never committed.

use super::ledger::Ledger;
use super::{Rule, Violation};
use crate::history::Operation;

/// Compares all serializable reads with what was committed.
pub fn check(operations: &[Operation], ledger: &Ledger) -> Result<(), Violation> {
    for (number, operation) in operations.iter().enumerate() {
        let Some(reply) = operation.reply() else { continue };
        if !operation.request.is_serializable() {
            continue;
        }
        let state = ledger.at_revision(reply.revision);
        let expected = state.map(|state| state.reply(&operation.request));
        if expected.as_ref() != Some(reply) {
            let seen = format!("#{number} {operation:?}; at that revision: {expected:?}");
            return Err(Violation::new(Rule::Serializable, seen));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::ledger::tests::ledger;
    use super::*;
    use crate::history::{History, Outcome, Reply, Request};

    fn told(reply: Reply) -> Result<(), Violation> {
        let mut history = History::default();
        let number = history.invoke(0, 1, 1, Request::Read { key: None, serializable: true });
        history.end(1, number, Outcome::Done(reply));
        check(history.operations(), &ledger())
    }

    #[test]
    fn the_past_is_fine_and_a_mixture_is_not() {
        let ledger = ledger();
        let at = |revision: i64| {
            let state = ledger.at_revision(revision).unwrap();
            Reply { revision, changed: false, records: state.records.values().cloned().collect() }
        };
        for revision in 1..=3 {
            assert_eq!(told(at(revision)), Ok(()));
        }
        for wrong in [
            Reply { revision: 3, ..at(2) },
            Reply { revision: 1, ..at(2) },
            Reply { revision: 4, ..at(3) },
        ] {
            assert_eq!(told(wrong).unwrap_err().rule, Rule::Serializable);
        }
    }
}
