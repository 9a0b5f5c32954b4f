//! The backend of eras 3.0 to 3.5. These eras share the write side and differ in how they read. Era
//! 3.0 works like era 3.1.
//!
//! 1. A write transaction holds `batchTx` until it ends. A put goes into the engine's open
//!    transaction and, since 3.2, also into the write buffer.
//! 2. Since 3.2, the end of a write transaction takes `readTx` exclusively, merges the write buffer
//!    into the read buffer (the *write-back*) and releases `readTx`. Reads that open later see the
//!    puts. If the transaction deleted anything, its end commits instead. If no operation is
//!    pending, the read buffer stays as it is.
//! 3. In every era, the end of a write transaction commits if the batch limit is reached.
//!
//! A commit holds `batchTx` and, since 3.2, `readTx` exclusively, while the engine writes and
//! syncs. The reason is that the commit must replace the snapshot and empty the buffer in one step.
//!
//! The heads of [`v3_1_mutex`](super::v3_1_mutex), [`v3_2_read_tx`], [`v3_4_concurrent_read_tx`]
//! and [`v3_5_cached_read_tx`] describe which locks a read holds, and for how long.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use clearlane_contention::Mutex;
use clearlane_engine::stream::Exporter;
use clearlane_engine::{Bucket, Engine};

use crate::config::{Config, PreCommit};
use crate::era::Era;
use crate::error::Result;
use crate::etcd::batch_tx::{Batch, BatchWriteTx};
use crate::etcd::read_state::{ReadState, ReadTxLocks};
use crate::etcd::tx_buffer::TxBuffer;
use crate::etcd::{v3_2_read_tx, v3_4_concurrent_read_tx, v3_5_cached_read_tx};
use crate::interface::{Backend, ReadTx, Sizes, WriteTx};

#[derive(Debug)]
pub(crate) struct EtcdBackend<T> {
    era: Era,
    engine: Arc<dyn Engine>,
    batch: Mutex<Batch<T>>,
    /// The state that readers share, with its locks, or `None` in eras 3.0 and 3.1, whose reads use
    /// the batch.
    reads: Option<ReadTxLocks>,
    /// Start of the batch interval, in nanoseconds since the fixed point from which the caller's
    /// clock counts. Only the timer uses it, so it needs no lock.
    interval_start_ns: AtomicU64,
    config: Config,
    pre_commit: PreCommit<T>,
}

impl<T: Debug> EtcdBackend<T> {
    pub(crate) fn open(
        era: Era,
        engine: Arc<dyn Engine>,
        config: Config,
        pre_commit: PreCommit<T>,
        payload: T,
    ) -> Result<EtcdBackend<T>> {
        let is_buffered = era >= Era::V3_2;
        let write_buffer = is_buffered.then(TxBuffer::default);
        let batch = Batch::open(Arc::clone(&engine), payload, write_buffer)?;
        let batch = Mutex::new(&config.locks, "batchTx", batch);
        let reads = if is_buffered {
            let snapshot = engine.snapshot()?;
            let first = ReadState { buffer: TxBuffer::default(), version: 0, snapshot };
            Some(ReadTxLocks::new(&config.locks, first))
        } else {
            None
        };
        let interval_start_ns = AtomicU64::new(0);
        Ok(EtcdBackend { era, engine, batch, reads, interval_start_ns, config, pre_commit })
    }

    fn commit_pending(&self, batch: &mut Batch<T>) -> Result<bool> {
        let needed = batch.needs_commit()?;
        if needed {
            self.commit_batch(batch)?;
        } else if self.era == Era::V3_2
            && let Some(reads) = &self.reads
        {
            // etcd 3.2 and 3.3 take `readTx` exclusively even if there is nothing to commit. So in
            // every interval the timer waits for the open reads, and new reads wait for the timer.
            // Since 3.4 etcd first checks whether anything is pending.
            drop(reads.read_state.write());
        }
        Ok(needed)
    }

    fn commit_batch(&self, batch: &mut Batch<T>) -> Result<()> {
        self.change_engine(|| batch.commit(&self.pre_commit))
    }

