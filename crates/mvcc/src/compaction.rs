//! Compaction at a revision: drops everything that no read at this revision or later needs. It runs
//! in steps that the caller paces. In a member, the commit thread runs the steps. A client that has
//! set `physical` waits until the member that received its request has committed the finished mark.
//!
//! ```text
//!   apply    compact 7: mark "scheduled 7"; later reads below 7 are rejected
//!   job      index ─ index ─ index ─ records ─ records ─ records ─ mark "finished 7"
//! ```
//!
//! The locks of these parts differ by era: see the table in `docs/mvcc.md`.
//!
//! Invariants:
//! * No record is removed before the scheduled mark is durable. So a compaction that was
//!   interrupted by a crash is found at the next start and is run again. The finished mark is
//!   committed with the last removal or later.
//! * A read that was opened before the compaction still finds its records. A compaction of an old
//!   era waits for such reads when it is scheduled. An open hash may fail.
//! * One job runs at a time, until it is done or dropped. The next job also does the work that a
//!   dropped job has left. In a member, a second job waits in the commit thread's queue until the
//!   first one is done.

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

/// Maximum number of stored hashes, which is the same as in etcd.
const STORED_HASHES_MAX: usize = 10;

/// A scheduled compaction. Its steps can run on any thread.
#[derive(Debug)]
pub struct CompactionJob {
    at: i64,
    /// The compact revision before this compaction.
    previous: i64,
    /// If false, another job may have removed some of the records that the hash must include, so
    /// the hash is not stored.
    is_hash_complete: bool,
    /// The identity of the store that scheduled this job.
    store: Arc<()>,
    /// The identity of the current run, which `CompactionTracker::running` refers to. `None` unless
    /// this job is running.
    running: Option<Arc<()>>,
    removed: u64,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// The job has not started. It has the index part if that part is already done.
    Scheduled(Option<IndexCompaction>),
    Index(IndexCompaction),
    Records {
        from: Vec<u8>,
        hasher: KvHasher,
    },
    Finished,
}

impl CompactionJob {
    /// Returns the compact revision: the history below it is dropped.
    pub fn at(&self) -> i64 {
        self.at
    }

    /// Returns the number of records removed so far.
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

/// The state of a store's compactions, protected by the lock `compactions`. The lock is held for
/// single calls only.
#[derive(Debug, Default)]
pub(crate) struct CompactionTracker {
    store: Arc<()>,
    /// A weak reference to `running` of the job that is running. It cannot be upgraded if no job is
    /// running.
    running: Weak<()>,
    newest_started: i64,
    newest_finished: i64,
    /// The hashes that compactions have computed, at most ten, the newest revision first. They are
    /// only in memory: a store that was just opened has none.
    pub(crate) hashes: Vec<HashKv>,
}

impl CompactionTracker {
    pub(crate) fn new(finished: i64) -> CompactionTracker {
        let (newest_started, newest_finished) = (finished, finished);
        CompactionTracker { newest_started, newest_finished, ..CompactionTracker::default() }
    }

    /// Creates a job. `walked` is its index part, if that is already done.
    ///
    /// The job's hash is stored only if the compaction at `previous` has finished by now, as in
    /// etcd. Otherwise, records that the earlier compaction must remove may still exist. If the new
    /// job keeps no record, its hash would include these leftover records, and would differ from
    /// the hashes of other members. The hash is also omitted if the earlier job finishes while the
    /// new job waits in the queue.
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

    /// Creates a job for an interrupted compaction. The job runs all steps again, because the store
    /// does not record after which step the compaction was interrupted.
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

    /// Starts a job. Fails with [`Error::CompactionBusy`] if another job is running.
    fn start(&mut self, job: &mut CompactionJob) -> Result<()> {
        if self.running.strong_count() > 0 {
            return Err(Error::CompactionBusy);
        }
        let running = Arc::new(());
        self.running = Arc::downgrade(&running);
        job.running = Some(running);
        // A compaction at a later revision may have run first and removed records that the hash
        // must include.
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

    /// Continues the index part. Returns true if it is done.
    fn compact_index_step(&self, compaction: &mut IndexCompaction, keys_max: usize) -> bool;

    /// Commits the scheduled mark, unless it is already committed.
    fn commit_scheduled_revision(&self) -> Result<()>;

    /// Removes the records of one chunk that are not needed. Returns the number of removed records,
    /// and the record key to continue from, or `None` at the end.
    fn remove_chunk(
        &self,
        from: &[u8],
        hasher: &mut KvHasher,
        budget: usize,
    ) -> Result<(usize, Option<Vec<u8>>)>;

    fn save_finished_revision(&self, at: i64) -> Result<()>;
}

/// Runs one step. Returns true if the job is done. Fails with [`Error::ForeignJob`] if another
/// store has scheduled the job. The first step fails with [`Error::CompactionBusy`] if another job
/// is running.
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
                // The scheduled mark must be durable before the first removal.
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

/// Returns the removable records of the next chunk, and the record key to continue from, or `None`
/// at the end.
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

/// Fails if a compaction at `at` must not be scheduled, because `at` is already compacted or is
/// above the current revision. The order of the checks is etcd's.
pub(crate) fn check_compaction_revision(at: i64, revision: i64, compacted: i64) -> Result<()> {
    match at {
        at if at <= compacted => Err(Error::Compacted),
        at if at > revision => Err(Error::FutureRevision),
        _ => Ok(()),
    }
}

/// Two keys in bucket `meta`. They store the revision of the last compaction that was scheduled,
/// and of the last compaction that has finished.
pub(crate) const SCHEDULED_COMPACT_KEY: &[u8] = b"scheduledCompactRev";
pub(crate) const FINISHED_COMPACT_KEY: &[u8] = b"finishedCompactRev";

/// Reads the revision that a compaction has stored under `key`. Returns -1 if there was no
/// compaction. Fails with [`Error::Damaged`] if the stored value is shorter than a number.
pub(crate) fn read_compact_revision(reader: &dyn Read, key: &[u8]) -> Result<i64> {
    let value = reader.get(Bucket::Meta, key).map_err(clearlane_backend::Error::from)?;
    let Some(value) = value else { return Ok(-1) };
    let number = value.first_chunk::<8>().map(|bytes| i64::from_be_bytes(*bytes));
    let damaged = || format!("{} is too short", String::from_utf8_lossy(key));
    number.ok_or_else(|| Error::Damaged(damaged()))
}

/// Encodes a compact revision as a record key with sub revision 0, as etcd does.
pub(crate) fn encode_compact_revision(revision: i64) -> Bytes {
    Bytes::copy_from_slice(&Revision::new(revision, 0).put_key())
}
