//! The writer: one write transaction becomes one published state.
//!
//! An open transaction keeps its additions outside every published state. They are visible only to
//! the transaction's own reads, and in the snapshots that it opens. New records go into slots after
//! the end of every published state. Other changes go into the transaction's own copy of the active
//! buckets, which hold the pending changes since the last commit started. At its end, the
//! transaction builds a new state from the records, the active buckets, and the payload, which is
//! the caller's description of the state. Then the pointer to the current state is swapped.
//!
//! A commit may publish states during the transaction. The commit does not change data that the
//! transaction has seen, but moves it: first active changes to the frozen buckets, and then pending
//! records and frozen changes to the engine. So the new state is built from the state that is
//! current at the end, with the transaction's additions.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use clearlane_contention::MutexGuard;
use clearlane_engine::{Bucket, KeyRange};

use crate::clearlane::SnapshotBackend;
use crate::clearlane::pending_buckets::{PendingBuckets, PendingChange};
use crate::clearlane::pending_records::RecordAppender;
use crate::clearlane::state::BackendState;
use crate::error::{Error, Result};
use crate::interface::{
    ComputedRecords, DroppedStates, RangeVisitor, ReadTx, WriteTx, WriteTxResult,
};
use crate::record_key::RecordKey;

/// Bytes of memory that a pending record needs in addition to its key and value: a slot, and the
/// overhead of the value's buffer.
pub(crate) const RECORD_OVERHEAD: u64 = 96;
/// Like [`RECORD_OVERHEAD`], for a record whose value shares its buffer with other values.
pub(crate) const SHARED_RECORD_OVERHEAD: u64 = 56;
/// Bytes of memory that a pending change needs in addition to its key and value: its map entry, and
/// its share of the tree nodes that were copied.
pub(crate) const CHANGE_OVERHEAD: u64 = 224;

#[derive(Debug, Default)]
pub(crate) struct WriterState {
    pub(crate) appender: RecordAppender,
    /// The largest key in bucket `key`, committed or pending. New records must have larger keys.
    pub(crate) last_key: Option<RecordKey>,
}

#[derive(Debug)]
pub(crate) struct SnapshotWriteTx<'b, T: Clone + Send + Sync + std::fmt::Debug> {
    backend: &'b SnapshotBackend<T>,
    /// The guard of the lock `writer`, held until the transaction ends. Reads and commits do not
    /// take this lock.
    writer: MutexGuard<'b, WriterState>,
    base_state: Arc<BackendState<T>>,
    /// The base state with the new records and changes of this transaction. Reads through this
    /// transaction see this state.
    own_state: BackendState<T>,
    /// The changes that this transaction made in buckets other than `key`. They are applied again
    /// if a commit has frozen the base state's active buckets.
    changes: Vec<(Bucket, Bytes, PendingChange)>,
    ended: bool,
}

impl<'b, T: Clone + Send + Sync + std::fmt::Debug> SnapshotWriteTx<'b, T> {
    pub(crate) fn new(
        backend: &'b SnapshotBackend<T>,
        writer: MutexGuard<'b, WriterState>,
    ) -> Self {
        let base_state = backend.current.load();
        let own_state = (*base_state).clone();
        let changes = Vec::new();
        SnapshotWriteTx { backend, writer, base_state, own_state, changes, ended: false }
    }

    fn put_record(&mut self, key: &[u8], value: Bytes, overhead: u64) -> Result<()> {
        let bytes = (key.len() + value.len()) as u64 + overhead;
        let key = RecordKey::checked_after(key, self.writer.last_key.as_ref())?;
        self.writer.last_key = Some(key);
        self.writer.appender.append(&mut self.own_state.pending_records, key, value);
        self.count_ops(1, bytes);
        Ok(())
    }

    fn count_ops(&mut self, ops: u64, bytes: u64) {
        self.own_state.written.ops += ops;
        self.own_state.written.bytes += bytes;
    }

    fn add_change(&mut self, bucket: Bucket, key: &[u8], change: PendingChange) {
        let key = Bytes::copy_from_slice(key);
        self.own_state.pending_buckets.active.insert((bucket, key.clone()), change.clone());
        self.changes.push((bucket, key, change));
    }

