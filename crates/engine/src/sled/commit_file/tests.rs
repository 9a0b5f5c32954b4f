//! How a store was closed, over the `sled` engine.

use std::fs;

use super::CommitFile;
use crate::bucket::Bucket;
use crate::error::EngineKind;
use crate::open::open;
use crate::options::Options;

#[test]
fn an_orderly_end_is_told_from_a_changed_byte_in_any_file() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { cache_bytes: 1 << 20, ..Options::default() };
    let engine = open(EngineKind::Sled, dir.path(), options).unwrap();
    let mut txn = engine.begin_write().unwrap();
    txn.put(Bucket::Key, b"a", &vec![7; 1 << 20]).unwrap();
    txn.commit().unwrap();
    let store = dir.path().join("data.0");
    assert!(!CommitFile::open(&store).unwrap().was_closed_cleanly(), "it is open");
    drop(engine);

    let is_clean = || CommitFile::open(&store).unwrap().was_closed_cleanly();
    assert!(is_clean());
    let blob = fs::read_dir(store.join("blobs")).unwrap().next().unwrap().unwrap().path();
    for file in [store.join("db"), store.join("conf"), blob] {
        let whole = fs::read(&file).unwrap();
        let mut damaged = whole.clone();
        damaged[whole.len() / 2] ^= 1;
        fs::write(&file, damaged).unwrap();
        assert!(!is_clean(), "{}", file.display());
        fs::write(&file, whole).unwrap();
        assert!(is_clean());
    }
}
