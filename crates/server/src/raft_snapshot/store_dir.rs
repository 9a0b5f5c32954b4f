//! The interface of the place where a member's stores lie.

use std::fmt::Debug;
use std::sync::Arc;

use clearlane_engine::{Engine, Result};

/// Where the stores of a member lie: the current one, and copies that came from others.
///
/// All of it may be called from several threads. Errors are those of engines and their directories:
/// a failed [`stage`](StoreDir::stage) costs a transfer, a failed [`promote`](StoreDir::promote)
/// the member.
pub trait StoreDir: Send + Sync + Debug {
    /// The current store; an empty one is made if there is none.
    fn open(&self) -> Result<Arc<dyn Engine>>;

    /// An empty store that is to receive a copy. Nothing names it yet: it is gone after a crash.
    fn stage(&self) -> Result<StagedStore>;

    /// The copy is whole. From here on it is the copy at `index`, also after a crash. If there is
    /// one already, that stays and this one goes: an index has one state.
    fn keep(&self, staged: StagedStore, index: u64) -> Result<()>;

    /// Discards what was staged.
    fn abandon(&self, staged: StagedStore) -> Result<()>;

    /// The indexes of the copies, ascending.
    fn kept_indexes(&self) -> Result<Vec<u64>>;

    /// Makes the copy at `index` the current store, at once or not at all, also when the power
    /// fails. The old one goes when it is not read any more. So do raft snapshots at lower indexes.
    fn promote(&self, index: u64) -> Result<Arc<dyn Engine>>;

    /// Discards the raft snapshot at `index`. If there is none, that is fine.
    fn discard(&self, index: u64) -> Result<()>;

    /// So many bytes may still be written to the disk that the stores are on. Without bound, if
    /// that is not known.
    fn free_space(&self) -> u64;

    /// Removes what transfers have left that a crash has interrupted, and stores that were
    /// replaced. What is in use stays.
    fn remove_leftovers(&self) -> Result<()>;
}

/// A store that is being filled. It has no name yet, only a number that no other store in the
/// directory has.
#[derive(Debug)]
pub struct StagedStore {
    /// The number.
    pub number: u64,
    /// The store.
    pub engine: Arc<dyn Engine>,
}
