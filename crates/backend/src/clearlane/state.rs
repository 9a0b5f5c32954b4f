//! [`BackendState`]: all data that a read needs to see one state of the store, behind one pointer.
//!
//! ```text
//!   BackendState ─┬─ snapshot          the engine as of the last commit
//!                 ├─ pending_records   later records of bucket key
//!                 ├─ pending_buckets   later changes to all other buckets
//!                 └─ payload           the caller's description of this state
//! ```
//!
//! A state does not change. The writer publishes a new state for each write transaction. The
//! committer publishes one state for each commit, or two if it freezes active buckets. The end of a
//! defragmentation publishes one state. Invariants:
//!
//! * A record of bucket `key` is never in both the snapshot and the pending records. Keys below the
//!   first pending key are looked up in the snapshot, and all other keys in the pending records.
//! * A change in the pending buckets is newer than the snapshot's value of the same key.

use std::sync::Arc;

use clearlane_engine::Snapshot;

use crate::clearlane::pending_buckets::PendingBuckets;
use crate::clearlane::pending_records::PendingRecords;

/// Counts the writes since the backend was opened. One value counts all writes, and another counts
/// the durable writes. Their difference is the pending amount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WriteCounters {
    /// Number of write transactions, including transactions that changed only the payload.
    pub(crate) transactions: u64,
    /// Number of puts and deletes.
    pub(crate) ops: u64,
    /// Bytes of memory that keys and values use while they are pending.
    pub(crate) bytes: u64,
}

#[derive(Clone, Debug)]
pub struct BackendState<T> {
    pub(crate) snapshot: Arc<dyn Snapshot>,
    pub(crate) pending_records: PendingRecords,
    pub(crate) pending_buckets: PendingBuckets,
    pub payload: T,
    pub(crate) written: WriteCounters,
    /// The part of `written` that the engine's snapshot contains.
    pub(crate) durable: WriteCounters,
    /// Number of freezes so far. If it has changed when a write transaction ends, a commit froze
    /// the active buckets during the transaction.
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
