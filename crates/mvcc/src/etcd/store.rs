//! The store of etcd's eras: revisions and index under locks, taken in etcd's order.
//!
//! [`StoreLocks`] shows which locks a transaction takes in addition to the backend's locks, and how
//! long it holds them. `docs/mvcc.md` shows which requests wait for which locks.
//!
//! Lock order since 3.2: `store`, `batchTx`, `watchable`, `revMu`, `readTx`. In 3.1: `watchable`,
//! `store`, `batchTx`. In all eras `treeIndex` comes last, and is held only during single calls of
//! the index. Scheduling a compaction takes `revMu` before `batchTx`. It holds `store` exclusively,
//! so no transaction that takes these two locks in the opposite order can be open.

use std::sync::Arc;
use std::time::Duration;

use clearlane_backend::{Backend, Era, PreCommit, ReadTx, Sizes};
use clearlane_contention::Mutex;
use clearlane_engine::Bucket;
use clearlane_engine::stream::Exporter;

use crate::changes::Changes;
use crate::compaction::{
    self, CompactionJob, CompactionStore, CompactionTracker, FINISHED_COMPACT_KEY,
    SCHEDULED_COMPACT_KEY, check_compaction_revision, encode_compact_revision, removable_records,
};
use crate::config::StoreConfig;
use crate::error::Result;
use crate::etcd::store_locks::{Revisions, StoreGuard, StoreLocks};
use crate::etcd::watchers::EtcdWatchers;
use crate::etcd::write_txn::EtcdWriteTxn;
use crate::hash::HashKvJob;
use crate::interface::ConsistentIndex;
use crate::interface::{HashJob, KeyLeases, ReadTxn, Store, TxnResult, WriteTxn};
use crate::kv_hasher::{HashKv, KvHasher};
use crate::range::IndexedRead;
use crate::restore::{RecoveryInfo, RestoredIndex, restore_store};
use crate::tree_index::locked::{CompactionLock, LockedIndex};
use crate::tree_index::{IndexCompaction, TreeIndex};

#[derive(Debug)]
pub(crate) struct EtcdStore<A> {
    pub(super) locks: StoreLocks,
    pub(super) backend: Box<dyn Backend<StorePosition<A>>>,
    pub(super) index: LockedIndex,
    compactions: Mutex<CompactionTracker>,
    /// The watchers. As in etcd, the store itself notifies them.
    pub(super) watchers: Mutex<EtcdWatchers>,
    pub(super) leases: Arc<dyn KeyLeases>,
}

/// The position that the newest write transaction has reached. The next write transaction starts
/// from it, and a commit saves its consistent index.
#[derive(Clone, Debug)]
pub(crate) struct StorePosition<A> {
    pub(super) revision: i64,
    pub(super) compact_revision: i64,
    pub(super) consistent_index: A,
}

pub(crate) struct EtcdReadTxn<'s> {
    // The fields are dropped in this order: etcd ends the backend's read before it unlocks `store`.
    tx: Box<dyn ReadTx + 's>,
    revisions: Revisions,
    /// The guard of the lock `store`. `None` if the lock was released early, so that only the
    /// backend's read continues.
    store_guard: Option<StoreGuard<'s>>,
}

impl IndexedRead for EtcdReadTxn<'_> {
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

impl<A: ConsistentIndex> EtcdStore<A> {
    pub(crate) fn open(
        era: Era,
        store_config: StoreConfig<A>,
    ) -> Result<(EtcdStore<A>, RecoveryInfo)> {
        let compaction_lock = match era {
            Era::V3_0 | Era::V3_1 | Era::V3_2 => CompactionLock::WholeWalk,
            _ => CompactionLock::PerKey,
        };
        let StoreConfig { engine, config, pre_commit, consistent_index, leases } = store_config;
        let locks = config.locks.clone();
        let (restored, compactions, recovery) =
            restore_store(&*engine, LockedIndex::new(&locks, compaction_lock))?;
        let RestoredIndex { index, revision, compact_revision, .. } = restored;
        let first =
            Revisions { current: revision, compacted: compact_revision, index: index.snapshot() };
        let reached = StorePosition { revision, compact_revision, consistent_index };
        let pre_commit = PreCommit::new(move |reached: &StorePosition<A>, put| {
            pre_commit.run(&reached.consistent_index, put)
        });
        let store = EtcdStore {
            locks: StoreLocks::new(era, &locks, first),
            backend: era.open(engine, config, pre_commit, reached)?,
            index,
            compactions: Mutex::new(&locks, "compactions", compactions),
            watchers: Mutex::new(&locks, "watchable", EtcdWatchers::default()),
            leases,
        };
        Ok((store, recovery))
    }

