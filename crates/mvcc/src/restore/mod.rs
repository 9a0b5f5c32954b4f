//! At start: from the records back to the index.
//!
//! The index is in memory only. Every record says which key it belongs to and which version of it,
//! so one read of bucket `key`, without the values, brings the index back, with it the revision
//! that the store had reached and the leases of its keys. No client is served before that is done,
//! so the work is cut into jobs for the caller's threads ([`Workers`]): by revision (`parts.rs`,
//! `part_reader.rs`), then by key (see [`SortedRun`](crate::tree_index::SortedRun)).
//!
//! A part notes each attachment to a lease; it counts if the index says that its record is the
//! key's current version. So neither detachments nor the order of parts matter.
//!
//! A record that cannot have been written ends the restore, with the same error however many
//! threads there are: that of the lowest damaged record. In etcd one goroutine reads 10,000 records
//! at a time and another one fills the tree. See `docs/mvcc.md` and
//! `docs/mvcc.md`.

mod part_reader;
mod parts;

use bytes::Bytes;
use clearlane_engine::{Engine, Snapshot};

use self::part_reader::{LeaseAttachment, REVISION_MAX};
use crate::compaction::{
    CompactionJob, CompactionTracker, FINISHED_COMPACT_KEY, SCHEDULED_COMPACT_KEY,
    read_compact_revision,
};
use crate::error::{Error, Result};
use crate::tree_index::{IndexSnapshot, TreeIndex};
use crate::workers::{self, Workers};

pub use self::parts::Partitioning;

/// The revision of a store in which nothing has been written.
const FIRST_REVISION: i64 = 1;
/// The compact revision of a store that was never compacted.
const NEVER_COMPACTED: i64 = -1;

/// Number of attachments that one job looks up.
const ATTACHMENTS_PER_JOB: usize = 1 << 14;

/// A key that is attached to a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedKey {
    /// The key.
    pub key: Bytes,
    /// The lease's id.
    pub lease: i64,
}

/// What a restore has found.
#[derive(Debug)]
pub struct RestoredIndex<I: TreeIndex> {
    /// The index that was given, with every key that the records have.
    pub index: I,
    /// The main revision that the store had reached.
    pub revision: i64,
    /// The revision up to which the past was dropped; -1 if never.
    pub compact_revision: i64,
    /// The keys that are attached to a lease, in their order.
    pub leases: Vec<LeasedKey>,
    /// The compact revision of the last compaction that has come to its end. If it is lower than
    /// the other, one was scheduled and has not.
    pub finished_compact_revision: i64,
}

/// Reads the whole store, but for the values, into an empty index.
pub fn restore<I: TreeIndex>(
    snapshot: &dyn Snapshot,
    mut index: I,
    workers: &dyn Workers,
    cut: Partitioning,
) -> Result<RestoredIndex<I>> {
    let finished =
        read_compact_revision(snapshot, FINISHED_COMPACT_KEY)?.unwrap_or(NEVER_COMPACTED);
    let scheduled =
        read_compact_revision(snapshot, SCHEDULED_COMPACT_KEY)?.unwrap_or(NEVER_COMPACTED);
    // A compaction that a crash has interrupted counts from its start on, and is done again.
    let compact_revision = finished.max(scheduled);
    if compact_revision > REVISION_MAX {
        return Err(Error::Damaged(format!("{compact_revision} cannot have been compacted")));
    }

    let mut newest = compact_revision.max(FIRST_REVISION);
    let (mut runs, mut attachments) = (Vec::new(), Vec::new());
    for read in parts::read_all(snapshot, workers, cut)? {
        newest = newest.max(read.newest);
        runs.push(read.run);
        attachments.extend(read.attachments);
    }
    index.restore(runs, workers);

    let leases = current_leases(&index.snapshot(), attachments, workers);
    Ok(RestoredIndex {
        index,
        revision: newest,
        compact_revision,
        leases,
        finished_compact_revision: finished,
    })
}

/// What comes back beside an opened store.
#[derive(Debug)]
pub struct RecoveryInfo {
    /// The keys that are attached to a lease.
    pub leases: Vec<LeasedKey>,
    /// A compaction that a crash has interrupted; its steps are to be run.
    pub compaction: Option<CompactionJob>,
}

/// What every store begins with.
pub(crate) struct RestoredStore<I> {
    pub(crate) index: I,
    pub(crate) revision: i64,
    pub(crate) compact_revision: i64,
    pub(crate) compactions: CompactionTracker,
    pub(crate) recovery: RecoveryInfo,
}

impl<I: TreeIndex> RestoredStore<I> {
    /// Reads what the engine holds, and fills the index, which is empty.
    pub(crate) fn restore(
        engine: &dyn Engine,
        index: I,
        workers: &dyn Workers,
    ) -> Result<RestoredStore<I>> {
        let snapshot = engine.snapshot().map_err(clearlane_backend::Error::from)?;
        let restored = restore(&*snapshot, index, workers, Partitioning::for_workers(workers))?;
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

/// The attachments that are those of the keys' current versions, in the order of keys.
fn current_leases(
    index: &impl IndexSnapshot,
    mut attachments: Vec<LeaseAttachment>,
    workers: &dyn Workers,
) -> Vec<LeasedKey> {
    attachments.sort_by(|a, b| a.key.cmp(&b.key));
    let current = |attachment: &LeaseAttachment| {
        let version = index.get(&attachment.key, i64::MAX)?;
        let key = || Bytes::copy_from_slice(&attachment.key);
        let is_newest = version.modified == attachment.revision;
        is_newest.then(|| LeasedKey { key: key(), lease: attachment.lease })
    };
    let chunks = attachments.chunks(ATTACHMENTS_PER_JOB).collect();
    let current = |chunk: &[LeaseAttachment]| chunk.iter().filter_map(current).collect::<Vec<_>>();
    workers::map(workers, chunks, current).into_iter().flatten().collect()
}
