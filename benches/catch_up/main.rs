//! How long a member needs to catch up after it has missed 200,000 entries, and the cost for the
//! other members.
//!
//! ```text
//! cargo bench --bench catch_up                       # five rounds, about three minutes
//! cargo bench --bench catch_up -- --test             # one round, with small numbers
//! CLEARLANE_THIRD_DIR=/dev/shm cargo bench ...       # another place for the third member's files
//! ```
//!
//! One of three members stops, misses 200,000 entries, and starts again after the log has removed
//! them.
//!
//! **Timed** are 2,000 open-loop puts of 256 B per second, from the due time to the response, by
//! phase (see [`measure`]). The return of the third member is also timed: the times until the raft
//! snapshot starts, until it is complete, until it replaces the store, and until the member has
//! caught up with the leader. **Not timed:** the 200,000 entries.
//!
//! The set-up is in `cluster.rs`. The results are medians over the rounds. They are printed, and
//! written to `target/catch_up/summary.json`.

#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

mod member;
mod cluster;
mod load;
mod report;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clearlane_benches::pace::burn;
use clearlane_replica::ReplicaConfig;
use tempfile::TempDir;

use crate::cluster::{Cluster, SnapshotTimes, ThirdMemberRun};
use crate::load::{Load, PHASE_TIMEOUT};
use crate::report::Report;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const HEALTHY: &str = "a healthy member goes on";
const ROUNDS: u64 = 5;

/// The size of each part of the bench.
struct BenchSize {
    /// Number of entries that the third member receives before it stops.
    initial_entries: u64,
    /// Number of entries that the third member misses.
    missed_entries: u64,
    snapshot_count: u64,
    catch_up_entries: u64,
    window: Duration,
}

const FULL: BenchSize = BenchSize {
    initial_entries: 1_000,
    missed_entries: 200_000,
    snapshot_count: 10_000,
    catch_up_entries: 5_000,
    window: Duration::from_secs(5),
};

const QUICK: BenchSize = BenchSize {
    initial_entries: 100,
    missed_entries: 2_000,
    snapshot_count: 500,
    catch_up_entries: 100,
    window: Duration::from_millis(50),
};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let is = |word: &str| arguments.iter().any(|argument| argument == word);
    if is("--list") {
        return;
    }
    let quick = is("--test");
    let (size, rounds) = if quick { (QUICK, 1) } else { (FULL, ROUNDS) };
    let mut report = Report::default();
    for round in 0..rounds {
        measure(&size, round, &mut report);
    }
    report.finish(quick);
}

/// Returns the directory for the third member's files.
fn third_directory() -> TempDir {
    match std::env::var_os("CLEARLANE_THIRD_DIR") {
        Some(parent) => TempDir::new_in(PathBuf::from(parent)),
        None => TempDir::new(),
    }
    .expect("there is a place for temporary files")
}

/// Runs one round. The following phases have the same open-loop puts:
///
/// * `before`: the third member is stopped.
/// * `start`: the third member starts, and opens its log and its old store.
/// * `during`: the third member receives a raft snapshot and the entries after it. The phase ends
///   when the third member has applied everything that the leader has applied.
/// * `after`: the third member has caught up, and follows the leader like the other follower.
/// * `spin`: like `after`, but additional threads keep the processors as busy as the snapshot's
///   thread and the third member kept them, for as long as `during` took. If puts are slower in
///   `during` than in `spin`, busy processors are not the cause of the difference.
///
/// The third member's log, which allocates 64 MB at its start, and the store that it receives are
/// on the same disk as the logs of the other members. So the members wait for each other's syncs,
/// unlike in a real cluster. A run with `CLEARLANE_THIRD_DIR` on another disk shows the size of
/// this effect.
fn measure(size: &BenchSize, round: u64, report: &mut Report) {
    let (directory, third) = (TempDir::new().expect(HEALTHY), third_directory());
    let BenchSize { snapshot_count, catch_up_entries, window, .. } = *size;
    let settings =
        ReplicaConfig { snapshot_count, catch_up_entries, ..ReplicaConfig::new(round, 1) };
    let mut cluster = Cluster::new(directory.path(), third.path(), settings);
    let mut load = Load::new(round);
    let left_at = let_third_fall_behind(size, &mut cluster, &mut load);

    load.phase("before", &mut cluster, |_, time| time >= window);
    let came = Instant::now();
    cluster.start_third();
    load.phase("start", &mut cluster, |cluster, _| cluster.third_has_started());
    load.phase("during", &mut cluster, |cluster, _| cluster.third_has_caught_up());
    load.phase("after", &mut cluster, |_, time| time >= window);
    let during = load.phases[2].time;
    let shares = cluster.processor_shares(during);
    with_burners(&shares, || load.phase("spin", &mut cluster, |_, time| time >= during));
    load.finish(&mut cluster);
    let (visit, copies) = cluster.stop_third();
    cluster.stop();
    let copy = check(&visit, &copies, left_at);
    report.add(&load.phases, came, &visit, copy);
}

/// Makes the third member miss entries that the log then removes. Returns the index that the third
/// member has applied.
fn let_third_fall_behind(size: &BenchSize, cluster: &mut Cluster, load: &mut Load) -> u64 {
    cluster.start_third();
    load.fill(cluster, size.initial_entries);
    wait(cluster, Cluster::third_has_caught_up_now);
    cluster.stop_third();
    let left_at = cluster.third_applied();
    load.fill(cluster, size.missed_entries);
    wait(cluster, |cluster| cluster.first_log_index() > left_at + 1);
    left_at
}

fn wait(cluster: &mut Cluster, is_so: impl Fn(&Cluster) -> bool) {
    let begin = Instant::now();
    while !is_so(cluster) {
        assert!(begin.elapsed() < PHASE_TIMEOUT, "it comes to pass");
        cluster.run_until(Instant::now() + Duration::from_millis(10));
    }
}

fn with_burners(shares: &[f64], work: impl FnOnce()) {
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for share in shares {
            threads.spawn(|| burn(*share, &over));
        }
        work();
        over.store(true, Ordering::Relaxed);
    });
}

/// Returns the times of the raft snapshot that replaced the store. Fails unless exactly one raft
/// snapshot was sent, and it includes entries that the third member had missed.
fn check<'c>(
    visit: &ThirdMemberRun,
    copies: &'c [SnapshotTimes],
    left_at: u64,
) -> &'c SnapshotTimes {
    let [copy] = copies else { panic!("one copy is enough, and there were {}", copies.len()) };
    assert_eq!(visit.installed.len(), 1, "the copy has replaced the store");
    assert!(copy.index > left_at, "the copy has what was missed");
    copy
}
