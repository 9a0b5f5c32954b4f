//! The log's interface to a file system, with a real and a simulated implementation.
//!
//! Nothing else in this crate calls the system's file functions: [`OsFileSystem`] does, and
//! [`SimulatedDisk`] fails or loses its power at any operation a test chooses. The contract of
//! both:
//!
//! * Bytes and length of a file are on disk when [`File::sync`] of that file has returned.
//! * A name (created, renamed, removed) is on disk when [`FileSystem::sync_dir`] of its directory
//!   has returned.
//! * Anything else may be on disk: all of it, parts of it, in any order.
//! * A sector of 512 bytes is written as a whole or not at all. Of several unsynced writes to one
//!   sector the disk has the first few, and none without those before it.
//! * A lock belongs to an open file and goes with it, whatever happens to the file's name.

mod os_files;
mod simulated;

use std::fmt;
use std::io;
use std::path::Path;

pub use os_files::OsFileSystem;
pub use simulated::{Fault, SimulatedDisk};

/// What a disk writes atomically.
pub const SECTOR: u64 = 512;

pub trait FileSystem: fmt::Debug + Send + Sync {
    /// Sorted. An error of kind `NotFound` if there is no such directory.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// An error if it exists. For its owner alone.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// An error if it exists. For its owner alone.
    fn create(&self, path: &Path) -> io::Result<Box<dyn File>>;

    /// For reading and writing; an error if it does not exist.
    fn open(&self, path: &Path) -> io::Result<Box<dyn File>>;

    /// An error if it does not exist.
    fn open_to_read(&self, path: &Path) -> io::Result<Box<dyn File>>;

    /// For a file or a directory. A file that has the new name is replaced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    fn remove(&self, path: &Path) -> io::Result<()>;

    fn remove_dir(&self, dir: &Path) -> io::Result<()>;

    /// Returns when the names in a directory are on disk.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Bytes that may still be written to the directory's disk; `u64::MAX` if the file system does
    /// not say.
    fn free_space(&self, dir: &Path) -> u64;
}

/// Out of disk space, or over a quota.
pub fn is_out_of_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

pub fn remove_if_there(files: &dyn FileSystem, path: &Path) -> io::Result<()> {
    match files.remove(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Makes a file with these bytes, on disk; its name may not be. An error if it exists.
pub fn create_with(files: &dyn FileSystem, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = files.create(path)?;
    file.write_at(0, bytes)?;
    file.sync()
}

/// Makes or replaces a file in a step that a crash does not divide, and returns when it is on disk.
/// `new` is a name in the same directory.
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

/// What is in a short file, but not more than `max` bytes.
pub fn read_short(files: &dyn FileSystem, path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let file = files.open_to_read(path)?;
    let mut bytes = vec![0; file.length()?.min(max) as usize];
    file.read_at(0, &mut bytes)?;
    Ok(bytes)
}

pub trait File: fmt::Debug + Send {
    /// In bytes.
    fn length(&self) -> io::Result<u64>;

    /// Fills `out` with the bytes from `offset` on; an error if there are fewer.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// What is beyond the end makes the file longer.
    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Cuts the file, or makes it longer with zeros.
    fn set_length(&mut self, length: u64) -> io::Result<()>;

    /// Makes the file at least this long with zeros, so that writing there cannot fail for want of
    /// space.
    fn allocate(&mut self, length: u64) -> io::Result<()>;

    /// Returns when bytes and length are on disk.
    fn sync(&mut self) -> io::Result<()>;

    /// Locks the file against every other opening of it; `false` if another holds the lock.
    fn try_lock(&mut self) -> io::Result<bool>;
}
