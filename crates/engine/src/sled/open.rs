//! Opening sled, and checking what it found.
//!
//! sled repairs its files while it opens them, and finds out later, or never, that they are
//! damaged. A store that is refused must stay as it was. So when a store was not closed cleanly,
//! or was changed since, its files are copied, the copy is opened and checked, and only if that
//! went well is the store itself opened.

use std::fs;
use std::io;
use std::path::Path;

use super::commit_file::CommitFile;
use super::tree::{METADATA_KEY, TreeMetadata, storage_error};
use crate::catch_panic::catch_panic;
use crate::directory::{TRIAL_SUFFIX, remove_data};
use crate::error::{Error, Result, one_line};
use crate::options::Options;

/// Fails as opening the store would fail, without touching it. After a kill the copy is one of the
/// leftovers that the next open removes.
pub(super) fn check_copy(store: &Path, commit_file: &CommitFile, options: &Options) -> Result<()> {
    let mut copy = store.as_os_str().to_owned();
    copy.push(TRIAL_SUFFIX);
    let copy = Path::new(&copy);
    remove_data(copy)?;
    let copied = copy_files(store, copy).map_err(Error::at(copy));
    let opened = copied.and_then(|()| open_and_check(copy, commit_file, options)).map(drop);
    let _ = remove_data(copy);
    // The copy's name means nothing to other code.
    opened.map_err(|error| match error {
        Error::Corrupt { detail, .. } => Error::corrupt(store, detail),
        other => other,
    })
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

pub(super) fn open_and_check(
    path: &Path,
    commit_file: &CommitFile,
    options: &Options,
) -> Result<(sled::Db, TreeMetadata)> {
    let database = open_database(path, options)?;
    let metadata = database.get(METADATA_KEY).map_err(storage_error)?;
    let metadata = metadata.and_then(|bytes| TreeMetadata::from_bytes(&bytes));
    let metadata = metadata.ok_or_else(|| Error::corrupt(path, "our own entry is missing"))?;
    commit_file.check_commit(metadata.commit)?;
    Ok((database, metadata))
}

pub(super) fn open_database(path: &Path, options: &Options) -> Result<sled::Db> {
    let config = sled::Config::new()
        .path(path)
        .cache_capacity(options.cache_bytes as u64)
        // We flush at every commit; a timer would only add writes in between.
        .flush_every_ms(None);
    match catch_panic(|| config.open()) {
        Ok(Ok(database)) => Ok(database),
        Ok(Err(sled::Error::Io(error))) if error.raw_os_error().is_some() => {
            Err(Error::at(path)(error))
        }
        Ok(Err(error)) => Err(Error::corrupt(path, one_line(&error.to_string()))),
        Err(panic) => Err(Error::corrupt(path, panic)),
    }
}
