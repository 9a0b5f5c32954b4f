//! Compaction: dropping the past, beside everything else.
//!
//! A compaction at a revision leaves, of each key, what a read at that revision needs, and drops
//! what is older. It is scheduled by one entry and done by a job, in steps that somebody else
//! paces:
//!
//! ```text
//!   apply    compact 7: mark "scheduled 7", nobody reads below 7 from here on
//!   job      index ─ index ─ index ─ commit the mark ─ records ─ records ─ mark "finished 7"
//!            └ under `store`, some keys at a time ┘     └ no lock, some records at a time ┘
//! ```
//!
//! # Invariants
//!
//! * No record is removed before the scheduled mark is durable: after a crash the job starts anew
//!   and finds out again what to keep.
//! * The finished mark is committed with the last removal or later.
//! * A view that was opened before keeps finding all its records: removals reach the engine, and
//!   the view has its own snapshot of that.
//!
//! # What etcd does here
//!
//! etcd's index compaction locks the tree for each key, its record compaction holds the batch
//! mutex for each stretch of 1,000 records and commits behind it, which stops all writes for a
//! sync. Here the records are found in a view, and removed by a commit that stops nobody.

use std::fmt::Debug;

use bytes::Bytes;
use clearlane_backend::Backend;
use clearlane_engine::Bucket;

use crate::error::{Error, Result};
use crate::hash::{Fold, HashJob, HashKv, add_stretch};
use crate::store::{Applied, Ended, FINISHED, SCHEDULED, State, Store, mark};
use crate::tree_index::{Compaction, TreeIndex};

/// A compaction that is scheduled and not done yet. Its steps may run on any thread.
#[derive(Debug)]
pub struct CompactionJob<S> {
    at: i64,
    /// The compact revision before this one.
    previous: i64,
    /// Whether the one before had come to its end: then the hash is worth remembering.
    previous_finished: bool,
    phase: Phase<S>,
}

#[derive(Debug)]
enum Phase<S> {
    Waiting,
    Index(Compaction<S>),
    Records { from: Vec<u8>, fold: Fold },
    Finished,
}

impl<S> CompactionJob<S> {
    pub(crate) fn new(at: i64, previous: i64, previous_finished: bool) -> CompactionJob<S> {
        CompactionJob { at, previous, previous_finished, phase: Phase::Waiting }
    }

    /// The revision up to which the past is dropped.
    pub fn at(&self) -> i64 {
        self.at
    }

    /// From the index to the records: what is to be kept is known now.
    fn begin_records(&mut self) {
        if let Phase::Index(compaction) = std::mem::replace(&mut self.phase, Phase::Waiting) {
            let fold = Fold::new(self.at, self.previous, compaction.into_kept());
            self.phase = Phase::Records { from: Vec::new(), fold };
        }
    }
}

/// The job of a [`Store`].
pub type StoreCompaction =
    CompactionJob<<crate::tree_index::persistent::PersistentIndex as TreeIndex>::Snapshot>;

impl<A: Applied> Store<A> {
    /// Schedules a compaction. From here on nothing below `at` is answered; the job that does the
    /// work comes back, and its steps may be run at once or later, one job after the other.
    pub fn compact(&self, at: i64, applied: A) -> Result<(StoreCompaction, Ended<A>)> {
        let mut txn = self.write_if(|state| match at {
            at if at <= state.compact_revision => Err(Error::Compacted),
            at if at > state.revision => Err(Error::FutureRevision),
            _ => Ok(()),
        })?;
        let (writer, tx, base) = txn.parts();
        tx.put(Bucket::Meta, SCHEDULED, mark(at))?;
        let job = CompactionJob::new(at, base.compact_revision, writer.open_compactions == 0);
        writer.open_compactions += 1;
        let state = State { compact_revision: at, applied, ..base.clone() };
        Ok((job, txn.end_as(state)?))
    }

    /// Goes on with a compaction, by about so many keys or records. Says whether it is done.
    pub fn compact_step(&self, job: &mut StoreCompaction, budget: usize) -> Result<bool> {
        let budget = budget.max(1);
        match &mut job.phase {
            Phase::Waiting => job.phase = Phase::Index(self.begin_compaction(job.at)?),
            Phase::Index(compaction) => {
                let done = self.writer.lock().index.compact(compaction, budget);
                if done {
                    self.commit()?; // The scheduled mark is durable before the first removal.
                    job.begin_records();
                }
            }
            Phase::Records { from, fold } => match self.remove_stretch(from, fold, budget)? {
                Some(next) => *from = next,
                None => {
                    let hash = job.previous_finished.then(|| fold.result());
                    self.finish_compaction(job.at, hash)?;
                    job.phase = Phase::Finished;
                }
            },
            Phase::Finished => {}
        }
        Ok(matches!(job.phase, Phase::Finished))
    }

    /// A hash of the store at a revision (the current one if it is 0), as a job.
    pub fn hash(&self, revision: i64) -> Result<HashJob<A>> {
        HashJob::new(self.read(), revision, &self.hashes.lock())
    }

    fn begin_compaction(&self, at: i64) -> Result<Compaction<IndexSnapshot>> {
        let mut writer = self.writer.lock();
        if writer.compacting {
            return Err(Error::CompactionBusy);
        }
        writer.compacting = true;
        Ok(writer.index.compaction(at))
    }

    /// Removes what may go of the next stretch of records; returns the record key behind it.
    fn remove_stretch(
        &self,
        from: &[u8],
        fold: &mut Fold,
        budget: usize,
    ) -> Result<Option<Vec<u8>>> {
        let view = self.read();
        let mut removals = Vec::new();
        let next = add_stretch(view.tx(), from, fold.at(), budget, |key, value| {
            let revision = fold.add(key, value)?;
            if !fold.keeps(revision) {
                removals.push(Bytes::copy_from_slice(key));
            }
            Ok(())
        })?;
        self.backend.remove(&removals)?;
        self.commit()?;
        Ok(next)
    }

    fn finish_compaction(&self, at: i64, hash: Option<HashKv>) -> Result<()> {
        let mut txn = self.write()?;
        let (writer, tx, base) = txn.parts();
        tx.put(Bucket::Meta, FINISHED, mark(at))?;
        writer.compacting = false;
        writer.open_compactions -= 1;
        let state = base.clone();
        drop(txn.end_as(state)?);
        if let Some(hash) = hash {
            self.hashes.lock().store(hash);
        }
        self.commit()
    }
}

type IndexSnapshot = <crate::tree_index::persistent::PersistentIndex as TreeIndex>::Snapshot;
