//! Compares our responses with etcd's: recorded calls are replayed, and each call must get the
//! response that etcd gave.
//!
//! ```text
//!   recording ─ request ─▶ check ─▶ entry, encoded and decoded ─▶ apply ─▶ our response ──┐
//!                  └─────▶ check ─▶ range or read-only txn, on a snapshot ─▶ our response ┤
//!             ─ response, without fields that only a complete member knows ───────────────┴▶ equal
//! ```
//!
//! The recordings are in `crates/proto/oracle`, with a page on their format. This test replays the
//! recordings that need only the key space, and a few leases. It compares responses as protobuf's
//! JSON, with field names from our descriptors. Three things are not compared literally: the order
//! of ties in a sort of more than twelve records (see `ties`), the code of an error (its text is
//! compared), and the remaining seconds of a lease, because there is no clock here.

mod member;
mod recording;
mod ties;

use clearlane_backend::Era;
use member::ReplayMember;
use recording::StepAction;

/// Each scenario with its number of calls.
const SCENARIOS: [(&str, usize); 6] = [
    ("01-range", 100),
    ("02-range-ties", 15),
    ("03-put-delete", 56),
    ("04-txn-compare", 110),
    ("05-txn-ops", 61),
    ("06-compact", 37),
];

/// Replays a scenario in an era, and compares each response. Returns the number of calls.
fn replay(scenario: &str, era: Era) -> usize {
    let pool = recording::pool();
    let mut member = ReplayMember::new(era);
    let mut calls = 0;
    for step in recording::read(scenario) {
        let place = format!("{era}: {scenario}, step {}", step.number);
        match step.action {
            StepAction::Call { method, request, outcome } => {
                calls += 1;
                let call = recording::method(&pool, &method);
                let ours = member.call(&call, &request, &place);
                ties::assert_same(&member, &method, &request, ours, outcome, &place);
            }
            StepAction::Restart => member.restart(),
        }
        member.assert_progress(&place);
    }
    calls
}

#[test]
fn every_era_answers_what_etcd_answered() {
    for (scenario, calls) in SCENARIOS {
        for era in Era::DISTINCT_STORES {
            assert_eq!(replay(scenario, era), calls, "{scenario}: the recording is whole");
        }
    }
}
