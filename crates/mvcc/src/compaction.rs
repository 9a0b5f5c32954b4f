//! Compaction: dropping what no read at a revision or later needs, in steps that the caller paces.
//!
//! ```text
//!   apply    compact 7: mark "scheduled 7"; reads below 7 are refused from here on
//!   job      index ─ index ─ index ─ records ─ records ─ records ─ mark "finished 7"
//! ```
//!
//! The locks that the parts take differ by era: see the table in `docs/mvcc.md`.
//!
//! Invariants:
//! * No record is removed before the scheduled mark is durable: after a crash the job starts anew.
//!   The finished mark is committed with the last removal or later.
//! * A read that was opened before finds its records (but not through the index under a lock).
//! * One job is at work at a time, until it is done or dropped; the next one does what is left.

use std::cmp::Reverse;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use clearlane_backend::ReadTx;
use clearlane_contention::Mutex;
use clearlane_engine::{Bucket, Read};

use crate::error::{Error, Result};
use crate::kv_hasher::{HashKv, KvHasher};
use crate::revision::Revision;
use crate::tree_index::IndexCompaction;

/// etcd's number.
const STORED_HASHES_MAX: usize = 10;

/// Its steps may run on any thread.
#[derive(Debug)]
pub struct CompactionJob {
    at: i64,
    /// The compact revision before this one.
    previous: i64,
    /// Whether the records that the hash counts were all there: else it is not remembered.
    is_hash_complete: bool,
    /// Identity of the store that scheduled it.
    store: Arc<()>,
    /// Held while this job is at work.
    running: Option<Arc<()>>,
    removed: u64,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// `Some` if the index part is done already.
    Scheduled(Option<IndexCompaction>),
    Index(IndexCompaction),
    Records {
        from: Vec<u8>,
        hasher: KvHasher,
    },
    Finished,
}

impl CompactionJob {
    /// The revision up to which the past is dropped.
    pub fn at(&self) -> i64 {
        self.at
    }

    /// The number of records removed so far.
    pub fn removed(&self) -> u64 {
        self.removed
    }

    fn begin_records(&mut self) {
        if let Phase::Index(compaction) = std::mem::replace(&mut self.phase, Phase::Finished) {
            let hasher = KvHasher::new(self.at, self.previous, compaction.into_kept());
            self.phase = Phase::Records { from: Vec::new(), hasher };
        }
    }
}

/// What a store knows of its compactions, under the lock `compactions`, which is held for single
/// calls.
#[derive(Debug, Default)]
pub(crate) struct CompactionTracker {
    store: Arc<()>,
    /// The `running` of the job at work.
    running: Weak<()>,
    newest_started: i64,
    newest_finished: i64,
    /// Those that compactions have left behind, the newest revisions first.
    pub(crate) hashes: Vec<HashKv>,
}

impl CompactionTracker {
    pub(crate) fn new(finished: i64) -> CompactionTracker {
        let (newest_started, newest_finished) = (finished, finished);
        CompactionTracker { newest_started, newest_finished, ..CompactionTracker::default() }
    }

    /// `walked` is its index part, if that is done already.
    pub(crate) fn schedule(
        &self,
        at: i64,
        previous: i64,
        walked: Option<IndexCompaction>,
    ) -> CompactionJob {
        CompactionJob {
            is_hash_complete: self.newest_finished == previous,
            phase: Phase::Scheduled(walked),
            ..self.resume(at, previous)
        }
    }

    /// A job that was interrupted, at an unknown step.
    pub(crate) fn resume(&self, at: i64, previous: i64) -> CompactionJob {
        CompactionJob {
            at,
            previous,
            is_hash_complete: false,
            store: Arc::clone(&self.store),
            running: None,
            removed: 0,
            phase: Phase::Scheduled(None),
        }
    }

    pub(crate) fn hash_of(&self, revision: i64) -> Option<HashKv> {
        self.hashes.iter().find(|hash| hash.hash_revision == revision).copied()
    }

    /// [`Error::CompactionBusy`] if another job is at work.
    fn start(&mut self, job: &mut CompactionJob) -> Result<()> {
        if self.running.strong_count() > 0 {
            return Err(Error::CompactionBusy);
        }
        let running = Arc::new(());
        self.running = Arc::downgrade(&running);
        job.running = Some(running);
        // A later one that was at work before may have removed what the hash counts.
        job.is_hash_complete &= job.at > self.newest_started;
        self.newest_started = self.newest_started.max(job.at);
        Ok(())
    }

