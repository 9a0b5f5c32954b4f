//! Do two members hold the same? A checksum over the records that matter.
//!
//! # The idea
//!
//! `HashKV` at a revision is a CRC-32C over the records that a reader at that revision could still
//! need, key and value, in the order in which they lie in bucket `key`. Members that have applied
//! the same entries must agree on it. What makes it delicate is compaction: a member that has
//! deleted old records and one that is about to must get the same sum, so records that a
//! compaction may delete are passed over even while they are still there.
//!
//! ```text
//!   asked at R, compacted at C
//!
//!   revision     1 ......... C ........ R ........ now
//!   counted      only what     all       nothing
//!                Keep(R)
//!                names; no
//!                tombstone at C
//! ```
//!
//! Three oddities are etcd's, and kept so that the sums agree: Keep is computed at R and not at C;
//! if it names nothing at all, nothing is passed over; and a revision below 0 may be asked for,
//! which is the sum of no records.
//!
//! # In steps
//!
//! A [`HashJob`] holds a read and walks index and records a stretch at a time; its caller
//! decides when to pause. In the default era the read is a view: no lock is held, so it holds up
//! no write however long it takes. In the older ones it is the plain read transaction, whose lock
//! `readTx` is held from the first step to the last, and every write waits at its end.

use std::ops::ControlFlow;

use clearlane_backend::ReadTx;
use clearlane_engine::{Bucket, KeyRange};

use crate::error::{Error, Result};
use crate::revision::{RecordKind, Revision, RevisionKey};
use crate::store::interface::HashJob;
use crate::store::range::{Moment, check_not_compacted, revision_to_read};
use crate::tree_index::IndexSnapshot;

/// How many hashes of compactions are remembered, as in etcd.
const STORED_HASHES_MAX: usize = 10;

/// A checksum, and of what it is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashKv {
    /// The checksum.
    pub hash: u32,
    /// Sums are only to be compared if this is equal.
    pub compact_revision: i64,
    /// The revision up to which records count.
    pub hash_revision: i64,
}

/// The hashes that compactions left behind, newest revisions only.
#[derive(Debug, Default)]
pub(crate) struct HashStorage {
    hashes: Vec<HashKv>,
}

impl HashStorage {
    pub(crate) fn get(&self, revision: i64) -> Option<HashKv> {
        self.hashes.iter().find(|stored| stored.hash_revision == revision).copied()
    }

    pub(crate) fn all(&self) -> &[HashKv] {
        &self.hashes
    }

    pub(crate) fn store(&mut self, hash: HashKv) {
        self.hashes.push(hash);
        self.hashes.sort_by_key(|stored| std::cmp::Reverse(stored.hash_revision));
        self.hashes.truncate(STORED_HASHES_MAX);
    }
}

/// The sum, record by record.
#[derive(Debug)]
pub(crate) struct KvHasher {
    sum: u32,
    at: i64,
    compact_revision: i64,
    /// Sorted.
    keep: Vec<Revision>,
}

impl KvHasher {
    pub(crate) fn new(at: i64, compact_revision: i64, keep: Vec<Revision>) -> KvHasher {
        KvHasher { sum: crc32c::crc32c(Bucket::Key.name().as_bytes()), at, compact_revision, keep }
    }

    /// Adds a record if it counts, and returns its revision.
    fn add(&mut self, key: &[u8], value: &[u8]) -> Result<Revision> {
        let (revision, mark) =
            RevisionKey::decode(key).map_err(|error| Error::Damaged(error.to_string()))?;
        if self.is_hashed(revision, mark) {
            self.sum = crc32c::crc32c_append(crc32c::crc32c_append(self.sum, key), value);
        }
        Ok(revision)
    }

    /// Adds up to `budget` records from a record key on, and calls `visit` for each. Returns the
    /// record key to go on from, `None` if that was all. After an error nothing was added.
    pub(crate) fn add_chunk(
        &mut self,
        tx: &dyn ReadTx,
        from: &[u8],
        budget: usize,
        mut visit: impl FnMut(&KvHasher, &[u8], Revision),
    ) -> Result<Option<Vec<u8>>> {
        let before = self.sum;
        let end = Revision::new(self.at + 1, 0).put_key();
        let range = KeyRange::new(from, &end);
        let next = visit_chunk(tx, Bucket::Key, range, budget, |key, value| {
            let revision = self.add(key, value)?;
            visit(self, key, revision);
            Ok(())
        });
        if next.is_err() {
            self.sum = before;
        }
        next
    }

