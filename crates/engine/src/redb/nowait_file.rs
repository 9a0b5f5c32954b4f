//! The store's file, of which a read can be had *only if it waits for no disk*.
//!
//! The system keeps pages of the file in memory, and those that nobody has read for a while it takes out again.
//! Reading such a *cold* page takes a tenth of a millisecond from a disk at rest, and as long as a sync from one that
//! is busy with it. Inside [`without_waiting`](crate::try_read_cached) that is not done: Linux is asked for what it has
//! (`RWF_NOWAIT`), and if that is not all, the whole read ends there.
//!
//! ```text
//!   redb's own cache ──no──▶ the system's, asked ──all of it──▶ as ever
//!                                                └─not all───▶ Cold: unwinds to without_waiting
//! ```
//!
//! # Limits
//!
//! Systems other than Linux, and file systems that do not know the question, are read as ever.

use std::fs::File;
use std::io;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::backends::FileBackend;
use redb::{BackendError, DatabaseError, StorageBackend};

use crate::cached_read;

/// A file for redb.
#[derive(Debug)]
pub(super) struct NowaitFile {
    backend: FileBackend,
    /// The same open file.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "nobody can be asked"))]
    file: File,
    /// Nobody can say what is in memory: it is read as ever.
    is_unsupported: AtomicBool,
}

impl NowaitFile {
    pub(super) fn new(file: File) -> Result<NowaitFile, DatabaseError> {
        let same = file.try_clone().map_err(redb::StorageError::Io)?;
        let cannot_say = AtomicBool::new(!cfg!(target_os = "linux"));
        Ok(NowaitFile { backend: FileBackend::new(file)?, file: same, is_unsupported: cannot_say })
    }

    /// Reads what the system has in memory, and says whether that was all.
    #[cfg(target_os = "linux")]
    fn read_cached(&self, offset: u64, out: &mut [u8]) -> io::Result<bool> {
        use rustix::io::{Errno, ReadWriteFlags, preadv2};

        let wanted = out.len();
        let into = &mut [io::IoSliceMut::new(out)];
        match preadv2(&self.file, into, offset, ReadWriteFlags::NOWAIT) {
            Ok(read) => Ok(read == wanted),
            Err(Errno::AGAIN) => Ok(false),
            Err(error) => {
                if matches!(error, Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) {
                    self.is_unsupported.store(true, Ordering::Relaxed);
                }
                // If reading fails, it will again.
                self.backend.read(offset, out).map(|()| true)
            }
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn read_cached(&self, offset: u64, out: &mut [u8]) -> io::Result<bool> {
        self.backend.read(offset, out).map(|()| true)
    }
}

impl StorageBackend for NowaitFile {
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if !cached_read::is_cached_only() || self.is_unsupported.load(Ordering::Relaxed) {
            return self.backend.read(offset, out);
        }
        match self.read_cached(offset, out)? {
            true => Ok(()),
            false => cached_read::abort_not_cached(),
        }
    }

    // The rest is as redb has it.

    fn len(&self) -> io::Result<u64> {
        self.backend.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.backend.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.backend.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.backend.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.backend.close()
    }

    fn try_lock_range(&self, from: Bound<u64>, to: Bound<u64>) -> Result<bool, BackendError> {
        self.backend.try_lock_range(from, to)
    }

    fn try_lock_shared_range(
        &self,
        from: Bound<u64>,
        to: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.backend.try_lock_shared_range(from, to)
    }

    fn lock_range(&self, from: Bound<u64>, to: Bound<u64>) -> Result<(), BackendError> {
        self.backend.lock_range(from, to)
    }

    fn lock_shared_range(&self, from: Bound<u64>, to: Bound<u64>) -> Result<(), BackendError> {
        self.backend.lock_shared_range(from, to)
    }

    fn unlock_range(&self, from: Bound<u64>, to: Bound<u64>) -> Result<(), BackendError> {
        self.backend.unlock_range(from, to)
    }

    fn query_lock_range(&self, from: Bound<u64>, to: Bound<u64>) -> Result<bool, BackendError> {
        self.backend.query_lock_range(from, to)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::io::Write;
    use std::ops::ControlFlow;

    use rustix::fs::{Advice, fadvise};
    use rustix::io::{Errno, ReadWriteFlags, preadv2};

    use super::*;
    use crate::{Bucket, EngineKind, KeyRange, NotCached, Options, open, try_read_cached};

    /// Has the system forget what it knows of a file, if it can.
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
        let pages = NowaitFile::new(file.try_clone().unwrap()).unwrap();
        // Large, since the system reads ahead of whoever asks.
        const LENGTH: u64 = 16 << 20;
        pages.write(0, &vec![7; LENGTH as usize]).unwrap();
        if !drop_page_cache(&file) {
            return;
        }
        // Of one, a quick disk may have it there in time.
        let mut page = [0; 4096];
        let mut is_cold = |offset| try_read_cached(|| pages.read(offset, &mut page)).is_err();
        let cold = [3, 5, 7, 9, 11].map(|place| place << 20).into_iter().find(|at| is_cold(*at));
        let cold = cold.expect("five pages that nobody has read were in memory");

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

    /// redb takes an error of its file for the end of the store. A read that gave up is none.
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
        // How many the system has read ahead is its affair.
        assert!(cold > 0, "none of 55 was cold");
        // A walk comes from leaf to leaf, and has more in its hands.
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
}
