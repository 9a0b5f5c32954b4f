//! The committer: it moves pending writes into the engine while the writer continues.
//!
//! 1. **Freeze**: one swap turns the *active* buckets, which hold the newest changes to all buckets
//!    except `key`, into the *frozen* buckets. The resulting state contains only whole write
//!    transactions. This commit makes exactly this state durable, except for the records that step
//!    2 removes.
//! 2. **Write**: one engine transaction writes the pending records and the frozen buckets of that
//!    state, and the records that the pre-commit hook stores for the payload of that state. It also
//!    removes the records whose removal compactions have requested. The engine then syncs this
//!    transaction.
//! 3. **Publish**: one swap puts the engine's new snapshot into the current state, and drops the
//!    pending writes that the snapshot contains.
//!
//! Both swaps start from the current state and use compare-and-swap.
//!
//! ```text
//!   writer     ──▶ state n ──▶ state n+1 ─────────▶ state n+2 ──────▶ state n+3
//!                     │
//!   committer      freeze n ── write n, sync ──────────────▶ publish: n is in the engine
//! ```
//!
//! After a failed commit:
//!
//! * Reads continue with the current state. It still has the pending writes, so reads see every
//!   write transaction that has ended, whether or not it is on disk.
//! * No later commit reaches the engine. Each later commit or defragmentation fails with the error
//!   of the failed commit, and so does each new write transaction. A write transaction that is
//!   already open can still end.
//! * The server stops the member. After a restart, the store has the state of the last commit that
//!   is complete on disk, and the member applies the later entries of the log again.
//!
//! See also the picture in `docs/backend.md`, "The life of a commit".

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
    /// The counters of the state that the last commit made durable.
    durable: WriteCounters,
}

/// A guard that marks the backend as failed if a commit panics, because the effect of that commit
/// is unknown.
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

    /// Makes a commit. The caller holds the lock `committer`. After an error or a panic, no further
    /// commit is possible.
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
        // The removals are taken before the freeze. Each of these records was visible when its
        // removal was requested, so it is in the frozen state or already in the engine. Therefore
        // no later commit writes a removed record again.
        let removals = std::mem::take(&mut *self.removals.lock());
        let frozen = self.freeze();
        let snapshot = self.write_frozen(&frozen, &removals)?;
        self.publish_durable(&frozen, snapshot);
        committer.durable = frozen.written;
        Ok(())
    }

    /// Step 1: freezes the active buckets if they contain any changes. Returns the state that this
    /// commit makes durable.
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

    /// Step 2: writes the frozen state, removes the records `removals`, and commits in the engine.
    /// Returns the engine's new snapshot.
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

    /// Step 3: publishes the engine's new snapshot and drops the writes that it contains.
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

    /// Puts a snapshot of the rewritten store into the current state, after a defragmentation.
    pub(crate) fn publish_engine(&self, snapshot: Arc<dyn Snapshot>) {
        let publish = |current: &BackendState<T>| BackendState {
            snapshot: Arc::clone(&snapshot),
            ..current.clone()
        };
        self.current.update(publish);
    }
}
