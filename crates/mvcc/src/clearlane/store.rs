//! The store of the default era: everything that a read needs, behind one pointer.
//!
//! ```text
//!   current ──▶ BackendState ─┬─ engine and pending records
//!                             └─ StoreState: revision, compact revision, index, consistent index
//! ```
//!
//! A write transaction publishes both parts with one pointer. A read loads this pointer and takes
//! no lock.
//!
//! The mutex `store` is held by each write transaction, from start to end. A compaction takes
//! `store` when it is scheduled, for each step over the index, and to write the finished mark.
//! Commits take only locks of the backend. Hashes, and the search for removable records, read a
//! snapshot.
//!
//! Lock order: `store`, then the backend's locks, then `compactions`. The lock `compactions` is
//! also taken without the other locks. Invariant: if a state's index names a revision, the same
//! state has the record of this revision.

use std::sync::Arc;
use std::time::Duration;

use clearlane_backend::{
    Backend, BackendState, Era, PreCommit, ReadTx, Sizes, SnapshotBackend, SnapshotReadTx,
};
use clearlane_contention::{Mutex, MutexGuard};
use clearlane_engine::stream::Exporter;

use crate::clearlane::write_txn::SnapshotWriteTxn;
use crate::compaction::{
    self, CompactionJob, CompactionStore, CompactionTracker, FINISHED_COMPACT_KEY,
    SCHEDULED_COMPACT_KEY, check_compaction_revision, removable_records,
};
use crate::config::StoreConfig;
use crate::error::Result;
use crate::hash::HashKvJob;
use crate::interface::{ConsistentIndex, HashJob, KeyLeases, ReadTxn, Store, TxnResult, WriteTxn};
use crate::kv_hasher::{HashKv, KvHasher};
use crate::range::IndexedRead;
use crate::restore::{RecoveryInfo, RestoredIndex, restore_store};
use crate::tree_index::persistent::{PersistentIndex, PersistentSnapshot};
use crate::tree_index::{IndexCompaction, TreeIndex};

#[derive(Clone, Debug)]
pub struct StoreState<A> {
    pub revision: i64,
    /// The compact revision: the history below it is dropped. -1 if there was no compaction.
    pub compact_revision: i64,
    /// The value that the server passed for this state: etcd's consistent index and term.
    pub consistent_index: A,
    pub(crate) index: PersistentSnapshot,
}

/// A read transaction on one immutable state of the store. It holds no lock, and can be cloned and
/// sent to another thread.
pub type StoreReadTxn<A> = SnapshotReadTx<StoreState<A>>;

impl<A: ConsistentIndex> IndexedRead for BackendState<StoreState<A>> {
    type Index = PersistentSnapshot;

    fn revisions(&self) -> (i64, i64) {
        (self.payload.revision, self.payload.compact_revision)
    }

    fn index(&self) -> &PersistentSnapshot {
        &self.payload.index
    }

    fn tx(&self) -> &dyn ReadTx {
        self
    }
}

#[derive(Debug)]
pub struct SnapshotStore<A> {
    backend: SnapshotBackend<StoreState<A>>,
    /// The writer's side of the index, protected by the lock `store`.
    store: Mutex<PersistentIndex>,
    compactions: Mutex<CompactionTracker>,
    leases: Arc<dyn KeyLeases>,
}

impl<A: ConsistentIndex> SnapshotStore<A> {
    pub fn open(store_config: StoreConfig<A>) -> Result<(SnapshotStore<A>, RecoveryInfo)> {
        let StoreConfig { engine, config, pre_commit, consistent_index, leases } = store_config;
        let (restored, compactions, recovery) =
            restore_store(&*engine, PersistentIndex::default())?;
        let RestoredIndex { index, revision, compact_revision, .. } = restored;
        let state =
            StoreState { revision, compact_revision, consistent_index, index: index.snapshot() };
        let locks = config.locks.clone();
        let pre_commit = PreCommit::new(move |state: &StoreState<A>, put| {
            pre_commit.run(&state.consistent_index, put)
        });
        let store = SnapshotStore {
            backend: SnapshotBackend::open(engine, config, pre_commit, state)?,
            store: Mutex::new(&locks, "store", index),
            compactions: Mutex::new(&locks, "compactions", compactions),
            leases,
        };
        Ok((store, recovery))
    }

