//! What the log needs of a file system, with a real one and a simulated one behind the same trait.
//!
//! Nothing else in this crate calls the system's file functions: [`OsFileSystem`] does, and
//! [`SimulatedDisk`] fails or loses its power at any operation a test chooses. The contract of
//! both:
//!
//! * Bytes and length of a file are on disk when [`File::sync`] of that file has returned.
//! * A name (created, renamed, removed) is on disk when [`FileSystem::sync_dir`] of its directory
//!   has returned.
//! * Anything else is perhaps on disk: all of it, parts of it, in any order.
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

/// What a disk writes as a whole.
pub const SECTOR: u64 = 512;

/// A file system, as far as the log needs one.
pub trait FileSystem: fmt::Debug + Send + Sync {
    /// The names in a directory, sorted. An error of kind `NotFound` if there is no such directory.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Makes a directory that is not there yet, for its owner alone.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// Makes an empty file that is not there yet, for its owner alone.
    fn create(&self, path: &Path) -> io::Result<Box<dyn File>>;

    /// Opens a file that is there, to read and to write.
    fn open(&self, path: &Path) -> io::Result<Box<dyn File>>;

    /// Opens a file that is there, to read it.
    fn open_to_read(&self, path: &Path) -> io::Result<Box<dyn File>>;

    /// Gives a file or a directory another name. A file that has the new name goes.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty directory.
    fn remove_dir(&self, dir: &Path) -> io::Result<()>;

    /// Returns when the names in a directory are on disk.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// How many bytes may still be written to the disk that a directory is on. Without bound, if
    /// the file system does not say.
    fn free_space(&self, dir: &Path) -> u64;
}

/// Whether something failed for want of free disk space, or over a quota.
pub fn is_out_of_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// An open file.
pub trait File: fmt::Debug + Send {
    /// The length in bytes.
    fn length(&self) -> io::Result<u64>;

    /// Fills `out` with the bytes from `offset` on; an error if there are fewer.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// Writes all of `data` at `offset`. What lies beyond the end makes the file longer.
    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Cuts the file, or makes it longer with zeros.
    fn set_length(&mut self, length: u64) -> io::Result<()>;

    /// Makes the file at least this long with zeros, and sees to it that writing there cannot fail
    /// for want of space.
    fn allocate(&mut self, length: u64) -> io::Result<()>;

    /// Returns when bytes and length are on disk.
    fn sync(&mut self) -> io::Result<()>;

    /// Locks the file against every other opening of it; `false` if another holds the lock.
    fn try_lock(&mut self) -> io::Result<bool>;
}
