//! The store of etcd's eras: revisions and index under locks, in etcd's order.
//!
//! How long the locks above the backend's are held is in [`v3_1_mutex`](crate::etcd::v3_1_mutex)
//! (3.0, 3.1) and [`v3_2_rev_mu`](crate::etcd::v3_2_rev_mu) (3.2 to 3.5); which requests wait for
//! which is in `docs/mvcc.md`.
//!
//! Lock order, from 3.2 on: `store`, `batchTx`, `watchable`, `revMu`, `readTx`;
//! `treeIndex` is taken below each of them for single calls. In 3.1: `watchable`, `store`,
//! `batchTx`. Scheduling a compaction takes `revMu` before `batchTx`: it has `store`
//! exclusively, so no transaction is open that takes the two the other way round.

use std::sync::Arc;
use std::time::Duration;

use clearlane_backend::{Backend, DroppedStates, Era, PreCommit, ReadTx, Sizes};
use clearlane_contention::Mutex;
use clearlane_engine::Bucket;
use clearlane_engine::stream::Exporter;

use crate::compaction::{
    self, CompactionJob, CompactionStore, CompactionTracker, removable_records,
};
use crate::compaction::{
    FINISHED_COMPACT_KEY, SCHEDULED_COMPACT_KEY, check_compaction_revision, encode_compact_revision,
};
use crate::config::StoreConfig;
use crate::error::Result;
use crate::etcd::lock_protocol::{Protocol, Revisions};
use crate::etcd::read_txn::EtcdReadTxn;
use crate::etcd::watchers::EtcdWatchers;
use crate::etcd::write_txn::EtcdWriteTxn;
use crate::hash::HashKvJob;
use crate::interface::ConsistentIndex;
use crate::interface::{HashJob, KeyLeases, ReadTxn, Store, TxnResult, WriteTxn};
use crate::kv_hasher::{HashKv, KvHasher};
use crate::restore::{RecoveryInfo, RestoredStore};
use crate::tree_index::locked::{CompactionLock, LockedIndex};
use crate::tree_index::{IndexCompaction, TreeIndex};

#[derive(Debug)]
pub(crate) struct EtcdStore<A, P> {
    pub(super) protocol: P,
    pub(super) backend: Box<dyn Backend<StorePosition<A>>>,
    pub(super) index: LockedIndex,
    compactions: Mutex<CompactionTracker>,
    /// As in etcd, the store notifies its watchers itself.
    pub(super) watchers: Mutex<EtcdWatchers>,
    pub(super) leases: Arc<dyn KeyLeases>,
}

/// What the newest write transaction has reached, for the next one and for the commits.
#[derive(Clone, Debug)]
pub(crate) struct StorePosition<A> {
    pub(super) revision: i64,
    pub(super) compact_revision: i64,
    pub(super) consistent_index: A,
}

type OpenReadTxn<'s, P> = EtcdReadTxn<'s, <P as Protocol>::StoreGuard<'s>>;

impl<A: ConsistentIndex, P: Protocol> EtcdStore<A, P> {
    pub(crate) fn open(
        era: Era,
        store_config: StoreConfig<A>,
    ) -> Result<(EtcdStore<A, P>, RecoveryInfo)> {
        let compaction_lock = match era {
            Era::V3_0 | Era::V3_1 | Era::V3_2 => CompactionLock::WholeWalk,
            _ => CompactionLock::PerKey,
        };
        let index = LockedIndex::new(&store_config.config.locks, compaction_lock);
        let RestoredStore { index, revision, compact_revision, compactions, recovery: opened } =
            RestoredStore::restore(&*store_config.engine, index)?;
        let StoreConfig { engine, config, pre_commit, consistent_index: applied, leases } =
            store_config;
        let locks = config.locks.clone();
        let (current, compacted) = (revision, compact_revision);
        let first = Revisions { current, compacted, index: index.snapshot() };
        let reached = StorePosition { revision, compact_revision, consistent_index: applied };
        let pre_commit = PreCommit::new(move |reached: &StorePosition<A>, put| {
            pre_commit.run(&reached.consistent_index, put)
        });
        let store = EtcdStore {
            protocol: P::new(&locks, first),
            backend: era.open(engine, config, pre_commit, reached)?,
            index,
            compactions: Mutex::new(&locks, "compactions", compactions),
            watchers: Mutex::new(&locks, "watchable", EtcdWatchers::default()),
            leases,
        };
        Ok((store, opened))
    }

