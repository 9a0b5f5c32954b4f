//! The write transaction of the default era. It publishes records and state with one pointer.

use std::sync::Arc;

use bytes::Bytes;
use clearlane_backend::RangeVisitor;
use clearlane_contention::MutexGuard;
use clearlane_engine::{Bucket, KeyRange};

use crate::clearlane::store::StoreState;
use crate::compaction::encode_compact_revision;
use crate::error::Result;
use crate::interface::{
    ConsistentIndex, KeyLeases, RangeOptions, ReadTxn, RecordVisitor, TxnResult, WriteTxn,
};
use crate::tree_index::TreeIndex;
use crate::tree_index::persistent::PersistentIndex;
use crate::txn_changes::{TxnChanges, assert_not_owned_by_store};

pub(crate) type BackendTx<'s, A> = Box<dyn clearlane_backend::WriteTx<StoreState<A>> + 's>;

/// A write transaction. A published state shares all its nodes with the writer's index. So the
/// first change of a node after the publication copies the node. If several revisions
/// [share a transaction](WriteTxn::begin_next_revision), one state is published for all of them. So
/// the published state causes at most one copy of each node for all these revisions.
pub(crate) struct SnapshotWriteTxn<'s, A> {
    /// The guard of the lock `store`: there is one write transaction at a time.
    index: MutexGuard<'s, PersistentIndex>,
    tx: BackendTx<'s, A>,
    /// The changes of the earlier revisions in this transaction. None of them is empty.
    earlier_revisions: Vec<TxnChanges>,
    txn_changes: TxnChanges,
    leases: &'s dyn KeyLeases,
}

impl<'s, A: ConsistentIndex> SnapshotWriteTxn<'s, A> {
    pub(crate) fn new(
        index: MutexGuard<'s, PersistentIndex>,
        tx: BackendTx<'s, A>,
        leases: &'s dyn KeyLeases,
    ) -> SnapshotWriteTxn<'s, A> {
        let txn_changes = TxnChanges::new(tx.payload().revision, tx.payload().compact_revision);
        SnapshotWriteTxn { index, tx, earlier_revisions: Vec::new(), txn_changes, leases }
    }

    pub(crate) fn end_with_compact_revision(
        self,
        consistent_index: A,
        compact_revision: i64,
    ) -> Result<TxnResult> {
        let SnapshotWriteTxn { index, tx, earlier_revisions, txn_changes, leases } = self;
        earlier_revisions.iter().for_each(|earlier| earlier.attach(leases));
        txn_changes.attach(leases);
        let revision = txn_changes.revision();
        let state =
            StoreState { revision, compact_revision, consistent_index, index: index.snapshot() };
        let ended = tx.end(state)?;
        // The lock `store` is held until the state is published, so that the next writer starts
        // from this state.
        drop(index);
        let earlier_revisions = earlier_revisions
            .into_iter()
            .map(|earlier| (earlier.revision(), earlier.changes))
            .collect();
        let newest = TxnResult::new(revision, txn_changes.changes, ended);
        Ok(TxnResult { earlier_revisions, ..newest })
    }

    pub(crate) fn put_compact_revision(&mut self, name: &[u8], revision: i64) -> Result<()> {
        Ok(self.tx.put(Bucket::Meta, name, encode_compact_revision(revision))?)
    }

    /// Returns the consistent index of the state that this transaction started from.
    pub(crate) fn consistent_index(&self) -> A {
        self.tx.payload().consistent_index.clone()
    }
}

impl<A: ConsistentIndex> WriteTxn<A> for SnapshotWriteTxn<'_, A> {
    fn revision(&self) -> i64 {
        self.txn_changes.revision()
    }

    fn put(&mut self, key: &[u8], value: &[u8], lease: i64) -> Result<()> {
        self.txn_changes.put(&mut *self.index, &mut *self.tx, key, value, lease)
    }

    fn delete_range(&mut self, range: KeyRange<'_>) -> Result<u64> {
        self.txn_changes.delete_range(&mut *self.index, &mut *self.tx, range)
    }

    fn delete_keys(&mut self, keys: &[Bytes]) -> Result<u64> {
        self.txn_changes.delete_keys(&mut *self.index, &mut *self.tx, keys)
    }

    fn visit_records(
        &self,
        range: KeyRange<'_>,
        options: RangeOptions,
        visit: &mut RecordVisitor<'_>,
    ) -> Result<u64> {
        self.txn_changes.visit_records((&*self.index, &*self.tx), range, options, visit)
    }

    /// The read transaction keeps the current index. Later changes of this transaction copy the
    /// nodes that they change.
    fn begin_snapshot_read(&self) -> Option<Arc<dyn ReadTxn + Send + Sync>> {
        let state = StoreState {
            revision: self.txn_changes.revision(),
            compact_revision: self.txn_changes.compact_revision,
            consistent_index: self.consistent_index(),
            index: self.index.snapshot(),
        };
        let read: Arc<dyn ReadTxn + Send + Sync> = self.tx.begin_snapshot_read(state)?;
        Some(read)
    }

    fn set(&mut self, bucket: Bucket, key: &[u8], value: Bytes) -> Result<()> {
        assert_not_owned_by_store(bucket, key);
        Ok(self.tx.put(bucket, key, value)?)
    }

    fn unset(&mut self, bucket: Bucket, key: &[u8]) -> Result<()> {
        assert_not_owned_by_store(bucket, key);
        Ok(self.tx.delete(bucket, key)?)
    }

    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.tx.get(bucket, key)?)
    }

    fn scan(&self, bucket: Bucket, visit: &mut RangeVisitor<'_>) -> Result<()> {
        Ok(self.tx.range(bucket, KeyRange::ALL, visit)?)
    }

    fn begin_next_revision(&mut self) -> bool {
        if !self.txn_changes.changes.is_empty() {
            let next =
                TxnChanges::new(self.txn_changes.revision(), self.txn_changes.compact_revision);
            self.earlier_revisions.push(std::mem::replace(&mut self.txn_changes, next));
        }
        true
    }

    fn end(self: Box<Self>, applied: A) -> Result<TxnResult> {
        let compact_revision = self.txn_changes.compact_revision;
        self.end_with_compact_revision(applied, compact_revision)
    }
}
