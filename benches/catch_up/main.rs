//! How long a member takes that missed 200,000 entries, and what the others feel of it.
//!
//! `cargo bench --bench catch_up` runs three rounds, two minutes; `-- --test` one small round. With
//! `CLEARLANE_THIRD_DIR=/dev/shm` the third member's files are elsewhere: by default all three
//! members share a disk, and wait for one another's syncs. Three members in one process, with
//! etcd's defaults; 2,000 puts of 256 B per second come to the leader, at random. The phases:
//! `before` (the third is away), `start` (it opens its files), `during` (it gets a copy and the
//! entries behind it), `after`, and `spin` (as `after`, with cores as busy as in `during`).
//!
//! **Timed:** puts, from when they are due to their answers; and the third, from its return until
//! the copy was begun, was whole, was its store, and until it was level with the leader. **Kept
//! out:** the 200,000 entries. Medians are in `target/catch_up/summary.json`. Fails unless there is
//! one copy.

#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

mod member;
mod cluster;
mod load;
mod report;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clearlane_benches::pace::burn;
use clearlane_server::replica::ReplicaConfig;
use tempfile::TempDir;

use crate::cluster::{Cluster, SnapshotTimes, ThirdMemberRun};
use crate::load::{Load, PHASE_TIMEOUT};
use crate::report::Report;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const HEALTHY: &str = "a healthy member goes on";
const ROUNDS: u64 = 3;

/// How much of everything.
struct BenchSize {
    /// Entries that the third has seen.
    initial_entries: u64,
    /// Entries that it misses.
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

/// Where the third member lies.
fn third_directory() -> TempDir {
    match std::env::var_os("CLEARLANE_THIRD_DIR") {
        Some(parent) => TempDir::new_in(PathBuf::from(parent)),
        None => TempDir::new(),
    }
    .expect("there is a place for temporary files")
}

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

/// Makes the third miss what the log then forgets. Returns what it has applied.
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

/// That it was what the bench is about.
fn check<'c>(
    visit: &ThirdMemberRun,
    copies: &'c [SnapshotTimes],
    left_at: u64,
) -> &'c SnapshotTimes {
    let [copy] = copies else { panic!("one copy is enough, and there were {}", copies.len()) };
    assert_eq!(visit.installed.len(), 1, "the copy took the store's place");
    assert!(copy.index > left_at, "the copy has what was missed");
    copy
}
