//! Reading in the default era: one pointer, kept for as long as one likes.

use bytes::Bytes;
use clearlane_backend::{RangeVisitor, ReadTx, SnapshotReadTx};
use clearlane_engine::{Bucket, KeyRange};

use crate::error::Result;
use crate::store::Applied;
use crate::store::interface::{LengthVisitor, RangeAnswer, RangeOptions, ReadTxn, RecordVisitor};
use crate::store::moment::{self, Moment};
use crate::store::snapshot::State;
use crate::tree_index::IndexView;
use crate::tree_index::persistent::PersistentView;

/// One state of the store. It does not change, and nobody waits for it. It may be sent to another
/// thread, and cloned.
#[derive(Clone, Debug)]
pub struct ReadView<A, V = PersistentView> {
    tx: SnapshotReadTx<State<A, V>>,
}

impl<A: Applied, V: IndexView> ReadView<A, V> {
    pub(crate) fn new(tx: SnapshotReadTx<State<A, V>>) -> ReadView<A, V> {
        ReadView { tx }
    }

    /// What the store said of this state.
    pub fn state(&self) -> &State<A, V> {
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

    /// The records of a range of keys.
    pub fn range(&self, range: KeyRange<'_>, options: RangeOptions) -> Result<RangeAnswer> {
        ReadTxn::range(self, range, options)
    }
}

impl<A: Applied, V: IndexView> ReadTxn for ReadView<A, V> {
    fn revision(&self) -> i64 {
        self.revision()
    }

    fn compact_revision(&self) -> i64 {
        self.compact_revision()
    }

    fn records(
        &self,
        range: KeyRange<'_>,
        options: RangeOptions,
        visit: &mut RecordVisitor<'_>,
    ) -> Result<u64> {
        moment::records(self, range, options, visit)
    }

    fn lengths(
        &self,
        range: KeyRange<'_>,
        options: RangeOptions,
        visit: &mut LengthVisitor<'_>,
    ) -> Result<Option<u64>> {
        moment::lengths(self, range, options, visit)
    }

    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.tx.get(bucket, key)?)
    }

    fn scan(&self, bucket: Bucket, visit: &mut RangeVisitor<'_>) -> Result<()> {
        Ok(self.tx.range(bucket, KeyRange::ALL, visit)?)
    }
}

impl<A: Applied, V: IndexView> Moment for ReadView<A, V> {
    type Index = V;

    fn revision(&self) -> i64 {
        self.revision()
    }

    fn compact_revision(&self) -> i64 {
        self.compact_revision()
    }

    fn index(&self) -> &V {
        &self.state().index
    }

    fn tx(&self) -> &dyn ReadTx {
        &self.tx
    }
}
