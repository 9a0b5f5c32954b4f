//! The applier's side: one write transaction, published as one view.
//!
//! While it is open, the transaction keeps what it adds where only it looks: records in slots of
//! the log behind the end of every published view, other changes in its own copy of the young
//! map. Its end puts both into a new view, together with the payload, and swaps the pointer.
//!
//! A commit may publish meanwhile. It changes nothing that the transaction has seen, it only
//! moves it: young changes to the frozen map, then pending changes to the engine. So the new view
//! is made from the one that is current at the end, with the transaction's part on top.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use clearlane_contention::MutexGuard;
use clearlane_engine::{Bucket, KeyRange};

use crate::clearlane::SnapshotBackend;
use crate::clearlane::pending_buckets::{ChangeMap, PendingBuckets, PendingChange};
use crate::clearlane::pending_records::{PendingRecords, RecordAppender};
use crate::clearlane::state::{BackendState, WriteCounters, get_value, visit_range};
use crate::error::{Error, Result};
use crate::interface::{DroppedStates, RangeVisitor, ReadTx, WriteTx, WriteTxResult};
use crate::record_key::RecordKey;

/// What a pending record takes in memory besides its key and value: a slot, and the value's buffer.
pub(crate) const RECORD_OVERHEAD: u64 = 96;
/// What a pending change takes besides: its place in the map, and its part of the copied paths.
pub(crate) const CHANGE_OVERHEAD: u64 = 224;

/// What the applier keeps from one write transaction to the next.
#[derive(Debug)]
pub(crate) struct WriterState {
    appender: RecordAppender,
    /// The newest record of bucket `key`, in the engine or pending.
    last_key: Option<RecordKey>,
}

impl WriterState {
    /// A writer that goes on behind `last_key`.
    pub(crate) fn continuing_after(last_key: Option<RecordKey>) -> WriterState {
        WriterState { appender: RecordAppender::default(), last_key }
    }
}

/// The write transaction of era `clearlane`.
#[derive(Debug)]
pub(crate) struct SnapshotWriteTx<'b, T: Clone + Send + Sync + std::fmt::Debug> {
    backend: &'b SnapshotBackend<T>,
    /// Lets one writer in at a time. No reader and no commit ever takes this lock.
    writer: MutexGuard<'b, WriterState>,
    base_state: Arc<BackendState<T>>,
    /// The base's log with the new records behind it.
    pending_records: PendingRecords,
    /// The base's young map with the new changes in it, for reading.
    pending_buckets: PendingBuckets,
    /// The new changes alone, to repeat if a commit has frozen the base's young map.
    changes: Vec<(Bucket, Bytes, PendingChange)>,
    written: WriteCounters,
    ended: bool,
}

impl<'b, T: Clone + Send + Sync + std::fmt::Debug> SnapshotWriteTx<'b, T> {
    pub(crate) fn new(
        backend: &'b SnapshotBackend<T>,
        writer: MutexGuard<'b, WriterState>,
    ) -> Self {
        let base = backend.current.load();
        let (log, overlay) = (base.pending_records.clone(), base.pending_buckets.clone());
        let written = base.written;
        let changes = Vec::new();
        SnapshotWriteTx {
            backend,
            writer,
            base_state: base,
            pending_records: log,
            pending_buckets: overlay,
            changes,
            written,
            ended: false,
        }
    }

    fn put_record(&mut self, key: &[u8], value: Bytes) -> Result<()> {
        let key = RecordKey::checked_after(key, self.writer.last_key.as_ref())?;
        self.writer.last_key = Some(key);
        self.writer.appender.append(&mut self.pending_records, key, value);
        Ok(())
    }

    fn add_change(&mut self, bucket: Bucket, key: &[u8], change: PendingChange) {
        let key = Bytes::copy_from_slice(key);
        self.pending_buckets.active.insert(bucket, key.clone(), change.clone());
        self.changes.push((bucket, key, change));
    }

    /// The current view with this transaction on top. Runs again if the view is replaced before
    /// it is published, so it only clones pointers.
    fn next_state(&self, current: &BackendState<T>, payload: &T) -> BackendState<T> {
        let young = match &self.changes {
            changes if changes.is_empty() => current.pending_buckets.active.clone(),
            _ if current.freeze_count == self.base_state.freeze_count => {
                self.pending_buckets.active.clone()
            }
            changes => reapply(changes, current.pending_buckets.active.clone()),
        };
        BackendState {
            snapshot: Arc::clone(&current.snapshot),
            pending_records: self
                .pending_records
                .without_committed(current.pending_records.begin()),
            pending_buckets: PendingBuckets {
                active: young,
                frozen: current.pending_buckets.frozen.clone(),
            },
            payload: payload.clone(),
            written: self.written,
            durable: current.durable,
            freeze_count: current.freeze_count,
        }
    }
}

fn reapply(changes: &[(Bucket, Bytes, PendingChange)], mut young: ChangeMap) -> ChangeMap {
    for (bucket, key, change) in changes {
        young.insert(*bucket, key.clone(), change.clone());
    }
    young
}

impl<T: Clone + Send + Sync + std::fmt::Debug> ReadTx for SnapshotWriteTx<'_, T> {
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        get_value(
            &self.base_state.snapshot,
            &self.pending_records,
            &self.pending_buckets,
            bucket,
            key,
        )
    }

    fn range(
        &self,
        bucket: Bucket,
        range: KeyRange<'_>,
        visit: &mut RangeVisitor<'_>,
    ) -> Result<()> {
        visit_range(
            &self.base_state.snapshot,
            &self.pending_records,
            &self.pending_buckets,
            bucket,
            range,
            visit,
        )
    }
}

impl<T: Clone + Send + Sync + std::fmt::Debug + 'static> WriteTx<T> for SnapshotWriteTx<'_, T> {
    fn put(&mut self, bucket: Bucket, key: &[u8], value: Bytes) -> Result<()> {
        let mut bytes = (key.len() + value.len()) as u64;
        if bucket == Bucket::Key {
            self.put_record(key, value)?;
            bytes += RECORD_OVERHEAD;
        } else {
            self.add_change(bucket, key, Some(value));
            bytes += CHANGE_OVERHEAD;
        }
        self.written.ops += 1;
        self.written.bytes += bytes;
        Ok(())
    }

    fn delete(&mut self, bucket: Bucket, key: &[u8]) -> Result<()> {
        if bucket == Bucket::Key {
            return Err(Error::AppendOnly);
        }
        self.add_change(bucket, key, None);
        self.written.ops += 1;
        self.written.bytes += key.len() as u64 + CHANGE_OVERHEAD;
        Ok(())
    }

    fn end(mut self: Box<Self>, payload: T) -> Result<WriteTxResult> {
        self.ended = true;
        self.written.transactions += 1;
        let publish = |current: &BackendState<T>| self.next_state(current, &payload);
        let (replaced, view) = self.backend.current.update(publish);
        let commit_due = view.pending_ops() >= self.backend.config.batch_limit;
        let base = Arc::clone(&self.base_state);
        Ok(WriteTxResult { dropped_states: DroppedStates::of(base, replaced), commit_due })
    }

    fn payload(&self) -> &T {
        &self.base_state.payload
    }
}

impl<T: Clone + Send + Sync + std::fmt::Debug> Drop for SnapshotWriteTx<'_, T> {
    fn drop(&mut self) {
        if !self.ended {
            self.backend.abandoned.store(true, Ordering::Release);
        }
    }
}
