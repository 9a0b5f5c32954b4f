//! What a write transaction does, whichever locks it holds meanwhile.
//!
//! ```text
//!   at revision 6:  put a=1    ──▶ record 7.0   a, created 7, version 1
//!                   put b=2    ──▶ record 7.1   b, created 3, version 5
//!                   delete c   ──▶ record 7.2t  c
//!   end             the store is at revision 7: all three, or in an older read none
//! ```
//!
//! Inside the transaction the current revision is the one it is writing.

use std::ops::ControlFlow;

use bytes::Bytes;
use clearlane_backend::WriteTx;
use clearlane_engine::{Bucket, KeyRange};
use clearlane_proto::mvccpb::KeyValue;
use prost::Message;

use crate::compaction::{FINISHED_COMPACT_KEY, SCHEDULED_COMPACT_KEY};
use crate::error::{Error, Result};
use crate::interface::{Change, KeyLeases, RangeOptions, RecordVisitor};
use crate::key_index::EncodedLen;
use crate::range::{revision_to_read, visit_records_of};
use crate::revision::Revision;
use crate::tree_index::{IndexSnapshot, TreeIndex};

/// Index and backend are handed in by the caller that locks them.
#[derive(Debug)]
pub(crate) struct TxnChanges {
    base_revision: i64,
    pub(crate) compact_revision: i64,
    pub(crate) changes: Vec<Change>,
}

impl TxnChanges {
    pub(crate) fn new(base_revision: i64, compact_revision: i64) -> TxnChanges {
        TxnChanges { base_revision, compact_revision, changes: Vec::new() }
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
        self.changes.push(Change::Put(record));
        Ok(())
    }

    pub(crate) fn delete_range<T>(
        &mut self,
        index: &mut impl TreeIndex,
        tx: &mut dyn WriteTx<T>,
        range: KeyRange<'_>,
    ) -> Result<u64> {
        let mut keys = Vec::new();
        index.snapshot().walk(range, self.revision(), &mut |key, _| {
            keys.push(Bytes::copy_from_slice(key));
            ControlFlow::Continue(())
        });
        let deleted = keys.len() as u64;
        keys.into_iter().try_for_each(|key| self.delete(index, tx, key))?;
        Ok(deleted)
    }

    fn delete<T>(
        &mut self,
        index: &mut impl TreeIndex,
        tx: &mut dyn WriteTx<T>,
        key: Bytes,
    ) -> Result<()> {
        let revision = self.next_revision();
        let ended = index.tombstone(&key, revision);
        assert!(ended.is_some(), "the walk found a value under the key");
        // A tombstone's record is its key alone; its revision is in the record's key.
        let record = KeyValue { key, ..KeyValue::default() };
        tx.put(Bucket::Key, &revision.tombstone_key(), record.encode_to_vec().into())?;
        self.changes.push(Change::Delete(KeyValue { mod_revision: revision.main, ..record }));
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
        for change in &self.changes {
            match change {
                Change::Put(record) => leases.attach(&record.key, record.lease),
                Change::Delete(record) => leases.attach(&record.key, 0),
            }
        }
    }

    fn next_revision(&self) -> Revision {
        Revision::new(self.base_revision + 1, self.changes.len() as i64)
    }
}

/// Only the store writes records and the marks of compaction: a caller that does has a bug.
pub(crate) fn assert_not_owned_by_store(bucket: Bucket, key: &[u8]) {
    let ours = bucket == Bucket::Key
        || bucket == Bucket::Meta && [SCHEDULED_COMPACT_KEY, FINISHED_COMPACT_KEY].contains(&key);
    assert!(!ours, "{} belongs to the store", bucket.name());
}