    /// Whether the keep set names the revision.
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
        let (hash, hash_revision) = (self.sum, self.at);
        HashKv { hash, compact_revision: self.compact_revision, hash_revision }
    }
}

/// A hash under way.
#[derive(Debug)]
pub(crate) struct HashKvJob<M> {
    /// The current revision when it began.
    revision: i64,
    progress: HashProgress<M>,
}

/// What it reads is let go of as soon as the result is there.
#[derive(Debug)]
enum HashProgress<M> {
    Running { read_txn: M, at: i64, phase: Phase },
    Done(HashKv),
}

#[derive(Debug)]
enum Phase {
    /// Asking the index what to keep, from a key on.
    Keep { from: Vec<u8>, keep: Vec<Revision> },
    /// Adding records, from a record key on.
    Records { from: Vec<u8>, fold: KvHasher },
}

impl<M: Moment> HashKvJob<M> {
    /// A hash at `asked`, or at the current revision if it is 0.
    pub(crate) fn new(moment: M, asked: i64) -> Result<HashKvJob<M>> {
        let revision = moment.revision();
        if asked < 0 {
            let nothing = KvHasher::new(asked, moment.compact_revision(), Vec::new());
            return Ok(HashKvJob::done(nothing.result(), revision));
        }
        let at = revision_to_read(revision, moment.compact_revision(), asked)?;
        let phase = Phase::Keep { from: Vec::new(), keep: Vec::new() };
        Ok(HashKvJob { revision, progress: HashProgress::Running { read_txn: moment, at, phase } })
    }

    /// One that is known already; the current revision is this one.
    pub(crate) fn done(hash: HashKv, revision: i64) -> HashKvJob<M> {
        HashKvJob { revision, progress: HashProgress::Done(hash) }
    }
}

impl<M: Moment> HashJob for HashKvJob<M> {
    fn revision(&self) -> i64 {
        self.revision
    }

    fn step(&mut self, budget: usize) -> Result<Option<HashKv>> {
        let (moment, at, phase) = match &mut self.progress {
            HashProgress::Running { read_txn: moment, at, phase } => (moment, *at, phase),
            HashProgress::Done(hash) => return Ok(Some(*hash)),
        };
        if let Some(hash) = phase.step(moment, at, budget.max(1))? {
            self.progress = HashProgress::Done(hash);
            return Ok(Some(hash));
        }
        Ok(None)
    }
}

impl Phase {
    fn step(&mut self, moment: &impl Moment, at: i64, budget: usize) -> Result<Option<HashKv>> {
        match self {
            Phase::Keep { from, keep } => {
                if let Some(next) = moment.index().keep(at, from, budget, keep) {
                    *from = next;
                    return Ok(None);
                }
                check_not_compacted(moment.index(), at)?;
                keep.sort_unstable();
                let fold = KvHasher::new(at, moment.compact_revision(), std::mem::take(keep));
                *self = Phase::Records { from: Vec::new(), fold };
            }
            Phase::Records { from, fold } => {
                match fold.add_chunk(moment.tx(), from, budget, |_, _, _| {})? {
                    Some(next) => *from = next,
                    None => return Ok(Some(fold.result())),
                }
            }
        }
        Ok(None)
    }
}

/// Visits up to `budget` records of a range. Returns the key of the one behind, `None` if that was
/// all.
pub(crate) fn visit_chunk(
    tx: &dyn ReadTx,
    bucket: Bucket,
    range: KeyRange<'_>,
    budget: usize,
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<()>,
) -> Result<Option<Vec<u8>>> {
    let (mut left, mut next, mut outcome) = (budget, None, Ok(()));
    tx.range(bucket, range, &mut |key, value| {
        if left == 0 {
            next = Some(key.to_vec());
            return ControlFlow::Break(());
        }
        left -= 1;
        outcome = visit(key, &value);
        if outcome.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    outcome.map(|()| next)
}
