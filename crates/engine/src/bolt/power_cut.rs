//! Power cuts on a [simulated disk](super::simulated_disk): at a random write or sync for each of
//! 2,000 seeds, and at every write and sync for one seed.
//!
//! For each seed, a test commits the seed's workload until the power fails at some write or sync.
//! Then everything that the disk had not synced may be lost. The test opens the remaining contents
//! and compares them with the model: every commit that returned must be present, and the commit in
//! progress must be present completely or not at all. For about half of the seeds, the power fails
//! a second time. Snapshots are open during the commits, so that pages have to wait before they are
//! free.
//!
//! Two more tests show that these tests can fail: on a disk that lies about all or some syncs, at
//! least one seed must lose data.
//!
//! Run one seed again:
//! `CLEARLANE_SEED=17 CLEARLANE_SEEDS=1 cargo test -p clearlane-engine power_cut`. Cut at every
//! write and sync of more commits: `CLEARLANE_COMMITS=2000`.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::BoltStore;
use super::simulated_disk::{DiskOperation, SimulatedDisk};
use super::simulated_file::{create, open, open_image};
use crate::durable::DurableStore;
use crate::suite_support::{Model, apply_all, changes_of, commit_number, model_after, seed_or};
use crate::writer_lock::WriterLock;
use crate::{Error, Result, Snapshot};

const SEEDS: u64 = 2_000;
/// Maximum number of seeds that are tried on a disk that lies about syncs. At least one seed must
/// detect such a disk.
const LIES_MAX: u64 = 100;
const COMMITS_MAX: u64 = 12;
/// Number of commits during which the power is cut at every operation. Each cut is repeated with
/// four random outcomes.
const COMMITS_CUT_EVERYWHERE: u64 = 40;

/// Returns a disk with a new store. The store is created once, because it is the same for every
/// seed.
fn new_store() -> SimulatedDisk {
    static MADE: OnceLock<Vec<u8>> = OnceLock::new();
    let make = || {
        let disk = SimulatedDisk::with_contents(Vec::new());
        create(&disk).unwrap();
        disk.contents()
    };
    SimulatedDisk::with_contents(MADE.get_or_init(make).clone())
}

/// Commits until the power fails, or until `commits` commits are done. Returns the number of the
/// last acknowledged commit.
fn commit_until_the_power_fails(store: &Arc<BoltStore>, seed: u64, commits: u64) -> u64 {
    let lock = Arc::new(WriterLock::default());
    let mut acknowledged = commit_number(&*store.snapshot().unwrap());
    let last = acknowledged + commits;
    let mut readers: VecDeque<Arc<dyn Snapshot>> = VecDeque::new();
    while acknowledged < last {
        if commit(store, &lock, seed, acknowledged + 1).is_err() {
            assert!(matches!(lock.acquire(), Err(Error::Failed)));
            break;
        }
        acknowledged += 1;
        readers.push_back(store.snapshot().unwrap());
        if readers.len() > 3 {
            readers.pop_front();
        }
    }
    acknowledged
}

fn commit(store: &Arc<BoltStore>, lock: &Arc<WriterLock>, seed: u64, number: u64) -> Result<()> {
    let mut txn = store.begin_write(lock.acquire()?)?;
    apply_all(&changes_of(seed, number), &mut *txn)?;
    txn.commit()
}

fn run(seed: u64, disk: SimulatedDisk) -> std::result::Result<(), String> {
    let mut rng = StdRng::seed_from_u64(seed);
    let store = open(&disk).map_err(|error| error.to_string())?;
    disk.fail_after(rng.random_range(0..60));
    let acknowledged = commit_until_the_power_fails(&store, seed, COMMITS_MAX);
    drop(store);
    let found = disk.after_power_cut(&mut rng);
    if rng.random_ratio(1, 2) {
        // The power fails again, at the latest after two further commits. The first of these
        // commits repeats the commit that was in progress at the first cut, if that commit was
        // lost.
        let disk = SimulatedDisk::with_contents(found);
        let store = open(&disk).map_err(|error| error.to_string())?;
        disk.fail_after(rng.random_range(0..12));
        let there = commit_until_the_power_fails(&store, seed, 2);
        return check(disk.after_power_cut(&mut rng), seed, there.max(acknowledged));
    }
    check(found, seed, acknowledged)
}

fn check(found: Vec<u8>, seed: u64, acknowledged: u64) -> std::result::Result<(), String> {
    check_with(found, acknowledged, &|commits| model_after(seed, commits))
}

/// Opens the contents `found` after a power cut. Fails unless the store has all acknowledged
/// commits, at most one more, and the right records. `model` returns the expected records after a
/// number of commits.
fn check_with(
    found: Vec<u8>,
    acknowledged: u64,
    model: &dyn Fn(u64) -> Model,
) -> std::result::Result<(), String> {
    let store = open_image(found).map_err(|error| error.to_string())?;
    let snapshot = store.snapshot().map_err(|error| error.to_string())?;
    let commits = commit_number(&*snapshot);
    if commits != acknowledged && commits != acknowledged + 1 {
        return Err(format!("{acknowledged} acknowledged, {commits} there"));
    }
    let model = model(commits);
    model.assert_same(&*snapshot, &format!("commit {commits}"));
    if store.size_in_use() != model.size() {
        return Err(format!("size in use {}, not {}", store.size_in_use(), model.size()));
    }
    // A cut may lose some sectors of a meta page, but it damages no sector. So no note may report
    // damage.
    match store.opening_notes().iter().find(|note| note.text().contains("damaged")) {
        Some(note) => Err(note.text().to_owned()),
        None => Ok(()),
    }
}

