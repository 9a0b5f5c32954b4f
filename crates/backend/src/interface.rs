//! The interface of all eras. It opens read transactions and the write transaction, commits, and
//! maintains the store.
//!
//! The era decides which locks each call takes, and for how long. The head of each era's file
//! describes them.

use std::any::Any;
use std::fmt::Debug;
use std::ops::{ControlFlow, Deref};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clearlane_engine::stream::Exporter;
use clearlane_engine::{Bucket, KeyRange};

use crate::clearlane::SnapshotReadTx;
use crate::era::Era;
use crate::error::Result;
use crate::record_key::RecordKey;

/// A value as seen by a scan: a slice of the engine's page, or a pending value that is shared.
#[derive(Clone, Copy, Debug)]
pub enum Value<'v> {
    /// A slice of the engine's page. It is valid only during the visitor's call.
    Page(&'v [u8]),
    /// A pending value in memory. A clone only increases a reference count.
    Shared(&'v Bytes),
}

impl Value<'_> {
    /// Returns a value that the caller can keep. A slice of a page is copied, and a pending value
    /// is shared.
    pub fn to_bytes(self) -> Bytes {
        match self {
            Value::Page(slice) => Bytes::copy_from_slice(slice),
            Value::Shared(bytes) => bytes.clone(),
        }
    }
}

impl Deref for Value<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Value::Page(slice) => slice,
            Value::Shared(bytes) => bytes,
        }
    }
}

pub type RangeVisitor<'v> = dyn FnMut(&[u8], Value<'_>) -> ControlFlow<()> + 'v;

/// An open read transaction. It shows one state of the store, which does not change while the
/// transaction is open.
///
/// The transaction ends when it is dropped. Other requests may wait for its end, depending on the
/// era (`docs/eras.md`).
pub trait ReadTx {
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>>;

    /// Calls `visit` for the records of `range` in key order, until `visit` returns `Break`. The
    /// visitor must not read through the same transaction, because era 3.2 holds a lock during the
    /// whole range.
    fn range(
        &self,
        bucket: Bucket,
        range: KeyRange<'_>,
        visit: &mut RangeVisitor<'_>,
    ) -> Result<()>;
}

impl<P: Deref> ReadTx for P
where
    P::Target: ReadTx,
{
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        (**self).get(bucket, key)
    }

    fn range(
        &self,
        bucket: Bucket,
        range: KeyRange<'_>,
        visit: &mut RangeVisitor<'_>,
    ) -> Result<()> {
        (**self).range(bucket, range, visit)
    }
}

/// Records of bucket `key` that are not stored one by one: each is computed when it is read.
/// Several threads may read them at the same time, any number of times.
pub trait ComputedRecords: Debug + Send + Sync {
    /// Returns the number of records, which is at least one.
    fn count(&self) -> u64;

    /// Returns the key of the record that follows the first `skip` records. Keys are in ascending
    /// order. The call must be cheap.
    fn key(&self, skip: u64) -> RecordKey;

    /// Calls `visit` for the values of the records that follow the first `skip` records, until
    /// `visit` returns `Break`.
    fn visit_values(&self, skip: u64, visit: &mut dyn FnMut(&Bytes) -> ControlFlow<()>);

    /// Returns the approximate number of bytes that stay in memory only because of these records.
    fn memory_bytes(&self) -> u64;
}

/// The open write transaction. There is at most one at a time. Reads through it see its own
/// changes.
///
/// [`end`](WriteTx::end) makes all changes visible together, to readers that open after the call.
/// The changes become durable with a later commit. In the eras of etcd, `end` may make that commit
/// itself. Dropping the transaction without ending it is a bug: every later write then fails.
pub trait WriteTx<T>: ReadTx {
    /// Stores a record. In bucket `key` the call fails unless the key is greater than the key of
    /// every earlier record. The value should own its buffer, because a slice of a larger buffer
    /// keeps the whole buffer in memory.
    fn put(&mut self, bucket: Bucket, key: &[u8], value: Bytes) -> Result<()>;

    /// Like [`put`](WriteTx::put) into bucket `key`, for a value that is a slice of a small buffer.
    /// The caller must also put the other values of this buffer. The values share the buffer's
    /// overhead, so a smaller overhead is counted for each pending record.
    fn put_shared(&mut self, key: &[u8], value: Bytes) -> Result<()> {
        self.put(Bucket::Key, key, value)
    }

