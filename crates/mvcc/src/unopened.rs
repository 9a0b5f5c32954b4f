//! A store that is read without a backend. No program may have the store open for writing.
//!
//! The index is restored as at startup. etcd's `etcdutl hashkv` opens a store for the same purpose.

use std::fmt;
use std::ops::ControlFlow;

use bytes::Bytes;
use clearlane_backend::{RangeVisitor, ReadTx, Value};
use clearlane_engine::{Bucket, KeyRange, Snapshot};

use crate::error::Result;
use crate::hash::HashKvJob;
use crate::interface::HashJob as _;
use crate::kv_hasher::HashKv;
use crate::range::IndexedRead;
use crate::restore::{RUN_RECORDS, RestoredIndex, restore};
use crate::tree_index::TreeIndex as _;
use crate::tree_index::persistent::{PersistentIndex, PersistentSnapshot};

pub struct UnopenedStore<'s> {
    snapshot: &'s dyn Snapshot,
    index: PersistentSnapshot,
    revision: i64,
    compact_revision: i64,
}

impl<'s> UnopenedStore<'s> {
    pub fn read(snapshot: &'s dyn Snapshot) -> Result<UnopenedStore<'s>> {
        let restored = restore(snapshot, PersistentIndex::default(), RUN_RECORDS)?;
        let RestoredIndex { index, revision, compact_revision, .. } = restored;
        Ok(UnopenedStore { snapshot, index: index.snapshot(), revision, compact_revision })
    }

    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Returns the compact revision. As at startup, this may be the revision of a compaction that
    /// was scheduled and has not finished.
    pub fn compact_revision(&self) -> i64 {
        self.compact_revision
    }

    /// Returns, in one call, the same hash as [`Store::hash`](crate::Store::hash) of a store that
    /// was just opened and has no hashes of compactions.
    pub fn hash(&self, revision: i64) -> Result<HashKv> {
        let mut job = HashKvJob::new(self, revision)?;
        loop {
            if let Some(hash) = job.step(usize::MAX)? {
                return Ok(hash);
            }
        }
    }
}

impl fmt::Debug for UnopenedStore<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UnopenedStore { revision, compact_revision, .. } = self;
        f.debug_struct("UnopenedStore")
            .field("revision", revision)
            .field("compact_revision", compact_revision)
            .finish_non_exhaustive()
    }
}

impl IndexedRead for &UnopenedStore<'_> {
    type Index = PersistentSnapshot;

    fn revisions(&self) -> (i64, i64) {
        (self.revision, self.compact_revision)
    }

    fn index(&self) -> &PersistentSnapshot {
        &self.index
    }

    fn tx(&self) -> &dyn ReadTx {
        *self
    }
}

impl ReadTx for UnopenedStore<'_> {
    fn get(&self, bucket: Bucket, key: &[u8]) -> clearlane_backend::Result<Option<Bytes>> {
        Ok(self.snapshot.get(bucket, key)?)
    }

    fn range(
        &self,
        bucket: Bucket,
        range: KeyRange<'_>,
        visit: &mut RangeVisitor<'_>,
    ) -> clearlane_backend::Result<()> {
        let mut visit =
            |key: &[u8], value: &[u8]| -> ControlFlow<()> { visit(key, Value::Page(value)) };
        Ok(self.snapshot.scan(bucket, range, &mut visit)?)
    }
}
