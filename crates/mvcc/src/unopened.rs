//! A store that is read where it is, without a backend: no program has it open to write.
//!
//! The index is restored as at a start. In etcd, `etcdutl hashkv` opens a store for that.

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

    /// As at a start: that of a compaction which was scheduled and has not ended counts.
    pub fn compact_revision(&self) -> i64 {
        self.compact_revision
    }

    /// As [`Store::hash`](crate::Store::hash), in one go.
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
