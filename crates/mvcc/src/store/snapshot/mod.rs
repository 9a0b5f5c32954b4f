//! The store of the default era: everything a read needs, behind one pointer.
//!
//! # The idea
//!
//! The backend's view carries a payload, and ours is the [`State`]: the current revision, the
//! compact revision, and the index as it was then. A write transaction publishes records and state
//! with one pointer, a read loads that pointer, and nothing it needs can change any more:
//!
//! ```text
//!   current ──▶ View ─┬─ engine, log, overlay     the records
//!                     └─ State ─┬─ revision 7     what the newest write made
//!                               ├─ compacted 3    below it, the past is gone
//!                               ├─ index          which record of each key, at any revision
//!                               └─ applied        what the crate above saves with each commit
//! ```
//!
//! # Who holds what
//!
//! * **A read** holds nothing, through commits, compactions and defragmentations.
//! * **A write transaction** holds `store`, which writers and the short steps of a compaction take;
//!   there is one writer, the applier.
//! * **A commit** holds what the backend's committer holds, and nothing of ours.
//! * **A compaction** takes `store` to be scheduled, for some keys at a time, and to note that it
//!   is done. Its records are found in a view.
//! * **A hash** holds a view.
//!
//! Lock order: `store`, then the backend's own, or `compactions`.
//!
//! # With the index of the old eras
//!
//! The index can be chosen apart, to see what it alone costs. With the one under a lock the
//! pointer's index is a handle on the one tree, so a walk holds up a put after all. And a view no
//! longer outlasts compactions: when one above its revision has begun, it answers that the revision
//! was compacted. It never shows a past of which a part is gone.

mod read_view;
mod write_txn;

use std::sync::Arc;
use std::time::Duration;

use clearlane_backend::{Backend, Design, PreCommit, Sizes, SnapshotBackend, WriteTx};
use clearlane_engine::stream::Exporter;
use clearlane_locks::{Mutex, Registry};

use crate::error::Result;
use crate::hash::{Fold, HashKv, Hashing};
use crate::store::compaction::{self, Compacting, CompactionJob, Compactions, superfluous};
use crate::store::interface::{Ended, HashJob, KeyLeases, ReadTxn, Store, WriteTxn};
use crate::store::{Applied, Begun, FINISHED, Ground, Opened, SCHEDULED, may_compact};
use crate::tree_index::persistent::{PersistentIndex, PersistentView};
use crate::tree_index::{Compaction, IndexView, TreeIndex};
use crate::watch::{SnapshotHub, Waker, WatchConfig, WatchHub};

pub use read_view::ReadView;
pub use write_txn::SnapshotWriteTxn;

/// What the store says about one state of the backend.
#[derive(Clone, Debug)]
pub struct State<A, V = PersistentView> {
    /// The main revision of the newest change.
    pub revision: i64,
    /// The revision up to which the past was dropped; -1 if never.
    pub compact_revision: i64,
    /// What the crate above said when the state was reached: etcd's consistent index and term.
    pub applied: A,
    pub(crate) index: V,
}

/// The store of the default era.
#[derive(Debug)]
pub struct SnapshotStore<A, I: TreeIndex = PersistentIndex> {
    backend: SnapshotBackend<State<A, I::View>>,
    /// The lock `store` guards the writer's side of the index.
    index: Mutex<I>,
    compactions: Mutex<Compactions>,
    leases: Arc<dyn KeyLeases>,
}

impl<A: Applied> SnapshotStore<A> {
    /// Opens the store that an engine holds and restores its index.
    pub fn open(ground: Ground<'_, A>) -> Result<(SnapshotStore<A>, Opened)> {
        SnapshotStore::open_on(ground, PersistentIndex::default())
    }
}

impl<A: Applied, I: TreeIndex> SnapshotStore<A, I> {
    pub(crate) fn open_on(
        ground: Ground<'_, A>,
        index: I,
    ) -> Result<(SnapshotStore<A, I>, Opened)> {
        let Begun { index, revision, compact_revision, compactions, opened } =
            Begun::on(&*ground.engine, index, ground.workers)?;
        let Ground { engine, config, pre_commit, applied, leases, .. } = ground;
        let state = State { revision, compact_revision, applied, index: index.view() };
        let locks = config.locks.clone();
        let pre_commit = PreCommit::new(move |state: &State<A, I::View>, put| {
            pre_commit.run(&state.applied, put)
        });
        let store = SnapshotStore {
            backend: SnapshotBackend::open(engine, config, pre_commit, state)?,
            index: Mutex::new(&locks, "store", index),
            compactions: Mutex::new(&locks, "compactions", compactions),
            leases,
        };
        Ok((store, opened))
    }

