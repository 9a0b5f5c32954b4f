//! What the old eras differ in: which locks a transaction takes, in which order, how long.

use std::fmt::Debug;

use clearlane_contention::Registry;

use crate::error::Result;
use crate::tree_index::locked::LockedIndex;

/// The revisions, and the index as of the current one. (Of etcd's index it is a handle.)
#[derive(Clone, Debug)]
pub(crate) struct Revisions {
    pub(crate) current: i64,
    pub(crate) compacted: i64,
    pub(crate) index: LockedIndex,
}

pub(crate) trait Protocol: Debug + Send + Sync + 'static {
    /// `store`, as a transaction holds it from beginning to end.
    type StoreGuard<'p>: 'p
    where
        Self: 'p;

    /// Whether a write transaction has the lock over all watchers from its beginning on, before
    /// any other. Else it takes it at its end.
    const WATCHABLE_FIRST: bool;

    fn new(locks: &Registry, first: Revisions) -> Self;

    /// The revisions, kept from changing while `work` looks at them.
    fn revisions<T>(&self, work: impl FnOnce(&Revisions) -> T) -> T;

    /// Opens a read. `open` opens the backend's, and the revisions do not change meanwhile.
    fn read<T>(&self, open: impl FnOnce() -> T) -> (Self::StoreGuard<'_>, Revisions, T);

    /// Begins a write transaction; the backend's comes next.
    fn write(&self) -> Self::StoreGuard<'_>;

    /// Ends a write transaction that has changed something: `end` ends the backend's, and the
    /// reads from then on find `next`.
    fn publish<T>(
        &self,
        store_guard: Self::StoreGuard<'_>,
        next: Revisions,
        end: impl FnOnce() -> Result<T>,
    ) -> Result<T>;

    /// Does `work` while no transaction is open, and none can be opened.
    fn with_store_locked<T>(&self, work: impl FnOnce() -> T) -> T;

    /// The same, to change the revisions.
    fn change_revisions<T>(&self, work: impl FnOnce(&mut Revisions) -> Result<T>) -> Result<T>;
}
