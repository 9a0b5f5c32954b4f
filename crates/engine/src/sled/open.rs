//! Opening sled, and checking what it found.

use std::path::Path;

use super::commit_file::CommitFile;
use super::tree::{METADATA_KEY, TreeMetadata, storage_error};
use crate::catch_panic::catch_panic;
use crate::error::{Error, Result, one_line};
use crate::options::Options;

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