    /// Opens a read: one pointer. It shows the store as it is now, for as long as it is kept.
    pub fn read(&self) -> ReadView<A, I::View> {
        ReadView::new(self.backend.read_view())
    }

    /// Opens the write transaction, once the one before has ended.
    pub fn write(&self) -> Result<SnapshotWriteTxn<'_, A, I>> {
        SnapshotWriteTxn::new(self, self.index.lock())
    }

    /// The backend below, for a defragmentation in steps.
    pub fn backend(&self) -> &SnapshotBackend<State<A, I::View>> {
        &self.backend
    }

    fn begin(&self) -> Result<Box<dyn WriteTx<State<A, I::View>> + '_>> {
        Ok(self.backend.write()?)
    }
}

impl<A: Applied, I: TreeIndex> Store<A> for SnapshotStore<A, I> {
    fn design(&self) -> Design {
        self.backend.design()
    }

    fn read(&self) -> Box<dyn ReadTxn + '_> {
        Box::new(self.read())
    }

    fn view(&self) -> Option<Arc<dyn ReadTxn + Send + Sync>> {
        // A walk over the index under a lock must not be kept for long, and may meet a compaction.
        (!<I::View as IndexView>::LIVE).then(|| Arc::new(self.read()) as _)
    }

    fn write(&self) -> Result<Box<dyn WriteTxn<A> + '_>> {
        Ok(Box::new(self.write()?))
    }

    fn compact(&self, at: i64, applied: A) -> Result<(CompactionJob, Ended)> {
        let index = self.index.lock();
        // Whoever holds the lock is the only one who changes the state.
        let view = self.read();
        may_compact(at, view.revision(), view.compact_revision())?;
        let mut txn = SnapshotWriteTxn::new(self, index)?;
        txn.put_mark(SCHEDULED, at)?;
        let job = self.compactions.lock().schedule(at, view.compact_revision(), None);
        Ok((job, txn.end_as(applied, at)?))
    }

    fn compact_step(&self, job: &mut CompactionJob, budget: usize) -> Result<bool> {
        compaction::step(self, job, budget)
    }

    fn hash(&self, revision: i64) -> Result<Box<dyn HashJob + '_>> {
        let stored = self.compactions.lock().hash_of(revision);
        Ok(Box::new(match stored {
            Some(hash) => Hashing::done(hash, self.read().revision()),
            None => Hashing::new(self.read(), revision)?,
        }))
    }

    fn compaction_hashes(&self) -> Vec<HashKv> {
        self.compactions.lock().hashes()
    }

    fn commit(&self) -> Result<()> {
        Ok(self.backend.commit()?)
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
        config: WatchConfig,
        locks: &Registry,
        wake: Waker,
    ) -> Arc<dyn WatchHub> {
        Arc::new(SnapshotHub::new(self, config, locks, wake))
    }
}

impl<A: Applied, I: TreeIndex> Compacting for SnapshotStore<A, I> {
    fn compactions(&self) -> &Mutex<Compactions> {
        &self.compactions
    }

    fn begin_index(&self, at: i64) -> Compaction {
        self.index.lock().compaction(at)
    }

    fn compact_index(&self, compaction: &mut Compaction, keys_max: usize) -> bool {
        self.index.lock().compact(compaction, keys_max)
    }

    fn make_mark_durable(&self) -> Result<()> {
        self.commit()
    }

    fn remove_stretch(
        &self,
        from: &[u8],
        fold: &mut Fold,
        budget: usize,
    ) -> Result<(usize, Option<Vec<u8>>)> {
        let view = self.backend.read_view();
        let (removals, next) = superfluous(&view, from, fold, budget)?;
        self.backend.remove(&removals)?;
        self.commit()?;
        Ok((removals.len(), next))
    }

    fn mark_finished(&self, at: i64) -> Result<()> {
        let mut txn = self.write()?;
        txn.put_mark(FINISHED, at)?;
        let applied = txn.applied();
        drop(txn.end(applied)?);
        self.commit()
    }
}
