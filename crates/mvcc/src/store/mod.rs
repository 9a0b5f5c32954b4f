//! The store: revisions, index and records as one thing that is read and written.
//!
//! # The idea
//!
//! A write transaction gives each of its changes the next main revision and a rising sub revision,
//! writes a record per change, and teaches the index. A read picks a revision, asks the index which
//! records were valid then, and fetches them. The two meet in one place: what the index said and
//! what the records say must be of the same moment.
//!
//! The backend's view carries a payload for that. Ours is the [`State`]: the current revision, the
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
//! # Who waits for whom
//!
//! A [`ReadView`] holds no lock, through commits, compactions and defragmentations. A
//! [`WriteTxn`] holds `store`, which writers and the short steps of a compaction take; there is
//! one writer, the applier.
//!
//! Lock order: `store`, then the backend's own.
//!
//! # Invariants
//!
//! * An empty store is at revision 1; a write transaction that changes anything adds 1.
//! * Every revision that a published index names has its record in the same view.
//! * Below the compact revision nothing is answered; at it, everything is.
//!
//! # What is not here yet
//!
//! The stores of the older eras, which keep revision and index under locks of their own; watch.

mod read_view;
mod write_txn;
pub mod restore;
mod compaction;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use clearlane_backend::{Backend, Config, PreCommit, SnapshotBackend};
use clearlane_engine::{Bucket, Engine};
use clearlane_locks::Mutex;

use crate::error::Result;
use crate::hash::StoredHashes;
use crate::revision::Revision;
use crate::tree_index::TreeIndex;
use crate::tree_index::persistent::{PersistentIndex, PersistentView};
use crate::workers::Workers;

pub use compaction::{CompactionJob, StoreCompaction};
pub use read_view::{RangeAnswer, RangeOptions, ReadView};
pub use restore::LeaseOfKey;
pub use write_txn::{Change, Ended, WriteTxn};

/// The revision of a store in which nothing has been written.
pub(crate) const FIRST_REVISION: i64 = 1;
/// The compact revision of a store that was never compacted.
pub(crate) const NEVER_COMPACTED: i64 = -1;

/// What the store says about one state of the backend.
#[derive(Clone, Debug)]
pub struct State<A> {
    /// The main revision of the newest change.
    pub revision: i64,
    /// The revision up to which the past was dropped; -1 if never.
    pub compact_revision: i64,
    /// What the crate above said when the state was reached: etcd's consistent index and term.
    pub applied: A,
    pub(crate) index: PersistentView,
}

/// The store of the default era.
#[derive(Debug)]
pub struct Store<A> {
    backend: SnapshotBackend<State<A>>,
    writer: Mutex<Writer>,
    /// What compactions left for `HashKV`.
    hashes: Mutex<StoredHashes>,
}

/// What comes back beside an opened store.
#[derive(Debug)]
pub struct Opened {
    /// The keys that are attached to a lease.
    pub leases: Vec<LeaseOfKey>,
    /// A compaction that a crash has interrupted; its steps are to be run.
    pub compaction: Option<StoreCompaction>,
}

/// What the lock `store` guards.
#[derive(Debug)]
pub(crate) struct Writer {
    index: PersistentIndex,
    /// A compaction's job has begun its work, and no second one may begin.
    compacting: bool,
    /// Compactions that were scheduled and have not come to their end.
    open_compactions: usize,
}

/// What a crate above needs of `A`.
pub trait Applied: Clone + Debug + Send + Sync + 'static {}

impl<A: Clone + Debug + Send + Sync + 'static> Applied for A {}

impl<A: Applied> Store<A> {
    /// Opens the store that an engine holds and restores its index. `pre_commit` saves, with each
    /// commit, what `applied` says of the state that becomes durable. `workers` share the work of
    /// restoring.
    pub fn open(
        engine: Arc<dyn Engine>,
        config: Config,
        pre_commit: PreCommit<A>,
        applied: A,
        workers: &dyn Workers,
    ) -> Result<(Store<A>, Opened)> {
        let snapshot = engine.snapshot().map_err(clearlane_backend::Error::from)?;
        let cut = restore::Cut::for_workers(workers);
        let index = PersistentIndex::default();
        let restored = restore::restore(&*snapshot, index, workers, cut)?;
        let state = State {
            revision: restored.revision,
            compact_revision: restored.compact_revision,
            applied,
            index: restored.index.view(),
        };
        let locks = config.locks.clone();
        let pre_commit =
            PreCommit::new(move |state: &State<A>, put| pre_commit.run(&state.applied, put));
        let backend = SnapshotBackend::open(engine, config, pre_commit, state)?;
        let open_compactions = usize::from(restored.unfinished.is_some());
        let writer = Writer { index: restored.index, compacting: false, open_compactions };
        let store = Store {
            backend,
            writer: Mutex::new(&locks, "store", writer),
            hashes: Mutex::new(&locks, "hashes", StoredHashes::default()),
        };
        let (leases, compaction) = (restored.leases, restored.unfinished);
        Ok((store, Opened { leases, compaction }))
    }

    /// Opens a read: one pointer. It shows the store as it is now, for as long as it is kept.
    pub fn read(&self) -> ReadView<A> {
        ReadView::new(self.backend.read_view())
    }

    /// Opens the write transaction, once the one before has ended.
    pub fn write(&self) -> Result<WriteTxn<'_, A>> {
        self.write_if(|_| Ok(()))
    }

    /// Opens the write transaction if the state allows it.
    fn write_if(&self, allowed: impl FnOnce(&State<A>) -> Result<()>) -> Result<WriteTxn<'_, A>> {
        let writer = self.writer.lock();
        // Whoever holds the lock is the only one who changes the state.
        let state = self.backend.read_view().payload().clone();
        allowed(&state)?;
        let tx = self.backend.write()?;
        Ok(WriteTxn::new(writer, tx, state))
    }

    /// The backend below, for commits, defragmentation and copies.
    pub fn backend(&self) -> &SnapshotBackend<State<A>> {
        &self.backend
    }

    /// Commits what is pending if the batch interval has passed.
    pub fn tick(&self, now: Duration) -> Result<bool> {
        Ok(self.backend.tick(now)?)
    }

    /// Commits what is pending, now.
    pub fn commit(&self) -> Result<()> {
        Ok(self.backend.commit()?)
    }
}

/// The key in bucket `meta` of the revision that a compaction was asked for.
const SCHEDULED: &[u8] = b"scheduledCompactRev";
/// The key in bucket `meta` of the revision that the last compaction has finished.
const FINISHED: &[u8] = b"finishedCompactRev";

/// A mark of a compaction, as bucket `meta` has it.
fn read_mark(reader: &dyn clearlane_engine::Read, key: &[u8]) -> Result<Option<i64>> {
    let value = reader.get(Bucket::Meta, key).map_err(clearlane_backend::Error::from)?;
    let main = |value: bytes::Bytes| {
        let number = value.first_chunk::<8>().map(|bytes| i64::from_be_bytes(*bytes));
        let name = || String::from_utf8_lossy(key).into_owned();
        number.ok_or_else(|| crate::Error::Damaged(format!("{} is too short", name())))
    };
    value.map(main).transpose()
}

/// The bytes of a mark: a revision key, of which only the main part counts.
fn mark(revision: i64) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(&Revision::new(revision, 0).put_key())
}
