//! etcd's recorded answers, replayed against our server over real sockets.
//!
//! The recordings lie in `crates/proto/oracle`, with a page on their format. For each, a server
//! starts on an empty directory and gets the recorded requests: calls, streams, plain HTTP,
//! restarts. The client has no generated code: it finds methods by their path and makes messages by
//! the `.proto` files. Whole replies are compared, with the ids of cluster and member, which are
//! made of the same addresses; errors by code and text.
//!
//! Not compared literally: what [`compare::level`] lists (sizes of files, remaining seconds, lists
//! without an order); ids that a server chooses ([`names`]); how [`streams`] are cut, where that
//! means nothing; and what differs on purpose, which is in [`accepted`], line by line.
//!
//! An ignored test replays the recordings against etcd's own program: a difference there is a fault
//! of this test.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod accepted;
#[path = "../support/bytes_codec.rs"]
mod bytes_codec;
mod compare;
mod etcd;
mod http;
mod names;
mod recording;
mod replay;
mod served;
mod streams;
mod wire;

use clearlane_backend::Era;

use replay::Difference;
use served::ServerKind;

/// Number of differences that are printed; the first ones explain the others.
const PRINTED_DIFFERENCES_MAX: usize = 15;

fn run(scenario: &str, kind: ServerKind) -> Vec<Difference> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(replay::replay(scenario, kind))
}

fn told(differences: &[Difference]) -> String {
    let line =
        |difference: &Difference| format!("\n  step {}: {}", difference.step, difference.what);
    let lines: String = differences.iter().take(PRINTED_DIFFERENCES_MAX).map(line).collect();
    match differences.len() {
        count if count > PRINTED_DIFFERENCES_MAX => {
            format!("{lines}\n  and {} more", count - PRINTED_DIFFERENCES_MAX)
        }
        _ => lines,
    }
}

fn check(scenario: &str, era: Era) {
    let found = run(scenario, ServerKind::Clearlane(era));
    assert!(found.is_empty(), "{scenario} ({era}) differs:{}", told(&found));
}

macro_rules! scenarios {
    ($($name:ident $scenario:literal;)*) => {
        $(
            #[test]
            fn $name() {
                check($scenario, Era::Clearlane);
            }
        )*

        /// All of them.
        const SCENARIOS: &[&str] = &[$($scenario),*];
    };
}

scenarios! {
    range "01-range";
    range_ties "02-range-ties";
    put_delete "03-put-delete";
    txn_compare "04-txn-compare";
    txn_ops "05-txn-ops";
    compact "06-compact";
    range_stream "07-range-stream";
    watch "08-watch";
    watch_progress "09-watch-progress";
    watch_fragment "10-watch-fragment";
    watch_lease "11-watch-lease";
    lease "12-lease";
    cluster "13-cluster";
    learner "14-learner";
    maintenance "15-maintenance";
    quota "16-quota";
    hashkv_1 "17-hashkv-1";
    hashkv_2 "18-hashkv-2";
    hashkv_3 "19-hashkv-3";
    hashkv_4 "20-hashkv-4";
    hashkv_5 "21-hashkv-5";
    lock "23-lock";
    election "24-election";
    gateway "25-gateway";
    auth_off "26-auth-off";
    auth_kv "27-auth-kv";
    auth_other "28-auth-other";
    auth_expiry "29-auth-expiry";
    alarm_crash "30-alarm-crash";
    hashkv_7 "31-hashkv-7";
}

#[test]
fn every_recording_is_in_the_table() {
    let mut files: Vec<String> = std::fs::read_dir(recording::folder())
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".jsonl").map(str::to_owned))
        .collect();
    files.sort_unstable();
    assert_eq!(files, SCENARIOS);
}

/// What is read and written in other ways in each era.
#[test]
fn every_era_answers_alike() {
    for era in Era::DISTINCT_STORES {
        for scenario in ["02-range-ties", "06-compact", "08-watch", "17-hashkv-1"] {
            check(scenario, era);
        }
    }
}

/// The replay is right if it finds no difference at etcd itself. By hand:
///
/// ```text
/// CLEARLANE_ETCD=.../etcd cargo test -p clearlane --test oracle -- --ignored
/// ```
///
/// With `CLEARLANE_SCENARIO` only those with this in their names.
#[test]
#[ignore = "needs etcd, which `.ci/etcd-dump-logs` builds"]
fn etcd_agrees_with_itself() {
    let program = std::env::var_os("CLEARLANE_ETCD").expect("it must name etcd's program");
    let only = std::env::var("CLEARLANE_SCENARIO").unwrap_or_default();
    let mut differences = String::new();
    for scenario in SCENARIOS {
        // Its process ends there.
        if *scenario == "30-alarm-crash" || !scenario.contains(&only) {
            continue;
        }
        let found = run(scenario, ServerKind::Etcd(program.clone().into()));
        if !found.is_empty() {
            differences += &format!("\n{scenario}{}", told(&found));
        }
    }
    assert!(differences.is_empty(), "{differences}");
}
