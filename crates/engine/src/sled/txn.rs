//! Snapshots and the write transaction of a sled store.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::SledStore;
use super::merged_scan::{self, Changes};
use super::tree::{METADATA_KEY, TreeMetadata, storage_error, tree_key};
use super::undo_log::OldValue;
use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::interface::{KeyRange, Read, Snapshot, Visitor, WriteTxn};
use crate::writer_lock::WriterGuard;

#[derive(Debug)]
pub(super) struct SledSnapshot {
    commit: u64,
    store: Arc<SledStore>,
}

impl SledSnapshot {
    pub(super) fn new(store: &Arc<SledStore>) -> SledSnapshot {
        SledSnapshot { commit: store.undo_log.open_snapshot(), store: Arc::clone(store) }
    }
}

impl Drop for SledSnapshot {
    fn drop(&mut self) {
        self.store.undo_log.close_snapshot(self.commit);
    }
}

impl Read for SledSnapshot {
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        let key = tree_key(bucket, key);
        // The tree first, the record of replaced values second: never the other way round.
        let now = tree_get(&self.store, &key)?;
        Ok(self.store.undo_log.snapshot(self.commit).get(&key).unwrap_or(now))
    }

    fn scan(&self, bucket: Bucket, range: KeyRange<'_>, visit: &mut Visitor<'_>) -> Result<()> {
        let mut replaced = |from: &Bytes, to: Bound<&Bytes>| -> Changes {
            self.store.undo_log.snapshot(self.commit).range(from, to).collect()
        };
        merged_scan::scan_merged(&self.store.database, bucket, range, &mut replaced, visit)
    }

    fn last_key(&self, bucket: Bucket) -> Result<Option<Bytes>> {
        last_key(self, &self.store, bucket, |from, below| {
            self.store.undo_log.snapshot(self.commit).last_key(from, below)
        })
    }
}

impl Snapshot for SledSnapshot {}

/// The open write transaction: its changes, which the tree knows nothing of.
#[derive(Debug)]
pub(super) struct SledWriteTxn {
    changes: BTreeMap<Bytes, Option<Bytes>>,
    store: Arc<SledStore>,
    guard: WriterGuard,
}

impl SledWriteTxn {
    pub(super) fn begin(store: &Arc<SledStore>, guard: WriterGuard) -> SledWriteTxn {
        SledWriteTxn { changes: BTreeMap::new(), store: Arc::clone(store), guard }
    }

    fn change(&mut self, bucket: Bucket, key: &[u8], value: Option<Bytes>) {
        self.changes.insert(tree_key(bucket, key), value);
        self.guard.record_change(bucket, key);
    }
}

impl Read for SledWriteTxn {
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        let key = tree_key(bucket, key);
        match self.changes.get(&key) {
            Some(changed) => Ok(changed.clone()),
            None => tree_get(&self.store, &key),
        }
    }

    fn scan(&self, bucket: Bucket, range: KeyRange<'_>, visit: &mut Visitor<'_>) -> Result<()> {
        let mut own = |from: &Bytes, to: Bound<&Bytes>| -> Changes {
            let changes = self.changes.range::<Bytes, _>((Bound::Included(from), to));
            changes.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        merged_scan::scan_merged(&self.store.database, bucket, range, &mut own, visit)
    }

    fn last_key(&self, bucket: Bucket) -> Result<Option<Bytes>> {
        last_key(self, &self.store, bucket, |from, below| {
            let mut own = self.changes.range::<Bytes, _>(from..below);
            own.next_back().map(|(key, _)| key.clone())
        })
    }
}

impl WriteTxn for SledWriteTxn {
    fn put(&mut self, bucket: Bucket, key: &[u8], value: &[u8]) -> Result<()> {
        self.change(bucket, key, Some(Bytes::copy_from_slice(value)));
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

/// Commits: puts on record what is replaced, applies the batch, flushes, and only then lets new
/// snapshots see it.
fn apply(store: &SledStore, changes: BTreeMap<Bytes, Option<Bytes>>) -> Result<()> {
    let commit = store.undo_log.next_commit();
    let replaced = changes.keys().map(|key| Ok((key.clone(), tree_get(store, key)?)));
    let replaced: Vec<(Bytes, OldValue)> = replaced.collect::<Result<_>>()?;
    let size_in_use = size_after(store.size_in_use.load(Ordering::Acquire), &changes, &replaced);
    store.undo_log.record(commit, replaced);

    let mut batch = sled::Batch::default();
    for (key, value) in changes {
        match value {
            Some(value) => batch.insert(&key[..], &value[..]),
            None => batch.remove(&key[..]),
        }
    }
    batch.insert(METADATA_KEY, &TreeMetadata { commit, size_in_use }.to_bytes());
    store.database.apply_batch(batch).map_err(storage_error)?;
    store.database.flush().map_err(storage_error)?;
    let synced = store.commit_file.acknowledge(commit);
    synced.map_err(|error| Error::Storage(error.to_string()))?;
    store.size_in_use.store(size_in_use, Ordering::Release);
    store.undo_log.complete(commit);
    Ok(())
}

fn size_after(
    mut size: u64,
    changes: &BTreeMap<Bytes, Option<Bytes>>,
    replaced: &[(Bytes, OldValue)],
) -> u64 {
    // The bucket's byte does not count.
    let size_of = |key: &Bytes, value: &Option<Bytes>| {
        value.as_ref().map_or(0, |value| (key.len() - 1 + value.len()) as u64)
    };
    for ((key, new), (_, old)) in changes.iter().zip(replaced) {
        size = size + size_of(key, new) - size_of(key, old);
    }
    size
}

fn tree_get(store: &SledStore, key: &[u8]) -> Result<Option<Bytes>> {
    let found = store.database.get(key).map_err(storage_error)?;
    Ok(found.map(|value| Bytes::copy_from_slice(&value)))
}

/// The greatest key that `reader` sees: the greater one of the tree's and the changes' last, or,
/// if the reader does not see that one, the next below it.
fn last_key(
    reader: &dyn Read,
    store: &SledStore,
    bucket: Bucket,
    last_changed: impl Fn(Bytes, Bytes) -> Option<Bytes>,
) -> Result<Option<Bytes>> {
    let first = tree_key(bucket, &[]);
    let mut below = merged_scan::after_bucket(bucket);
    loop {
        let in_tree = store.database.get_lt(&below).map_err(storage_error)?;
        let in_tree = in_tree.map(|(key, _)| Bytes::copy_from_slice(&key));
        let in_tree = in_tree.filter(|key| *key >= first);
        let Some(last) = in_tree.max(last_changed(first.clone(), below)) else {
            return Ok(None);
        };
        if reader.get(bucket, &last[1..])?.is_some() {
            return Ok(Some(last.slice(1..)));
        }
        below = last;
    }
}
