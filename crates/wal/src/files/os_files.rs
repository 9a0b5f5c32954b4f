//! The file system of the operating system.
//!
//! # The lock
//!
//! The standard library locks with `flock`. On Linux, etcd locks its segments with an *open file
//! description lock* of `fcntl`. The two kinds of locks do not exclude each other: if this module
//! used `flock` on Linux, etcd and Clearlane could write to one log at the same time. So on Linux
//! it uses etcd's kind of lock. On other systems etcd and Clearlane both use `flock`.
//!
//! # The sync
//!
//! A sync is `fdatasync`. It writes the bytes, the length and the positions of the bytes, but not
//! the file's times. On Linux, space is reserved ahead with `fallocate`, so that a sync seldom has
//! to write the length. On other systems, and if the file system does not support `fallocate`, the
//! file is only extended.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;

use super::{File, FileSystem};

#[derive(Clone, Copy, Debug, Default)]
pub struct OsFileSystem;

/// The file system of the operating system, without syncs: `--unsafe-no-fsync`. If the process is
/// killed, nothing is lost, because the system has the written bytes. If the system crashes, they
/// may be lost.
///
/// No space is reserved either. On tmpfs, reserving 64 MB fills 64 MB of memory with zeros, which
/// would take most of the start time of a server in a test. Without reserved space, any write can
/// fail if the disk is full.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnsyncedFileSystem;

impl FileSystem for OsFileSystem {
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for found in fs::read_dir(dir)? {
            // A name that is not valid text is skipped, because no segment has such a name.
            if let Ok(name) = found?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        fs::DirBuilder::new().mode(0o700).create(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        Ok(Box::new(OsFile::new(create(path)?)))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn File>> {
        Ok(Box::new(OsFile::new(open(path)?)))
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Box<dyn File>> {
        Ok(Box::new(OsFile::new(fs::File::open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        fs::remove_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        // The parent of a relative path may be the empty path, which is the current directory.
        let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        fs::File::open(dir)?.sync_all()
    }

    fn free_space(&self, dir: &Path) -> u64 {
        let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        let Ok(found) = nix::sys::statvfs::statvfs(dir) else { return u64::MAX };
        // The integer types of these values depend on the system.
        #[allow(clippy::useless_conversion, reason = "not useless everywhere")]
        let (blocks, size) =
            (u64::from(found.blocks_available()), u64::from(found.fragment_size()));
        blocks.saturating_mul(size)
    }
}

impl FileSystem for UnsyncedFileSystem {
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        OsFileSystem.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        OsFileSystem.create_dir(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        Ok(Box::new(OsFile::unsynced(create(path)?)))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn File>> {
        Ok(Box::new(OsFile::unsynced(open(path)?)))
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Box<dyn File>> {
        Ok(Box::new(OsFile::unsynced(fs::File::open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        OsFileSystem.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        OsFileSystem.remove(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        OsFileSystem.remove_dir(dir)
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn free_space(&self, dir: &Path) -> u64 {
        OsFileSystem.free_space(dir)
    }

    fn syncs(&self) -> bool {
        false
    }
}

/// Creates a file that only its owner may read and write.
fn create(path: &Path) -> io::Result<fs::File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

fn open(path: &Path) -> io::Result<fs::File> {
    OpenOptions::new().read(true).write(true).open(path)
}

#[derive(Debug)]
struct OsFile {
    file: fs::File,
    /// If false, the file is not synced, and no space is reserved for it.
    syncs: bool,
    is_in_memory: bool,
}

impl OsFile {
    fn new(file: fs::File) -> OsFile {
        OsFile { syncs: true, is_in_memory: is_in_memory(&file), file }
    }

    fn unsynced(file: fs::File) -> OsFile {
        OsFile { file, syncs: false, is_in_memory: false }
    }
}

impl File for OsFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Returns the end of the file's last data, as reported by the file system. For synced files on
    /// a disk, returns the length instead: if the file system returned too small an offset,
    /// acknowledged entries would be lost.
    fn zeros_from(&self) -> io::Result<u64> {
        if self.syncs && !self.is_in_memory { self.length() } else { data_end(&self.file) }
    }

    fn is_in_memory(&self) -> bool {
        self.is_in_memory
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    fn set_length(&mut self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }

    fn allocate(&mut self, length: u64) -> io::Result<()> {
        let is_reserved = self.syncs && reserve(&self.file, length)?;
        if !is_reserved && self.length()? < length {
            self.file.set_len(length)?;
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.syncs { self.file.sync_data() } else { Ok(()) }
    }

    fn try_lock(&mut self) -> io::Result<bool> {
        lock(&self.file)
    }
}

/// Reserves space and extends the file. Returns `false` if the file system cannot reserve space.
#[cfg(target_os = "linux")]
fn reserve(file: &fs::File, length: u64) -> io::Result<bool> {
    use nix::errno::Errno;
    use nix::fcntl::{FallocateFlags, fallocate};
    let length = i64::try_from(length).map_err(io::Error::other)?;
    loop {
        return match fallocate(file, FallocateFlags::empty(), 0, length) {
            Ok(()) => Ok(true),
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => Ok(false),
            Err(Errno::EINTR) => continue,
            Err(error) => Err(error.into()),
        };
    }
}

#[cfg(not(target_os = "linux"))]
fn reserve(_file: &fs::File, _length: u64) -> io::Result<bool> {
    Ok(false)
}

/// Returns whether the file system is tmpfs.
#[cfg(target_os = "linux")]
fn is_in_memory(file: &fs::File) -> bool {
    use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
    fstatfs(file).is_ok_and(|found| found.filesystem_type() == TMPFS_MAGIC)
}

#[cfg(not(target_os = "linux"))]
fn is_in_memory(_file: &fs::File) -> bool {
    false
}

/// Returns the end of the last part of the file that is not a hole, or the length if the file
/// system does not support holes.
#[cfg(target_os = "linux")]
fn data_end(file: &fs::File) -> io::Result<u64> {
    use nix::errno::Errno;
    use nix::unistd::{Whence, lseek};
    let mut end = 0;
    loop {
        match lseek(file, end, Whence::SeekData) {
            Ok(data) => end = lseek(file, data, Whence::SeekHole)?,
            Err(Errno::ENXIO) => return Ok(end.unsigned_abs()),
            Err(Errno::EINVAL) => return Ok(file.metadata()?.len()),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn data_end(file: &fs::File) -> io::Result<u64> {
    Ok(file.metadata()?.len())
}

#[cfg(target_os = "linux")]
fn lock(file: &fs::File) -> io::Result<bool> {
    use nix::errno::Errno;
    use nix::fcntl::{FcntlArg, fcntl};
    use nix::libc;
    // The lock covers the whole file, even if the file grows. `l_pid` must be 0 for this kind of
    // lock.
    let whole = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    match fcntl(file, FcntlArg::F_OFD_SETLK(&whole)) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn lock(file: &fs::File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(fs::TryLockError::WouldBlock) => Ok(false),
        Err(fs::TryLockError::Error(error)) => Err(error),
    }
}
