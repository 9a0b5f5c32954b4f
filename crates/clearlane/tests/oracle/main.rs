//! Replays etcd's recorded calls against Clearlane over real sockets, and compares the results.
//!
//! The recordings are in `crates/proto/oracle`, with a page about their format. For each recording,
//! a server starts with an empty directory and receives the recorded requests: calls, streams,
//! plain HTTP, and restarts. The client uses no generated code. It finds methods by their path and
//! builds messages with the `.proto` files. Replies are compared as a whole, including the ids of
//! cluster and member, which are derived from the same addresses. Errors are compared by code and
//! text.
//!
//! Some parts are not compared literally: the parts that [`compare::level`] lists (sizes of files,
//! remaining seconds, lists without an order), ids that a server chooses ([`names`]), the division
//! of [`streams`] into messages if it has no meaning, and intended differences, which [`accepted`]
//! lists one by one.
//!
//! An ignored test replays the recordings against etcd's own program. Any difference in that run is
//! a bug in this test.

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

/// Maximum number of differences that are printed. The first ones explain the others.
const PRINTED_DIFFERENCES_MAX: usize = 15;

fn run(scenario: &str, kind: ServerKind) -> Vec<Difference> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(replay::replay(scenario, kind))
}

fn listed(differences: &[Difference]) -> String {
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
    assert!(found.is_empty(), "{scenario} ({era}) differs:{}", listed(&found));
}

macro_rules! scenarios {
    ($($name:ident $scenario:literal;)*) => {
        $(
            #[test]
            fn $name() {
                check($scenario, Era::Clearlane);
            }
        )*

        /// The names of all recordings.
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

/// Replays the recordings with requests that the eras process in different ways: sorted ranges,
/// compactions, watchers and hashes. The results must equal etcd's in every era.
#[test]
fn every_era_answers_alike() {
    for era in Era::DISTINCT_STORES {
        for scenario in ["02-range-ties", "06-compact", "08-watch", "17-hashkv-1"] {
            check(scenario, era);
        }
    }
}

/// Checks the replay, which must find no difference for etcd itself. This test is run by hand:
///
/// ```text
/// CLEARLANE_ETCD=.../etcd cargo test -p clearlane --test oracle -- --ignored
/// ```
///
/// `CLEARLANE_SCENARIO` restricts the test to recordings whose names contain its value.
#[test]
#[ignore = "needs etcd, which `tests/compat/dump-logs/run` builds"]
fn etcd_agrees_with_itself() {
    let program = std::env::var_os("CLEARLANE_ETCD").expect("it must name etcd's program");
    let only = std::env::var("CLEARLANE_SCENARIO").unwrap_or_default();
    let mut differences = String::new();
    for scenario in SCENARIOS {
        // This recording ends etcd's process, so it cannot be replayed against etcd.
        if *scenario == "30-alarm-crash" || !scenario.contains(&only) {
            continue;
        }
        let found = run(scenario, ServerKind::Etcd(program.clone().into()));
        if !found.is_empty() {
            differences += &format!("\n{scenario}{}", listed(&found));
        }
    }
    assert!(differences.is_empty(), "{differences}");
}
