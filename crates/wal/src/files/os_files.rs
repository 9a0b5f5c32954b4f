//! The file system of the operating system.
//!
//! # The lock
//!
//! The standard library locks with `flock`; etcd locks its
//! segments with an *open file description lock* of `fcntl`, and the two kinds do not see each
//! other: with `flock`, etcd and we could write to one log at the same time. So on Linux the lock
//! is etcd's. Elsewhere it is `flock`, as in etcd.
//!
//! # The sync
//!
//! `fdatasync`: the bytes, and of the metadata the length and where the bytes are, but no times.
//! Space is reserved ahead with `fallocate`, so that a sync seldom has to write the length, too;
//! where the file system cannot, the file is just made longer.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;

use super::{File, FileSystem};

#[derive(Clone, Copy, Debug, Default)]
pub struct OsFileSystem;

impl FileSystem for OsFileSystem {
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for found in fs::read_dir(dir)? {
            // A segment's name is valid text.
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
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        Ok(Box::new(OsFile { file: options.open(path)? }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn File>> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Box::new(OsFile { file }))
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Box<dyn File>> {
        Ok(Box::new(OsFile { file: fs::File::open(path)? }))
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
        // The parent of a relative name may be the empty path: the current directory.
        let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        fs::File::open(dir)?.sync_all()
    }

    fn free_space(&self, dir: &Path) -> u64 {
        let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        let Ok(found) = nix::sys::statvfs::statvfs(dir) else { return u64::MAX };
        // Their widths depend on the system.
        #[allow(clippy::useless_conversion, reason = "not useless everywhere")]
        let (blocks, size) =
            (u64::from(found.blocks_available()), u64::from(found.fragment_size()));
        blocks.saturating_mul(size)
    }
}

#[derive(Debug)]
struct OsFile {
    file: fs::File,
}

impl File for OsFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
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
        if !reserve(&self.file, length)? && self.length()? < length {
            self.file.set_len(length)?;
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn try_lock(&mut self) -> io::Result<bool> {
        lock(&self.file)
    }
}

/// Reserves space and extends the file; `false` if the file system cannot.
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

#[cfg(target_os = "linux")]
fn lock(file: &fs::File) -> io::Result<bool> {
    use nix::errno::Errno;
    use nix::fcntl::{FcntlArg, fcntl};
    use nix::libc;
    // From offset 0 to the end, wherever that will be. A lock of this kind names no process.
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
