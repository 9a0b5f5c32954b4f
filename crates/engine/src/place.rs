//! Where a store's data lies, and how other data takes its place.
//!
//! [`Directory`](crate::directory::Directory) has a file that names the current one of several
//! generations; in a [`SingleFile`](crate::single_file) the name itself changes hands.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;

use crate::error::Result;

/// One generation of the data, and where it lies.
#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) number: u64,
    pub(crate) path: SharedPath,
}

pub(crate) trait Place: Send + Sync + Debug {
    /// `None` if there is no store yet.
    fn current(&self) -> Option<Generation>;

    /// A generation to be made. Whatever an interrupted attempt left in its place is removed.
    fn prepare_next(&self) -> Result<Generation>;

    /// Makes it the current one, whose data is synced by now; `false`, and nothing is done, if the
    /// place is another store's by now. After an error either may be current.
    fn make_current(&self, next: &Generation) -> Result<bool>;

    /// Whether data that was replaced still has a name, by which it must be removed.
    fn keeps_replaced(&self) -> bool;

    /// Removes what interrupted attempts left behind. Called when the store was opened well.
    fn remove_leftovers(&self) -> Result<()>;
}

/// A path that may change while the data is in use.
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
