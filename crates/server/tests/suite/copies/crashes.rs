//! The process is killed, or the power goes, at each step that a store directory makes.
//!
//! Marks lie on a simulated disk, which loses what a real one may lose, and [`NamesOnDisk`] loses
//! the names of files; what is in a store is on disk when its engine says so. Whatever happens
//! when, a directory that is opened again has the stores from before the step or from behind it,
//! and goes on.

use std::path::Path;
use std::sync::Arc;

use clearlane_engine::{EngineKind, Options};
use clearlane_server::raft_snapshot::{DiskStoreDir, FileStoreDir, StoreDir, open_at_start};
use clearlane_wal::files::{Fault, SimulatedDisk};

use crate::names::NamesOnDisk;
use crate::support::{chunks, contents, contents_of, fill, filled, index_of, open_store, receive};

fn open_store_dir(disk: &SimulatedDisk, dir: &Path) -> clearlane_engine::Result<Arc<dyn StoreDir>> {
    let options = Options { cache_bytes: 1 << 20, ..Options::default() };
    let files = Arc::new(disk.clone());
    Ok(Arc::new(DiskStoreDir::new(files, dir, EngineKind::Bolt, options)?))
}

/// Where names are lost: marks of numbered stores, or the names of files.
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

    /// The disk that the next process finds.
    fn after(&self, cut: Option<u64>) -> TestDisk {
        match (self, cut) {
            (TestDisk::Marks(disk), None) => TestDisk::Marks(disk.after_kill()),
            (TestDisk::Marks(disk), Some(seed)) => TestDisk::Marks(disk.after_power_cut(seed)),
            (TestDisk::Files(names), None) => TestDisk::Files(names.after_kill()),
            (TestDisk::Files(names), Some(seed)) => TestDisk::Files(names.after_power_cut(seed)),
        }
    }
}

/// The indexes of the current store and of the copies.
fn read_stores(disk: &TestDisk, dir: &Path) -> (u64, Vec<u64>) {
    let vault = disk.open(dir).unwrap();
    (index_of(&*vault.open().unwrap()), vault.kept_indexes().unwrap())
}

/// The same, of a start that removes leftovers.
fn clean(disk: &TestDisk, dir: &Path) -> (u64, Vec<u64>) {
    disk.open(dir).unwrap().remove_leftovers().unwrap();
    read_stores(disk, dir)
}

/// Runs `step` on a store directory that `prepare` has made, with the end at each of its
/// operations, by a kill and by power cuts of several seeds. `expect` is told what is found, and
/// whether the step was reported as done.
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
                let vault = disk.open(&dir).unwrap();
                prepare(&vault);
                disk.fail_at(operation);
                let done = step(&vault);
                drop(vault);
                let disk = disk.after(cut);
                let found = read_stores(&disk, &dir);
                // What one process has seen and acted upon is there for the next, though the power
                // goes in between.
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

fn receive_at(vault: &Arc<dyn StoreDir>, index: u64) -> bool {
    let chunks = chunks(&*filled(index, 10), 1);
    receive(vault, chunks.iter().map(|chunk| &chunk[..])).is_ok()
}

fn with_store_at_3(vault: &Arc<dyn StoreDir>) {
    fill(&*open_store(vault.open().unwrap()), 3, 10);
}

#[test]
fn the_first_store_is_there_or_is_made_again() {
    at_every_operation(
        |_| {},
        |vault| vault.open().is_ok_and(|engine| index_of(&*engine) == 0),
        |found, _| assert_eq!(found, (0, vec![])),
    );
}

#[test]
fn a_copy_is_kept_or_nothing_is_there() {
    at_every_operation(
        with_store_at_3,
        |vault| receive_at(vault, 8),
        |(current, kept), done| {
            assert_eq!(current, 3);
            assert!(kept == [8] || (kept.is_empty() && !done), "{kept:?}, done: {done}");
        },
    );
}

/// The first is refused because its name may not be on disk. That the name is there to be seen does
/// not help the second.
#[test]
fn a_copy_is_kept_for_certain_behind_one_that_failed() {
    for (operation, seed) in (1..).flat_map(|operation| (0..6).map(move |seed| (operation, seed))) {
        let dir = tempfile::tempdir().unwrap();
        let disk = SimulatedDisk::new([dir.path()]);
        let vault = open_store_dir(&disk, dir.path()).unwrap();
        with_store_at_3(&vault);
        disk.fail_at(operation, Fault::Error);
        let first = receive_at(&vault, 8);
        if !first {
            assert!(receive_at(&vault, 8));
        }
        drop(vault);
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
        |vault| {
            with_store_at_3(vault);
            assert!(receive_at(vault, 8));
        },
        |vault| vault.promote(8).is_ok(),
        |found, done| {
            assert!(found == (8, vec![]) || (found == (3, vec![8]) && !done), "{found:?} {done}");
        },
    );
}

#[test]
fn a_promotion_that_leaves_older_copies_behind_loses_nothing_newer() {
    at_every_operation(
        |vault| {
            with_store_at_3(vault);
            assert!([5, 8, 11].into_iter().all(|index| receive_at(vault, index)));
        },
        |vault| vault.promote(8).is_ok(),
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
            let vault = open_store_dir(&disk, dir.path()).unwrap();
            with_store_at_3(&vault);
            assert!(receive_at(&vault, 8));
            disk.fail_at(operation, Fault::PowerCut);
            let done = vault.discard(8).is_ok();
            drop(vault);
            let vault = open_store_dir(&disk.after_power_cut(seed), dir.path()).unwrap();
            vault.remove_leftovers().unwrap();
            let kept = vault.kept_indexes().unwrap();
            assert!(kept.is_empty() || (kept == [8] && !done), "{operation} {seed}");
            if !kept.is_empty() {
                assert_eq!(contents(&*vault.promote(8).unwrap()), whole);
            }
        }
    }
}

#[test]
fn an_installation_ends_where_the_log_says_wherever_it_was_killed() {
    // The log has the record of a copy at 8, synced: whatever happens behind it, the start ends at
    // 8.
    at_every_operation(
        |vault| {
            with_store_at_3(vault);
            assert!(receive_at(vault, 8) && receive_at(vault, 11));
        },
        |vault| open_at_start(&**vault, 8).is_ok(),
        |(current, kept), done| {
            assert!(current == 8 || (current == 3 && kept.contains(&8) && !done));
        },
    );
}

#[test]
fn what_an_interrupted_transfer_or_removal_leaves_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let disk = SimulatedDisk::new([dir.path()]);
    let vault = open_store_dir(&disk, dir.path()).unwrap();
    with_store_at_3(&vault);
    // As after a kill: nothing ends, and the locks go.
    let staged = vault.stage().unwrap();
    let half = dir.path().join(format!("store.{}", staged.number));
    drop((staged, vault));
    assert!(half.exists());
    // A store of which a removal has left a part.
    let torn = dir.path().join("store.7");
    std::fs::create_dir(&torn).unwrap();
    std::fs::write(torn.join("data.0"), "a part").unwrap();
    let vault = open_store_dir(&disk.after_kill(), dir.path()).unwrap();
    // Before anything was removed, a new transfer must not come upon the old one's store.
    assert!(vault.stage().unwrap().number > 7);
    open_at_start(&*vault, 3).unwrap();
    assert!(!half.exists() && !torn.exists());
    assert!(receive_at(&vault, 8));
    assert_eq!(index_of(&*vault.promote(8).unwrap()), 8);
}
