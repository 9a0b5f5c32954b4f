//! Where ours is not etcd's, and stays so. Each with its reason.

use serde_json::Value;

use crate::recording::{Failure, Outcome};

/// An answer that is ours.
struct Accepted {
    scenario: &'static str,
    step: u64,
    ours: Ours,
    /// Why this is better than, or as good as, what etcd does.
    #[allow(dead_code, reason = "for the reader")]
    reason: &'static str,
}

/// What we do instead.
enum Ours {
    /// Refuse it, with such a code and such words.
    Error(&'static str, &'static str),
    /// The elements of a list are the same; their order is not defined.
    AnyOrder(&'static str),
}

const ACCEPTED: [Accepted; 2] = [
    Accepted {
        scenario: "12-lease",
        step: 60,
        ours: Ours::AnyOrder("leases"),
        reason: "after a restart, leases of one time to live expire together",
    },
    Accepted {
        scenario: "30-alarm-crash",
        step: 2,
        ours: Ours::Error("Unknown", "etcdserver: unknown method"),
        reason: "etcd's process ends",
    },
];

fn find(scenario: &str, step: u64) -> Option<&'static Accepted> {
    ACCEPTED.iter().find(|accepted| accepted.scenario == scenario && accepted.step == step)
}

/// What is expected of us in a step.
pub(crate) fn instead(scenario: &str, step: u64, etcds: Outcome) -> Outcome {
    match find(scenario, step).map(|accepted| &accepted.ours) {
        Some(Ours::Error(code, message)) => {
            let ours = Failure { code: (*code).to_owned(), message: (*message).to_owned() };
            assert_ne!(etcds.as_ref().err(), Some(&ours), "{scenario}, step {step} is etcd's");
            Err(ours)
        }
        _ => etcds,
    }
}

/// Takes away what need not be equal.
pub(crate) fn level(scenario: &str, step: u64, etcds: &mut Value, ours: &mut Value) {
    if let Some(Ours::AnyOrder(field)) = find(scenario, step).map(|accepted| &accepted.ours) {
        for reply in [etcds, ours] {
            let list = reply.get_mut(field).and_then(Value::as_array_mut);
            list.into_iter().for_each(|list| list.sort_by_key(Value::to_string));
        }
    }
}
