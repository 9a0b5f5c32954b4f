//! The engine's write transaction that eras 3.1 to 3.5 keep open all the time.
//!
//! One engine transaction stays open and collects every put and delete, as etcd does with bbolt.
//! The mutex `batchTx` guards it. A write transaction of the backend holds the mutex until it ends.
//! A commit writes the batch, syncs it, and opens the next engine transaction under the same mutex.
//!
//! [`EtcdBackend`] updates the readers' state at the end of a write transaction, at the commit of
//! the batch, and at the end of a defragmentation.

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use clearlane_contention::MutexGuard;
use clearlane_engine::{Bucket, Defragment, Engine, KeyRange, WriteTxn};

use crate::config::PreCommit;
use crate::error::{Error, Result};
use crate::etcd::backend::EtcdBackend;
use crate::etcd::tx_buffer::TxBuffer;
use crate::interface::{DroppedStates, RangeVisitor, ReadTx, WriteTx, WriteTxResult};
use crate::record_key::RecordKey;

/// The data that the mutex `batchTx` guards.
#[derive(Debug)]
pub(crate) struct Batch<T> {
    engine: Arc<dyn Engine>,
    /// The engine's open transaction, or the error with which all further writes fail. The error is
    /// set if a put or a delete fails in the engine, or if a commit fails or panics, because the
    /// engine's contents are then unknown. It is also set if the engine rejects the next
    /// transaction, or if a write transaction is dropped before its end.
    txn: Result<Box<dyn WriteTxn>>,
    /// The payload of the state after the last write transaction, for the pre-commit hook.
    payload: T,
    /// If true, a write transaction has ended or records were removed since the last commit. The
    /// write transaction may have changed only the payload.
    dirty: bool,
    pub(crate) pending_ops: u64,
    pub(crate) pending_deletes: u64,
    /// The puts of the open write transaction, or `None` in eras 3.0 and 3.1, whose readers use
    /// `txn` itself.
    pub(crate) write_buffer: Option<TxBuffer>,
    last_key: Option<RecordKey>,
}

impl<T: Debug> Batch<T> {
    pub(crate) fn open(
        engine: Arc<dyn Engine>,
        payload: T,
        write_buffer: Option<TxBuffer>,
    ) -> Result<Batch<T>> {
        let last_key = engine.snapshot()?.last_key(Bucket::Key)?;
        Ok(Batch {
            txn: Ok(engine.begin_write()?),
            engine,
            payload,
            dirty: false,
            pending_ops: 0,
            pending_deletes: 0,
            write_buffer,
            last_key: last_key.map(|key| RecordKey::new(&key)).transpose()?,
        })
    }

    /// Returns whether there is anything to commit. Fails if the engine has failed or a write
    /// transaction was dropped before its end.
    pub(crate) fn needs_commit(&self) -> Result<bool> {
        self.check_usable()?;
        Ok(self.dirty)
    }

    pub(crate) fn check_usable(&self) -> Result<()> {
        self.reader().map(drop)
    }

    pub(crate) fn reader(&self) -> Result<&dyn WriteTxn> {
        self.txn.as_deref().map_err(Error::clone)
    }

    /// Makes one change in the engine's transaction. If the engine fails, every later call fails
    /// with the same error.
    fn change(
        &mut self,
        change: impl FnOnce(&mut dyn WriteTxn) -> clearlane_engine::Result<()>,
    ) -> Result<()> {
        let changed = change(&mut **self.txn.as_mut().map_err(|failure| failure.clone())?);
        if let Err(error) = changed {
            let error = Error::from(error);
            self.txn = Err(error.clone());
            return Err(error);
        }
        self.pending_ops += 1;
        Ok(())
    }

    fn put(&mut self, bucket: Bucket, key: &[u8], value: Bytes) -> Result<()> {
        if bucket == Bucket::Key {
            self.last_key = Some(RecordKey::checked_after(key, self.last_key.as_ref())?);
        }
        self.change(|txn| txn.put(bucket, key, &value))?;
        if let Some(buffer) = &mut self.write_buffer {
            buffer.put(bucket, key, value);
        }
        Ok(())
    }

