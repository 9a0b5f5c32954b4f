//! The applier's side: one write transaction, published as one state.
//!
//! An open transaction keeps what it adds where no read looks: records in slots behind the end of
//! every published state, other changes in its own copy of the active buckets. Its end puts both
//! into a new state, together with the payload, and swaps the pointer.
//!
//! A commit may publish meanwhile. It changes nothing that the transaction has seen, it only moves
//! it: active changes to the frozen buckets, then pending changes to the engine. So the new state
//! is made from the one that is current at the end, with the transaction's part on top.

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

/// What a pending record takes in memory besides its key and value: a slot, and the value's buffer.
pub(crate) const RECORD_OVERHEAD: u64 = 96;
/// The same of a record whose value shares its buffer with others.
pub(crate) const SHARED_RECORD_OVERHEAD: u64 = 56;
/// What a pending change takes besides: its entry in the map, and its part of the copied paths.
pub(crate) const CHANGE_OVERHEAD: u64 = 224;

#[derive(Debug, Default)]
pub(crate) struct WriterState {
    pub(crate) appender: RecordAppender,
    /// In the engine or pending.
    pub(crate) last_key: Option<RecordKey>,
}

#[derive(Debug)]
pub(crate) struct SnapshotWriteTx<'b, T: Clone + Send + Sync + std::fmt::Debug> {
    backend: &'b SnapshotBackend<T>,
    /// Held to the end of the transaction. Reads and commits do not take this lock.
    writer: MutexGuard<'b, WriterState>,
    base_state: Arc<BackendState<T>>,
    /// The base state with the new records and changes on top, for reading.
    own_state: BackendState<T>,
    /// The new changes alone, to repeat if a commit has frozen the base state's active buckets.
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

    /// The current state with this transaction on top. Runs again if that is replaced before the
    /// new one is published, so it only clones pointers, and repeats changes after a freeze.
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

    /// The records that follow go into slots behind its end, as behind that of a published state.
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
