//! The interface to the directory of a member's stores.

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;

use clearlane_engine::{Engine, Result};

/// A member's stores: the current one, and stores received from other members as raft snapshots.
///
/// All methods may be called from several threads. A failed [`stage`](StoreDir::stage) ends only
/// the transfer; a failed [`promote`](StoreDir::promote) stops the member.
pub trait StoreDir: Send + Sync + Debug {
    /// Opens the current store. Creates an empty store if there is none.
    fn open(&self) -> Result<Arc<dyn Engine>>;

    /// Creates an empty store for a raft snapshot. It has no final name yet, and does not survive a
    /// crash.
    fn stage(&self) -> Result<StagedStore>;

    /// Makes a complete received store durable under `index`. If there is already a received store
    /// with this index, the existing store is kept and the new store is discarded.
    fn keep(&self, staged: StagedStore, index: u64) -> Result<()>;

    fn abandon(&self, staged: StagedStore) -> Result<()>;

    /// Returns the indexes of the kept stores in ascending order.
    fn kept_indexes(&self) -> Result<Vec<u64>>;

    /// Makes the received store at `index` the current store. The replacement is atomic, even if
    /// the power fails. The old store is removed once no read uses it. Received stores at lower
    /// indexes are discarded.
    fn promote(&self, index: u64) -> Result<Arc<dyn Engine>>;

    /// Discards the received store at `index`. Does nothing if there is none.
    fn discard(&self, index: u64) -> Result<()>;

    /// Returns the free bytes on the disk of the stores, or `u64::MAX` if unknown.
    fn free_space(&self) -> u64;

    /// Returns a directory for files that only this process uses. `None` means the system's
    /// directory for temporary files.
    fn temporary_dir(&self) -> Option<PathBuf> {
        None
    }

    /// Removes replaced stores and stores of interrupted transfers, unless they are in use.
    fn remove_leftovers(&self) -> Result<()>;
}

/// A store that is being filled. Nothing marks it as complete.
#[derive(Debug)]
pub struct StagedStore {
    /// A number that is unique among the stores that this process has staged in the directory.
    pub number: u64,
    pub engine: Arc<dyn Engine>,
}
