//! Tests that kill the process, or let the power fail, at each operation of a store directory.
//!
//! Marks are on a simulated disk, which may lose the same data as a real disk. [`NamesOnDisk`]
//! loses the names of files. The data of a store is not lost once its engine has reported a commit.
//! Whatever happens, a directory that is opened again has the stores from before the tested step or
//! from after it, and later operations succeed.

use std::path::Path;
use std::sync::Arc;

use clearlane_engine::{EngineKind, Options};
use clearlane_replica::raft_snapshot::{StoreDir, open_at_start};
use clearlane_server::snapshot::{DiskStoreDir, FileStoreDir};
use clearlane_wal::files::{Fault, SimulatedDisk};

use crate::copies::names::NamesOnDisk;
use crate::copies::support::{
    chunks, contents, contents_of, fill, filled, index_of, open_store, receive,
};

fn open_store_dir(disk: &SimulatedDisk, dir: &Path) -> clearlane_engine::Result<Arc<dyn StoreDir>> {
    let options = Options { cache_bytes: 1 << 20, ..Options::default() };
    let files = Arc::new(disk.clone());
    Ok(Arc::new(DiskStoreDir::new(files, dir, EngineKind::Bolt, options)?))
}

/// A disk that loses names after a power failure: the marks of numbered stores, or the names of
/// files.
#[derive(Clone)]
enum TestDisk {
    Marks(SimulatedDisk),
    Files(NamesOnDisk),
}

impl TestDisk {
    fn open(&self, dir: &Path) -> clearlane_engine::Result<Arc<dyn StoreDir>> {
        match self {
            TestDisk::Marks(disk) => open_store_dir(disk, dir),
            TestDisk::Files(names) => {
                let options = Options { cache_bytes: 1 << 20, ..Options::default() };
                Ok(Arc::new(FileStoreDir::new(Arc::new(names.clone()), dir, options)?))
            }
        }
    }

    fn fail_at(&self, operation: u64) {
        match self {
            TestDisk::Marks(disk) => disk.fail_at(operation, Fault::PowerCut),
            TestDisk::Files(names) => names.fail_at(operation),
        }
    }

    /// Returns the disk that the next process finds after a kill, or after a power failure with the
    /// seed in `cut`.
    fn after(&self, cut: Option<u64>) -> TestDisk {
        match (self, cut) {
            (TestDisk::Marks(disk), None) => TestDisk::Marks(disk.after_kill()),
            (TestDisk::Marks(disk), Some(seed)) => TestDisk::Marks(disk.after_power_cut(seed)),
            (TestDisk::Files(names), None) => TestDisk::Files(names.after_kill()),
            (TestDisk::Files(names), Some(seed)) => TestDisk::Files(names.after_power_cut(seed)),
        }
    }
}

/// Returns the indexes of the current store and of the received stores.
fn read_stores(disk: &TestDisk, dir: &Path) -> (u64, Vec<u64>) {
    let store_dir = disk.open(dir).unwrap();
    (index_of(&*store_dir.open().unwrap()), store_dir.kept_indexes().unwrap())
}

/// Opens the store directory, removes leftovers, and returns the indexes of its stores.
fn clean(disk: &TestDisk, dir: &Path) -> (u64, Vec<u64>) {
    disk.open(dir).unwrap().remove_leftovers().unwrap();
    read_stores(disk, dir)
}

/// Runs `step` on a store directory that `prepare` has filled. Simulates that the process ends at
/// each of the step's operations, by a kill and by power failures with several seeds. `expect` gets
/// the stores that are found afterwards, and whether the step was reported as done.
fn at_every_operation(
    prepare: impl Fn(&Arc<dyn StoreDir>),
    step: impl Fn(&Arc<dyn StoreDir>) -> bool,
    expect: impl Fn((u64, Vec<u64>), bool),
) {
    for is_files in [false, true] {
        let new = |dir: &Path, spare: &Path| match is_files {
            false => TestDisk::Marks(SimulatedDisk::new([dir])),
            true => TestDisk::Files(NamesOnDisk::new(spare)),
        };
        let mut ends = 0;
        for operation in 1.. {
            let mut all_done = true;
            for cut in [None].into_iter().chain((0..6).map(Some)) {
                let above = tempfile::tempdir().unwrap();
                let dir = above.path().join("snap");
                std::fs::create_dir(&dir).unwrap();
                let disk = new(&dir, &above.path().join("spare"));
                let store_dir = disk.open(&dir).unwrap();
                prepare(&store_dir);
                disk.fail_at(operation);
                let done = step(&store_dir);
                drop(store_dir);
                let disk = disk.after(cut);
                let found = read_stores(&disk, &dir);
                // The next process finds the same stores as this process, even if the power fails
                // between the two processes.
                for seed in 0..cut.map_or(4, |_| 1) {
                    let next = disk.after(Some(seed));
                    assert_eq!(clean(&next, &dir), found, "{operation} {cut:?} {seed}");
                }
                expect(found, done);
                all_done &= done;
                ends += 1;
            }
            if all_done {
                break;
            }
        }
        assert!(ends >= 14, "the step has operations");
    }
}

fn receive_at(store_dir: &Arc<dyn StoreDir>, index: u64) -> bool {
    let chunks = chunks(&*filled(index, 10), 1);
    receive(store_dir, chunks.iter().map(|chunk| &chunk[..])).is_ok()
}

fn with_store_at_3(store_dir: &Arc<dyn StoreDir>) {
    fill(&*open_store(store_dir.open().unwrap()), 3, 10);
}

