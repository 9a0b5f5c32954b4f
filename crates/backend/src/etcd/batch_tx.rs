//! What eras 3.1 to 3.5 share: the engine's write transaction, open all the time.
//!
//! One engine transaction stays open and collects every put, as around bbolt; the mutex `batchTx`
//! guards it. A write transaction of the backend holds the mutex from beginning to end; a commit
//! writes the batch, syncs, and opens the next engine transaction under the same mutex.
//!
//! What readers need is added by [`EtcdBackend`] at two moments: when a write transaction ends, and
//! when the batch is committed.

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use clearlane_contention::MutexGuard;
use clearlane_engine::{Bucket, Defragment, Engine, KeyRange, WriteTxn};

use crate::config::PreCommit;
use crate::error::{Error, Result};
use crate::etcd::backend::EtcdBackend;
use crate::etcd::tx_buffer::TxWriteBuffer;
use crate::interface::{DroppedStates, RangeVisitor, ReadTx, WriteTx, WriteTxResult};
use crate::record_key::RecordKey;

/// What the mutex `batchTx` guards.
#[derive(Debug)]
pub(crate) struct Batch<T> {
    engine: Arc<dyn Engine>,
    /// Absent only after a failure.
    txn: Option<Box<dyn WriteTxn>>,
    /// Describes the state reached by the last write transaction, for the pre-commit hook.
    payload: T,
    /// A write transaction has ended since the last commit, perhaps with nothing but a payload.
    dirty: bool,
    pub(crate) pending_ops: u64,
    pub(crate) pending_deletes: u64,
    /// The puts of the open write transaction, for eras whose readers do not read `txn`.
    pub(crate) write_buffer: Option<TxWriteBuffer>,
    last_key: Option<RecordKey>,
    failure: Option<Error>,
}

impl<T: Debug> Batch<T> {
    pub(crate) fn open(
        engine: Arc<dyn Engine>,
        payload: T,
        write_buffer: Option<TxWriteBuffer>,
    ) -> Result<Batch<T>> {
        let last_key = engine.snapshot()?.last_key(Bucket::Key)?;
        Ok(Batch {
            txn: Some(engine.begin_write()?),
            engine,
            payload,
            dirty: false,
            pending_ops: 0,
            pending_deletes: 0,
            write_buffer,
            last_key: last_key.map(|key| RecordKey::new(&key)).transpose()?,
            failure: None,
        })
    }

    /// Whether a commit has anything to do; the error, if an earlier one has failed.
    pub(crate) fn needs_commit(&self) -> Result<bool> {
        self.check_usable()?;
        Ok(self.dirty)
    }

    pub(crate) fn check_usable(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    fn txn(&mut self) -> Result<&mut dyn WriteTxn> {
        self.check_usable()?;
        Ok(&mut **self.txn.as_mut().expect("absent only after a failure"))
    }

    pub(crate) fn reader(&self) -> Result<&dyn WriteTxn> {
        self.check_usable()?;
        Ok(&**self.txn.as_ref().expect("absent only after a failure"))
    }

    fn put(&mut self, bucket: Bucket, key: &[u8], value: Bytes) -> Result<()> {
        if bucket == Bucket::Key {
            self.last_key = Some(RecordKey::checked_after(key, self.last_key.as_ref())?);
        }
        let stored = self.txn()?.put(bucket, key, &value);
        self.record_failure(stored.map_err(Error::from))?;
        if let Some(buffer) = &mut self.write_buffer {
            buffer.put(bucket, key, value);
        }
        self.pending_ops += 1;
        Ok(())
    }

    pub(crate) fn delete(&mut self, bucket: Bucket, key: &[u8]) -> Result<()> {
        let deleted = self.txn()?.delete(bucket, key);
        self.record_failure(deleted.map_err(Error::from))?;
        self.pending_ops += 1;
        self.pending_deletes += 1;
        self.dirty = true;
        Ok(())
    }

    /// Writes and syncs the batch, and opens the next. The pre-commit hook's records go with it.
    pub(crate) fn commit(&mut self, pre_commit: &PreCommit<T>) -> Result<()> {
        self.commit_txn(pre_commit)?;
        self.begin_txn()
    }

    /// Commits, and rewrites the store before the next engine transaction is opened.
    pub(crate) fn defragment(&mut self, pre_commit: &PreCommit<T>) -> Result<()> {
        // Another defragmentation may be under way: then nothing is changed.
        let rewrite = self.engine.begin_defragment()?;
        self.commit_txn(pre_commit)?;
        // If this fails the old store is intact, or the engine refuses the next transaction.
        let rewritten = run_defragment(rewrite);
        self.begin_txn()?;
        rewritten
    }

    fn begin_txn(&mut self) -> Result<()> {
        let next = self.engine.begin_write().map_err(Error::from);
        self.txn = Some(self.record_failure(next)?);
        Ok(())
    }

    fn commit_txn(&mut self, pre_commit: &PreCommit<T>) -> Result<()> {
        self.check_usable()?;
        let mut txn = self.txn.take().expect("absent only after a failure");
        // Taken back below. It stays if the commit panics: its effect on the engine is unknown.
        self.failure = Some(Error::Engine("a commit panicked".to_owned()));
        let hooked = pre_commit
            .run(&self.payload, &mut |bucket, key, value| Ok(txn.put(bucket, key, value)?));
        let committed = hooked.and_then(|()| Ok(txn.commit()?));
        self.record_failure(committed)?;
        self.failure = None;
        // After deletes there was no write-back: the engine has these puts now.
        self.write_buffer.iter_mut().for_each(TxWriteBuffer::clear);
        self.dirty = false;
        self.pending_ops = 0;
        self.pending_deletes = 0;
        Ok(())
    }

    /// After a failure the engine's contents are unknown, so nothing more is written.
    fn record_failure<R>(&mut self, outcome: Result<R>) -> Result<R> {
        if let Err(error) = &outcome {
            self.txn = None;
            self.failure = Some(error.clone());
        }
        outcome
    }
}

fn run_defragment(mut rewrite: Box<dyn Defragment>) -> Result<()> {
    while !rewrite.step(usize::MAX)? {}
    Ok(rewrite.finish()?)
}

/// The write transaction of eras 3.1 to 3.5: `batchTx` held, puts go straight to the engine.
pub(crate) struct BatchWriteTx<'b, T: Debug> {
    batch: MutexGuard<'b, Batch<T>>,
    backend: &'b EtcdBackend<T>,
    ended: bool,
}

impl<'b, T: Debug> BatchWriteTx<'b, T> {
    pub(crate) fn new(
        batch: MutexGuard<'b, Batch<T>>,
        backend: &'b EtcdBackend<T>,
    ) -> Result<BatchWriteTx<'b, T>> {
        batch.check_usable()?;
        Ok(BatchWriteTx { batch, backend, ended: false })
    }
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
        // If a put failed, the others of this transaction must not become visible without it.
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
        if !self.ended {
            self.batch.failure.get_or_insert(Error::Abandoned);
            self.batch.txn = None;
        }
    }
}
