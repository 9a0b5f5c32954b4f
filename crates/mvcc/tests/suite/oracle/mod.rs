//! Compares the store with etcd itself: recorded requests are replayed, and each reply must be
//! equal to etcd's reply.
//!
//! The recordings are in `crates/proto/oracle`, with a page that describes their format. Only the
//! recordings of `HashKV` are replayed here, because a hash depends on every byte of every record.
//!
//! ```text
//!   recording  ─ request ─▶  member: store, leases  ─▶ our reply ─┐
//!              ─ reply, without the member's own fields ──────────┴▶ equal, field by field
//! ```
//!
//! The member's own fields are the cluster ID, the member ID and the raft term, which a store does
//! not know. No other field of a reply is skipped. The test fails if its member does not know a
//! method, an action or a field of a request. It also fails if only one of the two replies has a
//! field.

mod member;
mod recording;

use std::path::Path;

use clearlane_backend::Era;
use member::Member;
use recording::{Action, Step};

const SCENARIOS: [&str; 6] =
    ["17-hashkv-1", "18-hashkv-2", "19-hashkv-3", "20-hashkv-4", "21-hashkv-5", "31-hashkv-7"];

/// Replays a scenario on a store of an era. A step of a job handles at most `budget` keys or
/// records. Returns the number of calls and of restarts.
fn replay(scenario: &str, era: Era, budget: usize) -> (usize, usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto/oracle");
    let steps = recording::read(&folder.join(format!("{scenario}.jsonl")));
    let mut member = Member::new(era, budget);
    let (mut calls, mut restarts) = (0, 0);
    for Step { number, action: taken } in steps {
        match taken {
            Action::Call { method, request, outcome } => {
                calls += 1;
                let ours = member.call(&method, request);
                let position = || format!("{era}: {scenario}, step {number}, budget {budget}");
                assert_eq!(ours, outcome, "{}: {method}", position());
            }
            Action::Restart => {
                restarts += 1;
                member.restart();
            }
        }
    }
    (calls, restarts)
}

#[test]
fn every_store_answers_what_etcd_answered() {
    for scenario in SCENARIOS {
        let budgets = [1, 3, 1000].map(|budget| (Era::Clearlane, budget));
        let eras = Era::DISTINCT_STORES.map(|era| (era, 1000));
        for (era, budget) in budgets.into_iter().chain(eras) {
            let (calls, restarts) = replay(scenario, era, budget);
            assert!(calls >= 60 && restarts >= 1, "{scenario}: the recording is whole");
        }
    }
}
