//! The stores of etcd's older eras: revisions and index under locks, in etcd's order.
//!
//! # The problem
//!
//! A read must find the revisions and the records of one moment. Where they do not lie behind one
//! pointer, somebody has to be kept from changing one while the other is looked at. etcd does so
//! with two locks of its own above those of the backend. What they are and how long they are held
//! is told, generation by generation, in [`one_mutex`] (3.1) and [`rev_mu`] (3.2 to 3.5).
//!
//! # The locks, from the outermost in
//!
//! | lock | guards | shared by | taken exclusively by |
//! |---|---|---|---|
//! | `store` | that no transaction is open | reads and writes, to their ends (3.1: nobody) | commits for a snapshot, scheduling a compaction (3.1: everybody) |
//! | `watchable` | all watchers | | the end of a write (3.1: all of it), synchronising: see [`crate::watch`] |
//! | `batchTx` | what is pending | | write transactions, commits, removals |
//! | `index` | the persistent index, if it was chosen | | write transactions, the steps of a compaction |
//! | `revMu` | the revisions (3.1 has them under `store`) | reads, to be opened | the end of a write, scheduling a compaction |
//! | `readTx` | the read buffer and the engine's snapshot | reads: in 3.2 to the end, later to be opened; hashes, to the end | write-backs, commits |
//! | `treeIndex` | etcd's index | walks | a put, for one key; a compaction |
//!
//! `store` is what keeps that in order: whoever has it alone may take `revMu` before `batchTx`, for
//! no transaction is open that takes them the other way round.
//!
//! # Who waits for whom
//!
//! * In 3.1 everybody for everybody, in 3.2 the convoy of the backend's
//!   [`read_tx`](clearlane_backend::read_tx), twice: a put that waits for a slow reader holds
//!   `revMu`, and new readers wait for that.
//! * From 3.4 on a read stops nobody by what it holds of the backend, but it holds `store`.
//! * A hash holds `readTx` over all records in every era from 3.2 on (`batchTx` in 3.1), so each
//!   write waits for it at its end, with `revMu` held.
//! * Scheduling a compaction commits and syncs with both `store` and `revMu` held. Until 3.3 the
//!   walk over the index comes on top of that.
//!
//! # With the persistent index
//!
//! It can be chosen apart. The view is published under `revMu` together with the revision, and no
//! walk stops a put any more. All other locks stay.

mod one_mutex;
mod protocol;
mod read_txn;
mod rev_mu;
mod write_txn;

use std::sync::Arc;
use std::time::Duration;

use clearlane_backend::{Backend, Design, PreCommit, ReadTx, Retired, Sizes};
use clearlane_engine::stream::Exporter;
use clearlane_engine::{Bucket, KeyRange};
use clearlane_locks::{Mutex, Registry};
use clearlane_proto::mvccpb::KeyValue;

use self::protocol::{Protocol, Revisions};
use self::read_txn::LockedReadTxn;
use self::write_txn::LockedWriteTxn;
use crate::error::Result;
use crate::hash::{Fold, HashKv, Hashing};
use crate::store::compaction::{self, Compacting, CompactionJob, Compactions, superfluous};
use crate::store::interface::{Ended, HashJob, KeyLeases, RangeOptions, ReadTxn, Store, WriteTxn};
use crate::store::shared_index::SharedIndex;
use crate::store::{Applied, Begun, FINISHED, Ground, Opened, SCHEDULED, mark, may_compact};
use crate::tree_index::{Compaction, IndexView, TreeIndex};
use crate::watch::locked::watchable::Watchable;
use crate::watch::locked::{LockedHub, WatchedStore};
use crate::watch::{Waker, WatchConfig, WatchHub};

pub(crate) use self::one_mutex::OneMutex;
pub(crate) use self::rev_mu::RevMu;

/// The store of an old era.
#[derive(Debug)]
pub(crate) struct LockedStore<A, I, P> {
    protocol: P,
    backend: Box<dyn Backend<Reached<A>>>,
    index: SharedIndex<I>,
    compactions: Mutex<Compactions>,
    /// As in etcd, the store tells its watchers itself.
    watchable: Mutex<Watchable>,
    leases: Arc<dyn KeyLeases>,
}

