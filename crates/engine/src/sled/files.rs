//! Opens and closes sled's files, and maintains our own file next to them.
//!
//! If a log ends early, sled assumes that a crash cut it off, and continues without the rest. We
//! must notice such a loss. So the number of each commit is written to our file before the commit
//! is acknowledged, and a tree whose last commit has a smaller number is rejected. Commits do not
//! sync our file. So after a power cut our file may have an old number and hide a loss, but it
//! never reports a loss that did not happen.
//!
//! sled repairs files while it opens them, but a store that is rejected must stay unchanged. So the
//! files are copied, and the copy is opened and checked. The store itself is opened only if the
//! copy is accepted.

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
/// Maximum number of attempts to lock sled's log, which take a few seconds in total. After these
/// attempts we assume that another process uses the files.
const RELEASE_TRIES_MAX: usize = 4_000_000;

pub(super) struct CommitFile {
    file: File,
    /// The commit number that the file contained when it was opened.
    acknowledged: u64,
    /// sled's log file, which we use to sync the bytes that sled has written.
    log: File,
    store: PathBuf,
}

impl CommitFile {
    /// Creates our file in a new store. Then syncs the store and the names of its files to the
    /// disk.
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
        // sled would create missing files again, so they are checked first.
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

    /// Syncs sled's log, and then writes the number `commit` to our file. The caller may
    /// acknowledge the commit afterwards. The sync is needed because sled's own flush may leave
    /// bytes in the disk's cache.
    pub(super) fn acknowledge(&self, commit: u64) -> Result<()> {
        let synced = self.log.sync_data();
        let written = synced.and_then(|()| self.file.write_all_at(&commit.to_be_bytes(), 0));
        written.map_err(Error::at(&self.store))
    }

    pub(super) fn open_database(&self, options: &Options) -> Result<(sled::Db, TreeMetadata)> {
        wait_for_release(&self.store)?;
        self.check_copy(options)?;
        let (database, metadata) = self.open_and_check(&self.store, options)?;
        // A crash may have happened between the flush of the last commit and its acknowledgement,
        // so our file may have an older number.
        self.acknowledge(metadata.commit)?;
        Ok((database, metadata))
    }

    /// Fails if opening the store would fail. The check opens a copy, so the store is not changed.
    fn check_copy(&self, options: &Options) -> Result<()> {
        let copy = &trial_path(&self.store);
        remove_data(copy)?;
        let copied = copy_files(&self.store, copy).map_err(Error::at(copy));
        let opened = copied.and_then(|()| self.open_and_check(copy, options)).map(drop);
        // If the removal fails, or the process is killed before it, the next open removes the copy
        // as a leftover.
        let _ = wait_for_release(copy);
        let _ = remove_data(copy);
        opened
    }

    fn open_and_check(&self, files: &Path, options: &Options) -> Result<(sled::Db, TreeMetadata)> {
        let CommitFile { store, acknowledged, .. } = self;
        let database = open_database(files, store, options)?;
        // The entry does not exist before the first commit.
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

/// Runs after the database is dropped. Waits for a few seconds at most until sled has closed its
/// files.
impl Drop for CommitFile {
    fn drop(&mut self) {
        // If sled has not closed its files after this wait, the next open waits again.
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

/// Opens sled's database in the directory `files`, which is the store itself or a copy of it. An
/// error always names `store`.
pub(super) fn open_database(files: &Path, store: &Path, options: &Options) -> Result<sled::Db> {
    let config = sled::Config::new()
        .path(files)
        .cache_capacity(options.cache_bytes as u64)
        // We flush at every commit, so a timer would only add needless writes.
        .flush_every_ms(None);
    let opened = catch_panic(|| config.open()).map_err(|panic| Error::corrupt(store, panic))?;
    opened.map_err(|error| match error {
        sled::Error::Io(error) if error.raw_os_error().is_some() => Error::at(store)(error),
        error => Error::corrupt(store, one_line(&error.to_string())),
    })
}

/// Waits until sled has released the files in `path`, or fails with [`Error::Locked`] after a few
/// seconds. When sled is dropped, one of its threads closes the files later. No other process
/// should use them, because we hold the lock on the directory.
fn wait_for_release(path: &Path) -> Result<()> {
    let path = path.join(LOG_NAME);
    // This handle is used only to test the lock. Closing the handle releases the lock.
    let log = File::open(&path).map_err(Error::at(&path))?;
    for _ in 0..RELEASE_TRIES_MAX {
        if log.try_lock().is_ok() {
            return Ok(());
        }
        thread::yield_now();
    }
    Err(Error::Locked { path })
}
