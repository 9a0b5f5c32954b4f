//! The changes of a write transaction, independent of the locks that it holds.
//!
//! ```text
//!   at revision 6:  put a=1    ──▶ record 7.0   a, created 7, version 1
//!                   put b=2    ──▶ record 7.1   b, created 3, version 5
//!                   delete c   ──▶ record 7.2t  c
//!   end             the store is at revision 7; a later read sees all three, an earlier read none
//! ```
//!
//! After its first change, the transaction itself reads at the revision that it writes.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use clearlane_backend::WriteTx;
use clearlane_engine::{Bucket, KeyRange};
use clearlane_proto::mvccpb::KeyValue;
use prost::Message;

use crate::changes::Changes;
use crate::compaction::{FINISHED_COMPACT_KEY, SCHEDULED_COMPACT_KEY};
use crate::error::{Error, Result};
use crate::interface::{KeyLeases, RangeOptions, RecordVisitor};
use crate::key_index::EncodedLen;
use crate::range::{revision_to_read, visit_records_of};
use crate::revision::Revision;
use crate::tombstone_records::{TombstoneBuffer, TombstoneRecord, TombstoneRecords};
use crate::tree_index::{IndexSnapshot, KeySelection, TreeIndex};

/// A deletion of a range with at least this number of keys uses marks in the index, if the index
/// supports marks. A smaller deletion writes its tombstones immediately, because it copies only a
/// few leaves.
const MARKED_KEYS_MIN: u64 = 64;

/// The changes of one revision of a transaction. The caller passes the index and the backend's
/// transaction to each call, and holds the locks of the transaction. An index under a lock takes
/// the lock `treeIndex` itself.
#[derive(Debug)]
pub(crate) struct TxnChanges {
    base_revision: i64,
    pub(crate) compact_revision: i64,
    pub(crate) changes: Changes,
}

impl TxnChanges {
    pub(crate) fn new(base_revision: i64, compact_revision: i64) -> TxnChanges {
        TxnChanges { base_revision, compact_revision, changes: Changes::default() }
    }

    pub(crate) fn revision(&self) -> i64 {
        self.base_revision + i64::from(!self.changes.is_empty())
    }

    pub(crate) fn put<T>(
        &mut self,
        index: &mut impl TreeIndex,
        tx: &mut dyn WriteTx<T>,
        key: &[u8],
        value: &[u8],
        lease: i64,
    ) -> Result<()> {
        if key.is_empty() {
            return Err(Error::EmptyKey);
        }
        let revision = self.next_revision();
        let mut record = KeyValue {
            key: Bytes::copy_from_slice(key),
            value: Bytes::copy_from_slice(value),
            lease,
            ..KeyValue::default()
        };
        let version = index.put(key, revision, EncodedLen::of(record.encoded_len()));
        record.create_revision = version.created;
        record.mod_revision = revision.main;
        record.version = version.version;
        tx.put(Bucket::Key, &revision.put_key(), record.encode_to_vec().into())?;
        self.changes.push_put(record);
        Ok(())
    }

    pub(crate) fn delete_range<T>(
        &mut self,
        index: &mut impl TreeIndex,
        tx: &mut dyn WriteTx<T>,
        range: KeyRange<'_>,
    ) -> Result<u64> {
        let live = index.live_count(range);
        if live == Some(0) {
            // Without this check, deleting absent keys would copy nodes of the index.
            return Ok(0);
        }
        if live.is_some_and(|live| live >= MARKED_KEYS_MIN)
            && let Some(deleted) = index.mark_deleted(range, self.next_revision())
        {
            let count = deleted.count();
            tx.put_computed(Arc::new(deleted.clone()))?;
            self.changes.push_deleted_range(deleted);
            return Ok(count);
        }
        self.delete(index, tx, KeySelection::Range(range))
    }

