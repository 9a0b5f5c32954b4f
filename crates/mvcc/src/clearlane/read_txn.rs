//! Reading in the default era: one pointer, which may be kept for as long as the caller likes.

use clearlane_backend::{ReadTx, SnapshotReadTx};

use crate::interface::ConsistentIndex;
use crate::range::IndexedRead;
use crate::tree_index::persistent::PersistentSnapshot;

#[derive(Clone, Debug)]
pub struct StoreState<A> {
    pub revision: i64,
    /// The revision up to which the past was dropped; -1 if never.
    pub compact_revision: i64,
    /// What the crate above gave when the state was reached: etcd's consistent index and term.
    pub consistent_index: A,
    pub(crate) index: PersistentSnapshot,
}

/// One state of the store. It does not change, and holds no lock. It may be sent to another thread,
/// and cloned.
#[derive(Clone, Debug)]
pub struct StoreReadTxn<A> {
    tx: SnapshotReadTx<StoreState<A>>,
}

impl<A: ConsistentIndex> StoreReadTxn<A> {
    pub(crate) fn new(tx: SnapshotReadTx<StoreState<A>>) -> StoreReadTxn<A> {
        StoreReadTxn { tx }
    }

    pub fn state(&self) -> &StoreState<A> {
        self.tx.payload()
    }
}

impl<A: ConsistentIndex> IndexedRead for StoreReadTxn<A> {
    type Index = PersistentSnapshot;

    fn revisions(&self) -> (i64, i64) {
        (self.state().revision, self.state().compact_revision)
    }

    fn index(&self) -> &PersistentSnapshot {
        &self.state().index
    }

    fn tx(&self) -> &dyn ReadTx {
        &self.tx
    }
}
