//! `HashKV`: a checksum of the records that a reader may need. It shows whether two members have
//! the same data.
//!
//! The checksum is a CRC-32C. It covers the name of bucket `key`, and the key and value of each
//! record that a reader at revision R may still need, in the order of the bucket. Members that have
//! applied the same entries must agree, even if only one of them has finished a compaction. So
//! records that a compaction may delete are skipped.
//!
//! Three oddities come from etcd. They are kept, so that the checksums agree with etcd's:
//! * The records to keep are computed at R, and not at the compact revision.
//! * If there are no records to keep, no records are skipped, except tombstones at the compact
//!   revision.
//! * A revision below 0 is allowed. Its checksum covers no records.
//!
//! A [`HashJob`] keeps one read transaction open, and walks the index and then the records, a chunk
//! at a time. In the default era this read takes no lock. In the old eras it is the backend's
//! locked read: it holds `readTx` (3.1: `batchTx`) until the hash is known or the job is dropped,
//! and every write waits for it. An index under a lock is walked in one step. See `docs/mvcc.md`.

use crate::error::Result;
use crate::interface::HashJob;
use crate::kv_hasher::{HashKv, KvHasher};
use crate::range::{IndexedRead, check_not_compacted, revision_to_read};
use crate::revision::Revision;
use crate::tree_index::IndexSnapshot;

#[derive(Debug)]
pub(crate) struct HashKvJob<M> {
    /// The current revision when the job started.
    revision: i64,
    at: i64,
    /// The read transaction. `None` once the result is known.
    read_txn: Option<M>,
    phase: Phase,
    result: Option<HashKv>,
}

#[derive(Debug)]
enum Phase {
    Keep { from: Vec<u8>, keep: Vec<Revision> },
    Records { from: Vec<u8>, hasher: KvHasher },
}

impl<M: IndexedRead> HashKvJob<M> {
    /// Creates a hash job at `asked`, or at the current revision if `asked` is 0. If `asked` is
    /// negative, the job is done immediately: its hash covers no records. Fails if `asked` is
    /// compacted or above the current revision.
    pub(crate) fn new(read_txn: M, asked: i64) -> Result<HashKvJob<M>> {
        let (revision, compacted) = read_txn.revisions();
        if asked < 0 {
            let nothing = KvHasher::new(asked, compacted, Vec::new());
            return Ok(HashKvJob::done(nothing.result(), revision));
        }
        let at = revision_to_read(revision, compacted, asked)?;
        let phase = Phase::Keep { from: Vec::new(), keep: Vec::new() };
        Ok(HashKvJob { revision, at, read_txn: Some(read_txn), phase, result: None })
    }

    /// Creates a job with a known result. `revision` is the current revision.
    pub(crate) fn done(hash: HashKv, revision: i64) -> HashKvJob<M> {
        let phase = Phase::Keep { from: Vec::new(), keep: Vec::new() };
        let (at, result) = (hash.hash_revision, Some(hash));
        HashKvJob { revision, at, read_txn: None, phase, result }
    }
}

impl<M: IndexedRead> HashJob for HashKvJob<M> {
    fn revision(&self) -> i64 {
        self.revision
    }

    fn step(&mut self, budget: usize) -> Result<Option<HashKv>> {
        let Some(read_txn) = &self.read_txn else { return Ok(self.result) };
        let (at, budget) = (self.at, budget.max(1));
        match &mut self.phase {
            Phase::Keep { from, keep } => match read_txn.index().keep(at, from, budget, keep) {
                Some(next) => *from = next,
                None => {
                    check_not_compacted(read_txn.index(), at)?;
                    keep.sort_unstable();
                    let (_, compacted) = read_txn.revisions();
                    let hasher = KvHasher::new(at, compacted, std::mem::take(keep));
                    self.phase = Phase::Records { from: Vec::new(), hasher };
                }
            },
            Phase::Records { from, hasher } => {
                match hasher.add_chunk(read_txn.tx(), from, budget, |_, _, _| {})? {
                    Some(next) => *from = next,
                    None => (self.result, self.read_txn) = (Some(hasher.result()), None),
                }
            }
        }
        Ok(self.result)
    }
}
