//! The interface that all five eras share: open a read, open the write, commit, maintain.
//!
//! Which lock each call takes, and for how long, differs by era: the head of each era's file says.

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

/// A value as a scan finds it: a slice of the engine's page, or a pending value that is shared.
#[derive(Clone, Copy, Debug)]
pub enum Value<'v> {
    /// On a page of the engine; lives for the call only.
    Page(&'v [u8]),
    /// Pending in memory; keeping it costs a reference count.
    Shared(&'v Bytes),
}

impl Value<'_> {
    /// Copied from a page, shared otherwise.
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

/// An open read transaction: one state of the store, which does not change while it is open.
///
/// It ends when it is dropped. What waits for it until then differs by era (`docs/eras.md`).
pub trait ReadTx {
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>>;

    /// Calls `visit` for the records of `range` in key order, until it breaks. The visitor must not
    /// read through the same transaction: era 3.2 holds a lock over the whole range.
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

/// Records of bucket `key` that are not in memory: each is made when it is read. Any number of
/// threads may read them, as often as they like.
pub trait ComputedRecords: Debug + Send + Sync {
    /// At least one.
    fn count(&self) -> u64;

    /// The key of the record after `skip` others. Keys rise. It takes no time to speak of.
    fn key(&self, skip: u64) -> RecordKey;

    /// Calls `visit` for the values of the records after the first `skip`, until it breaks.
    fn visit_values(&self, skip: u64, visit: &mut dyn FnMut(&Bytes) -> ControlFlow<()>);

    /// What it keeps in memory that nothing else does.
    fn memory_bytes(&self) -> u64;
}

/// The one open write transaction. Reading through it shows its own changes too.
///
/// [`end`](WriteTx::end) makes the changes visible to readers that open from then on, all at
/// once. They become durable with a later commit. Dropping the transaction without ending it is
/// a bug: the backend refuses every later write.
pub trait WriteTx<T>: ReadTx {
    /// Stores a record. In bucket `key`, a record that is not above all others is refused. The
    /// value should own its buffer: a slice of a larger one keeps all of that alive.
    fn put(&mut self, bucket: Bucket, key: &[u8], value: Bytes) -> Result<()>;

    /// As [`put`](WriteTx::put) into bucket `key`, of one of several values that lie in a small
    /// buffer and are all put: such a record counts as less memory while it is pending.
    fn put_shared(&mut self, key: &[u8], value: Bytes) -> Result<()> {
        self.put(Bucket::Key, key, value)
    }

    /// Stores all of these in bucket `key`. Era `clearlane` makes them when they are read or
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

    /// Removes a record, from any bucket but `key`.
    fn delete(&mut self, bucket: Bucket, key: &[u8]) -> Result<()>;

    /// Ends the transaction at an entry boundary. `payload` describes the state reached: it is
    /// handed to the pre-commit hook by the commit that makes this state durable and, in the
    /// era `clearlane`, is published in one pointer together with it.
    fn end(self: Box<Self>, payload: T) -> Result<WriteTxResult>;

    /// The payload of the state that this transaction began with.
    fn payload(&self) -> &T;

    /// A read that shows what this transaction has done so far, with this payload, and stays as it
    /// is when the transaction goes on or has ended. Only era `clearlane` has one.
    fn begin_snapshot_read(&self, _payload: T) -> Option<SnapshotReadTx<T>> {
        None
    }
}

#[derive(Debug)]
#[must_use = "replaced states cost time where they are dropped: choose the thread"]
pub struct WriteTxResult {
    /// The states that this transaction kept alive and that are current no more.
    pub dropped_states: DroppedStates,
    /// The batch limit is reached: the thread that runs the commits should run one now.
    pub commit_due: bool,
}

/// States that are current no more; none in eras whose reads share what the writer changes.
/// Dropping the last reference to one may free much memory, so an applier hands them to another
/// thread.
#[derive(Debug, Default)]
pub struct DroppedStates {
    /// Of any era and any payload: all that is left to do with them is to drop them.
    _states: [Option<AnyState>; 2],
}

type AnyState = Arc<dyn Any + Send + Sync>;

impl DroppedStates {
    /// The state that a transaction began with, and the one that it replaced: two different ones if
    /// a commit came in between.
    pub(crate) fn of(begun_with: AnyState, replaced: AnyState) -> DroppedStates {
        DroppedStates { _states: [Some(begun_with), Some(replaced)] }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes on disk.
    pub on_disk: u64,
    /// Bytes of live keys and values as of the last commit.
    pub in_use: u64,
    /// Operations that are visible but not committed yet.
    pub pending_ops: u64,
}

/// A store that batches writes and lets readers see them before they are committed.
///
/// It has no thread and no clock: its owner calls [`commit_if_due`](Backend::commit_if_due) with
/// the time, and runs [`remove`](Backend::remove) and [`defragment`](Backend::defragment) on a
/// thread of its choice.
pub trait Backend<T>: Send + Sync + Debug {
    fn era(&self) -> Era;

    fn begin_read(&self) -> Box<dyn ReadTx + '_>;

    /// Opens a read transaction for the writer's own compares. Nothing else writes meanwhile, so
    /// era 3.5 makes no copy of the buffer for it and holds `readTx` to its end, as era 3.2 does;
    /// in the others it is a read like any other. The writer must drop it before it opens its write
    /// transaction, whose opening (eras 3.0, 3.1) or end (3.2, 3.5) would wait for it.
    fn begin_read_for_writer(&self) -> Box<dyn ReadTx + '_> {
        self.begin_read()
    }

    /// Opens the read transaction that in eras 3.2 to 3.5 holds `readTx` to its end (etcd:
    /// `ReadTx`). etcd takes it to this day to hash the store, to read what an unsynced watcher
    /// missed, and to look up users and permissions. Eras 3.1 and `clearlane` have one kind of
    /// read.
    fn begin_locked_read(&self) -> Box<dyn ReadTx + '_> {
        self.begin_read()
    }

    /// Runs `work` with `batchTx` locked; era `clearlane` has no such lock.
    fn with_batch_locked(&self, work: &mut dyn FnMut()) {
        work();
    }

    /// Opens the write transaction, once the one before has ended. Era `clearlane`: with more than
    /// `pending_bytes_max` pending it first waits for a commit, or makes one.
    fn begin_write(&self) -> Result<Box<dyn WriteTx<T> + '_>>;

    /// Commits what is pending if the batch interval is over, and starts the next interval. Era
    /// `clearlane` also commits here once the batch limit is reached; the others do so at the end
    /// of a write transaction. Says whether a commit was made. `now` counts from any fixed moment,
    /// and must not go back.
    fn commit_if_due(&self, now: Duration) -> Result<bool>;

    /// Commits what is pending, whether or not the interval is over.
    fn commit(&self) -> Result<()>;

    /// Removes records of bucket `key` that compaction found to be superfluous. They are gone
    /// for transactions that open after the next commit. It may make that commit itself, so it is
    /// not for the applier's thread.
    fn remove(&self, records: &[Bytes]) -> Result<()>;

    fn defragment(&self) -> Result<()>;

    /// Commits, then starts a consistent copy of the store, which is taken out in chunks and holds
    /// no lock of the backend.
    fn snapshot(&self) -> Result<Exporter>;

    fn sizes(&self) -> Result<Sizes>;
}
