//! Rebuilds the index from the records at startup.
//!
//! One read of bucket `key`, without the values, restores the index, the store's revision and the
//! leases of the keys. The records are sorted in runs of limited length, which the index merges
//! (see [`SortedRun`](crate::tree_index::SortedRun)).
//!
//! The restore fails at the first record that no store can have written. In etcd, one goroutine
//! reads 10,000 records at a time and another one fills the tree. See `docs/mvcc.md`.

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

/// The revision of a store without any write.
const FIRST_REVISION: i64 = 1;

/// Number of records in a run. Longer runs need more memory for sorting; shorter runs mean more
/// runs to merge.
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
    /// The compact revision: the history below it is dropped. -1 if there was no compaction.
    pub compact_revision: i64,
    /// The keys that have a lease, in key order.
    pub leases: Vec<LeasedKey>,
    /// The revision of the last finished compaction. If it is lower than `compact_revision`, a
    /// compaction was scheduled and has not finished.
    pub finished_compact_revision: i64,
}

/// Reads the whole store, except the values, into an empty index. `run_records` is the number of
/// records in a run. It affects only time and memory, not the restored index. The store passes
/// [`RUN_RECORDS`].
pub fn restore<I: TreeIndex>(
    snapshot: &dyn Snapshot,
    mut index: I,
    run_records: usize,
) -> Result<RestoredIndex<I>> {
    let finished_compact_revision = read_compact_revision(snapshot, FINISHED_COMPACT_KEY)?;
    let scheduled = read_compact_revision(snapshot, SCHEDULED_COMPACT_KEY)?;
    // A compaction is in force from the time when it was scheduled. If it was interrupted, its
    // steps are run again.
    let compact_revision = finished_compact_revision.max(scheduled);
    if compact_revision > REVISION_MAX {
        return Err(Error::Damaged(format!("compact revision {compact_revision} is impossible")));
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
    /// A compaction that was scheduled and had not finished when the store was last used. The
    /// caller must run its steps.
    pub compaction: Option<CompactionJob>,
}

/// Reads the engine's data into an empty index. The leases are in the recovery info.
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
