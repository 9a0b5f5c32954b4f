//! The accepted differences from etcd's recorded results, line by line, each with its reason.
//!
//! Some differences also occur if the requests are sent to etcd again, because they depend on
//! timing. The others are intended differences of Clearlane.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::recording::{Failure, Outcome};

struct AcceptedDifference {
    scenario: &'static str,
    step: u64,
    acceptance: Acceptance,
    #[allow(dead_code, reason = "for the reader")]
    reason: &'static str,
}

enum Acceptance {
    /// Clearlane only: the call fails with this code and message.
    Instead(&'static str, &'static str),
    /// Both servers: the call may also fail with this code and message.
    Also(&'static str, &'static str),
    /// Both servers: the elements of a list are the same, in any order.
    AnyOrder(&'static str),
    /// Clearlane only: each record of a range is returned once, sorted by value.
    OnceByValue,
    /// Both servers: consecutive responses of a watcher together equal one response of etcd.
    Joined,
    /// Both servers: these fields have any value, or none.
    AnyValue(&'static [&'static str]),
}
use Acceptance::{Also, AnyOrder, AnyValue, Instead, Joined, OnceByValue};

const BAD_URLS: Acceptance =
    Instead("InvalidArgument", "etcdserver: given member URLs are invalid");

const ACCEPTED: &[AcceptedDifference] = &[
    AcceptedDifference {
        scenario: "07-range-stream",
        step: 31,
        acceptance: OnceByValue,
        reason: "etcd sorts each chunk for itself, goes on behind its last key, and sends a key twice",
    },
    AcceptedDifference {
        scenario: "10-watch-fragment",
        step: 9,
        acceptance: Joined,
        reason: "history comes in responses that are not long; etcd sends 3 MB in one",
    },
    AcceptedDifference {
        scenario: "10-watch-fragment",
        step: 10,
        acceptance: Joined,
        reason: "history comes in responses that are not long; etcd makes a long one and cuts it",
    },
    AcceptedDifference {
        scenario: "12-lease",
        step: 60,
        acceptance: AnyOrder("leases"),
        reason: "after a restart, leases of one time to live expire together",
    },
    AcceptedDifference {
        scenario: "13-cluster",
        step: 8,
        acceptance: BAD_URLS,
        reason: "etcd takes a member without addresses, though it refuses to add one",
    },
    AcceptedDifference {
        scenario: "13-cluster",
        step: 9,
        acceptance: BAD_URLS,
        reason: "etcd takes an address that is none, though it refuses to add one",
    },
    AcceptedDifference {
        scenario: "13-cluster",
        step: 20,
        acceptance: Also("FailedPrecondition", "etcdserver: Peer URLs already exists"),
        reason: "the id is made from the URLs and the current second: it is another one if a second began since step 17",
    },
    AcceptedDifference {
        scenario: "13-cluster",
        step: 38,
        acceptance: AnyValue(&["raftIndex", "raftAppliedIndex"]),
        reason: "we refuse a change before it is in the log; etcd refuses some when they are applied",
    },
    AcceptedDifference {
        scenario: "14-learner",
        step: 11,
        acceptance: AnyValue(&["storageVersion"]),
        reason: "a learner that has just started learns it when it has caught up",
    },
    AcceptedDifference {
        scenario: "14-learner",
        step: 31,
        acceptance: Also("FailedPrecondition", "etcdserver: can only promote a learner member"),
        reason: "which check refuses it depends on how far the new voter was a moment ago",
    },
    AcceptedDifference {
        scenario: "14-learner",
        step: 40,
        acceptance: AnyValue(&["raftIndex", "raftAppliedIndex"]),
        reason: "the promotion of step 31 is in the log or not",
    },
    AcceptedDifference {
        scenario: "14-learner",
        step: 42,
        acceptance: AnyValue(&["raftIndex", "raftAppliedIndex", "storageVersion"]),
        reason: "the promotion of step 31 is in the log or not; a learner's file keeps its version",
    },
    AcceptedDifference {
        scenario: "15-maintenance",
        step: 78,
        acceptance: AnyValue(&["reason"]),
        reason: "two alarms are active, and one of them is named",
    },
    AcceptedDifference {
        scenario: "16-quota",
        step: 1,
        acceptance: AnyValue(&["dbSizeQuota"]),
        reason: "the quota is another one: what it counts has another size here",
    },
    AcceptedDifference {
        scenario: "25-gateway",
        step: 9,
        acceptance: AnyValue(&["message"]),
        reason: "how a decoder of JSON says what is wrong with it",
    },
    AcceptedDifference {
        scenario: "25-gateway",
        step: 13,
        acceptance: AnyValue(&["message"]),
        reason: "how a decoder of JSON says what is wrong with it",
    },
    AcceptedDifference {
        scenario: "28-auth-other",
        step: 117,
        acceptance: AnyValue(&["raftIndex", "raftAppliedIndex"]),
        reason: "users and roles are read, and some calls refused, without an entry in the log",
    },
    AcceptedDifference {
        scenario: "28-auth-other",
        step: 159,
        acceptance: AnyValue(&["raftIndex", "raftAppliedIndex"]),
        reason: "users and roles are read, and some calls refused, without an entry in the log",
    },
    AcceptedDifference {
        scenario: "28-auth-other",
        step: 201,
        acceptance: AnyValue(&["raftIndex", "raftAppliedIndex"]),
        reason: "users and roles are read, and some calls refused, without an entry in the log",
    },
    AcceptedDifference {
        scenario: "30-alarm-crash",
        step: 2,
        acceptance: Instead("InvalidArgument", "etcdserver: unknown alarm action"),
        reason: "etcd's process ends",
    },
];