    fn finish(&mut self, job: &mut CompactionJob, hash: HashKv) {
        self.newest_finished = self.newest_finished.max(job.at);
        if job.is_hash_complete {
            self.hashes.push(hash);
            self.hashes.sort_by_key(|hash| Reverse(hash.hash_revision));
            self.hashes.truncate(STORED_HASHES_MAX);
        }
        job.running = None;
    }
}

pub(crate) trait CompactionStore {
    fn compactions(&self) -> &Mutex<CompactionTracker>;

    fn begin_index_compaction(&self, at: i64) -> IndexCompaction;

    /// Returns whether the index part is done.
    fn compact_index_step(&self, compaction: &mut IndexCompaction, keys_max: usize) -> bool;

    /// Commits the scheduled mark, unless that is done.
    fn commit_scheduled_revision(&self) -> Result<()>;

    /// Returns the number of records removed, and the record key after the chunk.
    fn remove_chunk(
        &self,
        from: &[u8],
        hasher: &mut KvHasher,
        budget: usize,
    ) -> Result<(usize, Option<Vec<u8>>)>;

    fn save_finished_revision(&self, at: i64) -> Result<()>;
}

/// Returns whether the job is done.
pub(crate) fn run_step(
    store: &impl CompactionStore,
    job: &mut CompactionJob,
    budget: usize,
) -> Result<bool> {
    let budget = budget.max(1);
    if !Arc::ptr_eq(&job.store, &store.compactions().lock().store) {
        return Err(Error::ForeignJob);
    }
    match &mut job.phase {
        Phase::Scheduled(_) => {
            store.compactions().lock().start(job)?;
            if let Phase::Scheduled(walked) = &mut job.phase {
                let walked = walked.take();
                let index = walked.unwrap_or_else(|| store.begin_index_compaction(job.at));
                job.phase = Phase::Index(index);
            }
        }
        Phase::Index(compaction) => {
            if store.compact_index_step(compaction, budget) {
                // The scheduled mark is durable before the first removal.
                store.commit_scheduled_revision()?;
                job.begin_records();
            }
        }
        Phase::Records { from, hasher } => {
            let (removed, next) = store.remove_chunk(from, hasher, budget)?;
            job.removed += removed as u64;
            match next {
                Some(next) => *from = next,
                None => {
                    let hash = hasher.result();
                    let finished = store.compactions().lock().newest_finished.max(job.at);
                    store.save_finished_revision(finished)?;
                    store.compactions().lock().finish(job, hash);
                    job.phase = Phase::Finished;
                }
            }
        }
        Phase::Finished => {}
    }
    Ok(matches!(job.phase, Phase::Finished))
}

/// The removable records of the next chunk, and the record key after it.
pub(crate) fn removable_records(
    tx: &dyn ReadTx,
    from: &[u8],
    hasher: &mut KvHasher,
    budget: usize,
) -> Result<(Vec<Bytes>, Option<Vec<u8>>)> {
    let mut removals = Vec::new();
    let next = hasher.add_chunk(tx, from, budget, |hasher, key, revision| {
        if !hasher.keeps(revision) {
            removals.push(Bytes::copy_from_slice(key));
        }
    })?;
    Ok((removals, next))
}

/// Whether a compaction at `at` may be scheduled, in etcd's order of asking.
pub(crate) fn check_compaction_revision(at: i64, revision: i64, compacted: i64) -> Result<()> {
    match at {
        at if at <= compacted => Err(Error::Compacted),
        at if at > revision => Err(Error::FutureRevision),
        _ => Ok(()),
    }
}

/// Keys in bucket `meta`: the revision of the last compaction scheduled, and of the last done.
pub(crate) const SCHEDULED_COMPACT_KEY: &[u8] = b"scheduledCompactRev";
pub(crate) const FINISHED_COMPACT_KEY: &[u8] = b"finishedCompactRev";

/// -1 if there was none.
pub(crate) fn read_compact_revision(reader: &dyn Read, key: &[u8]) -> Result<i64> {
    let value = reader.get(Bucket::Meta, key).map_err(clearlane_backend::Error::from)?;
    let Some(value) = value else { return Ok(-1) };
    let number = value.first_chunk::<8>().map(|bytes| i64::from_be_bytes(*bytes));
    let damaged = || format!("{} is too short", String::from_utf8_lossy(key));
    number.ok_or_else(|| Error::Damaged(damaged()))
}

/// A revision key, of which only the main part counts.
pub(crate) fn encode_compact_revision(revision: i64) -> Bytes {
    Bytes::copy_from_slice(&Revision::new(revision, 0).put_key())
}
