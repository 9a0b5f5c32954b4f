//! The write transaction of the old eras. Since 3.2 it takes `store`, then `batchTx`, and at its
//! end `watchable` and `revMu` if it has changed a key. In 3.1 it takes `watchable`, `store` and
//! `batchTx`.

use bytes::Bytes;
use clearlane_backend::{RangeVisitor, WriteTx};
use clearlane_contention::MutexGuard;
use clearlane_engine::{Bucket, KeyRange};

use crate::error::Result;
use crate::etcd::store::{EtcdStore, StorePosition};
use crate::etcd::store_locks::{Revisions, StoreGuard, StoreLocks};
use crate::etcd::watchers::EtcdWatchers;
use crate::interface::{ConsistentIndex, RangeOptions, RecordVisitor, TxnResult, WriteTxn};
use crate::tree_index::TreeIndex;
use crate::tree_index::locked::LockedIndex;
use crate::txn_changes::{TxnChanges, assert_not_owned_by_store};
use crate::watch::channel::wake_all;

pub(crate) struct EtcdWriteTxn<'s, A> {
    store: &'s EtcdStore<A>,
    // The fields are dropped in this order, the reverse of the order in which the locks were taken.
    index: LockedIndex,
    tx: Box<dyn WriteTx<StorePosition<A>> + 's>,
    store_guard: StoreGuard<'s>,
    /// The guard of `watchable`, the lock over all watchers. Era 3.1 takes the lock first. `None`
    /// in the eras since 3.2, which take the lock at the end.
    watchers: Option<MutexGuard<'s, EtcdWatchers>>,
    txn_changes: TxnChanges,
}

impl<'s, A: ConsistentIndex> EtcdWriteTxn<'s, A> {
    pub(crate) fn new(store: &'s EtcdStore<A>) -> Result<Self> {
        let is_one_mutex = matches!(store.locks, StoreLocks::OneMutex { .. });
        let watchers = is_one_mutex.then(|| store.watchers.lock());
        let store_guard = store.locks.write();
        let tx = store.backend.begin_write()?;
        let index = store.index.clone();
        // `batchTx` is held, so no other thread can change the revisions.
        let txn_changes = TxnChanges::new(tx.payload().revision, tx.payload().compact_revision);
        Ok(EtcdWriteTxn { store, index, tx, store_guard, watchers, txn_changes })
    }
}

impl<A: ConsistentIndex> WriteTxn<A> for EtcdWriteTxn<'_, A> {
    fn revision(&self) -> i64 {
        self.txn_changes.revision()
    }

    fn put(&mut self, key: &[u8], value: &[u8], lease: i64) -> Result<()> {
        self.txn_changes.put(&mut self.index, &mut *self.tx, key, value, lease)
    }

    fn delete_range(&mut self, range: KeyRange<'_>) -> Result<u64> {
        self.txn_changes.delete_range(&mut self.index, &mut *self.tx, range)
    }

    fn delete_keys(&mut self, keys: &[Bytes]) -> Result<u64> {
        self.txn_changes.delete_keys(&mut self.index, &mut *self.tx, keys)
    }

    fn visit_records(
        &self,
        range: KeyRange<'_>,
        options: RangeOptions,
        visit: &mut RecordVisitor<'_>,
    ) -> Result<u64> {
        self.txn_changes.visit_records((&self.index, &*self.tx), range, options, visit)
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
        let EtcdWriteTxn { store, index, tx, store_guard, watchers, txn_changes } = *self;
        txn_changes.attach(&*store.leases);
        let (revision, compact_revision) = (txn_changes.revision(), txn_changes.compact_revision);
        let reached = StorePosition { revision, compact_revision, consistent_index: applied };
        let ended = if !txn_changes.changes.is_empty() {
            let index = index.snapshot();
            let next = Revisions { current: revision, compacted: compact_revision, index };
            // As in etcd, watchers are notified before the transaction ends. No other write can
            // happen in between.
            let mut watchers = watchers.unwrap_or_else(|| store.watchers.lock());
            let to_wake = watchers.notify(revision, &txn_changes.changes);
            let ended = store_guard.publish(next, || Ok(tx.end(reached)?))?;
            // The tasks that wait for responses are woken after `watchable` is unlocked.
            drop(watchers);
            wake_all(&to_wake);
            ended
        } else {
            // A transaction that has changed no key does not take `revMu`.
            tx.end(reached)?
        };
        Ok(TxnResult::new(revision, txn_changes.changes, ended))
    }
}
