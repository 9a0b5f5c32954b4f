//! The thread that commits the store, runs compactions, drops old states, and removes the keys of
//! ended leases and expired simple tokens from memory.
//!
//! After a compaction and one more commit, the thread sets `ServerState::compacted` to the
//! compaction's revision. Compaction requests that set `physical` wait for this.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use clearlane_backend::DroppedStates;
use clearlane_engine::Engine;
use clearlane_mvcc::{CompactionJob, Store};
use clearlane_replica::applied_position::AppliedPosition;
use clearlane_replica::{Applier, CompactionConfig, NewStore, Replica, ReplicaInput, Result};

use super::ServerState;
use super::disk_space::{CHECK_INTERVAL, DiskSpaceMonitor};
use super::stalls::ThreadClock;
use crate::observe::task_labels::COMMIT;
use crate::observe::trace::StepKind;

/// Maximum number of commands that are handled before the next commit and the next step of a
/// compaction, in addition to the command that has ended the pause.
const COMMANDS_MAX: usize = 64;
/// Maximum number of steps that forget the keys of ended leases before the next commit.
const FORGET_STEPS_MAX: usize = 16;
/// Time between two checks for expired simple tokens: etcd's `simpleTokenTTLResolution`.
const TOKEN_CHECK_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) enum CommitCommand {
    /// Commit now: much data is pending, the log has grown long, or large proposals wait for a
    /// commit.
    Commit,
    DropStates(Vec<DroppedStates>),
    Compact(CompactionJob),
    /// A raft snapshot was installed. Later commands are for the new store. Before this command,
    /// the thread may still commit the old store, and the raft loop ignores the reports of these
    /// commits. The old store's compactions are dropped.
    StoreReplaced(NewStore),
}

#[derive(Debug)]
pub(super) struct CommitThread {
    /// The store to which `jobs` belong. The commands that replace this store and the commands that
    /// add jobs arrive in order. The published store may already be a newer one, with other
    /// compactions.
    store: Arc<dyn Store<AppliedPosition>>,
    engine: Arc<dyn Engine>,
    batch_interval: Duration,
    compaction_config: CompactionConfig,
    start: Instant,
    jobs: VecDeque<CompactionJob>,
    /// The time of the first step of the first job. `None` before that step.
    job_start: Option<Instant>,
    next_step: Duration,
    /// The time of the last check of the commit interval.
    last_tick: Duration,
    disk_space_monitor: DiskSpaceMonitor,
    /// If true, there are keys of ended leases that must be forgotten.
    has_ended_leases: bool,
    /// The time of the last check for expired simple tokens.
    tokens_checked: Duration,
}

impl CommitThread {
    pub(super) fn new(
        replica: &Replica,
        applier: &Applier,
        batch_interval: Duration,
        compaction_config: CompactionConfig,
    ) -> CommitThread {
        CommitThread {
            store: Arc::clone(&applier.store) as _,
            engine: Arc::clone(&applier.engine),
            batch_interval,
            compaction_config,
            start: Instant::now(),
            jobs: VecDeque::new(),
            job_start: None,
            next_step: Duration::ZERO,
            last_tick: Duration::ZERO,
            disk_space_monitor: DiskSpaceMonitor::new(replica.raft().bytes_after_durable()),
            has_ended_leases: false,
            tokens_checked: Duration::ZERO,
        }
    }

