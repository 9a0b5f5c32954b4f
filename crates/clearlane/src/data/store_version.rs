//! Checks whether this program can use a store of the engine `bolt`, which etcd may have written.
//!
//! The check runs before anything is created or changed. A store is rejected in the same cases as
//! in etcd 3.7:
//!
//! | bucket, key | error if |
//! |---|---|
//! | `cluster`, `clusterVersion` | above 3.7; below 3.6: the log may have requests of the old API |
//! | `meta`, `storageVersion` | above 3.7 |
//! | `meta`, `consistent_index` | above 0, and there is no log |

use std::path::{Path, PathBuf};

use clearlane_engine::bolt_file::BoltFile;
use clearlane_engine::{Bucket, Error as EngineError, Read as _};

use super::error::{Error, Result, at};

/// A version: major and minor number.
type Version = (u64, u64);
pub(crate) type GetRecord<'g> = dyn Fn(Bucket, &[u8]) -> Result<Option<Vec<u8>>> + 'g;

const OLDEST: Version = (3, 6);
const NEWEST: Version = (3, 7);

/// Checks the store in `file`. A missing file is not an error, because there may be no store yet.
pub(crate) fn check(file: &Path, has_log: bool) -> Result<()> {
    let found = match std::fs::metadata(file) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(at(file)(error)),
    };
    // etcd leaves the file empty if it is killed right after it has created the file.
    if found.is_file() && found.len() == 0 {
        return Ok(());
    }
    let store = BoltFile::open(file).map_err(engine_error)?;
    let get = |bucket, key: &[u8]| {
        let found = store.get(bucket, key).map_err(engine_error)?;
        Ok(found.map(|value| value.to_vec()))
    };
    check_versions(file, &get)?;
    let index = get(Bucket::Meta, b"consistent_index")?;
    if !has_log && index.is_some_and(|index| index.iter().any(|byte| *byte != 0)) {
        return Err(Error::NoLog(file.to_owned()));
    }
    Ok(())
}

/// Returns whether etcd or one of its tools made the last commit of the store. Returns `false` if
/// there is no store.
pub(crate) fn is_of_etcd(file: &Path) -> Result<bool> {
    match std::fs::metadata(file) {
        Ok(found) if found.is_file() && found.len() > 0 => {
            Ok(BoltFile::open(file).map_err(engine_error)?.is_of_bbolt())
        }
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(at(file)(error)),
        _ => Ok(false),
    }
}

/// Checks the versions of a store or of a snapshot, whose records `get` reads. Errors contain
/// `path`.
pub(crate) fn check_versions(path: &Path, get: &GetRecord<'_>) -> Result<()> {
    let version = |bucket, key: &'static str| {
        let text = get(bucket, key.as_bytes())?;
        text.map(|text| parse(path, key, &text)).transpose()
    };
    let cluster = version(Bucket::Cluster, "clusterVersion")?;
    let storage = version(Bucket::Meta, "storageVersion")?;
    let path = || path.to_owned();
    for (name, found) in [("cluster version", cluster), ("storage version", storage)] {
        if let Some((major, minor)) = found.filter(|found| *found > NEWEST) {
            return Err(Error::NewerStore {
                path: path(),
                name,
                found: format!("{major}.{minor}"),
            });
        }
    }
    match cluster {
        Some((major, minor)) if (major, minor) < OLDEST => {
            Err(Error::OlderStore { path: path(), found: format!("{major}.{minor}") })
        }
        _ => Ok(()),
    }
}

fn parse(path: &Path, key: &'static str, text: &[u8]) -> Result<Version> {
    let text = String::from_utf8_lossy(text).into_owned();
    let mut parts = text.split('.').map(str::parse::<u64>);
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Ok((major, minor)),
        _ => Err(Error::BadVersion { path: path.to_owned(), key, text }),
    }
}

fn engine_error(error: EngineError) -> Error {
    Error::Member(error.into())
}

/// Returns the path of the store in a member's directory.
pub(crate) fn file_in(member_dir: &Path) -> PathBuf {
    member_dir.join("snap/db")
}