#[test]
fn power_cuts_lose_nothing_that_was_acknowledged() {
    let first = seed_or("CLEARLANE_SEED", 1);
    for seed in first..first + seed_or("CLEARLANE_SEEDS", SEEDS) {
        if let Err(lost) = run(seed, new_store()) {
            panic!("seed {seed}: {lost}");
        }
    }
}

/// Repeats every operation of the disk on a second disk, which loses power at each operation.
#[test]
fn a_power_cut_at_any_write_or_sync_loses_nothing() {
    let commits = seed_or("CLEARLANE_COMMITS", COMMITS_CUT_EVERYWHERE);
    let seed = seed_or("CLEARLANE_SEED", 5);
    let (disk, cut) = (new_store(), new_store());
    disk.record();
    let store = open(&disk).unwrap();
    let lock = Arc::new(WriterLock::default());
    let mut rng = StdRng::seed_from_u64(seed);
    let mut readers: VecDeque<Arc<dyn Snapshot>> = VecDeque::new();
    let mut after = Model::default();
    let mut cuts = 0;
    for number in 1..=commits {
        let before = after.clone();
        changes_of(seed, number).iter().for_each(|change| after.apply(change));
        commit(&store, &lock, seed, number).unwrap();
        readers.push_back(store.snapshot().unwrap());
        if readers.len() > 3 {
            readers.pop_front();
        }
        let model = |commits| if commits < number { before.clone() } else { after.clone() };
        for operation in disk.take_recorded() {
            let is_sync = matches!(operation, DiskOperation::Sync);
            // If the power fails during a write, the write may be partly lost. If the power fails
            // during a sync, the sync has done nothing. So a write is repeated before the cut, and
            // a sync after it.
            let sync = match is_sync {
                true => Some(operation),
                false => {
                    cut.repeat(operation).unwrap();
                    None
                }
            };
            for order in 0..4 {
                cuts += 1;
                let found = cut.after_power_cut(&mut rng);
                if let Err(lost) = check_with(found, number - 1, &model) {
                    panic!("seed {seed}, commit {number}, cut {cuts}, order {order}: {lost}");
                }
            }
            sync.into_iter().for_each(|sync| cut.repeat(sync).unwrap());
        }
        assert!(cut.contents() == disk.contents(), "the second disk is another one");
    }
    assert!(cuts > 16 * commits, "{cuts} cuts in {commits} commits");
}

/// After a kill, the next process may read bytes that are not on the disk yet. Opening the store
/// must sync these bytes, because new commits are built on them.
#[test]
fn a_kill_and_then_a_power_cut_lose_nothing() {
    const COMMITS: u64 = 6;
    let mut states = 0;
    for operations in 0.. {
        let disk = new_store();
        let store = open(&disk).unwrap();
        disk.fail_after(operations);
        let acknowledged = commit_until_the_power_fails(&store, 5, COMMITS);
        if acknowledged == COMMITS {
            break;
        }
        drop(store);
        for later in 0..24 {
            let disk = disk.after_kill();
            let store = open(&disk).unwrap();
            let seen = commit_number(&*store.snapshot().unwrap());
            assert!(seen >= acknowledged, "{acknowledged} acknowledged, {seen} there");
            states += u64::from(seen > acknowledged);
            disk.fail_after(later);
            let there = commit_until_the_power_fails(&store, 5, 2);
            let found = disk.after_power_cut(&mut StdRng::seed_from_u64(operations * 24 + later));
            if let Err(lost) = check(found, 5, there.max(seen)) {
                panic!("kill at operation {operations}, cut {later} operations later: {lost}");
            }
        }
    }
    assert!(states >= COMMITS, "no kill came between a meta page and its sync");
}

/// Asserts that at least one of the first [`LIES_MAX`] seeds detects a disk that skips syncs. The
/// disk skips each sync whose number is a multiple of `every`. Prints the first seed that detects
/// the disk.
fn catch_a_lying_disk(every: u64) {
    let caught = (1..=LIES_MAX).find(|seed| {
        let disk = new_store().lying(every);
        // The remaining contents may be so inconsistent that `run` panics. A panic also counts as
        // detecting the lie.
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
    catch_a_lying_disk(7);
}

#[test]
fn a_store_whose_commit_failed_takes_no_more_writes() {
    let disk = new_store();
    let store = open(&disk).unwrap();
    let lock = Arc::new(WriterLock::default());
    commit(&store, &lock, 1, 1).unwrap();
    let before = store.snapshot().unwrap();
    disk.fail_after(0);
    assert!(matches!(commit(&store, &lock, 1, 2), Err(Error::Path { .. })));
    assert!(matches!(lock.acquire(), Err(Error::Failed)));
    model_after(1, 1).assert_same(&*before, "what was open before the failure");
}
