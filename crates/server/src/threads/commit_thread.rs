//! The thread that commits the store, runs compactions, drops old states, and forgets the keys of
//! leases that have ended, and simple tokens.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use clearlane_backend::DroppedStates;
use clearlane_engine::Engine;
use clearlane_mvcc::{CompactionJob, Store};

use super::ServerState;
use super::disk_space::{CHECK_INTERVAL, DiskSpaceMonitor};
use super::stalls::ThreadClock;
use crate::applied_position::AppliedPosition;
use crate::error::Result;
use crate::replica::{Applier, CompactionConfig, NewStore, Replica, ReplicaInput};
use crate::task_labels::COMMIT;
use crate::trace::StepKind;

/// Commands that are handled before the next commit and the next step of a compaction, besides the
/// one that has ended the pause.
const COMMANDS_MAX: usize = 64;
/// Before the next commit, too.
const FORGET_STEPS_MAX: usize = 16;
/// etcd's `simpleTokenTTLResolution`.
const TOKEN_CHECK_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) enum CommitCommand {
    /// Much is pending: commit now.
    Commit,
    DropStates(Vec<DroppedStates>),
    Compact(CompactionJob),
    /// A raft snapshot was installed: later jobs are those of this store.
    StoreReplaced(NewStore),
}

#[derive(Debug)]
pub(super) struct CommitThread {
    /// The store that has scheduled `jobs`. It is replaced by a message, in order with them: the
    /// published store may be a newer one, with other compactions.
    store: Arc<dyn Store<AppliedPosition>>,
    engine: Arc<dyn Engine>,
    batch_interval: Duration,
    compaction_config: CompactionConfig,
    start: Instant,
    jobs: VecDeque<CompactionJob>,
    /// When the first job had its first step.
    job_start: Option<Instant>,
    next_step: Duration,
    /// When the commit interval was last checked.
    last_tick: Duration,
    disk_space_monitor: DiskSpaceMonitor,
    /// There are keys of ended leases to be forgotten.
    has_ended_leases: bool,
    /// When simple tokens were last looked over.
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

    /// Runs until the loops have ended, then commits once more.
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
            // At least this often the disk's free space is checked.
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
            // Those that have come during the last commit. One commit is enough for them, and
            // behind one each, states to be dropped would wait with the records that they keep.
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
            // What is wanted stays so while there is no room.
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
        // Without room the pending changes are in the log.
        if self.has_space_for_commit(true, shared) {
            self.store.commit()?;
        }
        Ok(())
    }

    /// Some at a time: a put with a lease, or of a key with one, waits for the same lock.
    fn forget_ended_leases(&mut self, shared: &ServerState) {
        for _ in 0..FORGET_STEPS_MAX {
            self.has_ended_leases = shared.leases.forget_ended();
            if !self.has_ended_leases {
                break;
            }
            thread::yield_now();
        }
    }

    /// A token in use is checked by its user's requests: this is for the memory of the others.
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

    /// Whether there is room for a commit. One that begins now needs a fresh check: other processes
    /// write to the disk, too.
    fn has_space_for_commit(&mut self, begins_one: bool, shared: &ServerState) -> bool {
        if begins_one || !self.jobs.is_empty() {
            self.disk_space_monitor.check(shared)
        } else {
            self.disk_space_monitor.has_space_for_commit(shared)
        }
    }

    /// Returns whether to commit now.
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
                // The rest of an unfinished compaction comes as the next job.
                let compacted = self.store.begin_read().compact_revision();
                shared.compacted.send_modify(|done| *done = compacted.max(*done));
            }
        }
        Ok(false)
    }

    /// One step per wake-up. Returns whether it has committed.
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
            // The waiting request looks at the sizes next.
            self.store.commit()?;
            self.report_commit(shared)?;
            shared.compacted.send_modify(|done| *done = at.max(*done));
        }
        self.next_step = self.start.elapsed() + self.compaction_config.pause;
        Ok(is_done)
    }
}
