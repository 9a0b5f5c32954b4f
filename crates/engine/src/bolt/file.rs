//! The file that contains the store. Tests use a simulated disk instead.
//!
//! Inside [`try_read_cached`](crate::try_read_cached) a read must not wait for the disk. On Linux
//! the read requests only bytes that are in memory (`RWF_NOWAIT`). On other systems, and on file
//! systems that do not support this flag, the read is an ordinary read, which may wait. See
//! `docs/decisions/engine-cold-reads.md`.

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::iter;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::meta::{META_PAGE_BYTES, PAGE_SIZE_MAX, PAGE_SIZE_MIN};
use crate::error::{Error, Result};

pub(super) trait StoreFile: Send + Sync + Debug {
    fn len(&self) -> io::Result<u64>;

    /// Returns the number of bytes that the file occupies on disk. The number is at most
    /// [`len`](StoreFile::len), because parts that were never written may occupy no space.
    fn size_on_disk(&self) -> io::Result<u64> {
        self.len()
    }

    /// Fills `out`. Fails if the file ends too early.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// Like [`read_at`](StoreFile::read_at), but does not wait for the disk if the system supports
    /// this. Returns `false` if `out` was not filled, because some bytes are not in memory.
    fn read_cached_at(&self, offset: u64, out: &mut [u8]) -> io::Result<bool> {
        self.read_at(offset, out).map(|()| true)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Returns after all written bytes and the file's length are on disk.
    fn sync_data(&self) -> io::Result<()>;
}

#[derive(Debug)]
pub(super) struct DiskFile {
    file: File,
    /// If true, this process holds the exclusive lock and may write to the file.
    is_writer: bool,
    /// If true, the system or the file system does not support `RWF_NOWAIT`, so every read may
    /// wait.
    is_unsupported: AtomicBool,
    syncs: bool,
}

impl DiskFile {
    /// Opens the file, or creates it if `is_new`, and takes bbolt's exclusive lock. So no program
    /// that uses bbolt can write at the same time.
    pub(super) fn open(path: &Path, is_new: bool) -> Result<DiskFile> {
        let file = OpenOptions::new().read(true).write(true).create_new(is_new).open(path);
        let file = file.map_err(|error| match error.kind() {
            // The caller has found a store with this file, so a missing file is damage.
            io::ErrorKind::NotFound => Error::corrupt(path, "the file is missing"),
            _ => Error::at(path)(error),
        })?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => Error::Locked { path: path.to_owned() },
            TryLockError::Error(error) => Error::at(path)(error),
        })?;
        // The previous holder of the lock may have replaced the file after we opened it.
        let locked = file.metadata().map_err(Error::at(path))?;
        let named = fs::metadata(path).map_err(Error::at(path))?;
        if (locked.dev(), locked.ino()) != (named.dev(), named.ino()) {
            return Err(Error::Locked { path: path.to_owned() });
        }
        Ok(DiskFile::new(file, true))
    }

    /// Opens a file for reading, and takes a shared lock, which several readers may hold at the
    /// same time. Fails if a writer has locked the file.
    pub(super) fn open_to_read(path: &Path) -> Result<DiskFile> {
        // This check comes first, because opening a named pipe would wait for a writer.
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

    /// Creates and locks a file with the permissions `rights`, reduced by the process's umask.
    pub(super) fn create(path: &Path, rights: u32) -> Result<DiskFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(rights);
        let file = options.open(path).map_err(Error::at(path))?;
        file.try_lock().map_err(|error| Error::at(path)(error.into()))?;
        Ok(DiskFile::new(file, true))
    }

    fn new(file: File, is_writer: bool) -> DiskFile {
        let is_unsupported = AtomicBool::new(!cfg!(target_os = "linux"));
        DiskFile { file, is_writer, is_unsupported, syncs: true }
    }

    /// See [`Options::syncs`](crate::Options::syncs).
    pub(super) fn with_syncs(mut self, syncs: bool) -> DiskFile {
        self.syncs = syncs;
        self
    }
}

/// If the file has lost its name, for example because it was replaced, overwrites its meta pages
/// with zeros before its lock is released. If `etcdutl defrag` was started while the store was
/// open, it waits for this lock. If the old file were still valid, `etcdutl defrag` would then
/// defragment it and replace the new file with the result.
impl Drop for DiskFile {
    fn drop(&mut self) {
        let is_nameless = || self.file.metadata().is_ok_and(|found| found.nlink() == 0);
        if self.is_writer && is_nameless() {
            // The offset of the second meta page is the page size, which may be any power of two in
            // this range. The file is not truncated to zero bytes, because bbolt would create a new
            // store in an empty file. An error is ignored, because nothing can be done about it.
            let sizes = iter::successors(Some(PAGE_SIZE_MIN), |size| Some(size * 2));
            for offset in iter::once(0).chain(sizes.take_while(|&size| size <= PAGE_SIZE_MAX)) {
                let _ = self.file.write_all_at(&[0; META_PAGE_BYTES], offset as u64);
            }
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
                // If `error` is a real read error, the ordinary read fails again and returns it.
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
        if self.syncs { self.file.sync_data() } else { Ok(()) }
    }
}
