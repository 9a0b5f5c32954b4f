//! The store: revisions, index and records as one thing that is read and written.
//!
//! # The idea
//!
//! A write transaction gives each of its changes the next main revision and a rising sub revision,
//! writes a record per change, and teaches the index. A read picks a revision, asks the index which
//! records were valid then, and fetches them. The two meet in one place: what the index said and
//! what the records say must be of the same moment.
//!
//! How they are kept together is what the eras differ in, here as in the backend below. There is
//! one interface, [`Store`], with two kinds behind it: [`snapshot`], where all of it lies behind
//! one pointer, and [`locked`], where etcd's locks stand around it.
//!
//! # Who waits for whom
//!
//! | | 3.1 | 3.2 | 3.4, 3.5 | `clearlane` |
//! |---|---|---|---|---|
//! | an open read holds | `store`, `batchTx` | `store` and `readTx`, shared | `store`, shared | nothing |
//! | so these wait for it | all other requests | the end of a write, and behind that all other requests | commits for a snapshot and compactions to be scheduled, and behind them all other requests | no request |
//! | opening a read waits for | all other requests | a write that ends, a commit's sync | a write that ends, a commit's sync | nothing |
//! | the end of a write holds | `store`, `batchTx` | `batchTx`, and `revMu` and `readTx` exclusively | as 3.2 | `store`, which only writers take |
//! | a hash holds | `batchTx` | `readTx`, shared: writes wait at their end | as 3.2 | nothing |
//! | a watcher's catching up holds | `watchable`, `store`, `batchTx` | `watchable`; `revMu` and `readTx`, shared: writes wait at their end | as 3.2 | nothing |
//! | scheduling a compaction | waits for all, then syncs | waits for all, then syncs | waits for all, then syncs | is a write like others |
//! | a walk over the index | stops puts | stops puts | stops puts | stops no put |
//!
//! The last row comes with the index and not with the locks: see [`IndexKind`]. A *commit for a
//! snapshot* is [`Store::commit`], which etcd's applier calls now and then; the timer's commit is
//! [`Store::commit_if_due`], which in no era takes `store`.
//!
//! # Invariants
//!
//! * An empty store is at revision 1; a write transaction that changes anything adds 1.
//! * Every revision that a read's index names has its record in the same read.
//! * Below the compact revision nothing is answered; at it, everything is.

pub mod snapshot;
pub mod locked;
pub(crate) mod interface;
pub(crate) mod range;
mod record_fetch;
mod txn_changes;
mod shared_index;
pub mod restore;
mod compaction;

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use clearlane_backend::{Config, Era, PreCommit};
use clearlane_engine::{Bucket, Engine, Read};

use self::compaction::CompactionTracker;
use self::locked::{EtcdStore, OneMutex, RevMu};
use self::restore::Partitioning;
use crate::error::{Error, Result};
use crate::revision::Revision;
use crate::tree_index::TreeIndex;
use crate::tree_index::locked::{CompactionLock, LockedIndex};
use crate::tree_index::persistent::PersistentIndex;
use crate::workers::{SerialWorkers, Workers};

pub use compaction::CompactionJob;
pub use interface::{
    Change, HashJob, KeyLeases, LengthVisitor, NoLeases, RangeOptions, RangeRecords, ReadTxn,
    RecordVisitor, Store, TxnResult, WriteTxn,
};
pub use restore::LeasedKey;
pub use snapshot::{SnapshotStore, SnapshotWriteTxn, StoreReadTxn, StoreState};

/// The revision of a store in which nothing has been written.
pub(crate) const FIRST_REVISION: i64 = 1;
/// The compact revision of a store that was never compacted.
pub(crate) const NEVER_COMPACTED: i64 = -1;

/// Which parts a store is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreParts {
    /// How it reads beside a writer, in the backend and above it.
    pub design: Era,
    /// Its index.
    pub index: IndexKind,
}

/// The two tree indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexKind {
    /// etcd's: one tree under one lock.
    Locked,
    /// Ours: a snapshot is a pointer.
    Persistent,
}

/// The parts that belong together: etcd's index in etcd's eras.
impl From<Era> for StoreParts {
    fn from(design: Era) -> StoreParts {
        let index = match design {
            Era::Clearlane => IndexKind::Persistent,
            _ => IndexKind::Locked,
        };
        StoreParts { design, index }
    }
}

/// What a crate above needs of `A`.
pub trait ConsistentIndex: Clone + Debug + Send + Sync + 'static {}

impl<A: Clone + Debug + Send + Sync + 'static> ConsistentIndex for A {}

/// What comes back beside an opened store.
#[derive(Debug)]
pub struct RecoveryInfo {
    /// The keys that are attached to a lease.
    pub leases: Vec<LeasedKey>,
    /// A compaction that a crash has interrupted; its steps are to be run.
    pub compaction: Option<CompactionJob>,
}

/// What a store stands on: where its records are, and who else must know of them.
pub struct StoreConfig<'w, A> {
    /// The records.
    pub engine: Arc<dyn Engine>,
    /// When to commit, and where to count lock time.
    pub config: Config,
    /// Saves with each commit what `applied` says of the state that becomes durable.
    pub pre_commit: PreCommit<A>,
    /// Describes what the engine holds.
    pub consistent_index: A,
    /// Is told of each changed key on which lease it hangs.
    pub leases: Arc<dyn KeyLeases>,
    /// The threads that share the work of restoring.
    pub workers: &'w dyn Workers,
}