    pub fn begin_read(&self) -> StoreReadTxn<A> {
        self.backend.begin_snapshot_read()
    }

    /// Returns the backend, so that the caller can defragment it in steps.
    pub fn backend(&self) -> &SnapshotBackend<StoreState<A>> {
        &self.backend
    }

    fn write_txn<'s>(
        &'s self,
        index: MutexGuard<'s, PersistentIndex>,
    ) -> Result<SnapshotWriteTxn<'s, A>> {
        Ok(SnapshotWriteTxn::new(index, self.backend.begin_write()?, &*self.leases))
    }
}

impl<A: ConsistentIndex> Store<A> for SnapshotStore<A> {
    fn era(&self) -> Era {
        self.backend.era()
    }

    fn begin_read(&self) -> Box<dyn ReadTxn + '_> {
        Box::new(self.begin_read())
    }

    fn begin_snapshot_read(&self) -> Option<Arc<dyn ReadTxn + Send + Sync>> {
        Some(self.begin_read())
    }

    fn begin_write(&self) -> Result<Box<dyn WriteTxn<A> + '_>> {
        Ok(Box::new(self.write_txn(self.store.lock())?))
    }

    fn compact(&self, at: i64, consistent_index: A) -> Result<(CompactionJob, TxnResult)> {
        let index = self.store.lock();
        // Only the holder of `store` publishes a new revision or compact revision. So the revisions
        // of this read transaction stay current.
        let read_txn = self.begin_read();
        check_compaction_revision(at, read_txn.revision(), read_txn.compact_revision())?;
        let mut txn = self.write_txn(index)?;
        txn.put_compact_revision(SCHEDULED_COMPACT_KEY, at)?;
        let job = self.compactions.lock().schedule(at, read_txn.compact_revision(), None);
        Ok((job, txn.end_with_compact_revision(consistent_index, at)?))
    }

    fn compact_step(&self, job: &mut CompactionJob, budget: usize) -> Result<bool> {
        compaction::run_step(self, job, budget)
    }

    fn hash(&self, revision: i64) -> Result<Box<dyn HashJob + '_>> {
        let stored = self.compactions.lock().hash_of(revision);
        Ok(Box::new(match stored {
            Some(hash) => HashKvJob::done(hash, self.begin_read().revision()),
            None => HashKvJob::new(self.begin_read(), revision)?,
        }))
    }

    fn compaction_hashes(&self) -> Vec<HashKv> {
        self.compactions.lock().hashes.clone()
    }

    fn commit(&self) -> Result<()> {
        Ok(self.backend.commit()?)
    }

    fn commit_if_due(&self, now: Duration) -> Result<bool> {
        Ok(self.backend.commit_if_due(now)?)
    }

    fn defragment(&self) -> Result<()> {
        Ok(self.backend.defragment()?)
    }

    fn snapshot(&self) -> Result<Exporter> {
        Ok(self.backend.snapshot()?)
    }

    fn sizes(&self) -> Result<Sizes> {
        Ok(self.backend.sizes()?)
    }
}

impl<A: ConsistentIndex> CompactionStore for SnapshotStore<A> {
    fn compactions(&self) -> &Mutex<CompactionTracker> {
        &self.compactions
    }

    fn begin_index_compaction(&self, at: i64) -> IndexCompaction {
        self.store.lock().begin_compaction(at)
    }

    fn compact_index_step(&self, compaction: &mut IndexCompaction, keys_max: usize) -> bool {
        self.store.lock().compact_step(compaction, keys_max)
    }

    fn commit_scheduled_revision(&self) -> Result<()> {
        self.commit()
    }

    fn remove_chunk(
        &self,
        from: &[u8],
        hasher: &mut KvHasher,
        budget: usize,
    ) -> Result<(usize, Option<Vec<u8>>)> {
        let read_txn = self.backend.begin_snapshot_read();
        let (removals, next) = removable_records(&read_txn, from, hasher, budget)?;
        self.backend.remove(&removals)?;
        self.commit()?;
        Ok((removals.len(), next))
    }

    fn save_finished_revision(&self, at: i64) -> Result<()> {
        let mut txn = Box::new(self.write_txn(self.store.lock())?);
        txn.put_compact_revision(FINISHED_COMPACT_KEY, at)?;
        let consistent_index = txn.consistent_index();
        drop(txn.end(consistent_index)?);
        self.commit()
    }
}
