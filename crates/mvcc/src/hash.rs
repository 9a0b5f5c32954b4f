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

use crate::error::Result;
use crate::interface::HashJob;
use crate::kv_hasher::{HashKv, KvHasher};
use crate::range::{Moment, check_not_compacted, revision_to_read};
use crate::revision::Revision;
use crate::tree_index::IndexSnapshot;

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
