//! The write transaction. It keeps its changes as [nodes](super::node) until the commit.
//!
//! A page becomes a node at the first change in it or below it. Nothing is written before the
//! commit, so a transaction that is dropped leaves nothing to undo.

use std::fmt;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::commit::{ChangedTrees, commit};
use super::node::Node;
use super::page::{LeafElement, VALUE_BYTES_MAX};
use super::store::{BoltStore, Committed};
use super::tree::{self, TreePage};
use crate::KEY_BYTES_MAX;
use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::interface::{KeyRange, Read, Visitor, WriteTxn};
use crate::writer_lock::WriterGuard;

/// Small records are copied into shared allocations of this size.
const RECORDS_BYTES: usize = 64 << 10;
/// Maximum size of a small record. A larger record has its own allocation.
const RECORD_BYTES_SMALL: usize = RECORDS_BYTES / 4;

pub(super) struct BoltWriteTxn {
    base: Arc<Committed>,
    changed: ChangedTrees,
    size_in_use: u64,
    /// The buffer for the next small records.
    records: BytesMut,
    /// If true, a change failed halfway, and the transaction must not be committed.
    has_failed: bool,
    store: Arc<BoltStore>,
    guard: WriterGuard,
}

impl BoltWriteTxn {
    pub(super) fn new(store: &Arc<BoltStore>, guard: WriterGuard) -> BoltWriteTxn {
        let base = store.newest();
        BoltWriteTxn {
            changed: Default::default(),
            size_in_use: base.size_in_use,
            base,
            records: BytesMut::new(),
            has_failed: false,
            store: Arc::clone(store),
            guard,
        }
    }

    /// Returns the root of a bucket's tree, or `None` if there is no such bucket.
    fn root(&self, bucket: Bucket) -> Option<TreePage<'_>> {
        let committed = || self.base.buckets[bucket.index()].root.clone().map(TreePage::Committed);
        self.changed[bucket.index()].as_deref().map(TreePage::Changed).or_else(committed)
    }

    /// Returns the tree of a bucket as a node that the caller may change.
    fn tree(&mut self, bucket: Bucket) -> &mut Node {
        let root = &self.base.buckets[bucket.index()].root;
        let new = || Box::new(root.as_ref().map_or_else(Node::empty, Node::from_page));
        self.changed[bucket.index()].get_or_insert_with(new)
    }

    fn new_element(&mut self, key: &[u8], value: &[u8]) -> LeafElement {
        let bytes = key.len() + value.len();
        if bytes > RECORD_BYTES_SMALL {
            let record = [key, value].concat();
            return LeafElement::new(Bytes::from(record), key.len(), false);
        }
        if self.records.capacity() < bytes {
            self.records = BytesMut::with_capacity(RECORDS_BYTES);
        }
        self.records.put_slice(key);
        self.records.put_slice(value);
        LeafElement::new(self.records.split().freeze(), key.len(), false)
    }

    fn try_put(&mut self, bucket: Bucket, key: &[u8], value: &[u8]) -> Result<()> {
        let element = self.new_element(key, value);
        let store = Arc::clone(&self.store);
        let replaced = self.tree(bucket).put(element, &store.pager)?;
        self.size_in_use += (key.len() + value.len()) as u64;
        self.size_in_use -= replaced.map_or(0, |old| old.record_bytes() as u64);
        self.guard.record_change(bucket, key);
        Ok(())
    }

    fn try_delete(&mut self, bucket: Bucket, key: &[u8]) -> Result<()> {
        // Deleting a key that does not exist must not turn pages into nodes. So the key is looked
        // up first.
        let found = match self.root(bucket) {
            Some(root) => tree::find(root, key, &self.store.pager)?,
            None => None,
        };
        if found.is_some() {
            let store = Arc::clone(&self.store);
            let removed = self.tree(bucket).remove(key, &store.pager)?;
            self.size_in_use -= removed.map_or(0, |old| old.record_bytes() as u64);
        }
        self.guard.record_change(bucket, key);
        Ok(())
    }
}

impl Read for BoltWriteTxn {
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        let Some(root) = self.root(bucket) else { return Ok(None) };
        tree::get(root, key, &self.store.pager)
    }

    fn scan(&self, bucket: Bucket, range: KeyRange<'_>, visit: &mut Visitor<'_>) -> Result<()> {
        match self.root(bucket) {
            Some(root) if !range.is_empty() => tree::scan(root, range, &self.store.pager, visit),
            _ => Ok(()),
        }
    }

    fn last_key(&self, bucket: Bucket) -> Result<Option<Bytes>> {
        let Some(root) = self.root(bucket) else { return Ok(None) };
        tree::last_key(&root, &self.store.pager)
    }
}

impl WriteTxn for BoltWriteTxn {
    fn put(&mut self, bucket: Bucket, key: &[u8], value: &[u8]) -> Result<()> {
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(Error::KeySize { bytes: key.len() });
        }
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::ValueSize { bytes: value.len() });
        }
        let outcome = self.try_put(bucket, key, value);
        self.has_failed |= outcome.is_err();
        outcome
    }

    fn delete(&mut self, bucket: Bucket, key: &[u8]) -> Result<()> {
        let outcome = self.try_delete(bucket, key);
        self.has_failed |= outcome.is_err();
        outcome
    }

    fn commit(self: Box<Self>) -> Result<()> {
        let BoltWriteTxn { changed, size_in_use, has_failed, store, guard, .. } = *self;
        let outcome = if has_failed {
            Err(Error::Storage("a change of this transaction failed".to_owned()))
        } else if changed.iter().all(Option::is_none) {
            // There is nothing to write.
            Ok(())
        } else {
            commit(&store, changed, size_in_use)
        };
        guard.release(outcome)
    }
}

impl fmt::Debug for BoltWriteTxn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoltWriteTxn")
            .field("base", &self.base.meta)
            .field("size_in_use", &self.size_in_use)
            .finish_non_exhaustive()
    }
}