/// What the newest write transaction has reached, for the next one and for the commits.
#[derive(Clone, Debug)]
pub(crate) struct Reached<A> {
    revision: i64,
    compact_revision: i64,
    applied: A,
}

type OpenRead<'s, I, P> =
    LockedReadTxn<'s, <I as TreeIndex>::View, <P as Protocol<<I as TreeIndex>::View>>::Held<'s>>;

impl<A: Applied, I: TreeIndex, P: Protocol<I::View>> LockedStore<A, I, P> {
    pub(crate) fn open_on(
        design: Design,
        ground: Ground<'_, A>,
        index: I,
    ) -> Result<(LockedStore<A, I, P>, Opened)> {
        let Begun { index, revision, compact_revision, compactions, opened } =
            Begun::on(&*ground.engine, index, ground.workers)?;
        let Ground { engine, config, pre_commit, applied, leases, .. } = ground;
        let locks = config.locks.clone();
        let (current, compacted) = (revision, compact_revision);
        let first = Revisions { current, compacted, index: index.view() };
        let reached = Reached { revision, compact_revision, applied };
        let pre_commit =
            PreCommit::new(move |reached: &Reached<A>, put| pre_commit.run(&reached.applied, put));
        let store = LockedStore {
            protocol: P::new(&locks, first),
            backend: design.open(engine, config, pre_commit, reached)?,
            index: SharedIndex::new(index, &locks),
            compactions: Mutex::new(&locks, "compactions", compactions),
            watchable: Mutex::new(&locks, "watchable", Watchable::default()),
            leases,
        };
        Ok((store, opened))
    }

    fn open_read<'s>(
        &'s self,
        open: impl FnOnce(&'s dyn Backend<Reached<A>>) -> Box<dyn ReadTx + 's>,
    ) -> OpenRead<'s, I, P> {
        let (held, revisions, tx) = self.protocol.read(|| open(&*self.backend));
        LockedReadTxn::new(held, revisions, tx)
    }

    /// The index part of a compaction, where it is done while the compaction is scheduled. That is
    /// etcd's way until 3.3.
    fn walk_at_once(&self, at: i64) -> Option<Compaction> {
        let at_once = I::View::LIVE && self.backend.design() < Design::ConcurrentReadTx;
        at_once.then(|| {
            let mut compaction = self.begin_index(at);
            while !self.compact_index(&mut compaction, usize::MAX) {}
            compaction
        })
    }
}

impl<A: Applied, I: TreeIndex, P: Protocol<I::View>> Store<A> for LockedStore<A, I, P> {
    fn design(&self) -> Design {
        self.backend.design()
    }