    /// Stores all of these records in bucket `key`. Their keys must be greater than the key of
    /// every earlier record. Era `clearlane` computes the records only when they are read or
    /// committed.
    fn put_computed(&mut self, records: Arc<dyn ComputedRecords>) -> Result<()> {
        let (mut skip, mut outcome) = (0, Ok(()));
        records.visit_values(0, &mut |value| {
            outcome = self.put(Bucket::Key, &records.key(skip), value.clone());
            skip += 1;
            if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        outcome
    }

    /// Removes a record. Fails in bucket `key`, whose records are removed by [`Backend::remove`].
    fn delete(&mut self, bucket: Bucket, key: &[u8]) -> Result<()>;

    /// Ends the transaction. All changes of a log entry must be in the same transaction. `payload`
    /// describes the resulting state. The commit that makes this state durable passes the payload
    /// to the pre-commit hook. Era `clearlane` also publishes the payload as part of the state.
    fn end(self: Box<Self>, payload: T) -> Result<WriteTxResult>;

    /// Returns the payload of the state with which this transaction started.
    fn payload(&self) -> &T;

    /// Opens a read transaction on the state that this write transaction sees, including its
    /// changes so far. The read transaction has the given payload. It does not change when the
    /// write transaction continues or ends. Returns `None` in all eras except `clearlane`.
    fn begin_snapshot_read(&self, _payload: T) -> Option<SnapshotReadTx<T>> {
        None
    }
}

#[derive(Debug)]
#[must_use = "replaced states cost time where they are dropped: choose the thread"]
pub struct WriteTxResult {
    /// States that this transaction kept in memory and that are no longer current.
    pub dropped_states: DroppedStates,
    /// If true, the batch limit is reached, and the thread that commits should commit now. It is
    /// always false in the eras of etcd, which commit at the limit themselves.
    pub commit_due: bool,
}

/// States that are no longer current. The eras of etcd have no such states, because they do not
/// publish a new state for each write transaction. Dropping the last reference to a state may free
/// much memory, so the writer passes the states to another thread.
#[derive(Debug, Default)]
pub struct DroppedStates {
    /// The states, whatever the type of their payload. Nobody reads them: they are only dropped.
    _states: [Option<AnyState>; 2],
}

type AnyState = Arc<dyn Any + Send + Sync>;

impl DroppedStates {
    /// Creates the value from two states: the state with which a transaction started, and the
    /// state that the transaction replaced at its end. The two states differ if a commit or a
    /// defragmentation published a state during the transaction.
    pub(crate) fn of(begun_with: AnyState, replaced: AnyState) -> DroppedStates {
        DroppedStates { _states: [Some(begun_with), Some(replaced)] }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Number of bytes that the store occupies on disk.
    pub on_disk: u64,
    /// Number of bytes of live keys and values as of the last commit.
    pub in_use: u64,
    /// Number of operations that are visible but not committed yet.
    pub pending_ops: u64,
}

/// A store that batches writes and shows them to readers before they are committed.
///
/// A backend has no thread and no clock. Its owner calls [`commit_if_due`](Backend::commit_if_due)
/// with the time, and runs [`remove`](Backend::remove) and [`defragment`](Backend::defragment) on a
/// thread of its choice.
pub trait Backend<T>: Send + Sync + Debug {
    fn era(&self) -> Era;

    fn begin_read(&self) -> Box<dyn ReadTx + '_>;

    /// Opens a read transaction for the writer's own compares. No write transaction ends while this
    /// read is open. So era 3.5 does not copy the buffer for it: the read holds `readTx` until it
    /// ends, as in era 3.2. All other eras open an ordinary read. The writer must drop this read
    /// before it opens its write transaction. Otherwise the writer would wait for its own read: in
    /// eras 3.0 and 3.1 when it opens the write transaction, in eras 3.2 and 3.5 when it ends the
    /// write transaction.
    fn begin_read_for_writer(&self) -> Box<dyn ReadTx + '_> {
        self.begin_read()
    }

    /// Opens the locked read of eras 3.2 to 3.5, which holds `readTx` until it ends. In etcd:
    /// `ReadTx`. etcd still uses it to hash the store, to read the events that an unsynced watcher
    /// missed, and to look up users and permissions. Eras 3.0, 3.1 and `clearlane` have only one
    /// kind of read.
    fn begin_locked_read(&self) -> Box<dyn ReadTx + '_> {
        self.begin_read()
    }

    /// Runs `work` while `batchTx` is locked. Up to 3.4, etcd holds this lock while it looks up a
    /// user. Era `clearlane` has no such lock and only runs `work`.
    fn with_batch_locked(&self, work: &mut dyn FnMut()) {
        work();
    }

    /// Opens the write transaction. Waits until the previous write transaction has ended. In era
    /// `clearlane`, if more than `pending_bytes_max` bytes are pending, the call first waits for a
    /// commit or makes one.
    fn begin_write(&self) -> Result<Box<dyn WriteTx<T> + '_>>;

    /// Commits the pending writes if the batch interval is over, and starts the next interval. Era
    /// `clearlane` also commits here if the batch limit is reached. All other eras check the batch
    /// limit at the end of each write transaction. Returns whether a commit was made. `now` is the
    /// time since any fixed point, and must not decrease.
    fn commit_if_due(&self, now: Duration) -> Result<bool>;

    /// Commits the pending writes, even if the interval is not over.
    fn commit(&self) -> Result<()>;

    /// Removes records of bucket `key` that no read needs after a compaction. Transactions that
    /// open after the next commit do not see the records. The call may make that commit itself, so
    /// the writer's thread must not call it.
    fn remove(&self, records: &[Bytes]) -> Result<()>;

    fn defragment(&self) -> Result<()>;

    /// Commits, and then starts a consistent copy of the store. The copy is read in chunks and
    /// holds no lock of the backend.
    fn snapshot(&self) -> Result<Exporter>;

    fn sizes(&self) -> Result<Sizes>;
}