    /// Deletes single keys, which must be in ascending order. The range from the first to the last
    /// key is deleted instead if there are at least [`MARKED_KEYS_MIN`] keys, and if exactly these
    /// keys have a value in the range. Only the default era's index can check this.
    pub(crate) fn delete_keys<T>(
        &mut self,
        index: &mut impl TreeIndex,
        tx: &mut dyn WriteTx<T>,
        keys: &[Bytes],
    ) -> Result<u64> {
        if let ([first, .., last], true) = (keys, keys.len() as u64 >= MARKED_KEYS_MIN) {
            let behind_last = [last, &[0][..]].concat();
            let range = KeyRange::new(first, &behind_last);
            if has_exactly(index, range, keys) {
                return self.delete_range(index, tx, range);
            }
        }
        self.delete(index, tx, KeySelection::Sorted(keys))
    }

    fn delete<T>(
        &mut self,
        index: &mut impl TreeIndex,
        tx: &mut dyn WriteTx<T>,
        keys: KeySelection<'_>,
    ) -> Result<u64> {
        let (before, first) = (self.changes.len(), self.next_revision());
        let (mut records, mut outcome) = (TombstoneRecords::default(), Ok(()));
        index.tombstone_all(keys, first, &mut |key| {
            if outcome.is_ok() && records.is_full_for(key) {
                outcome = self.put_tombstones(tx, records.take());
            }
            if outcome.is_ok() {
                records.add(key);
            }
        });
        outcome?;
        if !records.is_empty() {
            self.put_tombstones(tx, records.take())?;
        }
        Ok((self.changes.len() - before) as u64)
    }

    fn put_tombstones<T>(
        &mut self,
        tx: &mut dyn WriteTx<T>,
        buffer: TombstoneBuffer,
    ) -> Result<()> {
        let mut revision = self.next_revision();
        for TombstoneRecord { record, .. } in buffer.clone().into_records() {
            let record_key = revision.tombstone_key();
            if buffer.len() > 1 {
                tx.put_shared(&record_key, record)?;
            } else {
                tx.put(Bucket::Key, &record_key, record)?;
            }
            revision.sub += 1;
        }
        self.changes.push_deleted(buffer, revision.main);
        Ok(())
    }

    pub(crate) fn visit_records<T>(
        &self,
        (index, tx): (&impl TreeIndex, &dyn WriteTx<T>),
        range: KeyRange<'_>,
        options: RangeOptions,
        visit: &mut RecordVisitor<'_>,
    ) -> Result<u64> {
        let at = revision_to_read(self.revision(), self.compact_revision, options.revision)?;
        visit_records_of(&index.snapshot(), tx, range, at, options, visit)
    }

    pub(crate) fn attach(&self, leases: &dyn KeyLeases) {
        leases.attach_all(&self.changes);
    }

    fn next_revision(&self) -> Revision {
        Revision::new(self.base_revision + 1, self.changes.len() as i64)
    }
}

/// Returns true if `keys` are exactly the keys of `range` that have a value. Returns false if the
/// index cannot count keys without a walk.
fn has_exactly(index: &impl TreeIndex, range: KeyRange<'_>, keys: &[Bytes]) -> bool {
    if index.live_count(range) != Some(keys.len() as u64) {
        return false;
    }
    let mut expected = keys.iter();
    let mut are_same = true;
    index.snapshot().walk(range, i64::MAX, &mut |key, _| {
        are_same = expected.next().is_some_and(|expected| **expected == *key);
        if are_same { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    are_same
}

/// Panics for records and compaction marks: only the store writes them, so the caller has a bug.
pub(crate) fn assert_not_owned_by_store(bucket: Bucket, key: &[u8]) {
    let ours = bucket == Bucket::Key
        || bucket == Bucket::Meta && [SCHEDULED_COMPACT_KEY, FINISHED_COMPACT_KEY].contains(&key);
    assert!(!ours, "{} belongs to the store", bucket.name());
}
