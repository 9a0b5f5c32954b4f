//! What a store directory does while nothing goes wrong around it, and what it refuses.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use clearlane_engine::{Bucket, Engine, EngineKind, Error, Options};
use clearlane_server::raft_snapshot::{DiskStoreDir, MemoryStoreDir, StoreDir, open_at_start};
use clearlane_wal::files::OsFileSystem;

use crate::support::{chunks, fill, filled, index_of, open_store, receive};

fn open_store_dir(dir: &Path, kind: EngineKind) -> Result<Arc<dyn StoreDir>, Error> {
    let options = Options { cache_bytes: 1 << 20, ..Options::default() };
    Ok(Arc::new(DiskStoreDir::new(Arc::new(OsFileSystem), dir, kind, options)?))
}

/// Receives a copy at an index.
fn receive_at(vault: &Arc<dyn StoreDir>, index: u64) {
    let chunks = chunks(&*filled(index, 10), 1);
    let received = receive(vault, chunks.iter().map(|chunk| &chunk[..])).unwrap();
    assert_eq!(received.index, index);
}

/// Engines whose stores are there again when they are opened again.
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
    with_each_store_dir(|vault| {
        assert_eq!(index_of(&*vault.open().unwrap()), 0);
        for index in [7, 5, 9] {
            receive_at(&vault, index);
        }
        assert_eq!(vault.kept_indexes().unwrap(), [5, 7, 9]);
        receive_at(&vault, 7);
        assert_eq!(vault.kept_indexes().unwrap(), [5, 7, 9], "one of each");
        vault.discard(9).unwrap();
        vault.discard(9).unwrap();
        assert_eq!(index_of(&*vault.promote(7).unwrap()), 7);
        assert_eq!(vault.kept_indexes().unwrap(), [0; 0]);
        assert_eq!(index_of(&*vault.open().unwrap()), 7);
        for gone in [5, 7, 9, 0, u64::MAX] {
            assert!(vault.promote(gone).is_err());
        }
        assert_eq!(index_of(&*vault.open().unwrap()), 7);
    });
}

#[test]
fn a_store_that_was_replaced_stays_until_its_last_read_ends() {
    for kind in DURABLE {
        let dir = tempfile::tempdir().unwrap();
        let vault = open_store_dir(dir.path(), kind).unwrap();
        let old = open_store(vault.open().unwrap());
        fill(&*old, 3, 200_000);
        let view = Arc::clone(old.snapshot().unwrap().snapshot());
        receive_at(&vault, 8);
        let new = vault.promote(8).unwrap();
        drop(old);
        vault.remove_leftovers().unwrap();
        assert!(dir.path().join("store.0").exists(), "{kind}: removed while it is read");
        assert!(view.last_key(Bucket::Key).unwrap().is_some());
        drop(view);
        vault.remove_leftovers().unwrap();
        assert!(!dir.path().join("store.0").exists(), "{kind}: no read is open");
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
    // A store, and nothing that says whether it is the current one.
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store.3");
    fs::create_dir(&store).unwrap();
    fs::write(store.join("precious"), "data").unwrap();
    let strange = open_store_dir(dir.path(), EngineKind::Bolt).unwrap();
    assert!(open_at_start(&*strange, 0).is_err());
    assert!(matches!(strange.open(), Err(Error::Foreign { .. })));
    assert!(store.join("precious").exists());
    drop(strange);
    // Marks that no code here has written.
    for text in ["", "clearlane-vault 1\n", "clearlane-vault 2\nstore 3\n", "\u{0}\u{0}\u{0}"]
        .into_iter()
        .chain(["clearlane-vault 1\nstore 03\n", "clearlane-vault 1\nstore 18446744073709551615\n"])
    {
        fs::write(dir.path().join("current"), text).unwrap();
        assert!(matches!(open_store_dir(dir.path(), EngineKind::Bolt), Err(Error::Corrupt { .. })));
        assert!(store.join("precious").exists());
    }
    // Another engine's.
    let dir = tempfile::tempdir().unwrap();
    drop(open_store_dir(dir.path(), EngineKind::Bolt).unwrap().open().unwrap());
    let other = open_store_dir(dir.path(), EngineKind::Sled).unwrap();
    assert!(matches!(other.open(), Err(Error::Foreign { .. })));
}

#[test]
fn names_that_are_not_ours_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    drop(open_store_dir(dir.path(), EngineKind::Bolt).unwrap().open().unwrap());
    for name in ["store.7.bak", "store.007", "7.copy.bak", "+7.copy", "db", "notes"] {
        fs::write(dir.path().join(name), "an operator's").unwrap();
    }
    let vault = open_store_dir(dir.path(), EngineKind::Bolt).unwrap();
    open_at_start(&*vault, 0).unwrap();
    receive_at(&vault, 5);
    vault.promote(5).unwrap();
    for name in ["store.7.bak", "store.007", "7.copy.bak", "+7.copy", "db", "notes"] {
        assert!(dir.path().join(name).exists(), "{name}");
    }
}

#[test]
fn a_start_follows_the_log() {
    with_each_store_dir(|vault| {
        let store = open_store(vault.open().unwrap());
        fill(&*store, 6, 10);
        drop(store);
        for index in [4, 9, 12] {
            receive_at(&vault, index);
        }
        let index = |installed| open_at_start(&*vault, installed).map(|engine| index_of(&*engine));
        assert!(index(7).unwrap_err().to_string().contains("no copy is there"));
        // A refusal changes nothing.
        assert_eq!(vault.kept_indexes().unwrap(), [4, 9, 12]);
        assert_eq!(index(9).unwrap(), 9);
        assert_eq!(vault.kept_indexes().unwrap(), [0; 0], "what raft has not taken is sent again");
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