    pub(crate) fn delete(&mut self, bucket: Bucket, key: &[u8]) -> Result<()> {
        self.change(|txn| txn.delete(bucket, key))?;
        self.pending_deletes += 1;
        self.dirty = true;
        Ok(())
    }

    /// Writes and syncs the batch with the pre-commit hook's records, and opens the next
    /// transaction.
    pub(crate) fn commit(&mut self, pre_commit: &PreCommit<T>) -> Result<()> {
        self.commit_txn(pre_commit)?;
        self.begin_txn()
    }

    /// Commits, and rewrites the store before the next engine transaction is opened.
    pub(crate) fn defragment(&mut self, pre_commit: &PreCommit<T>) -> Result<()> {
        // If another defragmentation is in progress, this call fails and changes nothing.
        let rewrite = self.engine.begin_defragment()?;
        self.commit_txn(pre_commit)?;
        // If the rewrite fails, either the old store is intact or the engine rejects the next
        // transaction.
        let rewritten = run_defragment(rewrite);
        self.begin_txn()?;
        rewritten
    }

    fn begin_txn(&mut self) -> Result<()> {
        self.txn = self.engine.begin_write().map_err(Error::from);
        self.check_usable()
    }

    fn commit_txn(&mut self, pre_commit: &PreCommit<T>) -> Result<()> {
        self.check_usable()?;
        // This error stays if the commit panics, because the commit's effect on the engine is
        // unknown.
        let panicked = Err(Error::Engine("a commit panicked".to_owned()));
        let mut txn = std::mem::replace(&mut self.txn, panicked)?;
        let hooked = pre_commit
            .run(&self.payload, &mut |bucket, key, value| Ok(txn.put(bucket, key, value)?));
        if let Err(error) = hooked.and_then(|()| Ok(txn.commit()?)) {
            self.txn = Err(error.clone());
            return Err(error);
        }
        // If the transaction deleted anything, this commit replaces its write-back, so the write
        // buffer still has its puts. They are in the engine now.
        self.write_buffer.iter_mut().for_each(TxBuffer::clear);
        self.dirty = false;
        self.pending_ops = 0;
        self.pending_deletes = 0;
        Ok(())
    }
}

fn run_defragment(mut rewrite: Box<dyn Defragment>) -> Result<()> {
    while !rewrite.step(usize::MAX)? {}
    Ok(rewrite.finish()?)
}

/// The write transaction of eras 3.1 to 3.5. It holds `batchTx`. Its puts and deletes go directly
/// to the engine.
pub(crate) struct BatchWriteTx<'b, T: Debug> {
    pub(super) batch: MutexGuard<'b, Batch<T>>,
    pub(super) backend: &'b EtcdBackend<T>,
    pub(super) ended: bool,
}

impl<T: Debug> ReadTx for BatchWriteTx<'_, T> {
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

impl<T: Debug> WriteTx<T> for BatchWriteTx<'_, T> {
    fn put(&mut self, bucket: Bucket, key: &[u8], value: Bytes) -> Result<()> {
        self.batch.put(bucket, key, value)
    }

    fn delete(&mut self, bucket: Bucket, key: &[u8]) -> Result<()> {
        if bucket == Bucket::Key {
            return Err(Error::AppendOnly);
        }
        self.batch.delete(bucket, key)
    }

    fn end(mut self: Box<Self>, payload: T) -> Result<WriteTxResult> {
        self.ended = true;
        // If one operation has failed in the engine, the other operations of this transaction must
        // not become visible.
        self.batch.check_usable()?;
        self.batch.payload = payload;
        self.batch.dirty = true;
        self.backend.on_write_end(&mut self.batch)?;
        Ok(WriteTxResult { dropped_states: DroppedStates::default(), commit_due: false })
    }

    fn payload(&self) -> &T {
        &self.batch.payload
    }
}

impl<T: Debug> Drop for BatchWriteTx<'_, T> {
    fn drop(&mut self) {
        if !self.ended && self.batch.txn.is_ok() {
            self.batch.txn = Err(Error::Abandoned);
        }
    }
}
