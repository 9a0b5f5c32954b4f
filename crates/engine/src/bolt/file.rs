//! The file below the store: what is read, written and synced. Tests put a simulated disk here.
//!
//! Inside [`try_read_cached`](crate::try_read_cached) a read must not wait for the disk: Linux is
//! asked for what it has in memory (`RWF_NOWAIT`). Other systems, and file systems that do not
//! support the flag, are read as usual. See `docs/decisions/engine-cold-reads.md`.

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

pub(super) trait StoreFile: Send + Sync + Debug {
    fn len(&self) -> io::Result<u64>;

    /// At most [`len`](StoreFile::len): what was never written may take no room.
    fn size_on_disk(&self) -> io::Result<u64> {
        self.len()
    }

    /// Fills `out`; what lies beyond the end is an error.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// Like [`read_at`](StoreFile::read_at), but only if nothing has to be waited for. Returns
    /// whether `out` was filled.
    fn read_cached_at(&self, offset: u64, out: &mut [u8]) -> io::Result<bool> {
        self.read_at(offset, out).map(|()| true)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Returns when all that was written, and the length, is on disk.
    fn sync_data(&self) -> io::Result<()>;
}

/// The largest page that bbolt looks for.
const PAGE_BYTES_MAX: usize = 1 << 15;

#[derive(Debug)]
pub(super) struct DiskFile {
    file: File,
    /// Whether this process may write to it, having the lock alone.
    is_writer: bool,
    /// Whether the system cannot say what is in memory.
    is_unsupported: AtomicBool,
}

impl DiskFile {
    /// Opens the file, or makes it, and locks it as bbolt does, so that none of its programs writes
    /// at the same time.
    pub(super) fn open(path: &Path, is_new: bool) -> Result<DiskFile> {
        let file = OpenOptions::new().read(true).write(true).create_new(is_new).open(path);
        let file = file.map_err(|error| match error.kind() {
            // The marker names this file.
            io::ErrorKind::NotFound => Error::corrupt(path, "the file is missing"),
            _ => Error::at(path)(error),
        })?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => Error::Locked { path: path.to_owned() },
            TryLockError::Error(error) => Error::at(path)(error),
        })?;
        // The program that had the lock may have put another file in place of this one.
        let locked = file.metadata().map_err(Error::at(path))?;
        let named = fs::metadata(path).map_err(Error::at(path))?;
        if (locked.dev(), locked.ino()) != (named.dev(), named.ino()) {
            return Err(Error::Locked { path: path.to_owned() });
        }
        Ok(DiskFile::new(file, true))
    }

    /// Opens a file to be looked at. Other readers can have the lock, too.
    pub(super) fn open_to_read(path: &Path) -> Result<DiskFile> {
        // Opening a named pipe would wait for a writer.
        let found = fs::metadata(path).map_err(Error::at(path))?;
        if !found.is_file() {
            let reason = if found.is_dir() { "a directory, not a file" } else { "not a file" };
            return Err(Error::at(path)(io::Error::other(reason)));
        }
        let file = File::open(path).map_err(Error::at(path))?;
        file.try_lock_shared().map_err(|error| match error {
            TryLockError::WouldBlock => Error::Locked { path: path.to_owned() },
            TryLockError::Error(error) => Error::at(path)(error),
        })?;
        Ok(DiskFile::new(file, false))
    }

    /// Makes a file with these rights, less those that the process gives to none.
    pub(super) fn create(path: &Path, rights: u32) -> Result<DiskFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(rights);
        let file = options.open(path).map_err(Error::at(path))?;
        file.try_lock().map_err(|error| Error::at(path)(error.into()))?;
        Ok(DiskFile::new(file, true))
    }

    fn new(file: File, is_writer: bool) -> DiskFile {
        let is_unsupported = AtomicBool::new(!cfg!(target_os = "linux"));
        DiskFile { file, is_writer, is_unsupported }
    }
}

/// A file that has lost its name, to the one that took its place, is made unusable before the lock
/// on it ends: `etcdutl defrag`, started on a store that is open, waits for that lock, and would
/// put what it makes of the old file in place of the new one.
impl Drop for DiskFile {
    fn drop(&mut self) {
        let is_nameless = || self.file.metadata().is_ok_and(|found| found.nlink() == 0);
        if self.is_writer && is_nameless() {
            // Both meta pages, whatever the size of a page. bbolt would make a new store in an
            // empty file. There is nothing to be done about an error.
            let _ = self.file.write_all_at(&[0; 2 * PAGE_BYTES_MAX], 0);
        }
    }
}

impl StoreFile for DiskFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn size_on_disk(&self) -> io::Result<u64> {
        let found = self.file.metadata()?;
        Ok(found.len().min(found.blocks() * 512))
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    #[cfg(target_os = "linux")]
    fn read_cached_at(&self, offset: u64, out: &mut [u8]) -> io::Result<bool> {
        use rustix::io::{Errno, ReadWriteFlags, preadv2};

        if self.is_unsupported.load(Ordering::Relaxed) {
            return self.read_at(offset, out).map(|()| true);
        }
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
                self.read_at(offset, out).map(|()| true)
            }
        }
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
