//! The two buffers of eras 3.2 to 3.5: one collects the puts of a write transaction, the other
//! serves the readers.
//!
//! A put goes into the engine's transaction and into the *write buffer*. The end of the write
//! transaction merges the write buffer into the *read buffer*. Readers find the records in the read
//! buffer until a commit has put them into the engine.
//!
//! Entries are shared by reference. So a copy of a buffer, which eras 3.4 and 3.5 make for their
//! readers, costs one pointer per entry and copies no value. etcd's copies share the values as
//! well.
//!
//! A buffer cannot contain deletes. So these eras commit at the end of a write transaction that
//! deleted something. The commit empties the buffer and shows readers the engine's new state.

use std::sync::Arc;

use bytes::Bytes;
use clearlane_engine::{Bucket, KeyRange};

#[derive(Debug)]
struct Entry {
    key: Bytes,
    value: Bytes,
}

/// A buffer with a list for each bucket. In a read buffer the entries are in key order and each key
/// occurs once. In a write buffer the entries are in the order of the puts.
#[derive(Clone, Debug, Default)]
pub(crate) struct TxBuffer {
    buckets: [Vec<Arc<Entry>>; Bucket::ALL.len()],
}

impl TxBuffer {
    /// Returns the value of a key. The buffer must be a read buffer, which is sorted.
    pub(crate) fn get(&self, bucket: Bucket, key: &[u8]) -> Option<&Bytes> {
        let entries = &self.buckets[bucket.index()];
        let found = entries.binary_search_by(|entry| (*entry.key).cmp(key)).ok()?;
        Some(&entries[found].value)
    }

    /// Returns the entries of a range for a [merged scan](crate::merge::scan_merged). The buffer
    /// must be a read buffer, which is sorted.
    pub(crate) fn range(
        &self,
        bucket: Bucket,
        range: KeyRange<'_>,
    ) -> impl Iterator<Item = (&[u8], Option<&Bytes>)> {
        let entries = &self.buckets[bucket.index()];
        let below = |key: &[u8]| entries.partition_point(|entry| *entry.key < *key);
        let from = below(range.from);
        let to = range.to.map_or(entries.len(), below).max(from);
        entries[from..to].iter().map(|entry| (&*entry.key, Some(&entry.value)))
    }

    /// Adds an entry. The buffer must be a write buffer.
    pub(crate) fn put(&mut self, bucket: Bucket, key: &[u8], value: Bytes) {
        let entry = Entry { key: Bytes::copy_from_slice(key), value };
        self.buckets[bucket.index()].push(Arc::new(entry));
    }

    pub(crate) fn clear(&mut self) {
        self.buckets.iter_mut().for_each(Vec::clear);
    }

    /// Moves the entries of a write buffer into a read buffer.
    pub(crate) fn write_back(&mut self, read: &mut TxBuffer) {
        for (new, seen) in self.buckets.iter_mut().zip(&mut read.buckets) {
            let in_order = seen.last().into_iter().chain(&*new).is_sorted_by(|a, b| a.key < b.key);
            seen.append(new);
            if !in_order {
                // If several entries have the same key, only the last put is kept. After the
                // reversal, this put is the first of these entries, and the stable sort does not
                // change their order.
                seen.reverse();
                seen.sort_by(|a, b| a.key.cmp(&b.key));
                seen.dedup_by(|later, kept| later.key == kept.key);
            }
        }
    }
}
