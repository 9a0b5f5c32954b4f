//! The write transaction of the old eras: `store`, then `batchTx`, and at the end `revMu`.

use bytes::Bytes;
use clearlane_backend::{RangeVisitor, WriteTx};
use clearlane_contention::MutexGuard;
use clearlane_engine::{Bucket, KeyRange};

use crate::error::Result;
use crate::etcd::lock_protocol::{Protocol, Revisions};
use crate::etcd::store::{EtcdStore, StorePosition};
use crate::etcd::watchers::{self, EtcdWatchers};
use crate::interface::ConsistentIndex;
use crate::interface::{RangeOptions, RangeRecords, TxnResult, WriteTxn};
use crate::tree_index::TreeIndex;
use crate::tree_index::locked::LockedIndex;
use crate::txn_changes::TxnChanges;
use crate::txn_changes::assert_not_owned_by_store;

pub(crate) struct EtcdWriteTxn<'s, A, P>
where
    P: Protocol,
{
    store: &'s EtcdStore<A, P>,
    // Dropped in this order, the reverse of that in which they were taken.
    index: LockedIndex,
    tx: Box<dyn WriteTx<StorePosition<A>> + 's>,
    store_guard: P::StoreGuard<'s>,
    /// The lock over all watchers, if this era has it from the beginning on.
    watchers: Option<MutexGuard<'s, EtcdWatchers>>,
    txn_changes: TxnChanges,
}

impl<'s, A: ConsistentIndex, P: Protocol> EtcdWriteTxn<'s, A, P> {
    pub(crate) fn new(store: &'s EtcdStore<A, P>) -> Result<Self> {
        let watchable = P::WATCHABLE_FIRST.then(|| store.watchers.lock());
        let store_guard = store.protocol.write();
        let tx = store.backend.begin_write()?;
        let index = store.index.clone();
        // With `batchTx` held the revisions may be read: no other thread can change them.
        let txn_changes = TxnChanges::new(tx.payload().revision, tx.payload().compact_revision);
        Ok(EtcdWriteTxn { store, index, tx, store_guard, watchers: watchable, txn_changes })
    }
}

impl<A: ConsistentIndex, P: Protocol> WriteTxn<A> for EtcdWriteTxn<'_, A, P> {
    fn revision(&self) -> i64 {
        self.txn_changes.revision()
    }

    fn put(&mut self, key: &[u8], value: &[u8], lease: i64) -> Result<()> {
        self.txn_changes.put(&mut self.index, &mut *self.tx, key, value, lease)
    }

    fn delete_range(&mut self, range: KeyRange<'_>) -> Result<u64> {
        self.txn_changes.delete_range(&mut self.index, &mut *self.tx, range)
    }

    fn range(&self, range: KeyRange<'_>, options: RangeOptions) -> Result<RangeRecords> {
        self.txn_changes.range(&self.index, &*self.tx, range, options)
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
        false
    }

    fn end(self: Box<Self>, applied: A) -> Result<TxnResult> {
        let EtcdWriteTxn { store, index, tx, store_guard, watchers: watchable, txn_changes } =
            *self;
        txn_changes.attach(&*store.leases);
        let (revision, compact_revision) = (txn_changes.revision(), txn_changes.compact_revision());
        let reached = StorePosition { revision, compact_revision, consistent_index: applied };
        let ended = if txn_changes.has_changes() {
            let (current, compacted) = (revision, compact_revision);
            let next = Revisions { current, compacted, index: index.snapshot() };
            // As in etcd, watchers are notified before the end, and no other write comes between.
            let mut watchable = watchable.unwrap_or_else(|| store.watchers.lock());
            let to_wake = watchable.notify(revision, txn_changes.changes());
            let ended = store.protocol.publish(store_guard, next, || Ok(tx.end(reached)?))?;
            // Wakes with `watchable` unlocked.
            drop(watchable);
            watchers::wake_channels(&to_wake);
            ended
        } else {
            // A transaction that has changed nothing does not take `revMu`.
            tx.end(reached)?
        };
        let changes = txn_changes.into_changes();
        let (retired, commit_due) = (ended.dropped_states, ended.commit_due);
        Ok(TxnResult {
            revision,
            changes,
            earlier_revisions: Vec::new(),
            dropped_states: retired,
            commit_due,
        })
    }
}
