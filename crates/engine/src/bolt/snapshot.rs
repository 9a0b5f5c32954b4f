//! A committed state, for as long as it is held.

use std::sync::Arc;

use bytes::Bytes;

use super::store::{BoltStore, Committed};
use super::tree::{self, TreePage};
use crate::bucket::Bucket;
use crate::error::Result;
use crate::interface::{KeyRange, Read, Snapshot, Visitor};

#[derive(Debug)]
pub(super) struct BoltSnapshot {
    committed: Arc<Committed>,
    store: Arc<BoltStore>,
}

impl BoltSnapshot {
    pub(super) fn new(store: &Arc<BoltStore>) -> BoltSnapshot {
        BoltSnapshot { committed: store.open_snapshot(), store: Arc::clone(store) }
    }

    /// `None` if there is no such bucket.
    fn root(&self, bucket: Bucket) -> Option<TreePage<'static>> {
        self.committed.buckets[bucket.index()].root.clone().map(TreePage::Committed)
    }
}

impl Drop for BoltSnapshot {
    fn drop(&mut self) {
        self.store.close_snapshot(self.committed.meta.txid);
    }
}

impl Read for BoltSnapshot {
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        match &self.committed.buckets[bucket.index()].root {
            Some(root) => tree::get_committed(root, key, &self.store.pager),
            None => Ok(None),
        }
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

impl Snapshot for BoltSnapshot {}
