//! The backend of eras 3.1 to 3.5, which have the write side in common and differ in how they read.
//!
//! 1. A write transaction holds `batchTx` from opening to end. A put goes into the engine's open
//!    transaction and, from 3.2 on, into the write buffer.
//! 2. From 3.2 on its end takes `readTx` exclusively, merges the write buffer into the read buffer
//!    (the *write-back*) and releases `readTx`: reads that open from then on see the puts. If
//!    anything was deleted it commits instead. At the batch limit every era commits.
//!
//! A commit holds `batchTx`, and `readTx` exclusively, while the engine writes and syncs: it must
//! replace the snapshot and empty the buffer in one step.
//!
//! What a read holds, and for how long: [`v3_1_mutex`](super::v3_1_mutex), [`v3_2_read_tx`],
//! [`v3_4_concurrent_read_tx`] and [`v3_5_cached_read_tx`].

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
    /// `None` in era 3.1, whose reads go through the batch.
    reads: Option<ReadTxLocks>,
    /// Only the timer uses it, so it needs no lock.
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
            // etcd 3.2 and 3.3 ask for the lock even with nothing to commit: a barrier for all
            // reads, every interval. From 3.4 on the timer checks first.
            drop(reads.read_state.write());
        }
        Ok(needed)
    }

    fn commit_batch(&self, batch: &mut Batch<T>) -> Result<()> {
        self.change_engine(|| batch.commit(&self.pre_commit))
    }

    /// With `readTx` held exclusively, sync included, as every etcd from 3.2 on does.
    fn change_engine(&self, change: impl FnOnce() -> Result<()>) -> Result<()> {
        let Some(reads) = &self.reads else { return change() };
        let mut read_state = reads.read_state.write();
        change()?;
        read_state.snapshot = self.engine.snapshot()?;
        read_state.buffer.clear();
        read_state.version += 1;
        Ok(())
    }

    /// Called at the end of a write transaction, with `batchTx` still held. Readers that open from
    /// now on see the puts.
    pub(super) fn on_write_end(&self, batch: &mut Batch<T>) -> Result<()> {
        if let Some(reads) = &self.reads {
            if batch.pending_ops == 0 {
                return Ok(());
            }
            // The buffer has no tombstones. etcd commits here since its 3.4 was patched; before,
            // reads found the deleted record until the next commit. The locks are the same, so era
            // 3.2 does it as well.
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
