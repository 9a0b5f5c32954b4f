//! The interface that the stores of all eras share. In etcd: `KV`.
//!
//! Which locks a call takes is what the eras differ in: `docs/mvcc.md`. The store of the default
//! era offers more, see [`SnapshotStore`](crate::SnapshotStore).
//!
//! Invariants, in every era:
//! * An empty store is at revision 1. A write transaction that changes anything adds 1, or 1 for
//!   each of its [revisions](WriteTxn::begin_next_revision).
//! * Every revision that a read's index names has its record in the same read.
//! * Below the compact revision nothing is answered; at it, everything is. (With the index under a
//!   lock, a compaction above its revision ends a read that is open: [`Error::Compacted`].)

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clearlane_backend::{DroppedStates, Era, RangeVisitor, Sizes, WriteTxResult};
use clearlane_engine::stream::Exporter;
use clearlane_engine::{Bucket, KeyRange};
use clearlane_proto::mvccpb::KeyValue;
use prost::Message;

use crate::changes::Changes;
use crate::compaction::CompactionJob;
use crate::error::{Error, Result};
use crate::kv_hasher::HashKv;
use crate::revision::{RecordKind, Revision};
use crate::tree_index::VersionVisitor;

/// What the server saves with each commit, see [`Store`].
pub trait ConsistentIndex: Clone + Debug + Send + Sync + 'static {}

impl<A: Clone + Debug + Send + Sync + 'static> ConsistentIndex for A {}

/// A store of any era. `A` is what the crate above gives for each state: etcd's consistent index
/// and term.
pub trait Store<A>: Send + Sync + Debug {
    fn era(&self) -> Era;

    /// Shows one state until it is dropped.
    fn begin_read(&self) -> Box<dyn ReadTxn + '_>;

    /// Opens a read that may be kept for long and handed to another thread: it holds no lock. The
    /// old eras have none.
    fn begin_snapshot_read(&self) -> Option<Arc<dyn ReadTxn + Send + Sync>> {
        None
    }

    /// Opens a read for the writer's own compares, which it ends before it writes.
    fn begin_read_for_writer(&self) -> Box<dyn ReadTxn + '_> {
        self.begin_read()
    }

    /// Runs `work` with the lock that etcd holds to look up a user: until 3.4 `batchTx`, for the
    /// check of a password as well. The other eras hold none.
    fn with_auth_lock(&self, work: &mut dyn FnMut()) {
        work();
    }

    /// Opens the write transaction, once the one before has ended.
    fn begin_write(&self) -> Result<Box<dyn WriteTxn<A> + '_>>;

    /// Schedules a compaction. From here on nothing below `at` is answered; the job that does the
    /// work comes back, and its steps may be run at once or later, one job after the other. A job
    /// that is dropped leaves its work to the next one.
    fn compact(&self, at: i64, applied: A) -> Result<(CompactionJob, TxnResult)>;

    /// Goes on with a compaction, by about `budget` keys or records. Says whether it is done.
    fn compact_step(&self, job: &mut CompactionJob, budget: usize) -> Result<bool>;

    /// A hash of the store at a revision (the current one if it is 0), as a job.
    fn hash(&self, revision: i64) -> Result<Box<dyn HashJob + '_>>;

    /// The hashes that the last compactions have left behind, the newest first. They are not on
    /// disk: a store that was just opened has none.
    fn compaction_hashes(&self) -> Vec<HashKv>;

    /// Commits what is pending, now: what etcd's applier calls before it takes a snapshot.
    fn commit(&self) -> Result<()>;

    /// Commits what is pending if the batch interval has passed, and says whether it did. `now`
    /// counts from any fixed point and does not go back.
    fn commit_if_due(&self, now: Duration) -> Result<bool>;

    fn defragment(&self) -> Result<()>;

    /// Commits, then starts a consistent copy that may be taken out in chunks.
    fn snapshot(&self) -> Result<Exporter>;

    fn sizes(&self) -> Result<Sizes>;
}

/// An open read: one state of the store. It ends when it is dropped; which locks it holds until
/// then differs by era.
pub trait ReadTxn {
    fn revision(&self) -> i64;

    /// The revision up to which the past was dropped; -1 if never.
    fn compact_revision(&self) -> i64;

