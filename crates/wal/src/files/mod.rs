//! The log's interface to a file system, with a real and a simulated implementation.
//!
//! No other module of this crate calls the system's file functions. [`OsFileSystem`] calls them.
//! [`SimulatedDisk`] fails or loses its power at any operation that a test chooses. Both
//! implementations guarantee the following (`UnsyncedFileSystem` and a simulated disk that skips
//! syncs do not):
//!
//! * The bytes and the length of a file are on disk when [`File::sync`] of that file has returned.
//! * A change of a name (created, renamed, removed) is on disk when [`FileSystem::sync_dir`] of its
//!   directory has returned.
//! * Everything else may be on disk completely, partly or not at all, in any order.
//! * A sector of 512 bytes is written completely or not at all. If there were several unsynced
//!   writes to one sector, the disk has the first few of them, never a later one without the
//!   earlier ones.
//! * A lock belongs to an open file and ends when that open file is closed. It does not depend on
//!   the file's name.

#[cfg(not(target_family = "wasm"))]
mod os_files;
mod simulated;

use std::fmt;
use std::io;
use std::path::Path;

#[cfg(not(target_family = "wasm"))]
pub use os_files::{OsFileSystem, UnsyncedFileSystem};
pub use simulated::{Fault, SimulatedDisk};

/// The number of bytes that a disk writes atomically.
pub const SECTOR: u64 = 512;

pub trait FileSystem: fmt::Debug + Send + Sync {
    /// Returns the names in a directory, sorted. Fails with `NotFound` if there is no such
    /// directory.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Creates a directory that only its owner may use. Fails if it exists.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// Creates a file that only its owner may use. Fails if it exists.
    fn create(&self, path: &Path) -> io::Result<Box<dyn File>>;

    /// Opens a file for reading and writing. Fails if it does not exist.
    fn open(&self, path: &Path) -> io::Result<Box<dyn File>>;

    /// Opens a file for reading. Fails if it does not exist.
    fn open_to_read(&self, path: &Path) -> io::Result<Box<dyn File>>;

    /// Renames a file or a directory. A file replaces a file that has the new name, and a directory
    /// replaces an empty directory.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    fn remove(&self, path: &Path) -> io::Result<()>;

    fn remove_dir(&self, dir: &Path) -> io::Result<()>;

    /// Syncs a directory. When it returns, the names in the directory are on disk.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Returns the number of bytes that can still be written to the directory's disk, or `u64::MAX`
    /// if the file system does not report this number.
    fn free_space(&self, dir: &Path) -> u64;

    /// Returns whether a sync waits for the disk. If not, a write only copies to memory, and a sync
    /// costs nothing.
    fn syncs(&self) -> bool {
        true
    }
}

/// Returns whether an error means a full disk or an exceeded quota.
pub fn is_out_of_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

pub fn remove_if_there(files: &dyn FileSystem, path: &Path) -> io::Result<()> {
    match files.remove(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Creates a file with these bytes and syncs it. The name may not be on disk yet. Fails if the file
/// exists.
pub fn create_with(files: &dyn FileSystem, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = files.create(path)?;
    file.write_at(0, bytes)?;
    file.sync()
}

/// Creates or replaces a file atomically, even if there is a crash. When it returns, the file and
/// its name are on disk. `new` is a temporary name in the same directory.
pub fn replace(
    files: &dyn FileSystem,
    dir: &Path,
    new: &str,
    name: &str,
    bytes: &[u8],
) -> io::Result<()> {
    let new = dir.join(new);
    remove_if_there(files, &new)?;
    create_with(files, &new, bytes)?;
    files.rename(&new, &dir.join(name))?;
    files.sync_dir(dir)
}

/// Reads a short file from its start, up to `max` bytes.
pub fn read_short(files: &dyn FileSystem, path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let file = files.open_to_read(path)?;
    let mut bytes = vec![0; file.length()?.min(max) as usize];
    file.read_at(0, &mut bytes)?;
    Ok(bytes)
}

pub trait File: fmt::Debug + Send {
    /// Returns the length in bytes.
    fn length(&self) -> io::Result<u64>;

    /// Returns an offset from which all bytes up to the end of the file are zero. There may be a
    /// smaller such offset. The default is the length.
    fn zeros_from(&self) -> io::Result<u64> {
        self.length()
    }

    /// Fills `out` with the bytes at `offset`. Fails if the file has fewer bytes.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// Writes bytes at `offset`. Extends the file if they go beyond its end.
    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Truncates the file, or extends it with zeros.
    fn set_length(&mut self, length: u64) -> io::Result<()>;

    /// Extends the file with zeros to at least this length and reserves the space, so that a later
    /// write there cannot fail on a full disk. A file is only extended, without reserved space, in
    /// `UnsyncedFileSystem`, on file systems that cannot reserve space, and if the operating system
    /// is not Linux.
    fn allocate(&mut self, length: u64) -> io::Result<()>;

    /// Returns whether reserved space is memory, as on tmpfs. The system fills such space with
    /// zeros, which takes a long time for a whole segment.
    fn is_in_memory(&self) -> bool {
        false
    }

    /// Syncs the file. When it returns, the bytes and the length are on disk.
    fn sync(&mut self) -> io::Result<()>;

    /// Locks the file exclusively. Returns `false` if the file is also open elsewhere and locked
    /// there.
    fn try_lock(&mut self) -> io::Result<bool>;
}
