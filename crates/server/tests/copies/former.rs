//! A directory of the former layout becomes one of etcd's, wherever that is interrupted.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use clearlane_engine::{EngineKind, Error, Options};
use clearlane_server::raft_snapshot::{
    DiskStoreDir, FileStoreDir, StoreDir, current_bolt_file, open_at_start,
};
use clearlane_wal::files::OsFileSystem;

use crate::names::NamesOnDisk;
use crate::support::{chunks, fill, filled, index_of, names, open_store, receive};

fn options() -> Options {
    Options { cache_bytes: 1 << 20, ..Options::default() }
}

fn former(dir: &Path) -> Arc<dyn StoreDir> {
    let files = Arc::new(OsFileSystem);
    Arc::new(DiskStoreDir::new(files, dir, EngineKind::Bolt, options()).unwrap())
}

/// A store at 3, which was defragmented, a copy at 8, and leftovers.
fn make_former(dir: &Path) {
    let vault = former(dir);
    let store = open_store(vault.open().unwrap());
    fill(&*store, 3, 10);
    store.defragment().unwrap();
    drop(store);
    let chunks = chunks(&*filled(8, 10), 1);
    receive(&vault, chunks.iter().map(|chunk| &chunk[..])).unwrap();
    drop(vault.stage().unwrap());
    drop(vault);
    assert!(names(dir).contains(&"8.copy".to_owned()));
}

#[test]
fn stores_get_etcds_names_wherever_it_is_interrupted() {
    let (mut operation, mut is_done) = (0, false);
    while !is_done {
        operation += 1;
        for cut in [None].into_iter().chain((0..4).map(Some)) {
            let above = tempfile::tempdir().unwrap();
            let dir = above.path().join("snap");
            fs::create_dir(&dir).unwrap();
            make_former(&dir);
            let disk = NamesOnDisk::new(&above.path().join("spare"));
            disk.fail_at(operation);
            let files =
                |disk: &NamesOnDisk| FileStoreDir::new(Arc::new(disk.clone()), &dir, options());
            is_done = files(&disk).and_then(|vault| vault.open()).is_ok();
            let next = match cut {
                None => disk.after_kill(),
                Some(seed) => disk.after_power_cut(seed),
            };
            let vault = files(&next).unwrap();
            assert_eq!(index_of(&*vault.open().unwrap()), 3, "{operation} {cut:?}");
            assert_eq!(vault.kept_indexes().unwrap(), [8], "{operation} {cut:?}");
            assert_eq!(names(&dir), ["0000000000000008.snap.db", "db"], "{operation} {cut:?}");
            assert_eq!(index_of(&*open_at_start(&vault, 8).unwrap()), 8);
            assert_eq!(names(&dir), ["db"], "{operation} {cut:?}");
        }
    }
    assert!(operation > 10, "a conversion has operations");
}

#[test]
fn a_store_that_is_open_or_whose_file_is_lost_is_not_converted() {
    let dir = tempfile::tempdir().unwrap();
    make_former(dir.path());
    let before = names(dir.path());
    let convert =
        || FileStoreDir::new(Arc::new(OsFileSystem), dir.path(), options())?.open().map(drop);
    let open = former(dir.path());
    assert!(matches!(convert(), Err(Error::Locked { .. })));
    drop(open);
    fs::remove_file(current_bolt_file(&OsFileSystem, dir.path()).unwrap()).unwrap();
    let lost = convert().unwrap_err();
    assert!(lost.to_string().ends_with("damaged: the file is missing"), "{lost}");
    assert!(dir.path().join("current").exists() && before.contains(&"current".to_owned()));
}
