//! Era `clearlane`: one pointer, one writer, one committer.
//!
//! * [`read_tx`] describes which locks each operation takes.
//! * [`writer`] adds the changes of a write transaction to [`pending_records`] and
//!   [`pending_buckets`].
//! * [`state`] combines the pending writes with a snapshot of the engine.
//! * [`atomic_state`] is the pointer to the current state.
//! * [`committer`] moves the pending writes into the engine.
//!
//! ```text
//!   writer ──▶ pending records, pending buckets ──▶ AtomicState ◀── load: read transactions
//!                                                     ▲
//!   committer ── writes them to the engine ── publishes the engine's new snapshot
//! ```
//!
//! Lock order: `store` (a lock of crate `mvcc`, which uses this crate), then `writer`, `committer`
//! and `removals`. The engine's own locks come after `committer`. A read takes none of these four
//! locks.

pub mod read_tx;
pub(crate) mod writer;
pub(crate) mod pending_records;
pub(crate) mod pending_buckets;
pub(crate) mod state;
pub(crate) mod atomic_state;
pub(crate) mod committer;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use clearlane_contention::Mutex;
use clearlane_engine::stream::Exporter;
use clearlane_engine::{Bucket, Defragment, Engine};

use crate::config::{Config, PreCommit};
use crate::era::Era;
use crate::error::{Error, Result};
use crate::interface::{Backend, ReadTx, Sizes, WriteTx};
use crate::record_key::RecordKey;
use atomic_state::AtomicState;
use committer::CommitterState;
use pending_buckets::PendingBuckets;
use pending_records::PendingRecords;
use state::WriteCounters;
use writer::{SnapshotWriteTx, WriterState};

pub use read_tx::SnapshotReadTx;
pub use state::BackendState;

/// Number of records that one step of a defragmentation copies.
const DEFRAGMENT_STEP: usize = 10_000;

/// A backend of era `clearlane`. Use it through [`Backend`], or directly if a read needs the
/// payload, which is the caller's description of a state.
#[derive(Debug)]
pub struct SnapshotBackend<T> {
    engine: Arc<dyn Engine>,
    current: AtomicState<BackendState<T>>,
    /// The write transaction holds this lock until it ends. The store's lock `store` admits one
    /// write transaction at a time, so no thread waits here.
    writer: Mutex<WriterState>,
    /// This lock is held while the engine is changed, so the committer is the engine's only writer.
    committer: Mutex<CommitterState>,
    /// Records that the next commit removes for a compaction.
    removals: Mutex<Vec<Bytes>>,
    config: Config,
    pre_commit: PreCommit<T>,
    /// If true, a write transaction was dropped before its end, and no further write transaction or
    /// commit is possible.
    abandoned: AtomicBool,
    /// The error of the first commit that failed or panicked. If set, no further commit is
    /// possible, and no write transaction can be opened. Reads continue with the current state.
    failure: OnceLock<Error>,
}

impl<T: Clone + Send + Sync + Debug> SnapshotBackend<T> {
    /// Opens a backend on `engine`. `payload` describes the engine's present state.
    pub fn open(
        engine: Arc<dyn Engine>,
        config: Config,
        pre_commit: PreCommit<T>,
        payload: T,
    ) -> Result<SnapshotBackend<T>> {
        let snapshot = engine.snapshot()?;
        let last_key =
            snapshot.last_key(Bucket::Key)?.map(|key| RecordKey::new(&key)).transpose()?;
        let first = BackendState {
            snapshot,
            pending_records: PendingRecords::empty(),
            pending_buckets: PendingBuckets::default(),
            payload,
            written: WriteCounters::default(),
            durable: WriteCounters::default(),
            freeze_count: 0,
        };
        let writer = WriterState { last_key, ..WriterState::default() };
        Ok(SnapshotBackend {
            engine,
            current: AtomicState::new(first),
            writer: Mutex::new(&config.locks, "writer", writer),
            committer: Mutex::new(&config.locks, "committer", CommitterState::default()),
            removals: Mutex::new(&config.locks, "removals", Vec::new()),
            config,
            pre_commit,
            abandoned: AtomicBool::new(false),
            failure: OnceLock::new(),
        })
    }

    pub fn begin_snapshot_read(&self) -> SnapshotReadTx<T> {
        self.current.load()
    }