fn find(scenario: &str, step: u64) -> Option<&'static Acceptance> {
    let here =
        |accepted: &&AcceptedDifference| accepted.scenario == scenario && accepted.step == step;
    ACCEPTED.iter().find(here).map(|accepted| &accepted.acceptance)
}

fn failure(code: &str, message: &str) -> Failure {
    Failure { code: code.to_owned(), message: message.to_owned() }
}

/// Returns the expected outcome of a step. It is etcd's outcome, unless a difference is accepted.
/// `is_ours` is true if Clearlane is tested.
pub(crate) fn expected(
    scenario: &str,
    step: u64,
    etcds: Outcome,
    answer: &Outcome,
    is_ours: bool,
) -> Outcome {
    match find(scenario, step) {
        Some(Instead(code, message)) if is_ours => Err(failure(code, message)),
        Some(OnceByValue) if is_ours => etcds.map(once_by_value),
        Some(Also(code, message)) if *answer == Err(failure(code, message)) => answer.clone(),
        _ => etcds,
    }
}

fn once_by_value(mut range: Value) -> Value {
    let records = range["kvs"].as_array_mut().unwrap();
    let value = |record: &Value| STANDARD.decode(record["value"].as_str().unwrap()).unwrap();
    // If etcd returns a key twice, both records are equal. The sort places them next to each other,
    // and `dedup` removes one of them.
    records.sort_by_key(|record| (value(record), record["key"].to_string()));
    records.dedup();
    range["count"] = Value::String(records.len().to_string());
    range
}

/// Returns whether consecutive responses of a watcher may be joined.
pub(crate) fn is_joined(scenario: &str, step: u64) -> bool {
    matches!(find(scenario, step), Some(Joined))
}

/// Removes an accepted difference from both replies, so that they can be compared: sorts the list
/// whose order may differ, or removes the fields that may differ.
pub(crate) fn level(scenario: &str, step: u64, etcds: &mut Value, ours: &mut Value) {
    match find(scenario, step) {
        Some(AnyOrder(field)) => {
            for reply in [etcds, ours] {
                let list = reply.get_mut(field).and_then(Value::as_array_mut);
                list.into_iter().for_each(|list| list.sort_by_key(Value::to_string));
            }
        }
        Some(AnyValue(fields)) => {
            for field in *fields {
                for reply in [&mut *etcds, &mut *ours] {
                    reply.as_object_mut().map(|fields| fields.remove(*field));
                }
            }
        }
        _ => {}
    }
}
