//! Reads of pages that the system has in memory, and of others.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::cached_read::cold_files::{drop_page_cache, open_file};
use crate::{NotCached, try_read_cached};

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
