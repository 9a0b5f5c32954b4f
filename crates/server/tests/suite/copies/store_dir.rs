//! Tests of a store directory without faults, and of directories that it rejects.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use clearlane_engine::{Bucket, Engine, EngineKind, Error, Options};
use clearlane_replica::raft_snapshot::{MemoryStoreDir, StoreDir, open_at_start};
use clearlane_server::snapshot;
use clearlane_wal::files::OsFileSystem;

use crate::copies::support::{chunks, fill, filled, index_of, names, open_store, receive};

fn open_store_dir(dir: &Path, kind: EngineKind) -> Result<Arc<dyn StoreDir>, Error> {
    let options = Options { cache_bytes: 1 << 20, ..Options::default() };
    snapshot::open_store_dir(Arc::new(OsFileSystem), dir, kind, options)
}

/// Receives a raft snapshot at an index.
fn receive_at(store_dir: &Arc<dyn StoreDir>, index: u64) {
    let chunks = chunks(&*filled(index, 10), 1);
    let received = receive(store_dir, chunks.iter().map(|chunk| &chunk[..])).unwrap();
    assert_eq!(received.index, index);
}

/// Engines whose stores survive closing and reopening.
const DURABLE: [EngineKind; 2] = [EngineKind::Bolt, EngineKind::Sled];

fn with_each_store_dir(run: impl Fn(Arc<dyn StoreDir>)) {
    run(Arc::new(MemoryStoreDir::default()));
    for kind in DURABLE {
        let dir = tempfile::tempdir().unwrap();
        run(open_store_dir(dir.path(), kind).unwrap());
    }
}

#[test]
fn copies_are_kept_promoted_and_discarded() {
    with_each_store_dir(|store_dir| {
        assert_eq!(index_of(&*store_dir.open().unwrap()), 0);
        for index in [7, 5, 9] {
            receive_at(&store_dir, index);
        }
        assert_eq!(store_dir.kept_indexes().unwrap(), [5, 7, 9]);
        receive_at(&store_dir, 7);
        assert_eq!(store_dir.kept_indexes().unwrap(), [5, 7, 9], "one of each");
        store_dir.discard(9).unwrap();
        store_dir.discard(9).unwrap();
        assert_eq!(index_of(&*store_dir.promote(7).unwrap()), 7);
        assert_eq!(store_dir.kept_indexes().unwrap(), [0; 0]);
        assert_eq!(index_of(&*store_dir.open().unwrap()), 7);
        for gone in [5, 7, 9, 0, u64::MAX] {
            assert!(store_dir.promote(gone).is_err());
        }
        assert_eq!(index_of(&*store_dir.open().unwrap()), 7);
    });
}

#[test]
fn a_store_that_was_replaced_stays_until_its_last_read_ends() {
    for kind in DURABLE {
        let dir = tempfile::tempdir().unwrap();
        let store_dir = open_store_dir(dir.path(), kind).unwrap();
        let old = open_store(store_dir.open().unwrap());
        fill(&*old, 3, 200_000);
        let read_txn = Arc::clone(old.snapshot().unwrap().snapshot());
        receive_at(&store_dir, 8);
        let new = store_dir.promote(8).unwrap();
        drop(old);
        store_dir.remove_leftovers().unwrap();
        assert!(
            read_txn.last_key(Bucket::Key).unwrap().is_some(),
            "{kind}: removed while it is read"
        );
        drop(read_txn);
        store_dir.remove_leftovers().unwrap();
        let left = names(dir.path());
        let expected: &[&str] = match kind {
            EngineKind::Bolt => &["db"],
            _ => &["current", "lock", "store.1"],
        };
        assert_eq!(left, expected, "{kind}: no read is open");
        assert_eq!(index_of(&*new), 8);
    }
}

#[test]
fn a_promoted_store_can_be_written_defragmented_and_opened_again() {
    for kind in DURABLE {
        let dir = tempfile::tempdir().unwrap();
        let first = open_store_dir(dir.path(), kind).unwrap();
        drop(first.open().unwrap());
        receive_at(&first, 8);
        let store = open_store(first.promote(8).unwrap());
        fill(&*store, 12, 1_000);
        store.defragment().unwrap();
        fill(&*store, 14, 1_000);
        drop((store, first));
        let second = open_store_dir(dir.path(), kind).unwrap();
        assert_eq!(index_of(&*open_at_start(&*second, 8).unwrap()), 14, "{kind}");
    }
}

