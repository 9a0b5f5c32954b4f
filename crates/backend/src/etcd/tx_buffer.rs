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
pub(crate) struct Entry {
    pub(crate) key: Bytes,
    pub(crate) value: Bytes,
}

type Entries = [Vec<Arc<Entry>>; Bucket::ALL.len()];

/// Per bucket in key order, each key once.
#[derive(Clone, Debug, Default)]
pub(crate) struct TxReadBuffer {
    buckets: Entries,
}

impl TxReadBuffer {
    pub(crate) fn get(&self, bucket: Bucket, key: &[u8]) -> Option<&Bytes> {
        let entries = &self.buckets[bucket.index()];
        let found = entries.binary_search_by(|entry| (*entry.key).cmp(key)).ok()?;
        Some(&entries[found].value)
    }

    pub(crate) fn range(&self, bucket: Bucket, range: KeyRange<'_>) -> &[Arc<Entry>] {
        if range.is_empty() {
            return &[];
        }
        let entries = &self.buckets[bucket.index()];
        let from = entries.partition_point(|entry| *entry.key < *range.from);
        let to = range.to.map_or(entries.len(), |to| entries.partition_point(|e| *e.key < *to));
        &entries[from..to]
    }

    pub(crate) fn clear(&mut self) {
        self.buckets.iter_mut().for_each(Vec::clear);
    }
}

/// Of the open write transaction, per bucket in the order of the puts.
#[derive(Debug, Default)]
pub(crate) struct TxWriteBuffer {
    buckets: Entries,
}

impl TxWriteBuffer {
    pub(crate) fn put(&mut self, bucket: Bucket, key: &[u8], value: Bytes) {
        let entry = Entry { key: Bytes::copy_from_slice(key), value };
        self.buckets[bucket.index()].push(Arc::new(entry));
    }

    pub(crate) fn clear(&mut self) {
        self.buckets.iter_mut().for_each(Vec::clear);
    }

    pub(crate) fn write_back(&mut self, read: &mut TxReadBuffer) {
        for (new, seen) in self.buckets.iter_mut().zip(&mut read.buckets) {
            let in_order = seen.last().into_iter().chain(&*new).is_sorted_by(|a, b| a.key < b.key);
            seen.append(new);
            if !in_order {
                keep_newest_of_each_key(seen);
            }
        }
    }
}

/// Sorts by key and keeps, of entries with the same key, the one put last.
fn keep_newest_of_each_key(entries: &mut Vec<Arc<Entry>>) {
    entries.reverse();
    entries.sort_by(|a, b| a.key.cmp(&b.key));
    entries.dedup_by(|later, kept| later.key == kept.key);
}