    /// Runs until the raft loop and the apply loop have ended, and then commits once more if the
    /// disk has space.
    pub(super) fn run(
        mut self,
        work: &Receiver<CommitCommand>,
        shared: &ServerState,
    ) -> Result<()> {
        let _as = COMMIT.enter();
        if let Some(clock) = ThreadClock::of_this_thread() {
            let _ = shared.stalls.commit_thread.set(clock);
        }
        let mut thread_trace = shared.trace.trace_thread(*COMMIT);
        let mut commits_now = false;
        loop {
            // The disk's free space is checked at least this often.
            let look = self.batch_interval.min(CHECK_INTERVAL);
            let is_busy = !self.jobs.is_empty() || self.has_ended_leases;
            let pause = if is_busy { look.min(self.compaction_config.pause) } else { look };
            let wanted = work.recv_timeout(pause);
            thread_trace.end_step(StepKind::Idle);
            match wanted {
                Ok(wanted) => commits_now |= self.handle_command(wanted, shared)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            // Handle the commands that arrived during the last commit. One commit is enough for all
            // of them. If each command waited for its own commit, states that are to be dropped
            // would keep their records in memory for that time.
            for wanted in work.try_iter().take(COMMANDS_MAX) {
                commits_now |= self.handle_command(wanted, shared)?;
            }
            self.forget_ended_leases(shared);
            self.expire_tokens(shared);
            let now = self.start.elapsed();
            let is_due = now.saturating_sub(self.last_tick) >= self.batch_interval;
            if !self.has_space_for_commit(commits_now || is_due, shared) {
                continue;
            }
            if self.run_compaction_step(shared)? {
                self.disk_space_monitor.record_commit();
            }
            thread_trace.end_step(StepKind::Running);
            let commit = Instant::now();
            // While the disk is full, this line is not reached, so `commits_now` stays true.
            let has_committed = if std::mem::take(&mut commits_now) {
                self.store.commit()?;
                true
            } else if is_due {
                self.last_tick = now;
                self.store.commit_if_due(now)?
            } else {
                false
            };
            if has_committed {
                self.disk_space_monitor.record_commit();
                thread_trace.end_step(StepKind::Disk);
                shared.metrics.commits.record(commit.elapsed());
                self.report_commit(shared)?;
            }
        }
        // If the disk is full, skip the last commit: the pending changes are in the log.
        if self.has_space_for_commit(true, shared) {
            self.store.commit()?;
        }
        Ok(())
    }

    /// Forgets the keys of ended leases in small steps. Each step holds the lessor's lock, which
    /// other threads need: for a renewal, for a put with a lease, and for a put of a key that has a
    /// lease.
    fn forget_ended_leases(&mut self, shared: &ServerState) {
        for _ in 0..FORGET_STEPS_MAX {
            self.has_ended_leases = shared.leases.forget_ended();
            if !self.has_ended_leases {
                break;
            }
            thread::yield_now();
        }
    }

    /// Removes expired simple tokens, to free memory. Each request with a token checks the expiry
    /// of that token itself.
    fn expire_tokens(&mut self, shared: &ServerState) {
        let now = shared.start.elapsed();
        if now.saturating_sub(self.tokens_checked) >= TOKEN_CHECK_INTERVAL {
            self.tokens_checked = now;
            shared.auth.expire_tokens(now);
        }
    }

    fn report_commit(&self, shared: &ServerState) -> Result<()> {
        shared.sizes.update(self.store.sizes()?);
        let durable = AppliedPosition::read(&*self.engine.snapshot()?)?;
        shared.raft_queue.push([ReplicaInput::StoreCommitted(durable)]);
        Ok(())
    }

    /// Returns whether the disk has space for a commit. The space is checked again if a commit
    /// starts now, or if a compaction is running, because the last step of a compaction commits.
    /// Otherwise a recent result is used.
    fn has_space_for_commit(&mut self, begins_one: bool, shared: &ServerState) -> bool {
        if begins_one || !self.jobs.is_empty() {
            self.disk_space_monitor.check(shared)
        } else {
            self.disk_space_monitor.has_space_for_commit(shared)
        }
    }

    /// Handles a command. Returns whether to commit now.
    fn handle_command(&mut self, wanted: CommitCommand, shared: &ServerState) -> Result<bool> {
        match wanted {
            CommitCommand::Commit => return Ok(true),
            CommitCommand::DropStates(dropped) => drop(dropped),
            CommitCommand::Compact(job) => self.jobs.push_back(job),
            CommitCommand::StoreReplaced(NewStore { store, engine }) => {
                self.jobs.clear();
                self.job_start = None;
                (self.store, self.engine) = (store, engine);
                shared.sizes.reset(self.store.sizes()?);
                // The rest of an unfinished compaction arrives as the next job.
                let compacted = self.store.begin_read().compact_revision();
                shared.compacted.send_modify(|done| *done = compacted.max(*done));
            }
        }
        Ok(false)
    }

    /// Runs at most one step of a compaction per wake-up, after the configured pause. Returns
    /// whether the store was committed, which the last step of a compaction does.
    fn run_compaction_step(&mut self, shared: &ServerState) -> Result<bool> {
        if self.start.elapsed() < self.next_step {
            return Ok(false);
        }
        let batch_max = self.compaction_config.batch;
        let batch = self.disk_space_monitor.compaction_batch_max(shared, batch_max);
        let Some(job) = self.jobs.front_mut().filter(|_| batch > 0) else { return Ok(false) };
        let at = job.at();
        let step = Instant::now();
        let begun = *self.job_start.get_or_insert(step);
        let is_done = self.store.compact_step(job, batch)?;
        shared.metrics.compaction_steps.record(step.elapsed());
        if is_done {
            let (took, removed) = (begun.elapsed(), job.removed());
            self.jobs.pop_front();
            self.job_start = None;
            shared.metrics.record_compaction(took, removed);
            tracing::info!(
                "compact-revision" = at,
                ?took,
                "number-of-keys-compacted" = removed,
                "finished scheduled compaction"
            );
            // Commit now, because the request that waits for the compaction may read the sizes
            // next.
            self.store.commit()?;
            self.report_commit(shared)?;
            shared.compacted.send_modify(|done| *done = at.max(*done));
        }
        self.next_step = self.start.elapsed() + self.compaction_config.pause;
        Ok(is_done)
    }
}