    /// Runs `change`, which commits the batch or rewrites the store, while `readTx` is held
    /// exclusively. Then replaces the snapshot and empties the read buffer under the same lock. So
    /// the lock is also held during the sync, as in every version of etcd since 3.2. If `change`
    /// fails, readers keep the old snapshot and the old buffer. Eras 3.0 and 3.1 do not have this
    /// lock and only run `change`.
    fn change_engine(&self, change: impl FnOnce() -> Result<()>) -> Result<()> {
        let Some(reads) = &self.reads else { return change() };
        let mut read_state = reads.read_state.write();
        change()?;
        read_state.snapshot = self.engine.snapshot()?;
        read_state.buffer.clear();
        read_state.version += 1;
        Ok(())
    }

    /// Makes the changes visible to reads that open after this call, and commits if necessary.
    /// Called at the end of a write transaction, while `batchTx` is held.
    pub(super) fn on_write_end(&self, batch: &mut Batch<T>) -> Result<()> {
        if let Some(reads) = &self.reads {
            if batch.pending_ops == 0 {
                return Ok(());
            }
            // The read buffer cannot contain tombstones, so only a commit shows the deletes to
            // readers. etcd 3.4 added this commit in a patch release. Older releases showed a
            // deleted record until the next commit. Era 3.2 nevertheless commits here: a commit
            // takes the same locks as the write-back.
            if batch.pending_deletes > 0 {
                return self.commit_batch(batch);
            }
            let mut read_state = reads.read_state.write();
            if let Some(writes) = &mut batch.write_buffer {
                writes.write_back(&mut read_state.buffer);
            }
            read_state.version += 1;
        }
        if batch.pending_ops >= self.config.batch_limit {
            self.commit_batch(batch)?;
        }
        Ok(())
    }
}

impl<T: Debug + Send + Sync> Backend<T> for EtcdBackend<T> {
    fn era(&self) -> Era {
        self.era
    }

    fn begin_read(&self) -> Box<dyn ReadTx + '_> {
        match &self.reads {
            Some(reads) if self.era == Era::V3_4 => Box::new(v3_4_concurrent_read_tx::open(reads)),
            Some(reads) if self.era == Era::V3_5 => Box::new(v3_5_cached_read_tx::open(reads)),
            _ => self.begin_locked_read(),
        }
    }

    fn begin_read_for_writer(&self) -> Box<dyn ReadTx + '_> {
        match self.era {
            Era::V3_5 => self.begin_locked_read(),
            _ => self.begin_read(),
        }
    }

    fn begin_locked_read(&self) -> Box<dyn ReadTx + '_> {
        match &self.reads {
            Some(reads) => Box::new(v3_2_read_tx::open(reads)),
            None => Box::new(self.batch.lock()),
        }
    }

    fn with_batch_locked(&self, work: &mut dyn FnMut()) {
        let _batch = self.batch.lock();
        work();
    }

    fn begin_write(&self) -> Result<Box<dyn WriteTx<T> + '_>> {
        let batch = self.batch.lock();
        batch.check_usable()?;
        Ok(Box::new(BatchWriteTx { batch, backend: self, ended: false }))
    }

    fn commit_if_due(&self, now: Duration) -> Result<bool> {
        let last = Duration::from_nanos(self.interval_start_ns.load(Ordering::Relaxed));
        if now.saturating_sub(last) < self.config.batch_interval {
            return Ok(false);
        }
        let now_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.interval_start_ns.store(now_ns, Ordering::Relaxed);
        self.commit_pending(&mut self.batch.lock())
    }

    fn commit(&self) -> Result<()> {
        self.commit_pending(&mut self.batch.lock()).map(drop)
    }

    fn remove(&self, records: &[Bytes]) -> Result<()> {
        let mut batch = self.batch.lock();
        records.iter().try_for_each(|record| batch.delete(Bucket::Key, record))?;
        if self.reads.is_some() { self.commit_batch(&mut batch) } else { Ok(()) }
    }

    fn defragment(&self) -> Result<()> {
        let mut batch = self.batch.lock();
        self.change_engine(|| batch.defragment(&self.pre_commit))
    }

    fn snapshot(&self) -> Result<Exporter> {
        let mut batch = self.batch.lock();
        self.commit_pending(&mut batch)?;
        Ok(Exporter::new(self.engine.snapshot()?))
    }

    fn sizes(&self) -> Result<Sizes> {
        let pending_ops = self.batch.lock().pending_ops;
        let (on_disk, in_use) = (self.engine.size_on_disk()?, self.engine.size_in_use());
        Ok(Sizes { on_disk, in_use, pending_ops })
    }
}
