//! The stores of etcd's older eras: revisions and index under locks, in etcd's order.
//!
//! # The problem
//!
//! A read must find the revisions and the records of one moment. Where they do not lie behind one
//! pointer, a writer has to be kept from changing one while the other is looked at. etcd does so
//! with two locks of its own above those of the backend. What they are and how long they are held
//! is told, generation by generation, in [`one_mutex`] (3.1) and [`rev_mu`] (3.2 to 3.5).
//!
//! # The locks, from the outermost in
//!
//! | lock | guards | shared by | taken exclusively by |
//! |---|---|---|---|
//! | `store` | that no transaction is open | reads and writes, to their ends (3.1: none) | commits for a snapshot, scheduling a compaction (3.1: all) |
//! | `watchable` | all watchers | | the end of a write (3.1: all of it), synchronising: see [`crate::watch`] |
//! | `batchTx` | what is pending | | write transactions, commits, removals |
//! | `index` | the persistent index, if it was chosen | | write transactions, the steps of a compaction |
//! | `revMu` | the revisions (3.1 has them under `store`) | reads, to be opened | the end of a write, scheduling a compaction |
//! | `readTx` | the read buffer and the engine's snapshot | reads: in 3.2 to the end, later to be opened; hashes, to the end | write-backs, commits |
//! | `treeIndex` | etcd's index | walks | a put, for one key; a compaction |
//!
//! `store` is what keeps that in order: a thread that has it alone may take `revMu` before `batchTx`, for
//! no transaction is open that takes them the other way round.
//!
//! # Who waits for whom
//!
//! * In 3.1 every request for every other, in 3.2 the convoy of the backend's
//!   [`read_tx`](clearlane_backend::read_tx), twice: a put that waits for a slow reader holds
//!   `revMu`, and new readers wait for that.
//! * From 3.4 on a read stops no request by what it holds of the backend, but it holds `store`.
//! * A hash holds `readTx` over all records in every era from 3.2 on (`batchTx` in 3.1), so each
//!   write waits for it at its end, with `revMu` held.
//! * Scheduling a compaction commits and syncs with both `store` and `revMu` held. Until 3.3 the
//!   walk over the index comes on top of that.
//!
//! # With the persistent index
//!
//! It can be chosen apart. The view is published under `revMu` together with the revision, and no
//! walk stops a put any more. All other locks stay.

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
use crate::etcd::shared_index::SharedIndex;
use crate::etcd::watchers::EtcdWatchers;
use crate::etcd::write_txn::EtcdWriteTxn;
use crate::hash::HashKvJob;
use crate::interface::ConsistentIndex;
use crate::interface::{HashJob, KeyLeases, ReadTxn, Store, TxnResult, WriteTxn};
use crate::kv_hasher::{HashKv, KvHasher};
use crate::restore::{RecoveryInfo, RestoredStore};
use crate::tree_index::{IndexCompaction, IndexSnapshot, TreeIndex};

/// The store of an old era.
#[derive(Debug)]
pub(crate) struct EtcdStore<A, I, P> {
    pub(super) protocol: P,
    pub(super) backend: Box<dyn Backend<StorePosition<A>>>,
    pub(super) index: SharedIndex<I>,
    compactions: Mutex<CompactionTracker>,
    /// As in etcd, the store tells its watchers itself.
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

type OpenReadTxn<'s, I, P> = EtcdReadTxn<
    's,
    <I as TreeIndex>::Snapshot,
    <P as Protocol<<I as TreeIndex>::Snapshot>>::StoreGuard<'s>,
>;

impl<A: ConsistentIndex, I: TreeIndex, P: Protocol<I::Snapshot>> EtcdStore<A, I, P> {
    pub(crate) fn open_with_index(
        era: Era,
        ground: StoreConfig<'_, A>,
        index: I,
    ) -> Result<(EtcdStore<A, I, P>, RecoveryInfo)> {
        let RestoredStore { index, revision, compact_revision, compactions, recovery: opened } =
            RestoredStore::restore(&*ground.engine, index, ground.workers)?;
        let StoreConfig { engine, config, pre_commit, consistent_index: applied, leases, .. } =
            ground;
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
            index: SharedIndex::new(index, &locks),
            compactions: Mutex::new(&locks, "compactions", compactions),
            watchers: Mutex::new(&locks, "watchable", EtcdWatchers::default()),
            leases,
        };
        Ok((store, opened))
    }

    fn begin_read_with<'s>(
        &'s self,
        open: impl FnOnce(&'s dyn Backend<StorePosition<A>>) -> Box<dyn ReadTx + 's>,
    ) -> OpenReadTxn<'s, I, P> {
        let (held, revisions, tx) = self.protocol.read(|| open(&*self.backend));
        EtcdReadTxn::new(held, revisions, tx)
    }

    /// The index part of a compaction, where it is done while the compaction is scheduled. That is
    /// etcd's way until 3.3.
    fn compact_index_while_scheduling(&self, at: i64) -> Option<IndexCompaction> {
        let at_once = I::Snapshot::IS_LIVE && self.backend.era() < Era::V3_4;
        at_once.then(|| {
            let mut compaction = self.begin_index_compaction(at);
            while !self.compact_index_step(&mut compaction, usize::MAX) {}
            compaction
        })
    }
}

impl<A: ConsistentIndex, I: TreeIndex, P: Protocol<I::Snapshot>> Store<A> for EtcdStore<A, I, P> {
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
            // etcd has the mark on disk before it goes on, and all requests wait for the sync.
            self.backend.commit()?;
            let walked = self.compact_index_while_scheduling(at);
            let job = self.compactions.lock().schedule(at, previous, walked);
            let (changes, commit_due) = (Vec::new(), ended.commit_due);
            let (earlier, retired) = (Vec::new(), DroppedStates::none());
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

    /// As in etcd: `store` and `revMu` are let go of as soon as the plain read is open, and that
    /// one is held until the hash is done.
    fn hash(&self, revision: i64) -> Result<Box<dyn HashJob + '_>> {
        let stored = self.compactions.lock().hash_of(revision);
        Ok(Box::new(match stored {
            Some(hash) => HashKvJob::done(hash, self.begin_read().revision()),
            None => {
                let moment = self
                    .begin_read_with(|backend| backend.begin_locked_read())
                    .release_store_lock();
                HashKvJob::new(moment, revision)?
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

impl<A: ConsistentIndex, I: TreeIndex, P: Protocol<I::Snapshot>> CompactionStore
    for EtcdStore<A, I, P>
{
    fn compactions(&self) -> &Mutex<CompactionTracker> {
        &self.compactions
    }

    fn begin_index_compaction(&self, at: i64) -> IndexCompaction {
        self.index.write().begin_compaction(at)
    }

    fn compact_index_step(&self, compaction: &mut IndexCompaction, keys_max: usize) -> bool {
        self.index.write().compact_step(compaction, keys_max)
    }

    fn commit_scheduled_revision(&self) -> Result<()> {
        Ok(()) // It was committed when the compaction was scheduled.
    }

    /// As in etcd, `batchTx` is held while a stretch is looked through; then while it is removed.
    fn remove_chunk(
        &self,
        from: &[u8],
        fold: &mut KvHasher,
        budget: usize,
    ) -> Result<(usize, Option<Vec<u8>>)> {
        let tx = self.backend.begin_write()?;
        let stretch = removable_records(&*tx, from, fold, budget);
        let reached = tx.payload().clone();
        drop(tx.end(reached)?);
        let (removals, next) = stretch?;
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
