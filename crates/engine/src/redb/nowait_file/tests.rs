//! Reads of pages that the system has in memory, and of others.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write;
use std::ops::ControlFlow;

use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::*;
use crate::{Bucket, EngineKind, KeyRange, NotCached, Options, open, try_read_cached};

/// Returns whether the system has forgotten the file.
fn drop_page_cache(file: &File) -> bool {
    file.sync_all().unwrap();
    fadvise(file, 0, None, Advice::DontNeed).unwrap();
    let mut byte = [0; 1];
    let into = &mut [io::IoSliceMut::new(&mut byte)];
    let answer = preadv2(file, into, 0, ReadWriteFlags::NOWAIT);
    if answer != Err(Errno::AGAIN) {
        // Past the harness, which shows what a test prints only if it fails.
        let words = format!("SKIPPED: no page of this file system was cold: {answer:?}\n");
        io::stderr().write_all(words.as_bytes()).unwrap();
    }
    answer == Err(Errno::AGAIN)
}

fn open_file(path: &std::path::Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

#[test]
fn what_is_cold_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let file = open_file(&dir.path().join("pages"));
    let pages = NowaitFile::new(file.try_clone().unwrap(), None).unwrap();
    // Large, since the system reads ahead of the reader.
    const LENGTH: u64 = 16 << 20;
    pages.write(0, &vec![7; LENGTH as usize]).unwrap();
    if !drop_page_cache(&file) {
        return;
    }
    // A quick disk may have read a single page ahead in time.
    let mut page = [0; 4096];
    let mut is_cold = |offset| try_read_cached(|| pages.read(offset, &mut page)).is_err();
    let cold = [3, 5, 7, 9, 11].map(|place| place << 20).into_iter().find(|at| is_cold(*at));
    let cold = cold.expect("five pages that were not read before were in memory");

    let mut page = [0; 4096];
    pages.read(cold, &mut page).unwrap();
    assert_eq!(page, [7; 4096]);
    page.fill(0);
    try_read_cached(|| pages.read(cold, &mut page)).unwrap().unwrap();
    assert_eq!(page, [7; 4096], "now it is in memory");

    let end = LENGTH - 4096;
    pages.read(end, &mut page).unwrap();
    let mut two = [0; 8192];
    let partly = try_read_cached(|| pages.read(end, &mut two)).map(drop);
    assert_eq!(partly, Err(NotCached), "half of it is in memory, and the rest is nowhere");
    let beyond = pages.read(end, &mut two).unwrap_err();
    assert_eq!(beyond.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn a_store_goes_on_after_reads_that_gave_up() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { cache_bytes: 1 << 20, ..Options::default() };
    let engine = open(EngineKind::Redb, dir.path(), options).unwrap();
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
        let read = || snapshot.get(Bucket::Key, &key.to_be_bytes()).unwrap().unwrap();
        let found = try_read_cached(read).unwrap_or_else(|NotCached| {
            cold += 1;
            read()
        });
        assert_eq!(found, value(key));
    }
    // The system decides how many it reads ahead.
    assert!(cold > 0, "none of 55 was cold");
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

#[test]
fn no_more_than_the_bound_is_written_without_a_sync() {
    let dir = tempfile::tempdir().unwrap();
    let pages = NowaitFile::new(open_file(&dir.path().join("pages")), Some(1 << 20)).unwrap();
    let unsynced = || pages.unsynced_bytes.load(Ordering::Relaxed);
    let piece = vec![1; 300 << 10];
    for number in 0..10 {
        pages.write(number * piece.len() as u64, &piece).unwrap();
        assert_eq!(unsynced(), (number + 1) as usize % 4 * piece.len());
    }
    pages.sync_data().unwrap();
    assert_eq!(unsynced(), 0);
}
