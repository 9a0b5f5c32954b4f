//! [`BackendState`]: everything a read needs to see one state of the store, behind one pointer.
//!
//! ```text
//!   BackendState ─┬─ snapshot          the engine as of the last commit
//!                 ├─ pending_records   records of bucket key that came after it
//!                 ├─ pending_buckets   changes of all other buckets that came after it
//!                 └─ payload           what the crate above says about this state
//! ```
//! A state does not change. The applier publishes one per write transaction, the committer one or
//! two per commit. Invariants:
//!
//! * A record of bucket `key` is not both in the snapshot and in the pending records: keys below
//!   the first pending one are looked up in the snapshot, all others in the pending records.
//! * A change in the pending buckets is newer than what the snapshot has under the same key.

use std::sync::Arc;

use bytes::Bytes;
use clearlane_engine::{Bucket, KeyRange, Snapshot};

use crate::clearlane::pending_buckets::PendingBuckets;
use crate::clearlane::pending_records::PendingRecords;
use crate::error::Result;
use crate::interface::{RangeVisitor, Value};
use crate::merge;

/// How much has been written since the backend was opened. What is pending is the difference of
/// two such counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WriteCounters {
    /// Write transactions, also those that changed nothing but the payload.
    pub(crate) transactions: u64,
    /// Puts and deletes.
    pub(crate) ops: u64,
    /// Bytes of memory that keys and values take while they are pending.
    pub(crate) bytes: u64,
}

#[derive(Clone, Debug)]
pub struct BackendState<T> {
    pub(crate) snapshot: Arc<dyn Snapshot>,
    pub(crate) pending_records: PendingRecords,
    pub(crate) pending_buckets: PendingBuckets,
    pub(crate) payload: T,
    pub(crate) written: WriteCounters,
    /// The part of it that the engine's snapshot holds.
    pub(crate) durable: WriteCounters,
    pub(crate) freeze_count: u64,
}

impl<T> BackendState<T> {
    pub(crate) fn pending_ops(&self) -> u64 {
        self.written.ops - self.durable.ops
    }

    pub(crate) fn pending_bytes(&self) -> u64 {
        self.written.bytes - self.durable.bytes
    }

    /// A point read: pending first, then the engine.
    pub(crate) fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        if bucket == Bucket::Key {
            if self.pending_records.first_key().is_some_and(|first| first <= key) {
                return Ok(self.pending_records.find(key).cloned());
            }
        } else if let Some(change) = self.pending_buckets.get(bucket, key) {
            return Ok(change.clone());
        }
        Ok(self.snapshot.get(bucket, key)?)
    }

    /// A range read. In bucket `key` the engine's part comes first and the pending records follow
    /// it; in the other buckets the pending changes are merged in.
    pub(crate) fn range(
        &self,
        bucket: Bucket,
        range: KeyRange<'_>,
        visit: &mut RangeVisitor<'_>,
    ) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        if bucket != Bucket::Key {
            let changes = self.pending_buckets.changes_in(bucket, range);
            let changes = changes.iter().map(|(key, change)| (&**key, change.as_ref()));
            return merge::scan_merged(&*self.snapshot, changes, bucket, range, visit);
        }
        if self.pending_records.first_key().is_none_or(|first| range.from < first)
            && merge::scan_engine(&*self.snapshot, bucket, range, visit)?.is_break()
        {
            return Ok(());
        }
        for record in self.pending_records.iter_from(range.from) {
            if !range.contains(&record.key)
                || visit(&record.key, Value::Shared(&record.value)).is_break()
            {
                break;
            }
        }
        Ok(())
    }
}
