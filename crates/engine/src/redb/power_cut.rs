//! Power cuts: thousands of seeds on a [simulated disk](super::simulated_disk).
//!
//! Each seed commits its workload, loses power at some write or sync, loses what the disk had not
//! synced, opens what is left, and compares it with the model: every commit that returned is
//! there, the one under way is there as a whole or not at all, and the size in use is right. Half
//! of the seeds lose power a second time, during the recovery from the first.
//!
//! That the test can fail is a test too: on a disk that lies about every sync, or about one in
//! eight, seeds must lose data.
//!
//! One seed again: `CLEARLANE_SEED=17 CLEARLANE_SEEDS=1 cargo test -p clearlane-engine power_cut`.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::RedbStore;
use super::simulated_disk::SimulatedDisk;
use crate::durable::DurableStore;
use crate::options::Options;
use crate::suite_support::{apply_all, changes_of, commit_number, model_after, seed_or};
use crate::writer_lock::WriterLock;
use crate::{Error, Result};

const SEEDS: u64 = 2_000;
/// How many seeds a lying disk may take to be caught.
const LIES_MAX: u64 = 100;
const COMMITS_MAX: u64 = 12;

/// Even seeds save the allocator with every commit, odd ones do not.
fn options(seed: u64) -> Options {
    Options { cache_bytes: 1 << 20, quick_repair: seed.is_multiple_of(2), ..Options::default() }
}

/// Made once: it is the same for every seed.
fn new_store() -> Vec<u8> {
    static MADE: OnceLock<Vec<u8>> = OnceLock::new();
    let make = || {
        let disk = SimulatedDisk::with_contents(Vec::new());
        RedbStore::create_on(disk.clone(), Path::new("disk"), &options(0)).unwrap();
        disk.contents()
    };
    MADE.get_or_init(make).clone()
}

fn open(disk: &SimulatedDisk, seed: u64) -> Result<Arc<RedbStore>> {
    RedbStore::open_on(disk.clone(), Path::new("disk"), &options(seed)).map(Arc::new)
}

/// Returns the last commit that was acknowledged.
fn commit_until_the_power_fails(store: &Arc<RedbStore>, seed: u64) -> u64 {
    let lock = Arc::new(WriterLock::default());
    let mut acknowledged = commit_number(&*store.snapshot().unwrap());
    let last = acknowledged + COMMITS_MAX;
    while acknowledged < last {
        match commit(store, &lock, seed, acknowledged + 1) {
            Ok(()) => acknowledged += 1,
            Err(_) => {
                let refused = lock.acquire().map(drop);
                assert!(matches!(refused, Ok(()) | Err(Error::Failed)));
                break;
            }
        }
    }
    acknowledged
}

fn commit(store: &Arc<RedbStore>, lock: &Arc<WriterLock>, seed: u64, number: u64) -> Result<()> {
    let mut txn = store.begin_write(lock.acquire()?)?;
    apply_all(&changes_of(seed, number), &mut *txn)?;
    txn.commit()
}

fn run(seed: u64, disk: SimulatedDisk) -> std::result::Result<(), String> {
    let mut rng = StdRng::seed_from_u64(seed);
    let store = open(&disk, seed).map_err(|error| error.to_string())?;
    disk.fail_after(rng.random_range(0..120));
    let acknowledged = commit_until_the_power_fails(&store, seed);
    drop(store);
    let mut found = disk.after_power_cut(&mut rng);
    if rng.random_ratio(1, 2) {
        // Again, while the store recovers from the first cut, or in the commits after it.
        let disk = SimulatedDisk::with_contents(found);
        disk.fail_after(rng.random_range(0..12));
        drop(open(&disk, seed));
        found = disk.after_power_cut(&mut rng);
    }
    check(found, seed, acknowledged)
}

fn check(found: Vec<u8>, seed: u64, acknowledged: u64) -> std::result::Result<(), String> {
    let store =
        open(&SimulatedDisk::with_contents(found), seed).map_err(|error| error.to_string())?;
    let snapshot = store.snapshot().map_err(|error| error.to_string())?;
    let commits = commit_number(&*snapshot);
    if commits != acknowledged && commits != acknowledged + 1 {
        return Err(format!("{acknowledged} acknowledged, {commits} there"));
    }
    let model = model_after(seed, commits);
    model.assert_same(&*snapshot, &format!("seed {seed}"));
    if store.size_in_use() == model.size() {
        Ok(())
    } else {
        Err(format!("size in use {}, not {}", store.size_in_use(), model.size()))
    }
}

/// Of one parity, so that two cores share the seeds.
fn run_seeds(quick_repair: bool) {
    let first = seed_or("CLEARLANE_SEED", 1);
    let seeds = first..first + seed_or("CLEARLANE_SEEDS", SEEDS);
    for seed in seeds.filter(|seed| options(*seed).quick_repair == quick_repair) {
        if let Err(lost) = run(seed, SimulatedDisk::with_contents(new_store())) {
            panic!("seed {seed}: {lost}");
        }
    }
}

#[test]
fn power_cuts_lose_nothing_that_was_acknowledged() {
    run_seeds(false);
}

#[test]
fn power_cuts_lose_nothing_with_quick_repair() {
    run_seeds(true);
}

/// Finds the first seed that catches a disk that lies about one of `every` syncs.
fn catch_a_lying_disk(every: u64) {
    let caught = (1..=LIES_MAX).find(|seed| {
        let disk = SimulatedDisk::with_contents(new_store()).lying(every);
        // What is found may be so mixed that comparing it panics: caught as well.
        !matches!(crate::catch_panic::catch_panic(|| run(*seed, disk)), Ok(Ok(())))
    });
    let seed = caught.expect("a missing sync went unnoticed");
    println!("a disk that lies about one of {every} syncs is caught by seed {seed}");
}

#[test]
fn a_disk_that_never_syncs_is_caught() {
    catch_a_lying_disk(1);
}

#[test]
fn a_disk_that_sometimes_does_not_sync_is_caught() {
    catch_a_lying_disk(8);
}

#[test]
fn a_store_whose_commit_failed_takes_no_more_writes() {
    let disk = SimulatedDisk::with_contents(new_store());
    let store = open(&disk, 1).unwrap();
    let lock = Arc::new(WriterLock::default());
    commit(&store, &lock, 1, 1).unwrap();
    let before = store.snapshot().unwrap();
    disk.fail_after(0);
    assert!(matches!(commit(&store, &lock, 1, 2), Err(Error::Storage(_))));
    assert!(matches!(lock.acquire(), Err(Error::Failed)));
    model_after(1, 1).assert_same(&*before, "what was open before the failure");
}
