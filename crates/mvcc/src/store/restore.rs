//! At start: from the records back to the index.
//!
//! The index is kept in memory only. Every record says which key it belongs to and which version
//! of it, so one walk over bucket `key` brings the index back, and with it the revision that the
//! store had reached and the leases that its keys are attached to.
//!
//! Values are skipped, not read: they may be all of the data.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bytes::Bytes;
use clearlane_engine::{Bucket, KeyRange, Snapshot};
use prost::Message;

use crate::error::{Error, Result};
use crate::key_history::Version;
use crate::revision::{Mark, RecordKey};
use crate::store::{FINISHED, FIRST_REVISION, NEVER_COMPACTED, SCHEDULED, read_mark};
use crate::tree_index::{Run, RunBuilder};

/// Records that are sorted together. More would sort slower, fewer would be joined more often.
const STRETCH: usize = 1 << 16;

/// A key that is attached to a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseOfKey {
    /// The key.
    pub key: Bytes,
    /// The lease's id.
    pub lease: i64,
}

/// What the records tell.
#[derive(Debug)]
pub(crate) struct Restored {
    /// What the index is restored from.
    pub(crate) runs: Vec<Run>,
    pub(crate) revision: i64,
    pub(crate) compact_revision: i64,
    pub(crate) leases: Vec<LeaseOfKey>,
    /// The compact revision of the last compaction that has come to its end. If it is lower than
    /// the other, one was scheduled and has not.
    pub(crate) finished: i64,
}

/// The parts of a record that the index needs: all but the value.
#[derive(Clone, PartialEq, Message)]
struct Head {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(int64, tag = "2")]
    create_revision: i64,
    #[prost(int64, tag = "4")]
    version: i64,
    #[prost(int64, tag = "6")]
    lease: i64,
}

/// Reads the whole store, but for the values.
pub(crate) fn restore(snapshot: &dyn Snapshot) -> Result<Restored> {
    let finished = read_mark(snapshot, FINISHED)?;
    let scheduled = read_mark(snapshot, SCHEDULED)?;
    let mut reading = Reading::default();
    let mut outcome = Ok(());
    let walked = snapshot.scan(Bucket::Key, KeyRange::ALL, &mut |key, value| {
        outcome = reading.add(key, value);
        if outcome.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    walked.map_err(clearlane_backend::Error::from)?;
    outcome?;

    let finished = finished.unwrap_or(NEVER_COMPACTED);
    // A compaction that a crash has interrupted counts from its start on, and is done again.
    let compact_revision = finished.max(scheduled.unwrap_or(NEVER_COMPACTED));
    let revision = reading.newest.max(compact_revision).max(FIRST_REVISION);
    let (runs, leases) = reading.finish();
    Ok(Restored { runs, revision, compact_revision, leases, finished })
}

/// The walk under way.
#[derive(Default)]
struct Reading {
    runs: Vec<Run>,
    builder: RunBuilder,
    in_builder: usize,
    newest: i64,
    leases: BTreeMap<Bytes, i64>,
}

impl Reading {
    fn add(&mut self, record_key: &[u8], value: &[u8]) -> Result<()> {
        let damaged = |detail: String| Error::Damaged(detail);
        let (revision, mark) = RecordKey::decode(record_key).map_err(|e| damaged(e.to_string()))?;
        if revision.sub > i64::from(u32::MAX) {
            // The index keeps sub revisions in 32 bits: no transaction has that many changes.
            return Err(damaged(format!("revision {revision} cannot have been written")));
        }
        let head = Head::decode(value)
            .map_err(|error| damaged(format!("the record of revision {revision}: {error}")))?;
        match mark {
            Mark::Put => {
                let (created, version) = (head.create_revision, head.version);
                self.builder.put(&head.key, Version { modified: revision, created, version });
            }
            Mark::Tombstone => self.builder.tombstone(&head.key, revision),
        }
        if head.lease == 0 {
            self.leases.remove(&head.key);
        } else {
            self.leases.insert(head.key, head.lease);
        }
        self.newest = self.newest.max(revision.main);
        self.in_builder += 1;
        if self.in_builder == STRETCH {
            self.end_stretch();
        }
        Ok(())
    }

    fn end_stretch(&mut self) {
        self.runs.push(std::mem::take(&mut self.builder).finish());
        self.in_builder = 0;
    }

    fn finish(mut self) -> (Vec<Run>, Vec<LeaseOfKey>) {
        self.end_stretch();
        let leases = self.leases.into_iter().map(|(key, lease)| LeaseOfKey { key, lease });
        (self.runs, leases.collect())
    }
}
