//! At start: from the records back to the index.
//!
//! One read of bucket `key`, without the values, restores the index, the store's revision and the
//! leases of its keys. The records are sorted in runs of bounded length, which the index merges
//! (see [`SortedRun`](crate::tree_index::SortedRun)).
//!
//! The first record that cannot have been written ends the restore with an error. In etcd one
//! goroutine reads 10,000 records at a time and another one fills the tree. See `docs/mvcc.md`.

mod record_reader;

use std::ops::ControlFlow;

use bytes::Bytes;
use clearlane_engine::{Bucket, Engine, KeyRange, Snapshot};

pub use self::record_reader::REVISION_MAX;
use self::record_reader::RecordReader;
use crate::compaction::{
    CompactionJob, CompactionTracker, FINISHED_COMPACT_KEY, SCHEDULED_COMPACT_KEY,
    read_compact_revision,
};
use crate::error::{Error, Result};
use crate::tree_index::TreeIndex;

/// The revision of a store in which nothing has been written.
const FIRST_REVISION: i64 = 1;

/// Number of records in a run. Longer runs take more memory while they are sorted, shorter ones
/// are more to merge.
pub const RUN_RECORDS: usize = 1 << 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedKey {
    pub key: Bytes,
    pub lease: i64,
}

#[derive(Debug)]
pub struct RestoredIndex<I: TreeIndex> {
    pub index: I,
    pub revision: i64,
    /// The revision up to which the past was dropped; -1 if never.
    pub compact_revision: i64,
    /// In key order.
    pub leases: Vec<LeasedKey>,
    /// The compact revision of the last compaction that has come to its end. If it is lower than
    /// the other, one was scheduled and has not.
    pub finished_compact_revision: i64,
}

/// Reads the whole store, but for the values, into an empty index. What is restored does not
/// depend on the length of the runs, for which the store passes [`RUN_RECORDS`].
pub fn restore<I: TreeIndex>(
    snapshot: &dyn Snapshot,
    mut index: I,
    run_records: usize,
) -> Result<RestoredIndex<I>> {
    let finished_compact_revision = read_compact_revision(snapshot, FINISHED_COMPACT_KEY)?;
    let scheduled = read_compact_revision(snapshot, SCHEDULED_COMPACT_KEY)?;
    // A compaction that a crash has interrupted counts from its start on, and is done again.
    let compact_revision = finished_compact_revision.max(scheduled);
    if compact_revision > REVISION_MAX {
        return Err(Error::Damaged(format!("{compact_revision} cannot have been compacted")));
    }

    let mut reader = RecordReader::new(run_records);
    let mut outcome = Ok(());
    let scanned = snapshot.scan(Bucket::Key, KeyRange::ALL, &mut |key, value| {
        outcome = reader.add(key, value);
        if outcome.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    scanned.map_err(clearlane_backend::Error::from)?;
    outcome?;
    reader.finish_run();
    let (revision, leases) = (reader.newest().max(compact_revision), reader.leases());
    index.restore(reader.runs);
    Ok(RestoredIndex {
        index,
        revision: revision.max(FIRST_REVISION),
        compact_revision,
        leases,
        finished_compact_revision,
    })
}

#[derive(Debug)]
pub struct RecoveryInfo {
    pub leases: Vec<LeasedKey>,
    /// A compaction that a crash has interrupted; its steps are to be run.
    pub compaction: Option<CompactionJob>,
}

/// Reads what the engine holds into the index, which is empty. The leases are in the recovery info.
pub(crate) fn restore_store<I: TreeIndex>(
    engine: &dyn Engine,
    index: I,
) -> Result<(RestoredIndex<I>, CompactionTracker, RecoveryInfo)> {
    let snapshot = engine.snapshot().map_err(clearlane_backend::Error::from)?;
    let mut restored = restore(&*snapshot, index, RUN_RECORDS)?;
    let leases = std::mem::take(&mut restored.leases);
    let (scheduled, finished) = (restored.compact_revision, restored.finished_compact_revision);
    let compactions = CompactionTracker::new(finished);
    let compaction = (scheduled > finished).then(|| compactions.resume(scheduled, finished));
    Ok((restored, compactions, RecoveryInfo { leases, compaction }))
}
