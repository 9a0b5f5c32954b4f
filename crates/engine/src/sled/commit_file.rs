//! A file of our own that says how far a sled store got, and how it was closed.
//!
//! sled takes a log that ends early for one that a crash cut, and goes on without the rest. So each
//! commit's number is written here after the flush, and compared with the tree's own at opening.
//! Files that are not as sled left them are opened as a copy first:
//! `docs/decisions/engine-sled.md`.
//!
//! ```text
//!   bytes 0..8    number of the last acknowledged commit       (numbers are big endian)
//!   bytes 8..16   length of sled's log when it was closed; 0 while the store is open
//!   bytes 16..20  crc32c of the names and bytes of sled's files when it was closed
//!   bytes 20..24  crc32c of those
//! ```
//!
//! Not synced: that would double a commit's cost. A power cut can hide a loss, not invent one.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;

use crate::error::{Error, Result};

const COMMIT_FILE_NAME: &str = "witness";
const LOG_NAME: &str = "db";
const CONFIG_NAME: &str = "conf";
const COMMIT_FILE_BYTES: usize = 24;
/// Some seconds in all, after which it is assumed that another process has the files.
const RELEASE_TRIES_MAX: usize = 4_000_000;

/// Dropped after sled, it notes that the store was closed.
#[derive(Debug)]
pub(super) struct CommitFile {
    file: File,
    /// sled's log, to sync what sled has written.
    log: File,
    store: PathBuf,
    acknowledged: u64,
    /// As the files were found; `None` once the store is open.
    checksum_at_open: Option<FilesChecksum>,
    /// If so, how the store was closed need not be known.
    pub(super) is_removed_on_drop: bool,
}

/// What sled's files were when sled had closed them. [`FilesChecksum::STILL_OPEN`] while it has
/// not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FilesChecksum {
    log_length: u64,
    sum: u32,
}

impl FilesChecksum {
    const STILL_OPEN: FilesChecksum = FilesChecksum { log_length: 0, sum: 0 };
}

impl CommitFile {
    pub(super) fn create(store: &Path) -> Result<CommitFile> {
        let commit_file = CommitFile::new(store, open_file(store, true)?, 0, None)?;
        // A new store's files, and their names.
        let write = || {
            commit_file.write(0, FilesChecksum::STILL_OPEN)?;
            commit_file.file.sync_all()?;
            commit_file.log.sync_data()?;
            File::open(store.join(CONFIG_NAME))?.sync_all()?;
            File::open(store)?.sync_all()
        };
        write().map_err(Error::at(&store.join(COMMIT_FILE_NAME)))?;
        Ok(commit_file)
    }

    fn new(
        store: &Path,
        file: File,
        acknowledged: u64,
        checksum_at_open: Option<FilesChecksum>,
    ) -> Result<CommitFile> {
        let (log, store) = (open_log(store)?, store.to_owned());
        let is_removed_on_drop = false;
        Ok(CommitFile { file, log, store, acknowledged, checksum_at_open, is_removed_on_drop })
    }

