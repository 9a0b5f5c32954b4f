//! Opening a copy first.
//!
//! sled repairs its files while it opens them, and finds out later, or never, that they are
//! damaged. A store that is refused must stay as it was. So when a store was not closed cleanly,
//! or was changed since, its files are copied, the copy is opened and checked, and only if that
//! went well is the store itself opened.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::commit_file::CommitFile;
use super::open::open_and_check;
use crate::directory::{TRIAL_SUFFIX, remove_data};
use crate::error::{Error, Result};
use crate::options::Options;

/// Fails as opening the store would fail, without touching it.
pub(super) fn check_copy(store: &Path, commit_file: &CommitFile, options: &Options) -> Result<()> {
    let copy = TrialCopy::new(store)?;
    let outcome = open_and_check(&copy.path, commit_file, options);
    // The copy's name means nothing to other code.
    outcome.map(drop).map_err(|error| match error {
        Error::Corrupt { detail, .. } => Error::corrupt(store, detail),
        other => other,
    })
}

/// A directory that is removed when it is dropped. After a kill it is one of the leftovers that
/// the next open removes.
struct TrialCopy {
    path: PathBuf,
}

impl TrialCopy {
    fn new(store: &Path) -> Result<TrialCopy> {
        let mut path = store.as_os_str().to_owned();
        path.push(TRIAL_SUFFIX);
        let copy = TrialCopy { path: path.into() };
        remove_data(&copy.path)?;
        copy_files(store, &copy.path).map_err(Error::at(&copy.path))?;
        Ok(copy)
    }
}

impl Drop for TrialCopy {
    fn drop(&mut self) {
        let _ = remove_data(&self.path);
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
