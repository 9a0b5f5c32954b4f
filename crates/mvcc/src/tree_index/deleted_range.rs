//! The keys that one deletion of a range has deleted, in key order. They are read from the tree as
//! it was before the deletion.
//!
//! ```text
//!   before    a  c  d  g  k  l  o        d..l deleted at 7: skip 2, count 3, first 7.0
//!                   d  g  k              record 7.0t is of d, 7.1t of g, 7.2t of k
//! ```
//!
//! The apply loop creates this value from the counts in the tree. A reader builds keys and records
//! when it needs them, a few at a time, starting at any deleted key. The value keeps the nodes of
//! the old tree that have keys of the range. The current tree shares the nodes that have not
//! changed since the deletion. See `docs/decisions/mvcc-range-tombstones.md`.

use std::fmt;
use std::ops::ControlFlow;

use bytes::Bytes;
use clearlane_backend::{ComputedRecords, RecordKey};
use clearlane_engine::KeyRange;

use super::persistent::PersistentSnapshot;
use crate::revision::Revision;
use crate::tombstone_records::{TombstoneBuffer, TombstoneRecord, TombstoneRecords};

/// An estimate, in bytes, of the memory that a deletion keeps and the current tree does not share:
/// the nodes on two paths down, and the nodes that were changed after the deletion. How many nodes
/// will be changed is a guess, in proportion to the number of deleted keys.
const TWO_WAYS_BYTES: u64 = 16 << 10;
const CHANGED_BYTES_PER_KEY: u64 = 64;
const CHANGED_BYTES_MAX: u64 = 1 << 20;

#[derive(Clone)]
pub struct DeletedRange {
    /// The nodes that had keys of the range.
    before: PersistentSnapshot,
    from: Bytes,
    to: Option<Bytes>,
    /// The number of keys with a value that come before the range in `before`.
    skip: u64,
    count: u64,
    first: Revision,
}

impl DeletedRange {
    pub(super) fn new(
        before: PersistentSnapshot,
        range: KeyRange<'_>,
        (skip, count): (u64, u64),
        first: Revision,
    ) -> DeletedRange {
        let (from, to) = (Bytes::copy_from_slice(range.from), range.to.map(Bytes::copy_from_slice));
        DeletedRange { before, from, to, skip, count, first }
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the revision of the first tombstone. Each following tombstone is at the next sub
    /// revision.
    pub fn first_revision(&self) -> Revision {
        self.first
    }

    /// Returns the deleted range. Only its keys that had a value were deleted.
    pub fn range(&self) -> KeyRange<'_> {
        KeyRange { from: &self.from, to: self.to.as_deref() }
    }

    pub fn keys(&self) -> impl Iterator<Item = Bytes> {
        self.clone().into_records(0).map(|record| record.key)
    }

    /// Returns the records after the first `skip` records.
    pub(crate) fn into_records(self, mut skip: u64) -> impl Iterator<Item = TombstoneRecord> {
        let buffers = std::iter::from_fn(move || {
            let buffer = (skip < self.count).then(|| self.buffer_after(skip))?;
            skip += buffer.len() as u64;
            Some(buffer)
        });
        buffers.flat_map(TombstoneBuffer::into_records)
    }

    /// Returns as many records as a buffer takes, but at least one. They follow the first `skip`
    /// records.
    fn buffer_after(&self, skip: u64) -> TombstoneBuffer {
        let mut records = TombstoneRecords::default();
        let mut left = self.count - skip;
        self.before.visit_live_after(self.skip + skip, &mut |key| {
            if left == 0 || records.is_full_for(key) {
                return ControlFlow::Break(());
            }
            left -= 1;
            records.add(key);
            ControlFlow::Continue(())
        });
        assert!(!records.is_empty(), "the tree has as many live keys as it counts");
        records.take()
    }
}

impl ComputedRecords for DeletedRange {
    fn count(&self) -> u64 {
        self.count
    }

    fn key(&self, at: u64) -> RecordKey {
        self.first.after(at).tombstone_key().into()
    }

    fn visit_values(&self, skip: u64, visit: &mut dyn FnMut(&Bytes) -> ControlFlow<()>) {
        let mut records = self.clone().into_records(skip);
        let _ = records.try_for_each(|TombstoneRecord { record, .. }| visit(&record));
    }

    fn memory_bytes(&self) -> u64 {
        TWO_WAYS_BYTES + CHANGED_BYTES_MAX.min(self.count * CHANGED_BYTES_PER_KEY)
    }
}

impl fmt::Debug for DeletedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys deleted from {} on", self.count, self.first)
    }
}