    /// Calls `visit` for the records of a range of keys, in key order, until it breaks. Each is an
    /// encoded [`KeyValue`], as it is stored and as it goes on the wire. Says how many keys there
    /// are in the range, whatever the limit, and whether `visit` has broken or not.
    fn visit_records(
        &self,
        range: KeyRange<'_>,
        options: RangeOptions,
        visit: &mut RecordVisitor<'_>,
    ) -> Result<u64>;

    /// Calls `visit` for the records of these revisions, in this order, until it breaks. Each is
    /// that of a version which this read has shown: one that is not there is damage.
    fn visit_named_records(&self, names: &[Revision], visit: &mut RecordVisitor<'_>) -> Result<()>;

    /// Calls `visit` for the versions whose records [`visit_records`](ReadTxn::visit_records) would
    /// find, without reading them. Says how many keys there are in the range; `None` if the index
    /// would have to be locked for it: then it was not walked.
    fn visit_versions(
        &self,
        _range: KeyRange<'_>,
        _options: RangeOptions,
        _visit: &mut VersionVisitor<'_>,
    ) -> Result<Option<u64>> {
        Ok(None)
    }

    /// The key that follows the first `keys` keys of a range, with or without a value. `None` if
    /// there is none, or the index has to be locked for it. A walk over the index at a past
    /// revision looks at each key, and ends there if the range does.
    fn key_after(&self, _range: KeyRange<'_>, _keys: usize) -> Option<Vec<u8>> {
        None
    }

    /// Calls `visit` with the key of each put and each deletion after a revision, and the length of
    /// its record, in their order, until it breaks: with a key as often as it was changed. Returns
    /// false if a compaction may have removed some of them, or the index is under a lock: then it
    /// was not called.
    fn visit_changed_keys(
        &self,
        after: i64,
        visit: &mut dyn FnMut(&[u8], usize) -> ControlFlow<()>,
    ) -> Result<bool>;

    fn range(&self, range: KeyRange<'_>, options: RangeOptions) -> Result<RangeRecords> {
        decode_records(|visit| self.visit_records(range, options, visit))
    }

    /// Reads a bucket other than the store's own.
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>>;

    /// Calls `visit` in key order, until it breaks, for all in a bucket other than the store's own.
    fn scan(&self, bucket: Bucket, visit: &mut RangeVisitor<'_>) -> Result<()>;
}

/// The one open write transaction. It sees its own changes.
///
/// Dropping it without ending it is a bug that the backend answers by refusing every later write.
pub trait WriteTxn<A> {
    /// The revision that a read in this transaction sees.
    fn revision(&self) -> i64;

    /// Stores a value. A lease of 0 is none. [`Error::EmptyKey`] changes
    /// nothing; the transaction goes on.
    fn put(&mut self, key: &[u8], value: &[u8], lease: i64) -> Result<()>;

    fn delete_range(&mut self, range: KeyRange<'_>) -> Result<u64>;

    /// Deletes single keys, each above the one before, as if each were deleted as a range. Returns
    /// how many had a value.
    fn delete_keys(&mut self, keys: &[Bytes]) -> Result<u64>;

    /// As that of [`ReadTxn`].
    fn visit_records(
        &self,
        range: KeyRange<'_>,
        options: RangeOptions,
        visit: &mut RecordVisitor<'_>,
    ) -> Result<u64>;

    fn range(&self, range: KeyRange<'_>, options: RangeOptions) -> Result<RangeRecords> {
        decode_records(|visit| self.visit_records(range, options, visit))
    }

    /// Opens a read of what this transaction has done so far: it stays as it is when the
    /// transaction goes on or has ended, and may be handed to another thread. No other read sees
    /// such a state. The old eras have none.
    fn begin_snapshot_read(&self) -> Option<Arc<dyn ReadTxn + Send + Sync>> {
        None
    }

    /// Puts something into another bucket than the store's own, such as the members or the leases:
    /// it becomes visible and durable together with the rest. A bucket of the store is a bug.
    fn set(&mut self, bucket: Bucket, key: &[u8], value: Bytes) -> Result<()>;

    /// Removes a key of another bucket; an absent one is no error.
    fn unset(&mut self, bucket: Bucket, key: &[u8]) -> Result<()>;

    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>>;

    fn scan(&self, bucket: Bucket, visit: &mut RangeVisitor<'_>) -> Result<()>;

    /// Ends a revision and begins the next, in the same transaction: what both have changed becomes
    /// visible together, and one state is published for the two. Says whether it has: in the old
    /// eras a transaction has one revision.
    fn begin_next_revision(&mut self) -> bool;

    /// Ends the transaction: everything becomes visible at once. `applied` describes the state.
    fn end(self: Box<Self>, applied: A) -> Result<TxnResult>;
}

pub type RecordVisitor<'v> = dyn FnMut(Bytes) -> ControlFlow<()> + 'v;

pub trait HashJob {
    /// The current revision of the state that it sums.
    fn revision(&self) -> i64;

    /// Goes on by about `budget` keys or records. The result, once it is there.
    fn step(&mut self, budget: usize) -> Result<Option<HashKv>>;
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeOptions {
    /// The revision to read at; the current one if it is not above 0.
    pub revision: i64,
    /// The largest number of records; all if it is not above 0.
    pub limit: i64,
    pub count_only: bool,
    /// How many keys there are is not asked: where it has to be walked for, no walk is made. The
    /// count then means nothing.
    pub skip_count: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RangeRecords {
    /// In key order.
    pub records: Vec<KeyValue>,
    /// How many keys are in the range, whatever the limit.
    pub count: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    Put(KeyValue),
    /// The key is gone. The record has its key and the revision of the delete.
    Delete(KeyValue),
}

impl Change {
    /// The change that has written a record; that of a tombstone does not have its revision.
    pub(crate) fn of(kind: RecordKind, record: KeyValue, main: i64) -> Change {
        match kind {
            RecordKind::Put => Change::Put(record),
            RecordKind::Tombstone => Change::Delete(KeyValue { mod_revision: main, ..record }),
        }
    }

    /// The key, and the lease that it hangs on from now on; 0 is none.
    pub fn attachment(&self) -> (&Bytes, i64) {
        match self {
            Change::Put(record) => (&record.key, record.lease),
            Change::Delete(record) => (&record.key, 0),
        }
    }

    pub fn record(&self) -> &KeyValue {
        let (Change::Put(record) | Change::Delete(record)) = self;
        record
    }
}

#[derive(Debug)]
pub struct TxnResult {
    pub revision: i64,
    /// In order; empty if nothing was changed.
    pub changes: Changes,
    /// The revisions before it in the same transaction, and what they have changed.
    pub earlier_revisions: Vec<(i64, Changes)>,
    /// What is to be dropped where it does not matter how long that takes. The old eras have
    /// nothing of the kind.
    pub dropped_states: DroppedStates,
    /// Enough is pending that the thread that runs the commits should run one now.
    pub commit_due: bool,
}

impl TxnResult {
    /// Of a transaction with one revision.
    pub(crate) fn new(revision: i64, changes: Changes, ended: WriteTxResult) -> TxnResult {
        TxnResult {
            revision,
            changes,
            earlier_revisions: Vec::new(),
            dropped_states: ended.dropped_states,
            commit_due: ended.commit_due,
        }
    }
}

/// The layer that must know to which lease a key is attached: the lessor, a crate above.
///
/// The store notifies it at the end of each write transaction, change by change and in their order,
/// before a reader can see the new state. Another transaction cannot end meanwhile.
pub trait KeyLeases: Send + Sync + Debug {
    /// From now on the key is attached to this lease, and to no other; to none if it is 0.
    fn attach(&self, key: &Bytes, lease: i64);

    /// The changes of a revision.
    fn attach_all(&self, changes: &Changes) {
        for change in changes.iter() {
            let (key, lease) = change.attachment();
            self.attach(key, lease);
        }
    }
}

/// For a store without leases.
impl KeyLeases for () {
    fn attach(&self, _key: &Bytes, _lease: i64) {}

    fn attach_all(&self, _changes: &Changes) {}
}

fn decode_records(
    read: impl FnOnce(&mut RecordVisitor<'_>) -> Result<u64>,
) -> Result<RangeRecords> {
    let mut records = Vec::new();
    let mut failure = None;
    let count = read(&mut |bytes| match decode_record(bytes) {
        Ok(record) => {
            records.push(record);
            ControlFlow::Continue(())
        }
        Err(error) => {
            failure = Some(error);
            ControlFlow::Break(())
        }
    })?;
    failure.map_or(Ok(RangeRecords { records, count }), Err)
}

/// Key and value share the record's bytes.
pub(crate) fn decode_record(bytes: Bytes) -> Result<KeyValue> {
    KeyValue::decode(bytes).map_err(|error| Error::Damaged(format!("a record: {error}")))
}
