//! The store's file: a read of it can be had *only if it waits for no disk*, and what is written is
//! synced in pieces, if wanted, so that the log's syncs get their turn:
//! `docs/decisions/server-large-values.md`.
//!
//! Reading a page that the system does not have in memory may take as long as a sync. Inside
//! [`try_read_cached`](crate::try_read_cached) Linux is asked for what it has (`RWF_NOWAIT`), and
//! if that is not all, the whole read ends there.
//!
//! ```text
//!   redb's own cache ──no──▶ the system's, asked ──all of it──▶ as ever
//!                                                └─not all───▶ NotCached: ends the read
//! ```
//!
//! Other systems, and file systems that do not support the flag, are read as ever.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use redb::backends::FileBackend;
use redb::{DatabaseError, StorageBackend};

use crate::cached_read;

#[derive(Debug)]
pub(super) struct NowaitFile {
    backend: FileBackend,
    /// The same open file.
    #[cfg_attr(
        not(target_os = "linux"),
        expect(dead_code, reason = "only Linux says what is in memory")
    )]
    file: File,
    /// Whether the system cannot say what is in memory: then the file is read as usual.
    is_unsupported: AtomicBool,
    /// Written since the last sync.
    unsynced_bytes: AtomicUsize,
    /// At how many of them a write syncs.
    sync_bytes: Option<usize>,
}

impl NowaitFile {
    pub(super) fn new(file: File, sync_bytes: Option<usize>) -> Result<NowaitFile, DatabaseError> {
        Ok(NowaitFile {
            file: file.try_clone().map_err(redb::StorageError::Io)?,
            backend: FileBackend::new(file)?,
            is_unsupported: AtomicBool::new(!cfg!(target_os = "linux")),
            unsynced_bytes: AtomicUsize::new(0),
            sync_bytes,
        })
    }

    /// Returns whether all of it was in memory.
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
        if self.read_cached(offset, out)? { Ok(()) } else { cached_read::abort_not_cached() }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.backend.write(offset, data)?;
        let unsynced = self.unsynced_bytes.fetch_add(data.len(), Ordering::Relaxed) + data.len();
        match self.sync_bytes {
            Some(bytes) if unsynced >= bytes => self.sync_data(),
            _ => Ok(()),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.unsynced_bytes.store(0, Ordering::Relaxed);
        self.backend.sync_data()
    }

    // The rest is as redb has it.

    fn len(&self) -> io::Result<u64> {
        self.backend.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.backend.set_len(len)
    }

    fn close(&self) -> io::Result<()> {
        self.backend.close()
    }

    forward_locks!(backend);
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