impl<A: Debug> Debug for StoreConfig<'_, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (engine, applied) = (&self.engine, &self.consistent_index);
        f.debug_struct("StoreConfig")
            .field("engine", engine)
            .field("consistent_index", applied)
            .finish_non_exhaustive()
    }
}

impl<A> StoreConfig<'static, A> {
    /// For a store without leases, restored by the thread that opens it.
    pub fn new(
        engine: Arc<dyn Engine>,
        config: Config,
        pre_commit: PreCommit<A>,
        applied: A,
    ) -> StoreConfig<'static, A> {
        let (leases, workers) = (Arc::new(NoLeases), &SerialWorkers);
        StoreConfig { engine, config, pre_commit, consistent_index: applied, leases, workers }
    }
}

/// Opens the store that an engine holds, of these parts, and restores its index.
pub fn open<A: ConsistentIndex>(
    parts: StoreParts,
    ground: StoreConfig<'_, A>,
) -> Result<(Box<dyn Store<A>>, RecoveryInfo)> {
    match parts.index {
        IndexKind::Locked => {
            let lock = match parts.design {
                Era::V3_1 | Era::V3_2 => CompactionLock::WholeWalk,
                _ => CompactionLock::PerKey,
            };
            let index = LockedIndex::new(&ground.config.locks, lock);
            open_with(parts.design, ground, index)
        }
        IndexKind::Persistent => open_with(parts.design, ground, PersistentIndex::default()),
    }
}

fn open_with<A: ConsistentIndex, I: TreeIndex>(
    design: Era,
    ground: StoreConfig<'_, A>,
    index: I,
) -> Result<(Box<dyn Store<A>>, RecoveryInfo)> {
    Ok(match design {
        Era::V3_1 => {
            let (store, opened) =
                EtcdStore::<A, I, OneMutex<I::Snapshot>>::open_with_index(design, ground, index)?;
            (Box::new(store), opened)
        }
        Era::V3_2 | Era::V3_4 | Era::V3_5 => {
            let (store, opened) =
                EtcdStore::<A, I, RevMu<I::Snapshot>>::open_with_index(design, ground, index)?;
            (Box::new(store), opened)
        }
        Era::Clearlane => {
            let (store, opened) = SnapshotStore::open_with_index(ground, index)?;
            (Box::new(store), opened)
        }
    })
}

/// What every store begins with.
pub(crate) struct RestoredStore<I> {
    index: I,
    revision: i64,
    compact_revision: i64,
    compactions: CompactionTracker,
    recovery: RecoveryInfo,
}

impl<I: TreeIndex> RestoredStore<I> {
    /// Reads what the engine holds, and fills the index, which is empty.
    fn restore(engine: &dyn Engine, index: I, workers: &dyn Workers) -> Result<RestoredStore<I>> {
        let snapshot = engine.snapshot().map_err(clearlane_backend::Error::from)?;
        let restored =
            restore::restore(&*snapshot, index, workers, Partitioning::for_workers(workers))?;
        let (revision, compact_revision) = (restored.revision, restored.compact_revision);
        let compactions = CompactionTracker::new(restored.finished_compact_revision);
        let compaction = (compact_revision > restored.finished_compact_revision).then(|| {
            compactions.resume(compact_revision, restored.finished_compact_revision, None)
        });
        let opened = RecoveryInfo { leases: restored.leases, compaction };
        Ok(RestoredStore {
            index: restored.index,
            revision,
            compact_revision,
            compactions,
            recovery: opened,
        })
    }
}

/// Whether a compaction at `at` may be scheduled, in etcd's order of asking.
fn check_compaction_revision(at: i64, revision: i64, compacted: i64) -> Result<()> {
    match at {
        at if at <= compacted => Err(Error::Compacted),
        at if at > revision => Err(Error::FutureRevision),
        _ => Ok(()),
    }
}

/// The key in bucket `meta` of the revision that a compaction was asked for.
const SCHEDULED_COMPACT_KEY: &[u8] = b"scheduledCompactRev";
/// The key in bucket `meta` of the revision that the last compaction has finished.
const FINISHED_COMPACT_KEY: &[u8] = b"finishedCompactRev";

/// A mark of a compaction, as bucket `meta` has it.
fn read_compact_revision(reader: &dyn Read, key: &[u8]) -> Result<Option<i64>> {
    let value = reader.get(Bucket::Meta, key).map_err(clearlane_backend::Error::from)?;
    let main = |value: Bytes| {
        let number = value.first_chunk::<8>().map(|bytes| i64::from_be_bytes(*bytes));
        let name = || String::from_utf8_lossy(key).into_owned();
        number.ok_or_else(|| Error::Damaged(format!("{} is too short", name())))
    };
    value.map(main).transpose()
}

/// The bytes of a mark: a revision key, of which only the main part counts.
fn encode_compact_revision(revision: i64) -> Bytes {
    Bytes::copy_from_slice(&Revision::new(revision, 0).put_key())
}

/// Records and the marks of compaction are the store's alone: a caller that writes them beside it has a bug.
fn assert_not_owned_by_store(bucket: Bucket, key: &[u8]) {
    let ours = bucket == Bucket::Key
        || bucket == Bucket::Meta && [SCHEDULED_COMPACT_KEY, FINISHED_COMPACT_KEY].contains(&key);
    assert!(!ours, "{} belongs to the store", bucket.name());
}