    /// Returns the current state with the additions of this transaction. If another state is
    /// published first, the call is repeated, so it must be cheap. It only clones pointers, except
    /// that it applies the changes again after a freeze.
    fn next_state(&self, current: &BackendState<T>, payload: &T) -> BackendState<T> {
        let is_frozen = current.freeze_count != self.base_state.freeze_count;
        let active = if !self.changes.is_empty() && !is_frozen {
            self.own_state.pending_buckets.active.clone()
        } else {
            let mut active = current.pending_buckets.active.clone();
            for (bucket, key, change) in &self.changes {
                active.insert((*bucket, key.clone()), change.clone());
            }
            active
        };
        BackendState {
            snapshot: Arc::clone(&current.snapshot),
            pending_records: self
                .own_state
                .pending_records
                .without_committed(current.pending_records.begin),
            pending_buckets: PendingBuckets {
                active,
                frozen: current.pending_buckets.frozen.clone(),
            },
            payload: payload.clone(),
            written: self.own_state.written,
            durable: current.durable,
            freeze_count: current.freeze_count,
        }
    }
}

impl<T: Clone + Send + Sync + std::fmt::Debug> ReadTx for SnapshotWriteTx<'_, T> {
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        self.own_state.get(bucket, key)
    }

    fn range(
        &self,
        bucket: Bucket,
        range: KeyRange<'_>,
        visit: &mut RangeVisitor<'_>,
    ) -> Result<()> {
        self.own_state.range(bucket, range, visit)
    }
}

impl<T: Clone + Send + Sync + std::fmt::Debug + 'static> WriteTx<T> for SnapshotWriteTx<'_, T> {
    fn put(&mut self, bucket: Bucket, key: &[u8], value: Bytes) -> Result<()> {
        if bucket == Bucket::Key {
            return self.put_record(key, value, RECORD_OVERHEAD);
        }
        self.count_ops(1, (key.len() + value.len()) as u64 + CHANGE_OVERHEAD);
        self.add_change(bucket, key, Some(value));
        Ok(())
    }

    fn put_shared(&mut self, key: &[u8], value: Bytes) -> Result<()> {
        self.put_record(key, value, SHARED_RECORD_OVERHEAD)
    }

    fn put_computed(&mut self, records: Arc<dyn ComputedRecords>) -> Result<()> {
        let count = records.count();
        assert!(count > 0, "a chunk has a record at least");
        let first = RecordKey::checked_after(&records.key(0), self.writer.last_key.as_ref())?;
        let last = records.key(count - 1);
        debug_assert!(count == 1 || *first < *last, "keys of computed records rise");
        self.writer.last_key = Some(last);
        self.count_ops(count, records.memory_bytes());
        self.writer.appender.append_computed(&mut self.own_state.pending_records, records);
        Ok(())
    }

    fn delete(&mut self, bucket: Bucket, key: &[u8]) -> Result<()> {
        if bucket == Bucket::Key {
            return Err(Error::AppendOnly);
        }
        self.count_ops(1, key.len() as u64 + CHANGE_OVERHEAD);
        self.add_change(bucket, key, None);
        Ok(())
    }

    fn end(mut self: Box<Self>, payload: T) -> Result<WriteTxResult> {
        self.ended = true;
        self.own_state.written.transactions += 1;
        let publish = |current: &BackendState<T>| self.next_state(current, &payload);
        let (replaced, published) = self.backend.current.update(publish);
        let commit_due = published.pending_ops() >= self.backend.config.batch_limit;
        let base_state = Arc::clone(&self.base_state);
        Ok(WriteTxResult { dropped_states: DroppedStates::of(base_state, replaced), commit_due })
    }

    fn payload(&self) -> &T {
        &self.base_state.payload
    }

    /// The returned state does not change: records that are added later go into slots after its
    /// end, as with a published state.
    fn begin_snapshot_read(&self, payload: T) -> Option<Arc<BackendState<T>>> {
        Some(Arc::new(BackendState { payload, ..self.own_state.clone() }))
    }
}

impl<T: Clone + Send + Sync + std::fmt::Debug> Drop for SnapshotWriteTx<'_, T> {
    fn drop(&mut self) {
        if !self.ended {
            self.backend.abandoned.store(true, Ordering::Release);
        }
    }
}