    fn begin_read_with<'s>(
        &'s self,
        open: impl FnOnce(&'s dyn Backend<StorePosition<A>>) -> Box<dyn ReadTx + 's>,
    ) -> OpenReadTxn<'s, P> {
        let (store_guard, revisions, tx) = self.protocol.read(|| open(&*self.backend));
        EtcdReadTxn::new(store_guard, revisions, tx)
    }

    /// The index part of a compaction, where it is done while the compaction is scheduled. That is
    /// etcd's way until 3.3.
    fn compact_index_while_scheduling(&self, at: i64) -> Option<IndexCompaction> {
        let at_once = self.backend.era() < Era::V3_4;
        at_once.then(|| {
            let mut compaction = self.begin_index_compaction(at);
            while !self.compact_index_step(&mut compaction, usize::MAX) {}
            compaction
        })
    }
}

impl<A: ConsistentIndex, P: Protocol> Store<A> for EtcdStore<A, P> {
    fn era(&self) -> Era {
        self.backend.era()
    }

    fn begin_read(&self) -> Box<dyn ReadTxn + '_> {
        Box::new(self.begin_read_with(|backend| backend.begin_read()))
    }

    fn begin_read_for_writer(&self) -> Box<dyn ReadTxn + '_> {
        Box::new(self.begin_read_with(|backend| backend.begin_read_for_writer()))
    }

    fn begin_write(&self) -> Result<Box<dyn WriteTxn<A> + '_>> {
        Ok(Box::new(EtcdWriteTxn::new(self)?))
    }

    fn compact(&self, at: i64, applied: A) -> Result<(CompactionJob, TxnResult)> {
        self.protocol.change_revisions(|revisions| {
            let (revision, previous) = (revisions.current, revisions.compacted);
            check_compaction_revision(at, revision, previous)?;
            let mut tx = self.backend.begin_write()?;
            tx.put(Bucket::Meta, SCHEDULED_COMPACT_KEY, encode_compact_revision(at))?;
            let ended = tx.end(StorePosition {
                revision,
                compact_revision: at,
                consistent_index: applied,
            })?;
            revisions.compacted = at;
            // etcd has the mark on disk before it goes on, with `store` and `revMu` held for the
            // sync.
            self.backend.commit()?;
            let walked = self.compact_index_while_scheduling(at);
            let job = self.compactions.lock().schedule(at, previous, walked);
            let (changes, commit_due) = (Vec::new(), ended.commit_due);
            let (earlier, retired) = (Vec::new(), DroppedStates::default());
            Ok((
                job,
                TxnResult {
                    revision,
                    changes,
                    earlier_revisions: earlier,
                    dropped_states: retired,
                    commit_due,
                },
            ))
        })
    }

    fn compact_step(&self, job: &mut CompactionJob, budget: usize) -> Result<bool> {
        compaction::run_step(self, job, budget)
    }

    /// As in etcd: `store` and `revMu` are unlocked as soon as the plain read is open, and that one
    /// is open until the hash is done.
    fn hash(&self, revision: i64) -> Result<Box<dyn HashJob + '_>> {
        let stored = self.compactions.lock().hash_of(revision);
        Ok(Box::new(match stored {
            Some(hash) => HashKvJob::done(hash, self.begin_read().revision()),
            None => {
                let read_txn = self
                    .begin_read_with(|backend| backend.begin_locked_read())
                    .release_store_lock();
                HashKvJob::new(read_txn, revision)?
            }
        }))
    }

    fn compaction_hashes(&self) -> Vec<HashKv> {
        self.compactions.lock().hashes()
    }

    fn commit(&self) -> Result<()> {
        Ok(self.protocol.with_store_locked(|| self.backend.commit())?)
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

impl<A: ConsistentIndex, P: Protocol> CompactionStore for EtcdStore<A, P> {
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
        Ok(()) // It was committed when the compaction was scheduled.
    }

    /// As in etcd, `batchTx` is held while a chunk is read; then while it is removed.
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