    fn begin_read_with<'s>(
        &'s self,
        open: impl FnOnce(&'s dyn Backend<StorePosition<A>>) -> Box<dyn ReadTx + 's>,
    ) -> EtcdReadTxn<'s> {
        let (store_guard, revisions, tx) = self.locks.read(|| open(&*self.backend));
        EtcdReadTxn { tx, revisions, store_guard: Some(store_guard) }
    }
}

impl<A: ConsistentIndex> Store<A> for EtcdStore<A> {
    fn era(&self) -> Era {
        self.backend.era()
    }

    fn begin_read(&self) -> Box<dyn ReadTxn + '_> {
        Box::new(self.begin_read_with(|backend| backend.begin_read()))
    }

    fn begin_read_for_writer(&self) -> Box<dyn ReadTxn + '_> {
        Box::new(self.begin_read_with(|backend| backend.begin_read_for_writer()))
    }

    fn with_auth_lock(&self, work: &mut dyn FnMut()) {
        if self.backend.era() < Era::V3_5 { self.backend.with_batch_locked(work) } else { work() }
    }

    fn begin_write(&self) -> Result<Box<dyn WriteTxn<A> + '_>> {
        Ok(Box::new(EtcdWriteTxn::new(self)?))
    }

    fn compact(&self, at: i64, consistent_index: A) -> Result<(CompactionJob, TxnResult)> {
        self.locks.change_revisions(|revisions| {
            let (revision, previous) = (revisions.current, revisions.compacted);
            check_compaction_revision(at, revision, previous)?;
            let mut tx = self.backend.begin_write()?;
            tx.put(Bucket::Meta, SCHEDULED_COMPACT_KEY, encode_compact_revision(at))?;
            let reached = StorePosition { revision, compact_revision: at, consistent_index };
            let ended = tx.end(reached)?;
            revisions.compacted = at;
            // As in etcd, the mark is on disk before the compaction continues. `store` is held
            // during the sync, and since 3.2 also `revMu`.
            self.backend.commit()?;
            // Up to 3.3, etcd compacts the index here, and not later in steps.
            let walked = (self.backend.era() < Era::V3_4).then(|| {
                let mut compaction = self.begin_index_compaction(at);
                while !self.compact_index_step(&mut compaction, usize::MAX) {}
                compaction
            });
            let job = self.compactions.lock().schedule(at, previous, walked);
            Ok((job, TxnResult::new(revision, Changes::default(), ended)))
        })
    }

    fn compact_step(&self, job: &mut CompactionJob, budget: usize) -> Result<bool> {
        compaction::run_step(self, job, budget)
    }

    /// As in etcd, `store` and `revMu` are unlocked once the backend's locked read is open. This
    /// read stays open until the hash is done.
    fn hash(&self, revision: i64) -> Result<Box<dyn HashJob + '_>> {
        let stored = self.compactions.lock().hash_of(revision);
        Ok(Box::new(match stored {
            Some(hash) => HashKvJob::done(hash, self.begin_read().revision()),
            None => {
                let mut read_txn = self.begin_read_with(|backend| backend.begin_locked_read());
                read_txn.store_guard = None;
                HashKvJob::new(read_txn, revision)?
            }
        }))
    }

    fn compaction_hashes(&self) -> Vec<HashKv> {
        self.compactions.lock().hashes.clone()
    }

    fn commit(&self) -> Result<()> {
        Ok(self.locks.with_store_locked(|| self.backend.commit())?)
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

impl<A: ConsistentIndex> CompactionStore for EtcdStore<A> {
    fn compactions(&self) -> &Mutex<CompactionTracker> {
        &self.compactions
    }

    fn begin_index_compaction(&self, at: i64) -> IndexCompaction {
        self.index.clone().begin_compaction(at)
    }

    fn compact_index_step(&self, compaction: &mut IndexCompaction, keys_max: usize) -> bool {
        self.index.clone().compact_step(compaction, keys_max)
    }

    fn commit_scheduled_revision(&self) -> Result<()> {
        Ok(()) // The mark was committed when the compaction was scheduled.
    }

    /// As in etcd, `batchTx` is held while a chunk is read, and again while it is removed.
    fn remove_chunk(
        &self,
        from: &[u8],
        hasher: &mut KvHasher,
        budget: usize,
    ) -> Result<(usize, Option<Vec<u8>>)> {
        let tx = self.backend.begin_write()?;
        let chunk = removable_records(&*tx, from, hasher, budget);
        let reached = tx.payload().clone();
        drop(tx.end(reached)?);
        let (removals, next) = chunk?;
        self.backend.remove(&removals)?;
        Ok((removals.len(), next))
    }

    fn save_finished_revision(&self, at: i64) -> Result<()> {
        let mut tx = self.backend.begin_write()?;
        tx.put(Bucket::Meta, FINISHED_COMPACT_KEY, encode_compact_revision(at))?;
        let reached = tx.payload().clone();
        drop(tx.end(reached)?);
        Ok(self.backend.commit()?)
    }
}
