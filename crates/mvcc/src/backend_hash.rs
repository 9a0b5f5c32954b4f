//! Does a backend hold what it held? A checksum over every bucket.
//!
//! # The problem
//!
//! [`HashKV`](crate::hash) answers whether two members agree on the keys. It says nothing about
//! leases, users, alarms or the list of members, and it passes over records on purpose. An operator who
//! has restored a snapshot, defragmented, or suspects a disk wants to know about everything: is this still
//! the same store, byte by byte?
//!
//! # The idea
//!
//! A CRC-32C over all buckets in the order of their names. The name of a bucket goes in before its
//! records, so that a record which moves to another bucket is noticed:
//!
//! ```text
//!   "alarm"                                      no records
//!   "auth"   authEnabled 1   authRevision 7      each key, then its value
//!   ...
//!   "key"    2.0 <record>   3.0 <record>
//!   ...
//!   "meta"   scheduledCompactRev 2               but not consistent_index, term, storageVersion
//! ```
//!
//! The three that are left out say how far this member's log was when it last committed and which
//! layout its files have, not what the store holds: after each commit they may be others.
//!
//! # In steps, on one state
//!
//! The job owns a read transaction of any era, so it sees one state, pending records included,
//! however many steps it takes. Which threads wait meanwhile depends on the transaction's era. In
//! era `clearlane` none does. In eras 3.1 and 3.2 an open read holds a lock, and the
//! writer waits until the job is dropped.
//!
//! What a [pre-commit hook](clearlane_backend::PreCommit) stores is not there before the commit.
//! If the hook stores more than the three, commit first, and the sums before and after a commit
//! are the same again.
//!
//! # What etcd does here
//!
//! It commits, and then walks the whole file in one call. As here, the sum is for one member: the
//! buckets of two members that agree on all keys may still differ, for example because the
//! compaction of one of them is not done yet.

use clearlane_backend::ReadTx;
use clearlane_engine::{Bucket, KeyRange};

use crate::error::Result;
use crate::kv_hasher::visit_chunk;

/// Keys of bucket `meta` that say nothing about what the store holds.
const IGNORED_META_KEYS: [&[u8]; 3] = [b"consistent_index", b"term", b"storageVersion"];

/// A checksum over everything, under way.
#[derive(Debug)]
pub struct BackendHashJob<R> {
    tx: R,
    /// What is left; the first one may have been begun.
    buckets: &'static [Bucket],
    /// Where to go on in the first bucket; `None` if it has not been begun.
    from: Option<Vec<u8>>,
    sum: u32,
}

impl<R: ReadTx> BackendHashJob<R> {
    /// Begins a checksum over the state that the transaction shows.
    pub fn new(tx: R) -> BackendHashJob<R> {
        BackendHashJob { tx, buckets: &Bucket::ALL, from: None, sum: 0 }
    }

    /// Goes on by at most so many records (at least one). The sum, once it is there. After an error
    /// the step may be tried again.
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

    /// Adds the next records of a bucket. The key to go on from, and how many there were.
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