#[test]
fn one_vault_has_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let first = open_store_dir(dir.path(), EngineKind::Bolt).unwrap();
    assert!(matches!(open_store_dir(dir.path(), EngineKind::Bolt), Err(Error::Locked { .. })));
    let one = first.open().unwrap();
    let same = first.open().unwrap();
    assert!(Arc::ptr_eq(&one, &same));
}

#[test]
fn what_is_not_ours_is_refused_and_left_alone() {
    // The directory contains a store, but no mark that shows which store is the current one.
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store.3");
    fs::create_dir(&store).unwrap();
    fs::write(store.join("precious"), "data").unwrap();
    let strange = open_store_dir(dir.path(), EngineKind::Bolt).unwrap();
    assert!(open_at_start(&*strange, 0).is_err());
    assert!(matches!(strange.open(), Err(Error::Foreign { .. })));
    assert!(store.join("precious").exists());
    drop(strange);
    // The mark `current` contains text that the server never writes.
    for text in ["", "clearlane-vault 1\n", "clearlane-vault 2\nstore 3\n", "\u{0}\u{0}\u{0}"]
        .into_iter()
        .chain(["clearlane-vault 1\nstore 03\n", "clearlane-vault 1\nstore 18446744073709551615\n"])
    {
        fs::write(dir.path().join("current"), text).unwrap();
        let refused = open_store_dir(dir.path(), EngineKind::Bolt).and_then(|dir| dir.open());
        assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");
        assert!(matches!(open_store_dir(dir.path(), EngineKind::Sled), Err(Error::Corrupt { .. })));
        assert!(store.join("precious").exists());
    }
    // A directory of another engine.
    let dir = tempfile::tempdir().unwrap();
    drop(open_store_dir(dir.path(), EngineKind::Bolt).unwrap().open().unwrap());
    let refused = open_store_dir(dir.path(), EngineKind::Sled);
    assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");
    let dir = tempfile::tempdir().unwrap();
    drop(open_store_dir(dir.path(), EngineKind::Sled).unwrap().open().unwrap());
    let refused = open_store_dir(dir.path(), EngineKind::Bolt).and_then(|dir| dir.open());
    assert!(refused.unwrap_err().to_string().contains("it has numbered stores"));
}

#[test]
fn names_that_are_not_ours_are_left_alone() {
    for kind in DURABLE {
        let dir = tempfile::tempdir().unwrap();
        drop(open_store_dir(dir.path(), kind).unwrap().open().unwrap());
        let strange = ["store.7.bak", "store.007", "7.copy.bak", "+7.copy", "notes", "db.bak"];
        let of_etcd = ["0000000000000002-000000000000000a.snap", "7.snap.db", "db.tmp"];
        for name in strange.iter().chain(&of_etcd) {
            fs::write(dir.path().join(name), "an operator's").unwrap();
        }
        let store_dir = open_store_dir(dir.path(), kind).unwrap();
        open_at_start(&*store_dir, 0).unwrap();
        receive_at(&store_dir, 5);
        store_dir.promote(5).unwrap();
        for name in strange.iter().chain(&of_etcd) {
            assert!(dir.path().join(name).exists(), "{name}");
        }
    }
}

#[test]
fn a_start_follows_the_log() {
    with_each_store_dir(|store_dir| {
        let store = open_store(store_dir.open().unwrap());
        fill(&*store, 6, 10);
        drop(store);
        for index in [4, 9, 12] {
            receive_at(&store_dir, index);
        }
        let index =
            |installed| open_at_start(&*store_dir, installed).map(|engine| index_of(&*engine));
        assert!(index(7).unwrap_err().to_string().contains("there is no received store"));
        // A failed start changes nothing.
        assert_eq!(store_dir.kept_indexes().unwrap(), [4, 9, 12]);
        assert_eq!(index(9).unwrap(), 9);
        assert_eq!(
            store_dir.kept_indexes().unwrap(),
            [0; 0],
            "what raft has not taken is sent again"
        );
        for installed in [0, 9] {
            assert_eq!(index(installed).unwrap(), 9);
        }
        assert!(index(10).is_err());
    });
}

#[test]
fn copies_in_memory_go_with_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let first = open_store_dir(dir.path(), EngineKind::Memory).unwrap();
    drop(first.open().unwrap());
    receive_at(&first, 5);
    drop(first);
    let second = open_store_dir(dir.path(), EngineKind::Memory).unwrap();
    assert_eq!(second.kept_indexes().unwrap(), [0; 0]);
    assert!(open_at_start(&*second, 5).is_err());
    let engine: Arc<dyn Engine> = open_at_start(&*second, 0).unwrap();
    assert_eq!(index_of(&*engine), 0);
}