    /// Starts a defragmentation. The caller must call [`step`](Defragmentation::step) until it
    /// returns true, and then [`finish`](Defragmentation::finish).
    pub fn begin_defragment(&self) -> Result<Defragmentation<'_, T>> {
        // No commit is in progress while this lock is held. So the new store gets all later commits
        // as well.
        let _committer = self.committer.lock();
        self.check_usable()?;
        Ok(Defragmentation { backend: self, rewrite: self.engine.begin_defragment()? })
    }

    fn check_usable(&self) -> Result<()> {
        if let Some(error) = self.failure.get() {
            return Err(error.clone());
        }
        if self.abandoned.load(Ordering::Acquire) {
            return Err(Error::Abandoned);
        }
        Ok(())
    }

    fn set_failure(&self, error: &Error) {
        // Only the first failure is kept, because later ones are its consequences.
        let _ = self.failure.set(error.clone());
    }
}

impl<T: Clone + Send + Sync + Debug + 'static> Backend<T> for SnapshotBackend<T> {
    fn era(&self) -> Era {
        Era::Clearlane
    }

    fn begin_read(&self) -> Box<dyn ReadTx + '_> {
        Box::new(self.begin_snapshot_read())
    }

    fn begin_write(&self) -> Result<Box<dyn WriteTx<T> + '_>> {
        let writer = self.writer.lock();
        // Checked after the lock is taken, because the previous transaction may have been dropped
        // before its end.
        self.check_usable()?;
        // Enforces the limit of pending bytes: waits for the commit in progress, or makes one on
        // this thread.
        if self.current.load().pending_bytes() > self.config.pending_bytes_max {
            let mut committer = self.committer.lock();
            if self.current.load().pending_bytes() > self.config.pending_bytes_max {
                self.commit_now(&mut committer)?;
            }
        }
        Ok(Box::new(SnapshotWriteTx::new(self, writer)))
    }

    fn commit_if_due(&self, now: Duration) -> Result<bool> {
        let mut committer = self.committer.lock();
        self.check_usable()?;
        let interval_over =
            now.saturating_sub(committer.interval_start) >= self.config.batch_interval;
        let pending = self.current.load().pending_ops() + self.removals.lock().len() as u64;
        let limit_reached = pending >= self.config.batch_limit;
        if !interval_over && !limit_reached {
            return Ok(false);
        }
        committer.interval_start = now;
        if !self.is_dirty(&committer) {
            return Ok(false);
        }
        self.commit_now(&mut committer)?;
        Ok(true)
    }

    fn commit(&self) -> Result<()> {
        let mut committer = self.committer.lock();
        if self.is_dirty(&committer) {
            self.commit_now(&mut committer)
        } else {
            self.check_usable()
        }
    }

    fn remove(&self, records: &[Bytes]) -> Result<()> {
        self.check_usable()?;
        let mut removals = self.removals.lock();
        removals.extend_from_slice(records);
        let too_many = removals.len() as u64 >= self.config.batch_limit;
        drop(removals);
        if too_many { self.commit() } else { Ok(()) }
    }

    fn defragment(&self) -> Result<()> {
        let mut defragmentation = self.begin_defragment()?;
        while !defragmentation.step()? {}
        defragmentation.finish()
    }

    fn snapshot(&self) -> Result<Exporter> {
        self.commit()?;
        Ok(Exporter::new(self.engine.snapshot()?))
    }

    fn sizes(&self) -> Result<Sizes> {
        Ok(Sizes {
            on_disk: self.engine.size_on_disk()?,
            in_use: self.engine.size_in_use(),
            pending_ops: self.current.load().pending_ops(),
        })
    }
}

/// A defragmentation in progress. Reads, writes and commits continue during its steps. A commit
/// waits while the defragmentation starts, and while [`finish`](Defragmentation::finish) copies the
/// rest. During these times, a new write transaction also waits if too many bytes are pending. An
/// open read keeps reading the file on which it was opened.
#[derive(Debug)]
pub struct Defragmentation<'b, T> {
    backend: &'b SnapshotBackend<T>,
    rewrite: Box<dyn Defragment>,
}

impl<T: Clone + Send + Sync + Debug> Defragmentation<'_, T> {
    /// Copies about 10,000 records. Returns true if so little remains that the caller should now
    /// call `finish`.
    pub fn step(&mut self) -> Result<bool> {
        Ok(self.rewrite.step(DEFRAGMENT_STEP)?)
    }

    pub fn finish(self) -> Result<()> {
        let _committer = self.backend.committer.lock();
        self.backend.check_usable()?;
        // If the call fails, either the old store is intact or the engine rejects the next commit.
        self.rewrite.finish()?;
        let snapshot = self.backend.engine.snapshot()?;
        self.backend.publish_engine(snapshot);
        Ok(())
    }
}
