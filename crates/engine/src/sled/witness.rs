//! Our own witness of how far a sled store got, and how it was closed.
//!
//! sled takes a log that ends early for one that was cut by a crash: it drops the rest and goes
//! on. That is right for what was never flushed, and wrong for a commit that was acknowledged.
//! Only somebody outside sled can tell the two apart, so each commit's number is written to a
//! small file after the flush, and compared with the tree's own when the store is opened.
//!
//! ```text
//!   bytes 0..8    number of the last acknowledged commit
//!   bytes 8..16   length of sled's log when it was closed; 0 while the store is open
//!   bytes 16..20  crc32c of those            (numbers are big endian)
//! ```
//!
//! The file is not synced: a sync would double the cost of a commit. After a power cut the number
//! may be an older one, which can hide a loss but never invents one.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;

use super::damaged;
use crate::error::{Error, Result};

const NAME: &str = "witness";
const LOG: &str = "db";
const CONFIG: &str = "conf";
const LENGTH: usize = 20;
/// Some seconds in all, after which somebody else must have the files.
const RELEASE_TRIES: usize = 4_000_000;

/// The witness of one store. Dropped after sled, it notes that the store was closed.
#[derive(Debug)]
pub(super) struct Witness {
    file: File,
    /// sled's log, to sync what sled has written.
    log: File,
    store: PathBuf,
    acknowledged: u64,
    /// As it was found; `None` once the store is open.
    log_length: Option<u64>,
}

impl Witness {
    pub(super) fn create(store: &Path) -> Result<Witness> {
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).open(store.join(NAME));
        let file = file.map_err(|error| at(store, NAME, error))?;
        let log = open_log(store)?;
        let (store, log_length) = (store.to_owned(), None);
        let witness = Witness { file, log, store, acknowledged: 0, log_length };
        let written = witness.write(0).and_then(|()| witness.sync_everything());
        written.map_err(|error| at(&witness.store, NAME, error))?;
        Ok(witness)
    }

    /// Reads the witness of a store, and refuses what sled would silently make anew.
    pub(super) fn open(store: &Path) -> Result<Witness> {
        for name in [CONFIG, LOG, NAME] {
            match fs::metadata(store.join(name)).map(|found| found.len()) {
                Ok(0) => return Err(damaged(store, &format!("file {name} is empty"))),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(damaged(store, &format!("file {name} is missing")));
                }
                Err(error) => return Err(at(store, name, error)),
            }
        }
        let file = OpenOptions::new().read(true).write(true).open(store.join(NAME));
        let file = file.map_err(|error| at(store, NAME, error))?;
        let mut bytes = [0; LENGTH];
        let read = file.read_exact_at(&mut bytes, 0);
        let numbers = read.ok().and_then(|()| parse(&bytes));
        let (acknowledged, log_length) =
            numbers.ok_or_else(|| damaged(store, "the witness file is not readable"))?;
        let (log, log_length) = (open_log(store)?, Some(log_length));
        Ok(Witness { file, log, store: store.to_owned(), acknowledged, log_length })
    }

    /// Waits until sled has let go of the files. A sled that is dropped closes them later, from a
    /// thread of its own; the directory is locked by us, so nobody else can be meant to have them.
    pub(super) fn await_release(&self) -> Result<()> {
        // A handle of its own, whose lock goes with it.
        let log = open_log(&self.store)?;
        for _ in 0..RELEASE_TRIES {
            match log.try_lock() {
                Ok(()) => return Ok(()),
                Err(TryLockError::WouldBlock) => thread::yield_now(),
                Err(TryLockError::Error(error)) => return Err(at(&self.store, LOG, error)),
            }
        }
        Err(Error::Locked { path: self.store.join(LOG) })
    }

    /// Whether sled's files are as sled left them when it was closed.
    pub(super) fn closed_cleanly(&self) -> bool {
        self.log_length == log_length(&self.store).ok()
    }

    /// Refuses a tree that has fewer commits than were acknowledged.
    pub(super) fn confirm(&self, commit: u64) -> Result<()> {
        let acknowledged = self.acknowledged;
        if commit < acknowledged {
            let lost = format!("sled has commit {commit}, but {acknowledged} was acknowledged");
            return Err(damaged(&self.store, &lost));
        }
        Ok(())
    }

    /// Notes that the store is open, with a tree of `commit`.
    pub(super) fn reopen(&mut self, commit: u64) -> Result<()> {
        (self.acknowledged, self.log_length) = (commit, None);
        self.write(0).map_err(|error| at(&self.store, NAME, error))
    }

    /// Brings sled's log to the disk. sled's own flush hands it to the disk (`sync_file_range`),
    /// which neither empties the disk's cache nor writes what the file system knows of the file.
    pub(super) fn sync_log(&self) -> io::Result<()> {
        self.log.sync_data()
    }

    /// Records that `commit` is about to be acknowledged.
    pub(super) fn acknowledge(&self, commit: u64) -> io::Result<()> {
        write_numbers(&self.file, commit, 0)
    }

    /// A new store: its files, and that they are there.
    fn sync_everything(&self) -> io::Result<()> {
        self.file.sync_all()?;
        self.sync_log()?;
        File::open(self.store.join(CONFIG))?.sync_all()?;
        File::open(&self.store)?.sync_all()
    }

    fn write(&self, log_length: u64) -> io::Result<()> {
        write_numbers(&self.file, self.acknowledged, log_length)
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        let is_open = self.log_length.is_none();
        if let (true, Ok(length)) = (is_open, log_length(&self.store)) {
            // If this fails, the next open takes the longer way.
            let mut number = [0; 8];
            let read = self.file.read_exact_at(&mut number, 0);
            let _ =
                read.and_then(|()| write_numbers(&self.file, u64::from_be_bytes(number), length));
        }
    }
}

fn open_log(store: &Path) -> Result<File> {
    File::open(store.join(LOG)).map_err(|error| at(store, LOG, error))
}

fn log_length(store: &Path) -> io::Result<u64> {
    Ok(fs::metadata(store.join(LOG))?.len())
}

fn write_numbers(file: &File, acknowledged: u64, log_length: u64) -> io::Result<()> {
    let mut bytes = [0; LENGTH];
    bytes[..8].copy_from_slice(&acknowledged.to_be_bytes());
    bytes[8..16].copy_from_slice(&log_length.to_be_bytes());
    let sum = crc32c::crc32c(&bytes[..16]);
    bytes[16..].copy_from_slice(&sum.to_be_bytes());
    file.write_all_at(&bytes, 0)
}

fn parse(bytes: &[u8; LENGTH]) -> Option<(u64, u64)> {
    let number = |range: std::ops::Range<usize>| bytes[range].try_into().map(u64::from_be_bytes);
    let whole = crc32c::crc32c(&bytes[..16]).to_be_bytes() == bytes[16..];
    if whole { Some((number(0..8).ok()?, number(8..16).ok()?)) } else { None }
}

fn at(store: &Path, name: &str, source: io::Error) -> Error {
    Error::Path { path: store.join(name), source }
}
