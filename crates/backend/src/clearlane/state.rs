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

use clearlane_engine::Snapshot;

use crate::clearlane::pending_buckets::PendingBuckets;
use crate::clearlane::pending_records::PendingRecords;

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
    pub payload: T,
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
}