    /// Refuses what sled would silently make anew.
    pub(super) fn open(store: &Path) -> Result<CommitFile> {
        for name in [CONFIG_NAME, LOG_NAME, COMMIT_FILE_NAME] {
            match fs::metadata(store.join(name)).map(|found| found.len()) {
                Ok(0) => return Err(Error::corrupt(store, format!("file {name} is empty"))),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(Error::corrupt(store, format!("file {name} is missing")));
                }
                Err(error) => return Err(Error::at(&store.join(name))(error)),
            }
        }
        let file = open_file(store, false)?;
        let mut bytes = [0; COMMIT_FILE_BYTES];
        let read = file.read_exact_at(&mut bytes, 0);
        let numbers = read.ok().and_then(|()| parse(&bytes));
        let (acknowledged, found) =
            numbers.ok_or_else(|| Error::corrupt(store, "the witness file is not readable"))?;
        CommitFile::new(store, file, acknowledged, Some(found))
    }

    /// Waits until sled has let go of the files. A sled that is dropped closes them later, from a
    /// thread of its own; the directory is locked by us, so no other process should have them.
    pub(super) fn wait_for_release(&self) -> Result<()> {
        // A handle of its own, whose lock goes with it.
        let log = open_log(&self.store)?;
        for _ in 0..RELEASE_TRIES_MAX {
            match log.try_lock() {
                Ok(()) => return Ok(()),
                Err(TryLockError::WouldBlock) => thread::yield_now(),
                Err(TryLockError::Error(error)) => {
                    return Err(Error::at(&self.store.join(LOG_NAME))(error));
                }
            }
        }
        Err(Error::Locked { path: self.store.join(LOG_NAME) })
    }

    pub(super) fn was_closed_cleanly(&self) -> bool {
        // The length first: after a crash there is nothing to compare, and no need to read it all.
        self.checksum_at_open.is_some_and(|found| {
            log_length(&self.store).is_ok_and(|length| length == found.log_length)
                && sum_files(&self.store, 0).is_ok_and(|sum| sum == found.sum)
        })
    }

    /// Refuses a tree that has fewer commits than were acknowledged.
    pub(super) fn check_commit(&self, commit: u64) -> Result<()> {
        let acknowledged = self.acknowledged;
        if commit < acknowledged {
            let lost = format!("sled has commit {commit}, but {acknowledged} was acknowledged");
            return Err(Error::corrupt(&self.store, lost));
        }
        Ok(())
    }

    pub(super) fn mark_open(&mut self, commit: u64) -> Result<()> {
        self.acknowledged = commit;
        self.checksum_at_open = None;
        let written = self.write(commit, FilesChecksum::STILL_OPEN);
        written.map_err(Error::at(&self.store.join(COMMIT_FILE_NAME)))
    }

    /// Records that `commit` is about to be acknowledged, with sled's log on the disk. sled's own
    /// flush hands it to the disk (`sync_file_range`), which neither empties the disk's cache nor
    /// writes what the file system knows of the file.
    pub(super) fn acknowledge(&self, commit: u64) -> io::Result<()> {
        self.log.sync_data()?;
        self.write(commit, FilesChecksum::STILL_OPEN)
    }

    /// Waits until sled has closed them.
    fn write_closed(&self) -> io::Result<()> {
        self.wait_for_release().map_err(|error| io::Error::other(error.to_string()))?;
        let mut number = [0; 8];
        self.file.read_exact_at(&mut number, 0)?;
        let (log_length, sum) = (log_length(&self.store)?, sum_files(&self.store, 0)?);
        self.write(u64::from_be_bytes(number), FilesChecksum { log_length, sum })
    }

    fn write(&self, acknowledged: u64, files: FilesChecksum) -> io::Result<()> {
        let mut bytes = [0; COMMIT_FILE_BYTES];
        bytes[..8].copy_from_slice(&acknowledged.to_be_bytes());
        bytes[8..16].copy_from_slice(&files.log_length.to_be_bytes());
        bytes[16..20].copy_from_slice(&files.sum.to_be_bytes());
        let sum = crc32c::crc32c(&bytes[..20]);
        bytes[20..].copy_from_slice(&sum.to_be_bytes());
        self.file.write_all_at(&bytes, 0)
    }
}

impl Drop for CommitFile {
    fn drop(&mut self) {
        let is_open = self.checksum_at_open.is_none();
        if is_open && !self.is_removed_on_drop {
            // If this fails, the next open takes the longer way.
            let _ = self.write_closed();
        }
    }
}

fn open_file(store: &Path, is_new: bool) -> Result<File> {
    let path = store.join(COMMIT_FILE_NAME);
    let file = File::options().read(true).write(true).create_new(is_new).open(&path);
    file.map_err(Error::at(&path))
}

fn open_log(store: &Path) -> Result<File> {
    let path = store.join(LOG_NAME);
    File::open(&path).map_err(Error::at(&path))
}

fn log_length(store: &Path) -> io::Result<u64> {
    Ok(fs::metadata(store.join(LOG_NAME))?.len())
}

/// The crc32c of all files of a directory but the witness, in the order of their names.
fn sum_files(dir: &Path, mut sum: u32) -> io::Result<u32> {
    let entries = fs::read_dir(dir)?;
    let mut names = entries
        .map(|entry| Ok(entry?.file_name()))
        .filter(|name| !matches!(name, Ok(name) if name == COMMIT_FILE_NAME))
        .collect::<io::Result<Vec<_>>>()?;
    names.sort();
    for name in names {
        // A zero cannot be in a name, so it ends one.
        sum = crc32c::crc32c_append(sum, name.as_encoded_bytes());
        sum = crc32c::crc32c_append(sum, &[0]);
        let path = dir.join(name);
        sum = if path.is_dir() { sum_files(&path, sum)? } else { sum_file(&path, sum)? };
    }
    Ok(sum)
}

fn sum_file(path: &Path, mut sum: u32) -> io::Result<u32> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 256 << 10];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(sum),
            length => sum = crc32c::crc32c_append(sum, &buffer[..length]),
        }
    }
}

fn parse(bytes: &[u8; COMMIT_FILE_BYTES]) -> Option<(u64, FilesChecksum)> {
    let number = |range: std::ops::Range<usize>| bytes[range].try_into().map(u64::from_be_bytes);
    let sum = bytes[16..20].try_into().map(u32::from_be_bytes).ok()?;
    let whole = crc32c::crc32c(&bytes[..20]).to_be_bytes() == bytes[20..];
    let files = FilesChecksum { log_length: number(8..16).ok()?, sum };
    if whole { Some((number(0..8).ok()?, files)) } else { None }
}

#[cfg(test)]
mod tests;
