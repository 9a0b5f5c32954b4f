//! The checksum of `HashKV`, record by record.
//!
//! The checksum is a CRC-32C of the name of bucket `key`, and of the key and the value of each
//! record that it must include (see [`hash`](crate::hash)), in the order of the bucket. In etcd:
//! `kvHasher`.

use std::ops::ControlFlow;

use clearlane_backend::{ReadTx, Value};
use clearlane_engine::{Bucket, KeyRange};

use crate::error::Result;
use crate::revision::{RecordKind, Revision, RevisionKey};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashKv {
    pub hash: u32,
    /// The compact revision. If a compaction has computed the hash, this is the compact revision
    /// before that compaction. Two checksums may be compared only if both have the same compact
    /// revision.
    pub compact_revision: i64,
    /// The revision of the hash. Records above it are not included.
    pub hash_revision: i64,
}

#[derive(Debug)]
pub(crate) struct KvHasher {
    sum: u32,
    at: i64,
    compact_revision: i64,
    /// Sorted revisions. Among the records at or below the compact revision, only records at these
    /// revisions are hashed. If this list is empty, all these records are hashed. In both cases, a
    /// tombstone at the compact revision is not hashed.
    keep: Vec<Revision>,
}

impl KvHasher {
    pub(crate) fn new(at: i64, compact_revision: i64, keep: Vec<Revision>) -> KvHasher {
        KvHasher { sum: crc32c::crc32c(Bucket::Key.name().as_bytes()), at, compact_revision, keep }
    }

    /// Adds a record if the checksum must include it. Returns its revision in any case.
    fn add(&mut self, key: &[u8], value: &[u8]) -> Result<Revision> {
        let (revision, mark) = RevisionKey::decode(key)?;
        if self.is_hashed(revision, mark) {
            self.sum = crc32c::crc32c_append(crc32c::crc32c_append(self.sum, key), value);
        }
        Ok(revision)
    }

    /// Adds up to `budget` records, starting at a record key, and calls `visit` for each. Returns
    /// the record key to continue from, or `None` at the end. After an error nothing was added,
    /// although `visit` may have been called.
    pub(crate) fn add_chunk(
        &mut self,
        tx: &dyn ReadTx,
        from: &[u8],
        budget: usize,
        mut visit: impl FnMut(&KvHasher, &[u8], Revision),
    ) -> Result<Option<Vec<u8>>> {
        let before = self.sum;
        let end = Revision::new(self.at + 1, 0).put_key();
        let (mut left, mut next) = (budget, None);
        let added = try_range(tx, Bucket::Key, KeyRange::new(from, &end), |key, value| {
            if left == 0 {
                next = Some(key.to_vec());
                return Ok(ControlFlow::Break(()));
            }
            left -= 1;
            let revision = self.add(key, &value)?;
            visit(self, key, revision);
            Ok(ControlFlow::Continue(()))
        });
        if added.is_err() {
            self.sum = before;
        }
        added.map(|()| next)
    }

    pub(crate) fn keeps(&self, revision: Revision) -> bool {
        self.keep.binary_search(&revision).is_ok()
    }

    fn is_hashed(&self, revision: Revision, mark: RecordKind) -> bool {
        if revision.main > self.at {
            return false;
        }
        let superfluous = revision.main <= self.compact_revision
            && !self.keep.is_empty()
            && !self.keeps(revision);
        let ended = revision.main == self.compact_revision && mark == RecordKind::Tombstone;
        !superfluous && !ended
    }

    pub(crate) fn result(&self) -> HashKv {
        HashKv { hash: self.sum, compact_revision: self.compact_revision, hash_revision: self.at }
    }
}

/// Calls `visit` for the records of a range until `visit` breaks. Fails if the read or `visit`
/// fails.
pub(crate) fn try_range(
    tx: &dyn ReadTx,
    bucket: Bucket,
    range: KeyRange<'_>,
    mut visit: impl FnMut(&[u8], Value<'_>) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let mut outcome = Ok(ControlFlow::Continue(()));
    tx.range(bucket, range, &mut |key, value| {
        outcome = visit(key, value);
        *outcome.as_ref().unwrap_or(&ControlFlow::Break(()))
    })?;
    outcome.map(drop)
}
