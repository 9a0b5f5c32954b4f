//! The interface that the stores of all eras share. In etcd: `KV`.
//!
//! The eras differ in the locks that a call takes: see `docs/mvcc.md`. The store of the default era
//! has more methods: see [`SnapshotStore`](crate::SnapshotStore).
//!
//! Invariants in every era:
//! * An empty store is at revision 1. A write transaction that changes keys adds 1, or 1 for each
//!   of its [revisions](WriteTxn::begin_next_revision). Changes in other buckets add nothing.
//! * If a read's index names a revision, the same read has the record of this revision.
//! * A read below the compact revision fails; a read at the compact revision finds everything. In
//!   the eras with an index under a lock, scheduling a compaction waits until all open reads have
//!   ended. An open hash at a revision below the new compact revision may fail with
//!   [`Error::Compacted`].

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

/// The value that the server saves with each commit. See [`Store`].
pub trait ConsistentIndex: Clone + Debug + Send + Sync + 'static {}

impl<A: Clone + Debug + Send + Sync + 'static> ConsistentIndex for A {}

/// A store of any era. `A` is the value that the server passes for each state: etcd's consistent
/// index and term.
pub trait Store<A>: Send + Sync + Debug {
    fn era(&self) -> Era;

    /// Opens a read transaction on the current state.
    fn begin_read(&self) -> Box<dyn ReadTxn + '_>;

    /// Opens a read transaction that holds no lock. It may stay open for a long time and may move
    /// to another thread. Returns `None` in the old eras.
    fn begin_snapshot_read(&self) -> Option<Arc<dyn ReadTxn + Send + Sync>> {
        None
    }

    /// Opens a read transaction for the writer's compares. The writer must end this read before it
    /// starts its write transaction.
    fn begin_read_for_writer(&self) -> Box<dyn ReadTxn + '_> {
        self.begin_read()
    }

    /// Calls `work` under etcd's lock for the lookup of a user. Up to 3.4 this lock is `batchTx`,
    /// and etcd up to 3.4.0 also holds it while it checks a password. In all other eras `work` runs
    /// without a lock.
    fn with_auth_lock(&self, work: &mut dyn FnMut()) {
        work();
    }

    /// Starts a write transaction. Waits until the previous write transaction has ended.
    fn begin_write(&self) -> Result<Box<dyn WriteTxn<A> + '_>>;

    /// Schedules a compaction. Fails if `at` is already compacted or above the current revision.
    /// After this call new reads below `at` fail. The returned job does the work. The caller can
    /// run the steps of the job immediately or later, but must run one job after the other. If a
    /// job is dropped, the next job also does its work.
    fn compact(&self, at: i64, applied: A) -> Result<(CompactionJob, TxnResult)>;

    /// Continues a compaction with about `budget` further keys or records. Returns true if the
    /// compaction is done.
    fn compact_step(&self, job: &mut CompactionJob, budget: usize) -> Result<bool>;

    /// Starts a job that computes the hash of the store at a revision. 0 means the current
    /// revision.
    fn hash(&self, revision: i64) -> Result<Box<dyn HashJob + '_>>;

    /// Returns the hashes that the last compactions have computed, the newest first. They are not
    /// on disk: a store that was just opened has none.
    fn compaction_hashes(&self) -> Vec<HashKv>;

    /// Commits pending records now. etcd's applier calls this before it takes a raft snapshot.
    fn commit(&self) -> Result<()>;

    /// Commits pending records if the batch interval has passed or, in era `clearlane`, the batch
    /// limit is reached. Returns true if it committed. `now` counts from any fixed point and
    /// must not go back.
    fn commit_if_due(&self, now: Duration) -> Result<bool>;

    fn defragment(&self) -> Result<()>;

    /// Commits, then starts a consistent copy of the store, which is read in chunks.
    fn snapshot(&self) -> Result<Exporter>;

    fn sizes(&self) -> Result<Sizes>;
}

/// A read transaction: it shows one state of the store until it is dropped. The locks that it holds
/// until then differ by era.
pub trait ReadTxn {
    fn revision(&self) -> i64;

    /// Returns the compact revision: the history below it is dropped. -1 if there was no
    /// compaction.
    fn compact_revision(&self) -> i64;

