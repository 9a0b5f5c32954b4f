//! The two buffers of eras 3.2 to 3.5: what a write transaction collects, and what readers see.
//!
//! A put goes into the *write buffer*, too. The end of the write transaction merges that into the
//! *read buffer*, where readers find the records until a commit has put them into the engine.
//!
//! Entries are shared by reference, so that copying a buffer (which eras 3.4 and 3.5 do for
//! their readers) costs one pointer per entry and no byte of any value, as in etcd.
//!
//! Deletes have no place in a buffer. The eras commit at the end of a write transaction that
//! deleted something, which empties the buffer and shows readers the engine's new state.

use std::sync::Arc;

use bytes::Bytes;
use clearlane_engine::{Bucket, KeyRange};

#[derive(Debug)]
struct Entry {
    key: Bytes,
    value: Bytes,
}

/// Per bucket. A reader's entries are in key order, each key once; those of the open write
/// transaction are in the order of the puts.
#[derive(Clone, Debug, Default)]
pub(crate) struct TxBuffer {
    buckets: [Vec<Arc<Entry>>; Bucket::ALL.len()],
}

impl TxBuffer {
    /// Of a read buffer.
    pub(crate) fn get(&self, bucket: Bucket, key: &[u8]) -> Option<&Bytes> {
        let entries = &self.buckets[bucket.index()];
        let found = entries.binary_search_by(|entry| (*entry.key).cmp(key)).ok()?;
        Some(&entries[found].value)
    }

    /// Of a read buffer, for a [merged scan](crate::merge::scan_merged).
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

    /// Into a write buffer.
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
                // Of entries with the same key, the one put last stays.
                seen.reverse();
                seen.sort_by(|a, b| a.key.cmp(&b.key));
                seen.dedup_by(|later, kept| later.key == kept.key);
            }
        }
    }
}
