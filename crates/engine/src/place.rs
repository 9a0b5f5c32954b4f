//! Where the data of a store is, and how new data replaces it.
//!
//! In a [`Directory`](crate::directory::Directory) each generation of the data has its own name,
//! and a marker file names the current generation. In a [`SingleFile`](crate::single_file) new data
//! takes over the name of the current data, because the new file is renamed to that name.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;

use crate::error::Result;

/// One generation of the data and its path.
#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) number: u64,
    pub(crate) path: SharedPath,
}

pub(crate) trait Place: Send + Sync + Debug {
    /// Returns the current generation, or `None` if there is no store yet.
    fn current(&self) -> Option<Generation>;

    /// Returns the generation that is written next. Removes any data that an interrupted attempt
    /// left at its path.
    fn prepare_next(&self) -> Result<Generation>;

    /// Makes `next` the current generation. The caller must have synced the data of `next`. Returns
    /// `false` and changes nothing if the place now belongs to another store. After an error,
    /// either generation may be current.
    fn make_current(&self, next: &Generation) -> Result<bool>;

    /// Returns `true` if replaced data keeps its name, so that it must be removed when it is
    /// closed. Returns `false` if the new data takes over the name.
    fn keeps_replaced(&self) -> bool;

    /// Removes the files that interrupted attempts have left. Called after the store has been
    /// opened successfully.
    fn remove_leftovers(&self) -> Result<()>;
}

/// A path that may change while the data is in use. All clones see the change.
#[derive(Clone, Debug)]
pub(crate) struct SharedPath(Arc<RwLock<PathBuf>>);

impl SharedPath {
    pub(crate) fn get(&self) -> PathBuf {
        self.0.read().clone()
    }

    pub(crate) fn set(&self, path: &Path) {
        path.clone_into(&mut self.0.write());
    }
}

impl From<&Path> for SharedPath {
    fn from(path: &Path) -> SharedPath {
        SharedPath(Arc::new(RwLock::new(path.to_owned())))
    }
}
