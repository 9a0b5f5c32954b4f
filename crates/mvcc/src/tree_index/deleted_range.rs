//! The keys that the deletion of a range has deleted, in order, as the tree from before knows them.
//!
//! ```text
//!   before    a  c  d  g  k  l  o        d..l deleted at 7: skip 2, count 3, first 7.0
//!                   d  g  k              record 7.0t is of d, 7.1t of g, 7.2t of k
//! ```
//!
//! The apply loop makes this with one look at the counts of the tree. Keys and records are made
//! where they are read, some at a time, from any of them on. It keeps the nodes from before that
//! have keys of the range; the present tree shares those that were not changed since.
//! See `docs/decisions/mvcc-range-tombstones.md`.

use std::fmt;
use std::ops::ControlFlow;

use bytes::Bytes;
use clearlane_backend::{ComputedRecords, RecordKey};
use clearlane_engine::KeyRange;

use super::persistent::PersistentSnapshot;
use crate::revision::Revision;
use crate::tombstone_records::{TombstoneBuffer, TombstoneRecord, TombstoneRecords};

/// What a deletion keeps that the present tree has not: the nodes of two ways down, and later those
/// that were changed since. How many that will be is a guess: some of those that have its keys.
const TWO_WAYS_BYTES: u64 = 16 << 10;
const CHANGED_BYTES_PER_KEY: u64 = 64;
const CHANGED_BYTES_MAX: u64 = 1 << 20;

#[derive(Clone)]
pub struct DeletedRange {
    /// The nodes that had keys of the range.
    before: PersistentSnapshot,
    from: Bytes,
    to: Option<Bytes>,
    /// How many keys with a value come before the range there.
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

    /// Of the first tombstone. Each other one is at the next sub revision.
    pub fn first_revision(&self) -> Revision {
        self.first
    }

    /// It deleted the keys in here that had a value.
    pub fn range(&self) -> KeyRange<'_> {
        KeyRange { from: &self.from, to: self.to.as_deref() }
    }

    pub fn keys(&self) -> impl Iterator<Item = Bytes> {
        self.clone().into_records(0).map(|record| record.key)
    }

    /// Those after the first `skip`.
    pub(crate) fn into_records(self, mut skip: u64) -> impl Iterator<Item = TombstoneRecord> {
        let buffers = std::iter::from_fn(move || {
            let buffer = (skip < self.count).then(|| self.buffer_after(skip))?;
            skip += buffer.len() as u64;
            Some(buffer)
        });
        buffers.flat_map(TombstoneBuffer::into_records)
    }

    /// As many records as a buffer takes: one at least.
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
