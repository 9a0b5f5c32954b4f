//! Opening and closing sled's files, and a file of our own beside them.
//!
//! sled takes a log that ends early for one that a crash cut, and goes on without the rest. So the
//! number of each commit is in our file before it is acknowledged, and a tree with a smaller one is
//! refused. The file is not synced: a power cut can hide a loss, not invent one.
//!
//! sled repairs while it opens. A store that is refused must stay as it was, so its files are
//! copied, the copy is opened and checked, and only if that went well is the store itself opened.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;

use super::{METADATA_KEY, TreeMetadata, storage_error};
use crate::catch_panic::catch_panic;
use crate::directory::{remove_data, trial_path};
use crate::error::{Error, Result, one_line};
use crate::options::Options;

const COMMIT_FILE_NAME: &str = "witness";
const CONFIG_NAME: &str = "conf";
const LOG_NAME: &str = "db";
/// Some seconds in all, after which it is assumed that another process has the files.
const RELEASE_TRIES_MAX: usize = 4_000_000;

pub(super) struct CommitFile {
    file: File,
    /// What it said when it was opened.
    acknowledged: u64,
    /// sled's log, to sync what sled has written.
    log: File,
    store: PathBuf,
}

impl CommitFile {
    /// Brings a new store, and the names of its files, to the disk.
    pub(super) fn create(store: &Path) -> Result<CommitFile> {
        let path = store.join(COMMIT_FILE_NAME);
        fs::write(&path, 0u64.to_be_bytes()).map_err(Error::at(&path))?;
        for name in [CONFIG_NAME, LOG_NAME, COMMIT_FILE_NAME, "."] {
            let path = store.join(name);
            File::open(&path).and_then(|file| file.sync_all()).map_err(Error::at(&path))?;
        }
        CommitFile::open(store)
    }

    pub(super) fn open(store: &Path) -> Result<CommitFile> {
        // sled would make anew what is missing.
        for name in [CONFIG_NAME, LOG_NAME, COMMIT_FILE_NAME] {
            if !fs::metadata(store.join(name)).is_ok_and(|found| found.len() >= 8) {
                return Err(Error::corrupt(store, format!("file {name} is missing or too short")));
            }
        }
        let log = File::open(store.join(LOG_NAME)).map_err(Error::at(store))?;
        let path = store.join(COMMIT_FILE_NAME);
        let file = File::options().read(true).write(true).open(&path).map_err(Error::at(&path))?;
        let mut number = [0; 8];
        file.read_exact_at(&mut number, 0).map_err(Error::at(&path))?;
        let acknowledged = u64::from_be_bytes(number);
        Ok(CommitFile { file, acknowledged, log, store: store.to_owned() })
    }

    /// Records that `commit` is about to be acknowledged, with sled's log on the disk: sled's own
    /// flush leaves it in the disk's cache.
    pub(super) fn acknowledge(&self, commit: u64) -> Result<()> {
        let synced = self.log.sync_data();
        let written = synced.and_then(|()| self.file.write_all_at(&commit.to_be_bytes(), 0));
        written.map_err(Error::at(&self.store))
    }

    pub(super) fn open_database(&self, options: &Options) -> Result<(sled::Db, TreeMetadata)> {
        wait_for_release(&self.store)?;
        self.check_copy(options)?;
        let (database, metadata) = self.open_and_check(&self.store, options)?;
        // A crash may have come between the flush of this commit and its acknowledgement.
        self.acknowledge(metadata.commit)?;
        Ok((database, metadata))
    }

    /// Fails as opening the store would fail, without touching it.
    fn check_copy(&self, options: &Options) -> Result<()> {
        let copy = &trial_path(&self.store);
        remove_data(copy)?;
        let copied = copy_files(&self.store, copy).map_err(Error::at(copy));
        let opened = copied.and_then(|()| self.open_and_check(copy, options)).map(drop);
        // If it stays, or after a kill, it is one of the leftovers that the next open removes.
        let _ = wait_for_release(copy);
        let _ = remove_data(copy);
        opened
    }

    fn open_and_check(&self, files: &Path, options: &Options) -> Result<(sled::Db, TreeMetadata)> {
        let CommitFile { store, acknowledged, .. } = self;
        let database = open_database(files, store, options)?;
        // Absent before the first commit.
        let found = database.get(METADATA_KEY).map_err(storage_error)?;
        let metadata = found.and_then(|bytes| TreeMetadata::from_bytes(&bytes)).unwrap_or_default();
        let commit = metadata.commit;
        if commit < *acknowledged {
            let lost = format!("sled has commit {commit}, but {acknowledged} was acknowledged");
            return Err(Error::corrupt(store, lost));
        }
        Ok((database, metadata))
    }
}

/// Dropped after the database: what was dropped is closed, its bytes at rest.
impl Drop for CommitFile {
    fn drop(&mut self) {
        // If this fails, the next open waits, too.
        let _ = wait_for_release(&self.store);
    }
}

fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_files(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Opens `files`, which are the store's or a copy of them; an error names the store.
pub(super) fn open_database(files: &Path, store: &Path, options: &Options) -> Result<sled::Db> {
    let config = sled::Config::new()
        .path(files)
        .cache_capacity(options.cache_bytes as u64)
        // We flush at every commit; a timer would only add writes in between.
        .flush_every_ms(None);
    let opened = catch_panic(|| config.open()).map_err(|panic| Error::corrupt(store, panic))?;
    opened.map_err(|error| match error {
        sled::Error::Io(error) if error.raw_os_error().is_some() => Error::at(store)(error),
        error => Error::corrupt(store, one_line(&error.to_string())),
    })
}

/// Waits until sled has let go of the files in `path`. A sled that is dropped closes them later,
/// from a thread of its own; the directory is locked by us, so no other process should have them.
fn wait_for_release(path: &Path) -> Result<()> {
    let path = path.join(LOG_NAME);
    // A handle of its own, whose lock goes with it.
    let log = File::open(&path).map_err(Error::at(&path))?;
    for _ in 0..RELEASE_TRIES_MAX {
        if log.try_lock().is_ok() {
            return Ok(());
        }
        thread::yield_now();
    }
    Err(Error::Locked { path })
}
