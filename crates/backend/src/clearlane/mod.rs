//! Era `clearlane`: one pointer, one applier, one committer.
//!
//! [`read_tx`] has the lock protocol. The other parts, in the order in which a write uses them:
//! [`writer`] adds to [`pending_records`] and [`pending_buckets`], a [`state`] shows them,
//! [`atomic_state`] is the pointer to the current state, and [`committer`] moves them into the
//! engine.
//!
//! Lock order: `writer` before `committer` before `removals`. A read takes none of them.

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

/// Records that one step of a defragmentation carries over before it looks up again.
const DEFRAGMENT_STEP: usize = 10_000;

/// A backend of era `clearlane`. Use it through [`Backend`], or by its own methods where the
/// payload of a read is wanted.
#[derive(Debug)]
pub struct SnapshotBackend<T> {
    engine: Arc<dyn Engine>,
    current: AtomicState<BackendState<T>>,
    /// Held by a write transaction. With one applier there is no second thread that wants it.
    writer: Mutex<WriterState>,
    /// Held while the engine is changed, so the committer is its only writer.
    committer: Mutex<CommitterState>,
    /// Records that compaction wants removed with the next commit.
    removals: Mutex<Vec<Bytes>>,
    config: Config,
    pre_commit: PreCommit<T>,
    /// A write transaction was dropped before its end.
    abandoned: AtomicBool,
    /// Why no commit is possible any more.
    failure: OnceLock<Error>,
}

impl<T: Clone + Send + Sync + Debug> SnapshotBackend<T> {
    /// `payload` describes the state that the engine holds.
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

    /// The caller runs the steps.
    pub fn begin_defragment(&self) -> Result<Defragmentation<'_, T>> {
        // With no commit under way, what all later ones change reaches the rewritten store, too.
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
        // Only the first failure is kept: later ones follow from it.
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
        // After the lock is taken: the transaction before may have been dropped.
        self.check_usable()?;
        // The bound on pending bytes: wait for the commit under way, or make one.
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

/// A defragmentation under way. Reads, writes and commits go on between its steps; only
/// [`finish`](Defragmentation::finish) keeps a commit waiting, for what it still has to carry
/// over. A read that is open keeps reading the file it was opened on.
#[derive(Debug)]
pub struct Defragmentation<'b, T> {
    backend: &'b SnapshotBackend<T>,
    rewrite: Box<dyn Defragment>,
}

impl<T: Clone + Send + Sync + Debug> Defragmentation<'_, T> {
    /// Returns whether it is time to finish.
    pub fn step(&mut self) -> Result<bool> {
        Ok(self.rewrite.step(DEFRAGMENT_STEP)?)
    }

    pub fn finish(self) -> Result<()> {
        let _committer = self.backend.committer.lock();
        self.backend.check_usable()?;
        // If this fails the old store is intact, or the engine refuses the next commit.
        self.rewrite.finish()?;
        let snapshot = self.backend.engine.snapshot()?;
        self.backend.publish_engine(snapshot);
        Ok(())
    }
}
