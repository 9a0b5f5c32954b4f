//! Snapshots and the write transaction. Both read the tree and then correct the result with an
//! overlay.
//!
//! The overlay of a snapshot contains the values that later commits have replaced. The overlay of
//! the transaction contains its own changes. A scan reads one chunk at a time to bound its memory:
//! first the records of the tree, and *then* the entries of the [`Overlay`] for the same keys.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use sled::IVec;

use super::undo_log::{Overlay, Value};
use super::{METADATA_KEY, SledStore, after_bucket, storage_error, tree_key};
use crate::bucket::Bucket;
use crate::error::Result;
use crate::interface::{KeyRange, Read, Snapshot, Visitor, WriteTxn};
use crate::writer_lock::WriterGuard;

/// A chunk of a scan ends when it has this many records, or at least `CHUNK_BYTES_MAX` bytes.
const CHUNK_RECORDS_MAX: usize = 256;
const CHUNK_BYTES_MAX: usize = 1 << 20;

/// A reader that sees the tree through an overlay.
trait Overlaid {
    fn tree(&self) -> &sled::Tree;

    /// Returns the overlay. It must be called after the tree was read.
    fn overlay(&self) -> Overlay;
}

impl<R: Overlaid> Read for R {
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        let key = tree_key(bucket, key);
        let in_tree = self.tree().get(&key).map_err(storage_error)?;
        let value = self.overlay().get(&key).unwrap_or(in_tree);
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn scan(&self, bucket: Bucket, range: KeyRange<'_>, visit: &mut Visitor<'_>) -> Result<()> {
        let end = range.to.map_or_else(|| after_bucket(bucket), |to| tree_key(bucket, to));
        let mut from = tree_key(bucket, range.from);
        while from < end {
            let (mut records, next) = read_chunk(self.tree(), &from, &end)?;
            self.overlay().lay_over(&mut records, &from, &next);
            if records.iter().any(|(key, value)| visit(&key[1..], value).is_break()) {
                break;
            }
            from = next;
        }
        Ok(())
    }

    fn last_key(&self, bucket: Bucket) -> Result<Option<Bytes>> {
        let first = tree_key(bucket, &[]);
        let mut below = after_bucket(bucket);
        loop {
            let in_tree = self.tree().get_lt(&below).map_err(storage_error)?.map(|(key, _)| key);
            let last = in_tree.max(self.overlay().key_below(&below));
            let Some(last) = last.filter(|key| *key >= first) else { return Ok(None) };
            // The key `last` has an entry in the tree or in the overlay. The key may still not
            // exist for this reader, for example if a later commit has put it.
            if self.get(bucket, &last[1..])?.is_some() {
                return Ok(Some(Bytes::copy_from_slice(&last[1..])));
            }
            below = last;
        }
    }
}

/// Reads one chunk of the tree's records in `from..end`. Also returns the key at which the next
/// chunk starts, or `end` if no record is left.
fn read_chunk(tree: &sled::Tree, from: &IVec, end: &IVec) -> Result<(BTreeMap<IVec, IVec>, IVec)> {
    let (mut records, mut bytes) = (Vec::new(), 0);
    for record in tree.range::<&IVec, _>(from..end) {
        let (key, value) = record.map_err(storage_error)?;
        bytes += key.len() + value.len();
        records.push((key.clone(), value));
        if records.len() >= CHUNK_RECORDS_MAX || bytes >= CHUNK_BYTES_MAX {
            return Ok((records.into_iter().collect(), [&key[..], &[0]].concat().into()));
        }
    }
    Ok((records.into_iter().collect(), end.clone()))
}

#[derive(Debug)]
pub(super) struct SledSnapshot {
    pub(super) commit: u64,
    pub(super) store: Arc<SledStore>,
}

impl Drop for SledSnapshot {
    fn drop(&mut self) {
        self.store.undo_log.close_snapshot(self.commit);
    }
}

impl Overlaid for SledSnapshot {
    fn tree(&self) -> &sled::Tree {
        &self.store.database
    }

    fn overlay(&self) -> Overlay {
        self.store.undo_log.overlay(self.commit)
    }
}

impl Snapshot for SledSnapshot {}

#[derive(Debug)]
pub(super) struct SledWriteTxn {
    /// The changes of this transaction, under the number of the next commit. The tree does not have
    /// them yet.
    pub(super) changes: Overlay,
    pub(super) store: Arc<SledStore>,
    pub(super) guard: WriterGuard,
}

impl SledWriteTxn {
    fn change(&mut self, bucket: Bucket, key: &[u8], value: Value) {
        let commit = self.changes.commit + 1;
        self.changes.entries.insert((tree_key(bucket, key), commit), value);
        self.guard.record_change(bucket, key);
    }
}

impl Overlaid for SledWriteTxn {
    fn tree(&self) -> &sled::Tree {
        &self.store.database
    }

    fn overlay(&self) -> Overlay {
        self.changes.clone()
    }
}

impl WriteTxn for SledWriteTxn {
    fn put(&mut self, bucket: Bucket, key: &[u8], value: &[u8]) -> Result<()> {
        self.change(bucket, key, Some(value.into()));
        Ok(())
    }

    fn delete(&mut self, bucket: Bucket, key: &[u8]) -> Result<()> {
        self.change(bucket, key, None);
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<()> {
        let SledWriteTxn { changes, store, guard } = *self;
        guard.release(apply(&store, changes))
    }
}

/// Commits the changes: records the replaced values, applies the batch, flushes it, and writes the
/// commit's number to our file. Only then can new snapshots see the commit.
fn apply(store: &SledStore, changes: Overlay) -> Result<()> {
    let mut committed = store.undo_log.committed();
    committed.commit += 1;
    let mut batch = sled::Batch::default();
    for ((key, _), new) in changes.entries {
        let old = store.database.get(&key).map_err(storage_error)?;
        committed.size_in_use += record_size(&key, &new);
        committed.size_in_use -= record_size(&key, &old);
        match new {
            Some(value) => batch.insert(&key, value),
            None => batch.remove(&key),
        }
        store.undo_log.record(committed.commit, key, old);
    }
    batch.insert(METADATA_KEY, committed.to_bytes());
    store.database.apply_batch(batch).map_err(storage_error)?;
    store.database.flush().map_err(storage_error)?;
    store.commit_file.acknowledge(committed.commit)?;
    store.undo_log.complete(committed);
    Ok(())
}

fn record_size(key: &IVec, value: &Value) -> u64 {
    // The byte that names the bucket is not counted.
    value.as_ref().map_or(0, |value| (key.len() - 1 + value.len()) as u64)
}
