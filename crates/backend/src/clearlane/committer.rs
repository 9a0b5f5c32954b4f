//! The committer's side: what is pending goes into the engine, while the applier goes on.
//!
//! 1. **Freeze**: one swap turns the active buckets into the frozen ones. The state that results
//!    lies between two write transactions; it is the one that this commit makes durable.
//! 2. **Write**: its pending records, its frozen buckets, the removals that compaction asked for
//!    and the hook's records for its payload go into one engine transaction, which is synced.
//! 3. **Publish**: one swap puts the engine's new snapshot into the current state and drops what it
//!    covers. Both swaps start from the current state, by compare-and-swap.
//!
//! Picture: `docs/backend.md`, "The life of a commit".

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clearlane_engine::{Bucket, Snapshot};

use crate::clearlane::SnapshotBackend;
use crate::clearlane::pending_buckets::{ChangeMap, PendingBuckets};
use crate::clearlane::state::{BackendState, WriteCounters};
use crate::error::{Error, Result};

#[derive(Debug, Default)]
pub(crate) struct CommitterState {
    pub(crate) interval_start: Duration,
    /// The counters of the newest state that is durable.
    durable: WriteCounters,
}

/// The effect of a commit that panics is unknown: it counts as failed.
struct FailOnPanic<'b, T: Clone + Send + Sync + std::fmt::Debug> {
    backend: &'b SnapshotBackend<T>,
}

impl<T: Clone + Send + Sync + std::fmt::Debug> Drop for FailOnPanic<'_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.backend.set_failure(&Error::Engine("a commit panicked".to_owned()));
        }
    }
}

impl<T: Clone + Send + Sync + std::fmt::Debug> SnapshotBackend<T> {
    pub(crate) fn is_dirty(&self, committer: &CommitterState) -> bool {
        self.current.load().written != committer.durable || !self.removals.lock().is_empty()
    }

    /// The caller holds the committer's lock.
    pub(crate) fn commit_now(&self, committer: &mut CommitterState) -> Result<()> {
        self.check_usable()?;
        let _guard = FailOnPanic { backend: self };
        let outcome = self.commit_batch(committer);
        if let Err(error) = &outcome {
            self.set_failure(error);
        }
        outcome
    }

    fn commit_batch(&self, committer: &mut CommitterState) -> Result<()> {
        // Taken before the freeze: every record named here was visible when its removal was
        // asked for, so the frozen state has it and it is not written after it was removed.
        let removals = std::mem::take(&mut *self.removals.lock());
        let frozen = self.freeze();
        let snapshot = self.write_frozen(&frozen, &removals)?;
        self.publish_durable(&frozen, snapshot);
        committer.durable = frozen.written;
        Ok(())
    }

    /// Step 1.
    pub(crate) fn freeze(&self) -> Arc<BackendState<T>> {
        let current = self.current.load();
        assert!(current.pending_buckets.frozen.is_empty(), "one commit at a time freezes");
        if current.pending_buckets.active.is_empty() {
            return current;
        }
        let freeze = |current: &BackendState<T>| BackendState {
            pending_buckets: PendingBuckets {
                active: ChangeMap::default(),
                frozen: current.pending_buckets.active.clone(),
            },
            freeze_count: current.freeze_count + 1,
            ..current.clone()
        };
        self.current.update(freeze).1
    }

    /// Step 2.
    pub(crate) fn write_frozen(
        &self,
        frozen: &BackendState<T>,
        removals: &[Bytes],
    ) -> Result<Arc<dyn Snapshot>> {
        let mut txn = self.engine.begin_write()?;
        frozen.pending_records.try_for_each_part(&mut |records| {
            txn.put_all(Bucket::Key, records).map_err(Error::from)
        })?;
        for ((bucket, key), change) in &frozen.pending_buckets.frozen {
            match change {
                Some(value) => txn.put(*bucket, key, value)?,
                None => txn.delete(*bucket, key)?,
            }
        }
        for record in removals {
            txn.delete(Bucket::Key, record)?;
        }
        self.pre_commit
            .run(&frozen.payload, &mut |bucket, key, value| Ok(txn.put(bucket, key, value)?))?;
        txn.commit()?;
        Ok(self.engine.snapshot()?)
    }

    /// Step 3.
    pub(crate) fn publish_durable(&self, frozen: &BackendState<T>, snapshot: Arc<dyn Snapshot>) {
        let publish = |current: &BackendState<T>| BackendState {
            snapshot: Arc::clone(&snapshot),
            pending_records: current.pending_records.without_committed(frozen.pending_records.end),
            pending_buckets: PendingBuckets {
                active: current.pending_buckets.active.clone(),
                frozen: ChangeMap::default(),
            },
            durable: frozen.written,
            ..current.clone()
        };
        self.current.update(publish);
    }

    /// Puts a snapshot of the rewritten store into the current state.
    pub(crate) fn publish_engine(&self, snapshot: Arc<dyn Snapshot>) {
        let publish = |current: &BackendState<T>| BackendState {
            snapshot: Arc::clone(&snapshot),
            ..current.clone()
        };
        self.current.update(publish);
    }
}
