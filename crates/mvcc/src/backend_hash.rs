//! A checksum over every bucket of a backend: whether it still holds what it held, byte by byte.
//!
//! [`HashKV`](crate::hash) compares members by their keys. This sum also covers leases, users,
//! alarms and members. It is for one member: buckets may differ where keys agree, for example when
//! one member compacts later.
//!
//! A CRC-32C over all buckets in the order of their names, each name before its records, so that a
//! record that moves to another bucket is noticed. Left out are `consistent_index`, `term` and
//! `storageVersion`: they say how far this member's log was at the last commit, and which layout
//! its files have. Each commit may change them.
//!
//! The job owns a read transaction of any era. In etcd it is one call, after a commit.

use clearlane_backend::ReadTx;
use clearlane_engine::{Bucket, KeyRange};

use crate::error::Result;
use crate::kv_hasher::visit_chunk;

const IGNORED_META_KEYS: [&[u8]; 3] = [b"consistent_index", b"term", b"storageVersion"];

/// What a [pre-commit hook](clearlane_backend::PreCommit) stores is not there before the commit. If
/// the hook stores more than the three keys that are left out, commit first, and the sums before
/// and after a commit are the same again.
#[derive(Debug)]
pub struct BackendHashJob<R> {
    tx: R,
    /// Those left; the first one may have been begun.
    buckets: &'static [Bucket],
    /// Where to go on in the first bucket; `None` if it has not been begun.
    from: Option<Vec<u8>>,
    sum: u32,
}

impl<R: ReadTx> BackendHashJob<R> {
    pub fn new(tx: R) -> BackendHashJob<R> {
        BackendHashJob { tx, buckets: &Bucket::ALL, from: None, sum: 0 }
    }

    /// Goes on by at most `budget` records (at least one). The sum, once it is there. After an
    /// error the step may be tried again.
    pub fn step(&mut self, budget: usize) -> Result<Option<u32>> {
        let mut left = budget.max(1);
        while let Some((&bucket, others)) = self.buckets.split_first() {
            if left == 0 {
                return Ok(None);
            }
            let (next, visited) = self.add_chunk(bucket, left)?;
            left -= visited;
            if next.is_none() {
                self.buckets = others;
            }
            self.from = next;
        }
        Ok(Some(self.sum))
    }

    /// Returns the key to go on from, and the number of records added.
    fn add_chunk(&mut self, bucket: Bucket, budget: usize) -> Result<(Option<Vec<u8>>, usize)> {
        let (begun, from) = (self.from.is_some(), self.from.as_deref().unwrap_or_default());
        let name = bucket.name().as_bytes();
        // Apart from the job's own sum, which an error must leave as it was.
        let mut sum = if begun { self.sum } else { crc32c::crc32c_append(self.sum, name) };
        let mut visited = 0;
        let range = KeyRange::starting_at(from);
        let next = visit_chunk(&self.tx, bucket, range, budget, |key, value| {
            visited += 1;
            if bucket != Bucket::Meta || !IGNORED_META_KEYS.contains(&key) {
                sum = crc32c::crc32c_append(crc32c::crc32c_append(sum, key), value);
            }
            Ok(())
        })?;
        self.sum = sum;
        Ok((next, visited))
    }
}
