//! The write side of eras 3.2, 3.4 and 3.5, which have it in common and differ in how they read.
//!
//! 1. A write transaction holds `batchTx` from opening to end. A put goes into the engine's open
//!    transaction and into the write buffer.
//! 2. Its end takes `readTx` exclusively, merges the write buffer into the read buffer (the
//!    *write-back*) and releases `readTx`: reads that open from then on see the puts. At the batch
//!    limit the end also commits. If anything was deleted, it commits instead.
//!
//! A commit holds `batchTx`, and `readTx` exclusively, while the engine writes and syncs: it must
//! replace the snapshot and empty the buffer in one step.
//!
//! For how long a read holds `readTx`: [`v3_2_read_tx`], [`v3_4_concurrent_read_tx`] and
//! [`v3_5_cached_read_tx`].

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clearlane_contention::Mutex;
use clearlane_engine::stream::Exporter;
use clearlane_engine::{Bucket, Engine};

use crate::config::{Config, PreCommit};
use crate::era::Era;
use crate::error::Result;
use crate::etcd::batch_tx::{Batch, BatchOwner, BatchWriteTx, CommitTimer};
use crate::etcd::read_state::{ReadState, ReadTxLocks};
use crate::etcd::tx_buffer::{TxReadBuffer, TxWriteBuffer};
use crate::etcd::{v3_2_read_tx, v3_4_concurrent_read_tx, v3_5_cached_read_tx};
use crate::interface::{Backend, ReadTx, Sizes, WriteTx};

#[derive(Debug)]
pub(crate) struct BufferedBackend<T> {
    era: Era,
    engine: Arc<dyn Engine>,
    batch: Mutex<Batch<T>>,
    reads: ReadTxLocks,
    timer: CommitTimer,
    config: Config,
    pre_commit: PreCommit<T>,
}

impl<T: Debug> BufferedBackend<T> {
    pub(crate) fn open(
        era: Era,
        engine: Arc<dyn Engine>,
        config: Config,
        pre_commit: PreCommit<T>,
        payload: T,
    ) -> Result<BufferedBackend<T>> {
        let batch = Batch::open(Arc::clone(&engine), payload, Some(TxWriteBuffer::default()))?;
        let snapshot = engine.snapshot()?;
        let read_state = ReadState { buffer: TxReadBuffer::default(), version: 0, snapshot };
        Ok(BufferedBackend {
            era,
            engine,
            batch: Mutex::new(&config.locks, "batchTx", batch),
            reads: ReadTxLocks::new(&config.locks, read_state),
            timer: CommitTimer::default(),
            config,
            pre_commit,
        })
    }

    /// Readers that open from now on see the puts.
    fn write_back(&self, batch: &mut Batch<T>) {
        let mut read_state = self.reads.read_state.write();
        if let Some(buffer) = &mut batch.write_buffer {
            buffer.write_back(&mut read_state.buffer);
        }
        read_state.version += 1;
    }

    fn commit_pending(&self, batch: &mut Batch<T>) -> Result<bool> {
        let needed = batch.needs_commit()?;
        if needed {
            self.commit_batch(batch)?;
        } else if self.era == Era::V3_2 {
            // etcd 3.2 and 3.3 ask for the lock even with nothing to commit: a barrier for all
            // reads, every interval. From 3.4 on the timer checks first.
            drop(self.reads.read_state.write());
        }
        Ok(needed)
    }

    /// Commits with `readTx` held exclusively, sync included, as every etcd from 3.2 on does.
    fn commit_batch(&self, batch: &mut Batch<T>) -> Result<()> {
        self.replace_snapshot(|| batch.commit(&self.pre_commit))
    }

    fn replace_snapshot(&self, change_engine: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut read_state = self.reads.read_state.write();
        change_engine()?;
        read_state.snapshot = self.engine.snapshot()?;
        read_state.buffer.clear();
        read_state.version += 1;
        Ok(())
    }
}

impl<T: Debug> BatchOwner<T> for BufferedBackend<T> {
    fn on_write_end(&self, batch: &mut Batch<T>) -> Result<()> {
        if batch.pending_ops == 0 {
            return Ok(());
        }
        // The buffer has no tombstones. etcd commits here since its 3.4 was patched; before, reads
        // found the deleted record until the next commit. The locks are the same, so era 3.2 does
        // it as well.
        if batch.pending_deletes > 0 {
            return self.commit_batch(batch);
        }
        self.write_back(batch);
        if batch.pending_ops >= self.config.batch_limit {
            self.commit_batch(batch)?;
        }
        Ok(())
    }
}

impl<T: Debug + Send + Sync> Backend<T> for BufferedBackend<T> {
    fn era(&self) -> Era {
        self.era
    }

    fn begin_read(&self) -> Box<dyn ReadTx + '_> {
        match self.era {
            Era::V3_4 => Box::new(v3_4_concurrent_read_tx::open(&self.reads)),
            Era::V3_5 => Box::new(v3_5_cached_read_tx::open(&self.reads)),
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
        Box::new(v3_2_read_tx::open(&self.reads))
    }

    fn begin_write(&self) -> Result<Box<dyn WriteTx<T> + '_>> {
        Ok(Box::new(BatchWriteTx::new(self.batch.lock(), self)?))
    }

    fn commit_if_due(&self, now: Duration) -> Result<bool> {
        if !self.timer.restart_if_elapsed(now, self.config.batch_interval) {
            return Ok(false);
        }
        self.commit_pending(&mut self.batch.lock())
    }

    fn commit(&self) -> Result<()> {
        self.commit_pending(&mut self.batch.lock()).map(drop)
    }

    fn remove(&self, records: &[Bytes]) -> Result<()> {
        let mut batch = self.batch.lock();
        records.iter().try_for_each(|record| batch.delete(Bucket::Key, record))?;
        self.commit_batch(&mut batch)
    }

    fn defragment(&self) -> Result<()> {
        let mut batch = self.batch.lock();
        self.replace_snapshot(|| batch.defragment(&self.pre_commit))
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
