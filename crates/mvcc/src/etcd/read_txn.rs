//! An open read of the old eras: the backend's, and what it holds of `store`.

use clearlane_backend::ReadTx;

use crate::etcd::lock_protocol::Revisions;
use crate::range::IndexedRead;
use crate::tree_index::locked::LockedIndex;

/// An open read. `H` is what it holds of `store` until its end.
pub(crate) struct EtcdReadTxn<'s, H> {
    // Dropped in this order: etcd ends the backend's read before it unlocks `store`.
    tx: Box<dyn ReadTx + 's>,
    revisions: Revisions,
    store_guard: H,
}

impl<'s, H> EtcdReadTxn<'s, H> {
    pub(crate) fn new(store_guard: H, revisions: Revisions, tx: Box<dyn ReadTx + 's>) -> Self {
        EtcdReadTxn { tx, revisions, store_guard }
    }

    /// Unlocks `store`, and goes on with the backend's read alone.
    pub(crate) fn release_store_lock(self) -> EtcdReadTxn<'s, ()> {
        let EtcdReadTxn { tx, revisions, store_guard } = self;
        drop(store_guard);
        EtcdReadTxn { tx, revisions, store_guard: () }
    }
}

impl<H> IndexedRead for EtcdReadTxn<'_, H> {
    type Index = LockedIndex;

    fn revisions(&self) -> (i64, i64) {
        (self.revisions.current, self.revisions.compacted)
    }

    fn index(&self) -> &LockedIndex {
        &self.revisions.index
    }

    fn tx(&self) -> &dyn ReadTx {
        &*self.tx
    }
}
