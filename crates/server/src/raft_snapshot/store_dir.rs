//! The interface to the directory of a member's stores.

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;

use clearlane_engine::{Engine, Result};

/// A member's stores: the current one, and copies received from others.
///
/// All methods may be called from several threads. A failed [`stage`](StoreDir::stage) costs a
/// transfer, a failed [`promote`](StoreDir::promote) the member.
pub trait StoreDir: Send + Sync + Debug {
    /// Creates an empty store if there is none.
    fn open(&self) -> Result<Arc<dyn Engine>>;

    /// An empty store for a copy. It has no name yet, and does not survive a crash.
    fn stage(&self) -> Result<StagedStore>;

    /// Makes a complete copy durable under `index`. If there is one already, that is kept and this
    /// one discarded.
    fn keep(&self, staged: StagedStore, index: u64) -> Result<()>;

    fn abandon(&self, staged: StagedStore) -> Result<()>;

    /// Ascending.
    fn kept_indexes(&self) -> Result<Vec<u64>>;

    /// Atomically makes the copy at `index` the current store, also if the power fails. The old one
    /// is removed once no read uses it. Copies at lower indexes are discarded.
    fn promote(&self, index: u64) -> Result<Arc<dyn Engine>>;

    /// Does nothing if there is no copy at `index`.
    fn discard(&self, index: u64) -> Result<()>;

    /// Free bytes on the disk of the stores; `u64::MAX` if unknown.
    fn free_space(&self) -> u64;

    /// Where a file can be made that only this process uses.
    fn temporary_dir(&self) -> PathBuf {
        std::env::temp_dir()
    }

    /// Removes replaced stores and those of interrupted transfers, unless they are in use.
    fn remove_leftovers(&self) -> Result<()>;
}

/// A store that is being filled, without a mark.
#[derive(Debug)]
pub struct StagedStore {
    /// Unique in the directory.
    pub number: u64,
    pub engine: Arc<dyn Engine>,
}
