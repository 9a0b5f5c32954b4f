//! An open read of the old eras: the backend's, and what it holds of `store`.

use bytes::Bytes;
use clearlane_backend::{RangeVisitor, ReadTx};
use clearlane_engine::{Bucket, KeyRange};

use crate::error::Result;
use crate::etcd::lock_protocol::Revisions;
use crate::interface::{RangeOptions, ReadTxn, RecordVisitor};
use crate::range::{self, Moment};
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

impl<H> ReadTxn for EtcdReadTxn<'_, H> {
    fn revision(&self) -> i64 {
        self.revisions.current
    }

    fn compact_revision(&self) -> i64 {
        self.revisions.compacted
    }

    fn visit_records(
        &self,
        range: KeyRange<'_>,
        options: RangeOptions,
        visit: &mut RecordVisitor<'_>,
    ) -> Result<u64> {
        range::visit_records(self, range, options, visit)
    }

    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.tx.get(bucket, key)?)
    }

    fn scan(&self, bucket: Bucket, visit: &mut RangeVisitor<'_>) -> Result<()> {
        Ok(self.tx.range(bucket, KeyRange::ALL, visit)?)
    }
}

impl<H> Moment for EtcdReadTxn<'_, H> {
    type Index = LockedIndex;

    fn revision(&self) -> i64 {
        self.revisions.current
    }

    fn compact_revision(&self) -> i64 {
        self.revisions.compacted
    }

    fn index(&self) -> &LockedIndex {
        &self.revisions.index
    }

    fn tx(&self) -> &dyn ReadTx {
        &*self.tx
    }
}