    fn read(&self) -> Box<dyn ReadTxn + '_> {
        Box::new(self.open_read(|backend| backend.read()))
    }

    fn read_for_writer(&self) -> Box<dyn ReadTxn + '_> {
        Box::new(self.open_read(|backend| backend.read_for_writer()))
    }

    fn write(&self) -> Result<Box<dyn WriteTxn<A> + '_>> {
        Ok(Box::new(LockedWriteTxn::new(self)?))
    }

    fn compact(&self, at: i64, applied: A) -> Result<(CompactionJob, Ended)> {
        self.protocol.change(|revisions| {
            let (revision, previous) = (revisions.current, revisions.compacted);
            may_compact(at, revision, previous)?;
            let mut tx = self.backend.write()?;
            tx.put(Bucket::Meta, SCHEDULED, mark(at))?;
            let ended = tx.end(Reached { revision, compact_revision: at, applied })?;
            revisions.compacted = at;
            // etcd has the mark on disk before it goes on, and everybody waits for the sync.
            self.backend.commit()?;
            let walked = self.walk_at_once(at);
            let job = self.compactions.lock().schedule(at, previous, walked);
            let (changes, commit_due) = (Vec::new(), ended.commit_due);
            let (earlier, retired) = (Vec::new(), Retired::nothing());
            Ok((job, Ended { revision, changes, earlier, retired, commit_due }))
        })
    }

    fn compact_step(&self, job: &mut CompactionJob, budget: usize) -> Result<bool> {
        compaction::step(self, job, budget)
    }

    /// As in etcd: `store` and `revMu` are let go of as soon as the plain read is open, and that
    /// one is held until the hash is done.
    fn hash(&self, revision: i64) -> Result<Box<dyn HashJob + '_>> {
        let stored = self.compactions.lock().hash_of(revision);
        Ok(Box::new(match stored {
            Some(hash) => Hashing::done(hash, self.read().revision()),
            None => {
                let moment = self.open_read(|backend| backend.read_locked()).without_store();
                Hashing::new(moment, revision)?
            }
        }))
    }

    fn compaction_hashes(&self) -> Vec<HashKv> {
        self.compactions.lock().hashes()
    }

    fn commit(&self) -> Result<()> {
        Ok(self.protocol.alone(|| self.backend.commit())?)
    }

    fn tick(&self, now: Duration) -> Result<bool> {
        Ok(self.backend.tick(now)?)
    }

    fn defragment(&self) -> Result<()> {
        Ok(self.backend.defragment()?)
    }

    fn copy(&self) -> Result<Exporter> {
        Ok(self.backend.copy()?)
    }

    fn sizes(&self) -> Result<Sizes> {
        Ok(self.backend.sizes()?)
    }

    fn watch_hub(
        self: Arc<Self>,
        _config: WatchConfig,
        locks: &Registry,
        _wake: Waker,
    ) -> Arc<dyn WatchHub> {
        Arc::new(LockedHub::new(self, locks))
    }
}

impl<A: Applied, I: TreeIndex, P: Protocol<I::View>> WatchedStore for LockedStore<A, I, P> {
    fn design(&self) -> Design {
        self.backend.design()
    }

    fn watchable(&self) -> &Mutex<Watchable> {
        &self.watchable
    }

    fn with_revisions(&self, work: &mut dyn FnMut(i64, i64)) {
        self.protocol.revisions(|revisions| work(revisions.current, revisions.compacted));
    }

    fn read_locked(&self) -> Box<dyn ReadTx + '_> {
        self.backend.read_locked()
    }

    fn record_at(&self, key: &[u8], revision: i64) -> Result<Option<KeyValue>> {
        let end = [key, b"\0"].concat();
        let options = RangeOptions { revision, ..RangeOptions::default() };
        Ok(self.read().range(KeyRange::new(key, &end), options)?.records.pop())
    }
}

impl<A: Applied, I: TreeIndex, P: Protocol<I::View>> Compacting for LockedStore<A, I, P> {
    fn compactions(&self) -> &Mutex<Compactions> {
        &self.compactions
    }

    fn begin_index(&self, at: i64) -> Compaction {
        self.index.write().compaction(at)
    }

    fn compact_index(&self, compaction: &mut Compaction, keys_max: usize) -> bool {
        self.index.write().compact(compaction, keys_max)
    }

    fn make_mark_durable(&self) -> Result<()> {
        Ok(()) // It was committed when the compaction was scheduled.
    }

    /// As in etcd, `batchTx` is held while a stretch is looked through; then while it is removed.
    fn remove_stretch(
        &self,
        from: &[u8],
        fold: &mut Fold,
        budget: usize,
    ) -> Result<(usize, Option<Vec<u8>>)> {
        let tx = self.backend.write()?;
        let stretch = superfluous(&*tx, from, fold, budget);
        let reached = tx.payload().clone();
        drop(tx.end(reached)?);
        let (removals, next) = stretch?;
        self.backend.remove(&removals)?;
        Ok((removals.len(), next))
    }

    fn mark_finished(&self, at: i64) -> Result<()> {
        let mut tx = self.backend.write()?;
        tx.put(Bucket::Meta, FINISHED, mark(at))?;
        let reached = tx.payload().clone();
        drop(tx.end(reached)?);
        Ok(self.backend.commit()?)
    }
}
