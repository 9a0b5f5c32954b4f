//! Era 3.1 (etcd 3.0 and 3.1): reads and writes share one mutex, `batchTx`.
//!
//! * **A read** and **a write transaction** hold it from opening to end. A read goes through the
//!   engine's open write transaction: so it sees what is not committed yet, and fails once that
//!   transaction is lost, after a failed commit.
//! * **A commit** holds it while the engine writes and syncs. At the batch limit the end of a write
//!   transaction commits.
//!
//! ```text
//!   expensive read  ▶━━━━━━━━━━━━ holds batchTx ━━━━━━━━━━━━▶
//!   cheap read             ······· waits for batchTx ········▪
//!   commit                      ·· waits for batchTx ·········▶━ sync ━▶
//! ```
//!
//! What follows from it: `docs/backend.md`.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clearlane_contention::{Mutex, MutexGuard};
use clearlane_engine::stream::Exporter;
use clearlane_engine::{Bucket, Engine, KeyRange};

use crate::config::{Config, PreCommit};
use crate::era::Era;
use crate::error::Result;
use crate::etcd::batch_tx::{Batch, BatchOwner, BatchWriteTx, CommitTimer};
use crate::interface::{Backend, RangeVisitor, ReadTx, Sizes, WriteTx};

#[derive(Debug)]
pub(crate) struct MutexBackend<T> {
    era: Era,
    engine: Arc<dyn Engine>,
    batch: Mutex<Batch<T>>,
    timer: CommitTimer,
    config: Config,
    pre_commit: PreCommit<T>,
}

impl<T: Debug> MutexBackend<T> {
    pub(crate) fn open(
        era: Era,
        engine: Arc<dyn Engine>,
        config: Config,
        pre_commit: PreCommit<T>,
        payload: T,
    ) -> Result<MutexBackend<T>> {
        let batch = Batch::open(Arc::clone(&engine), payload, None)?;
        let batch = Mutex::new(&config.locks, "batchTx", batch);
        Ok(MutexBackend { era, engine, batch, timer: CommitTimer::default(), config, pre_commit })
    }

    fn commit_pending(&self, batch: &mut Batch<T>) -> Result<bool> {
        let needed = batch.needs_commit()?;
        if needed {
            batch.commit(&self.pre_commit)?;
        }
        Ok(needed)
    }
}

struct MutexReadTx<'b, T> {
    batch: MutexGuard<'b, Batch<T>>,
}

impl<T: Debug> ReadTx for MutexReadTx<'_, T> {
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        self.batch.get(bucket, key)
    }

    fn range(
        &self,
        bucket: Bucket,
        range: KeyRange<'_>,
        visit: &mut RangeVisitor<'_>,
    ) -> Result<()> {
        self.batch.range(bucket, range, visit)
    }
}

impl<T: Debug> BatchOwner<T> for MutexBackend<T> {
    fn on_write_end(&self, batch: &mut Batch<T>) -> Result<()> {
        if batch.pending_ops >= self.config.batch_limit {
            batch.commit(&self.pre_commit)
        } else {
            Ok(())
        }
    }
}

impl<T: Debug + Send + Sync> Backend<T> for MutexBackend<T> {
    fn era(&self) -> Era {
        self.era
    }

    fn begin_read(&self) -> Box<dyn ReadTx + '_> {
        Box::new(MutexReadTx { batch: self.batch.lock() })
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
        records.iter().try_for_each(|record| batch.delete(Bucket::Key, record))
    }

    fn defragment(&self) -> Result<()> {
        self.batch.lock().defragment(&self.pre_commit)
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