#[test]
fn the_first_store_is_there_or_is_made_again() {
    at_every_operation(
        |_| {},
        |store_dir| store_dir.open().is_ok_and(|engine| index_of(&*engine) == 0),
        |found, _| assert_eq!(found, (0, vec![])),
    );
}

#[test]
fn a_copy_is_kept_or_nothing_is_there() {
    at_every_operation(
        with_store_at_3,
        |store_dir| receive_at(store_dir, 8),
        |(current, kept), done| {
            assert_eq!(current, 3);
            assert!(kept == [8] || (kept.is_empty() && !done), "{kept:?}, done: {done}");
        },
    );
}

/// The first attempt to keep a store fails, because its name may not be on disk. The second attempt
/// must not succeed just because the name is visible.
#[test]
fn a_copy_is_kept_for_certain_behind_one_that_failed() {
    for (operation, seed) in (1..).flat_map(|operation| (0..6).map(move |seed| (operation, seed))) {
        let dir = tempfile::tempdir().unwrap();
        let disk = SimulatedDisk::new([dir.path()]);
        let store_dir = open_store_dir(&disk, dir.path()).unwrap();
        with_store_at_3(&store_dir);
        disk.fail_at(operation, Fault::Error);
        let first = receive_at(&store_dir, 8);
        if !first {
            assert!(receive_at(&store_dir, 8));
        }
        drop(store_dir);
        let disk = disk.after_power_cut(seed);
        assert_eq!(clean(&TestDisk::Marks(disk), dir.path()), (3, vec![8]), "{operation} {seed}");
        if first {
            return;
        }
    }
}

#[test]
fn a_promotion_has_happened_or_not() {
    at_every_operation(
        |store_dir| {
            with_store_at_3(store_dir);
            assert!(receive_at(store_dir, 8));
        },
        |store_dir| store_dir.promote(8).is_ok(),
        |found, done| {
            assert!(found == (8, vec![]) || (found == (3, vec![8]) && !done), "{found:?} {done}");
        },
    );
}

#[test]
fn a_promotion_that_leaves_older_copies_behind_loses_nothing_newer() {
    at_every_operation(
        |store_dir| {
            with_store_at_3(store_dir);
            assert!([5, 8, 11].into_iter().all(|index| receive_at(store_dir, index)));
        },
        |store_dir| store_dir.promote(8).is_ok(),
        |(current, kept), done| match current {
            3 => assert!(kept == [5, 8, 11] && !done),
            8 => assert!(kept == [11] || (kept == [5, 11] && !done), "{kept:?}"),
            other => panic!("a store at {other}"),
        },
    );
}

#[test]
fn a_discarded_copy_is_whole_or_gone() {
    let whole = contents_of(&*filled(8, 10));
    for operation in 1..4 {
        for seed in 0..6 {
            let dir = tempfile::tempdir().unwrap();
            let disk = SimulatedDisk::new([dir.path()]);
            let store_dir = open_store_dir(&disk, dir.path()).unwrap();
            with_store_at_3(&store_dir);
            assert!(receive_at(&store_dir, 8));
            disk.fail_at(operation, Fault::PowerCut);
            let done = store_dir.discard(8).is_ok();
            drop(store_dir);
            let store_dir = open_store_dir(&disk.after_power_cut(seed), dir.path()).unwrap();
            store_dir.remove_leftovers().unwrap();
            let kept = store_dir.kept_indexes().unwrap();
            assert!(kept.is_empty() || (kept == [8] && !done), "{operation} {seed}");
            if !kept.is_empty() {
                assert_eq!(contents(&*store_dir.promote(8).unwrap()), whole);
            }
        }
    }
}

#[test]
fn an_installation_ends_where_the_log_says_wherever_it_was_killed() {
    // The log has the synced record of a raft snapshot at 8. So wherever the process is killed, the
    // next start must end with the store at 8.
    at_every_operation(
        |store_dir| {
            with_store_at_3(store_dir);
            assert!(receive_at(store_dir, 8) && receive_at(store_dir, 11));
        },
        |store_dir| open_at_start(&**store_dir, 8).is_ok(),
        |(current, kept), done| {
            assert!(current == 8 || (current == 3 && kept.contains(&8) && !done));
        },
    );
}

#[test]
fn what_an_interrupted_transfer_or_removal_leaves_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let disk = SimulatedDisk::new([dir.path()]);
    let store_dir = open_store_dir(&disk, dir.path()).unwrap();
    with_store_at_3(&store_dir);
    // Drop the staged store as after a kill: nothing is finished, and the locks are released.
    let staged = store_dir.stage().unwrap();
    let half = dir.path().join(format!("store.{}", staged.number));
    drop((staged, store_dir));
    assert!(half.exists());
    // Create the remains of a store that was removed only in part.
    let torn = dir.path().join("store.7");
    std::fs::create_dir(&torn).unwrap();
    std::fs::write(torn.join("data.0"), "a part").unwrap();
    let store_dir = open_store_dir(&disk.after_kill(), dir.path()).unwrap();
    // The leftovers are not removed yet. A new transfer must not use the number of one of them.
    assert!(store_dir.stage().unwrap().number > 7);
    open_at_start(&*store_dir, 3).unwrap();
    assert!(!half.exists() && !torn.exists());
    assert!(receive_at(&store_dir, 8));
    assert_eq!(index_of(&*store_dir.promote(8).unwrap()), 8);
}
