//! An open read of the old eras: the backend's, and what it holds of `store`.

use bytes::Bytes;
use clearlane_backend::{RangeVisitor, ReadTx};
use clearlane_engine::{Bucket, KeyRange};

use super::protocol::Revisions;
use crate::error::Result;
use crate::store::interface::{RangeOptions, ReadTxn, RecordVisitor};
use crate::store::moment::{self, Moment};
use crate::tree_index::IndexView;

/// An open read. `H` is what it holds of `store` until its end.
pub(crate) struct LockedReadTxn<'s, V, H> {
    // Dropped in this order: etcd ends the backend's read before it lets go of `store`.
    tx: Box<dyn ReadTx + 's>,
    revisions: Revisions<V>,
    held: H,
}

impl<'s, V, H> LockedReadTxn<'s, V, H> {
    pub(crate) fn new(held: H, revisions: Revisions<V>, tx: Box<dyn ReadTx + 's>) -> Self {
        LockedReadTxn { tx, revisions, held }
    }

    /// Lets go of `store`, and goes on with the backend's read alone.
    pub(crate) fn without_store(self) -> LockedReadTxn<'s, V, ()> {
        let LockedReadTxn { tx, revisions, held } = self;
        drop(held);
        LockedReadTxn { tx, revisions, held: () }
    }
}

impl<V: IndexView, H> ReadTxn for LockedReadTxn<'_, V, H> {
    fn revision(&self) -> i64 {
        self.revisions.current
    }

    fn compact_revision(&self) -> i64 {
        self.revisions.compacted
    }

    fn records(
        &self,
        range: KeyRange<'_>,
        options: RangeOptions,
        visit: &mut RecordVisitor<'_>,
    ) -> Result<u64> {
        moment::records(self, range, options, visit)
    }

    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.tx.get(bucket, key)?)
    }

    fn scan(&self, bucket: Bucket, visit: &mut RangeVisitor<'_>) -> Result<()> {
        Ok(self.tx.range(bucket, KeyRange::ALL, visit)?)
    }
}

impl<V: IndexView, H> Moment for LockedReadTxn<'_, V, H> {
    type Index = V;

    fn revision(&self) -> i64 {
        self.revisions.current
    }

    fn compact_revision(&self) -> i64 {
        self.revisions.compacted
    }

    fn index(&self) -> &V {
        &self.revisions.index
    }

    fn tx(&self) -> &dyn ReadTx {
        &*self.tx
    }
}
