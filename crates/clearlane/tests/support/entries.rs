//! The entries of a directory, to check that nothing was changed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Returns names, lengths and times of all entries, including those in subdirectories.
pub(crate) fn all_of(dir: &Path) -> Vec<(PathBuf, u64, SystemTime)> {
    let facts = fs::metadata(dir).unwrap();
    let mut all = vec![(dir.to_owned(), facts.len(), facts.modified().unwrap())];
    for entry in fs::read_dir(dir).unwrap() {
        let (path, facts) = entry.map(|entry| (entry.path(), entry.metadata().unwrap())).unwrap();
        match facts.is_dir() {
            true => all.extend(all_of(&path)),
            false => all.push((path, facts.len(), facts.modified().unwrap())),
        }
    }
    all.sort();
    all
}