    /// Calls `visit` for the records of a range of keys, in key order, until `visit` breaks. A
    /// record is an encoded [`KeyValue`], as it is stored and sent. Returns the number of keys in
    /// the range, whatever the limit and whether or not `visit` breaks. The number means nothing if
    /// [`skip_count`](RangeOptions::skip_count) is set.
    fn visit_records(
        &self,
        range: KeyRange<'_>,
        options: RangeOptions,
        visit: &mut RecordVisitor<'_>,
    ) -> Result<u64>;

    /// Calls `visit` for the records of these revisions, in this order, until `visit` breaks. The
    /// revisions must be those of versions that this read transaction has returned. Fails with
    /// [`Error::Damaged`] if a record is missing.
    fn visit_named_records(&self, names: &[Revision], visit: &mut RecordVisitor<'_>) -> Result<()>;

    /// Calls `visit` for the versions whose records [`visit_records`](ReadTxn::visit_records) would
    /// find, without reading the records. Returns the same number as
    /// [`visit_records`](ReadTxn::visit_records). Returns `None` without calling `visit` if the
    /// index is under a lock.
    fn visit_versions(
        &self,
        _range: KeyRange<'_>,
        _options: RangeOptions,
        _visit: &mut VersionVisitor<'_>,
    ) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Returns the key that follows the first `keys` keys of a range. Keys without a value are
    /// counted as well. Returns `None` if there is no such key, or if the index is under a lock. A
    /// walk at an old revision visits every key of its range, so a caller can split such a walk at
    /// the returned key.
    fn key_after(&self, _range: KeyRange<'_>, _keys: usize) -> Option<Vec<u8>> {
        None
    }

    /// Calls `visit` for each put and delete after the revision `after`, in their order, until
    /// `visit` breaks. `visit` gets the key and the length of the change's record. A key is visited
    /// once for each of its changes. Returns false without calling `visit` if a compaction may have
    /// removed some of the records or the index is under a lock. Otherwise returns true.
    fn visit_changed_keys(
        &self,
        after: i64,
        visit: &mut dyn FnMut(&[u8], usize) -> ControlFlow<()>,
    ) -> Result<bool>;

    fn range(&self, range: KeyRange<'_>, options: RangeOptions) -> Result<RangeRecords> {
        decode_records(|visit| self.visit_records(range, options, visit))
    }

    /// Reads a value from a bucket that the store does not own.
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>>;

    /// Calls `visit` for all values of a bucket that the store does not own, in key order, until
    /// `visit` breaks.
    fn scan(&self, bucket: Bucket, visit: &mut RangeVisitor<'_>) -> Result<()>;
}

/// The open write transaction; there is only one. It sees its own changes.
///
/// The transaction must be ended. If it is dropped instead, which is a bug, the backend rejects
/// every later write.
pub trait WriteTxn<A> {
    /// Returns the revision that a read in this transaction sees.
    fn revision(&self) -> i64;

    /// Stores a value. A lease of 0 means no lease. After [`Error::EmptyKey`] nothing has changed,
    /// and the transaction can continue.
    fn put(&mut self, key: &[u8], value: &[u8], lease: i64) -> Result<()>;

    fn delete_range(&mut self, range: KeyRange<'_>) -> Result<u64>;

    /// Deletes single keys, with the same effect as deleting each as a range. The keys must be in
    /// ascending order and without duplicates. Returns how many keys had a value.
    fn delete_keys(&mut self, keys: &[Bytes]) -> Result<u64>;

    /// See [`ReadTxn::visit_records`].
    fn visit_records(
        &self,
        range: KeyRange<'_>,
        options: RangeOptions,
        visit: &mut RecordVisitor<'_>,
    ) -> Result<u64>;

    fn range(&self, range: KeyRange<'_>, options: RangeOptions) -> Result<RangeRecords> {
        decode_records(|visit| self.visit_records(range, options, visit))
    }

    /// Opens a read transaction that shows the changes of this transaction so far. Later changes do
    /// not affect the read transaction, which may move to another thread. No other read sees this
    /// state. Returns `None` in the old eras.
    fn begin_snapshot_read(&self) -> Option<Arc<dyn ReadTxn + Send + Sync>> {
        None
    }

    /// Stores a value in a bucket that the store does not own, such as members or leases. It
    /// becomes visible and durable together with the other changes. Panics for records and
    /// compaction marks, which only the store writes.
    fn set(&mut self, bucket: Bucket, key: &[u8], value: Bytes) -> Result<()>;

    /// Removes a key from a bucket that the store does not own. An absent key is not an error.
    /// Panics in the same cases as [`set`](WriteTxn::set).
    fn unset(&mut self, bucket: Bucket, key: &[u8]) -> Result<()>;

    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>>;

    fn scan(&self, bucket: Bucket, visit: &mut RangeVisitor<'_>) -> Result<()>;

    /// Ends a revision and starts the next one in the same transaction. The changes of both
    /// revisions become visible together, and one state is published for both. Returns false, and
    /// does nothing, in the old eras, where a transaction has only one revision.
    fn begin_next_revision(&mut self) -> bool;

    /// Ends the transaction: all its changes become visible together. `applied` is the consistent
    /// index of the new state.
    fn end(self: Box<Self>, applied: A) -> Result<TxnResult>;
}

pub type RecordVisitor<'v> = dyn FnMut(Bytes) -> ControlFlow<()> + 'v;

pub trait HashJob {
    /// Returns the current revision of the state whose hash is computed.
    fn revision(&self) -> i64;

    /// Continues the hash with about `budget` further keys or records. Returns the hash if it is
    /// known, or `None` if further steps are needed.
    fn step(&mut self, budget: usize) -> Result<Option<HashKv>>;
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeOptions {
    /// The revision to read at. If 0 or less, the current revision.
    pub revision: i64,
    /// Maximum number of records. If 0 or less, there is no limit.
    pub limit: i64,
    pub count_only: bool,
    /// If true, the caller does not need the number of keys. Then the default era makes no walk to
    /// count them, and the returned count means nothing.
    pub skip_count: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RangeRecords {
    /// The records in key order.
    pub records: Vec<KeyValue>,
    /// The number of keys in the range, whatever the limit. Means nothing if `skip_count` was set.
    pub count: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    Put(KeyValue),
    /// The key was deleted. The record has its key and the revision of the delete.
    Delete(KeyValue),
}

impl Change {
    /// Returns the change that wrote a record. A tombstone's record does not contain its revision,
    /// so the revision `main` is added.
    pub(crate) fn of(kind: RecordKind, record: KeyValue, main: i64) -> Change {
        match kind {
            RecordKind::Put => Change::Put(record),
            RecordKind::Tombstone => Change::Delete(KeyValue { mod_revision: main, ..record }),
        }
    }

    /// Returns the key, and the lease that it is attached to after this change. 0 means no lease.
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
    /// The changes of the last revision that the transaction has started, in order. Empty if this
    /// revision has changed no key.
    pub changes: Changes,
    /// The earlier revisions of the same transaction with their changes, oldest first.
    pub earlier_revisions: Vec<(i64, Changes)>,
    /// Replaced states. Dropping them may take a long time, so the caller should drop them on a
    /// thread where this delays no request. Empty in the old eras.
    pub dropped_states: DroppedStates,
    /// If true, the batch limit is reached, and the commit thread should commit now. Always false
    /// in the old eras.
    pub commit_due: bool,
}

impl TxnResult {
    /// Creates the result of a transaction with one revision.
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

/// The owner of the attachments between keys and leases: the lessor, which is in a higher-level
/// crate.
///
/// At the end of each write transaction, the store passes all changes to the owner, in order,
/// before a reader can see the new state. No other transaction can end at the same time.
pub trait KeyLeases: Send + Sync + Debug {
    /// Attaches the key to this lease, and detaches it from any other lease. If `lease` is 0, only
    /// detaches the key.
    fn attach(&self, key: &Bytes, lease: i64);

    /// Attaches or detaches the key of each change of one revision.
    fn attach_all(&self, changes: &Changes) {
        for change in changes.iter() {
            let (key, lease) = change.attachment();
            self.attach(key, lease);
        }
    }
}

/// The implementation for a store without leases.
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

/// Decodes a record. Key and value share the bytes of the record.
pub(crate) fn decode_record(bytes: Bytes) -> Result<KeyValue> {
    KeyValue::decode(bytes).map_err(|error| Error::Damaged(format!("a record: {error}")))
}
