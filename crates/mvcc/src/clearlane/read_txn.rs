//! Reading in the default era: one pointer, which may be kept for as long as the caller likes.

use bytes::Bytes;
use clearlane_backend::{RangeVisitor, ReadTx, SnapshotReadTx};
use clearlane_engine::{Bucket, KeyRange};

use crate::error::Result;
use crate::interface::ConsistentIndex;
use crate::interface::{LengthVisitor, RangeOptions, ReadTxn, RecordVisitor};
use crate::range::{self, Moment};
use crate::tree_index::persistent::PersistentSnapshot;

/// What the store says about one state of the backend.
#[derive(Clone, Debug)]
pub struct StoreState<A> {
    /// The main revision of the newest change.
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

    /// Revisions, index and consistent index of this state.
    pub fn state(&self) -> &StoreState<A> {
        self.tx.payload()
    }

    /// The current revision, as of this state.
    pub fn revision(&self) -> i64 {
        self.state().revision
    }

    /// The revision up to which the past was dropped; -1 if never.
    pub fn compact_revision(&self) -> i64 {
        self.state().compact_revision
    }
}

impl<A: ConsistentIndex> ReadTxn for StoreReadTxn<A> {
    fn revision(&self) -> i64 {
        self.revision()
    }

    fn compact_revision(&self) -> i64 {
        self.compact_revision()
    }

    fn visit_records(
        &self,
        range: KeyRange<'_>,
        options: RangeOptions,
        visit: &mut RecordVisitor<'_>,
    ) -> Result<u64> {
        range::visit_records(self, range, options, visit)
    }

    fn visit_record_lengths(
        &self,
        range: KeyRange<'_>,
        options: RangeOptions,
        visit: &mut LengthVisitor<'_>,
    ) -> Result<Option<u64>> {
        range::visit_record_lengths(self, range, options, visit)
    }

    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.tx.get(bucket, key)?)
    }

    fn scan(&self, bucket: Bucket, visit: &mut RangeVisitor<'_>) -> Result<()> {
        Ok(self.tx.range(bucket, KeyRange::ALL, visit)?)
    }
}

impl<A: ConsistentIndex> Moment for StoreReadTxn<A> {
    type Index = PersistentSnapshot;

    fn revision(&self) -> i64 {
        self.revision()
    }

    fn compact_revision(&self) -> i64 {
        self.compact_revision()
    }

    fn index(&self) -> &PersistentSnapshot {
        &self.state().index
    }

    fn tx(&self) -> &dyn ReadTx {
        &self.tx
    }
}
