//! etcd's recorded answers, replayed against our server over real sockets.
//!
//! # What is done
//!
//! The recordings lie in `crates/proto/oracle`, with a page on their format. For each, a server
//! starts on an empty directory, and whatever was asked of etcd is asked of it: calls, streams,
//! plain HTTP, restarts.
//!
//! ```text
//!   recording ─ request ─▶ JSON → bytes ─▶ socket ─▶ our server
//!             ─ reply ──▶ equal? ◀─ JSON ◀─ bytes ◀─ socket ◀─┘
//! ```
//!
//! The client has no generated code in it: it finds methods by their path, and makes messages by
//! what the `.proto` files say. Whole replies are compared, headers with the ids of cluster and
//! member included, which are etcd's because they are made of the same addresses. Errors are
//! compared by code and by words, to the letter.
//!
//! # What is not compared literally
//!
//! [`compare::level`] says what: sizes of files, remaining seconds, lists that have no order.
//! [`names`] are ids that a server chooses. [`streams`] are put together where their cuts mean
//! nothing. And what we do in another way on purpose is in [`accepted`], line by line.
//!
//! # The table
//!
//! Each recording has a line below. One that waits for something must not pass as a whole, so that
//! the table tells the truth.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod accepted;
mod compare;
mod etcd;
mod http;
mod names;
mod recording;
mod replay;
mod served;
mod streams;
mod wire;

use clearlane_backend::Design;

use replay::Difference;
use served::Whose;

/// What is known of a scenario.
enum Known {
    /// Our answers are etcd's.
    Passes,
    /// They cannot be before this is there.
    WaitsFor(&'static str),
}
use Known::{Passes, WaitsFor};

/// Runs a scenario to its end, or until something differs.
fn run(scenario: &str, whose: Whose, to_the_end: bool) -> Vec<Difference> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(replay::replay(scenario, whose, to_the_end))
}

/// So many differences are told; the first ones explain the others.
const TOLD_MAX: usize = 15;

fn told(differences: &[Difference]) -> String {
    let line =
        |difference: &Difference| format!("\n  step {}: {}", difference.step, difference.what);
    let lines: String = differences.iter().take(TOLD_MAX).map(line).collect();
    match differences.len() {
        count if count > TOLD_MAX => format!("{lines}\n  and {} more", count - TOLD_MAX),
        _ => lines,
    }
}

fn check(scenario: &str, known: &Known, design: Design) {
    match known {
        Passes => {
            let found = run(scenario, Whose::Ours(design), true);
            assert!(found.is_empty(), "{scenario} ({design}) differs:{}", told(&found));
        }
        WaitsFor(what) => {
            let found = run(scenario, Whose::Ours(design), false);
            assert!(!found.is_empty(), "{scenario} passes: it does not wait for {what}");
        }
    }
}

macro_rules! scenarios {
    ($($name:ident $scenario:literal $known:expr;)*) => {
        $(
            #[test]
            fn $name() {
                check($scenario, &$known, Design::SnapshotReadTx);
            }
        )*

        /// All of them.
        const SCENARIOS: &[(&str, Known)] = &[$(($scenario, $known)),*];
    };
}

scenarios! {
    range "01-range" Passes;
    range_ties "02-range-ties" Passes;
    put_delete "03-put-delete" Passes;
    txn_compare "04-txn-compare" Passes;
    txn_ops "05-txn-ops" Passes;
    compact "06-compact" Passes;
    range_stream "07-range-stream" Passes;
    watch "08-watch" Passes;
    watch_progress "09-watch-progress" Passes;
    watch_fragment "10-watch-fragment" Passes;
    watch_lease "11-watch-lease" Passes;
    lease "12-lease" Passes;
    cluster "13-cluster" Passes;
    learner "14-learner" WaitsFor("auth");
    maintenance "15-maintenance" WaitsFor("auth");
    quota "16-quota" Passes;
    hashkv_1 "17-hashkv-1" Passes;
    hashkv_2 "18-hashkv-2" Passes;
    hashkv_3 "19-hashkv-3" Passes;
    hashkv_4 "20-hashkv-4" Passes;
    hashkv_5 "21-hashkv-5" Passes;
    lock "23-lock" Passes;
    election "24-election" Passes;
    gateway "25-gateway" WaitsFor("auth");
    auth_off "26-auth-off" WaitsFor("auth");
    alarm_crash "30-alarm-crash" Passes;
    hashkv_7 "31-hashkv-7" Passes;
}

#[test]
fn every_recording_is_in_the_table() {
    let mut files: Vec<String> = std::fs::read_dir(recording::folder())
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".jsonl").map(str::to_owned))
        .collect();
    files.sort_unstable();
    let table: Vec<&str> = SCENARIOS.iter().map(|(scenario, _)| *scenario).collect();
    assert_eq!(files, table);
}

/// What is read and written in other ways in each era.
#[test]
fn every_era_answers_alike() {
    for design in Design::ALL {
        for (scenario, known) in SCENARIOS {
            if ["02-range-ties", "06-compact"].contains(scenario) {
                check(scenario, known, design);
            }
        }
    }
}

/// The replay may judge others if it finds no fault with etcd. By hand:
///
/// ```text
/// CLEARLANE_ETCD=.../etcd cargo test -p clearlane-server --test oracle -- --ignored
/// ```
///
/// With `CLEARLANE_SCENARIO` only those with this in their names.
#[test]
#[ignore = "needs etcd, which `.ci/etcd-dump-logs` builds"]
fn etcd_agrees_with_itself() {
    let program = std::env::var_os("CLEARLANE_ETCD").expect("it must name etcd's program");
    let only = std::env::var("CLEARLANE_SCENARIO").unwrap_or_default();
    let mut differences = String::new();
    for (scenario, _) in SCENARIOS {
        // Its process ends there.
        if *scenario == "30-alarm-crash" || !scenario.contains(&only) {
            continue;
        }
        let found = run(scenario, Whose::Etcds(program.clone().into()), true);
        if !found.is_empty() {
            differences += &format!("\n{scenario}{}", told(&found));
        }
    }
    assert!(differences.is_empty(), "{differences}");
}
