//! A test with a store whose file is not in the system's page cache, so that reads must wait for
//! the disk.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::io::{self, Write};
use std::ops::ControlFlow;

use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::{Bucket, EngineKind, KeyRange, NotCached, Options, open, try_read_cached};

/// Drops the file from the system's page cache. Returns `true` if its first byte is no longer
/// cached. Otherwise prints that the test is skipped, and returns `false`.
pub(crate) fn drop_page_cache(file: &File) -> bool {
    file.sync_all().unwrap();
    fadvise(file, 0, None, Advice::DontNeed).unwrap();
    let mut byte = [0; 1];
    let into = &mut [io::IoSliceMut::new(&mut byte)];
    let answer = preadv2(file, into, 0, ReadWriteFlags::NOWAIT);
    if answer != Err(Errno::AGAIN) {
        // The message is written to stderr directly, because the test harness shows printed text
        // only for failed tests.
        let words = format!("SKIPPED: no page of this file system was cold: {answer:?}\n");
        io::stderr().write_all(words.as_bytes()).unwrap();
    }
    answer == Err(Errno::AGAIN)
}

pub(crate) fn open_file(path: &std::path::Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

#[test]
fn a_store_goes_on_after_reads_that_gave_up() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { cache_bytes: 1 << 20, ..Options::default() };
    let engine = open(EngineKind::Bolt, dir.path(), options).unwrap();
    let value = |key: u32| vec![key as u8; 4000];
    let put = |keys: std::ops::Range<u32>| {
        let mut txn = engine.begin_write().unwrap();
        for key in keys {
            txn.put(Bucket::Key, &key.to_be_bytes(), &value(key)).unwrap();
        }
        txn.commit().unwrap();
    };
    put(0..2000);
    let stored = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let largest = stored.max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    if !drop_page_cache(&open_file(&largest)) {
        return;
    }
    let snapshot = engine.snapshot().unwrap();
    let mut cold = 0;
    for key in (0..2000_u32).step_by(37) {
        let read = || snapshot.get(Bucket::Key, &key.to_be_bytes());
        let found = try_read_cached(read).unwrap_or_else(|NotCached| {
            cold += 1;
            read()
        });
        assert_eq!(found.unwrap().unwrap(), value(key));
    }
    // The system reads ahead, so some of the 55 keys are found in memory. At least one must be
    // cold.
    assert!(cold > 0, "none of 55 was cold");
    // By now the system may have read the whole file ahead, so the file is dropped from the cache
    // again.
    drop_page_cache(&open_file(&largest));
    let mut seen = 0;
    let all = KeyRange { from: &[], to: None };
    let walk = try_read_cached(|| {
        snapshot.scan(Bucket::Key, all, &mut |_, _| {
            seen += 1;
            ControlFlow::Continue(())
        })
    });
    assert!(walk.is_err() && seen < 2000, "all were in memory, or it did not end: {seen}");
    put(2000..2100);
    let found = engine.snapshot().unwrap().get(Bucket::Key, &2050_u32.to_be_bytes());
    assert_eq!(found.unwrap().unwrap(), value(2050));
}
