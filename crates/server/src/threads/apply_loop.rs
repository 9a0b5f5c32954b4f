//! The apply loop: applies the entries and raft snapshots from the raft loop, publishes the
//! results, and completes the waiting requests.
//!
//! The apply loop is the only thread that changes keys. It may wait for the store: for the disk
//! when a page is not in memory, for the committer when too much data is pending, and in the old
//! eras for locks and for its own commits. No such wait delays a tick or a message of raft. In
//! etcd: the goroutine of `EtcdServer.run` that calls `applyAll`.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use clearlane_backend::DroppedStates;
use clearlane_mvcc::{Changes, CompactionJob};
use clearlane_replica::{
    Applier, ApplyReadyHandler, ApplyReport, Completions, NewStore, Result, SlowEntry, ToApply,
};

use super::ServerState;
use super::commit_thread::CommitCommand;
use super::completions::CompletionBatches;
use super::stalls::ThreadClock;
use crate::observe::request_trace::RequestTrace;
use crate::observe::task_labels::{APPLIER, RAFT};
use crate::observe::trace::StepKind;

/// When at least this number of old states are waiting, they are sent to the thread that drops
/// them. A message may contain more, because one step of the applier may add several states.
const DROPPED_STATES_MAX: usize = 256;
/// Longest time that old states wait before they are sent. Each old state keeps records in memory
/// that no reader needs.
const DROPPED_STATES_WAIT: Duration = Duration::from_millis(100);

/// The state of the loop. A closed channel is ignored, because the thread at its other end has
/// failed and reported that.
struct ApplyLoop<'s> {
    applier: Applier,
    state: &'s ServerState,
    to_commit: Sender<CommitCommand>,
    completion_batches: CompletionBatches,
    dropped_states: Vec<DroppedStates>,
    dropped_at: Duration,
    slow_limit: Duration,
}

/// Runs until the raft loop has ended and all its entries are applied.
pub(super) fn run(
    applier: Applier,
    work: &Receiver<ToApply>,
    to_commit: Sender<CommitCommand>,
    shared: &ServerState,
) -> Result<()> {
    let _watching = WatchCloser(shared);
    let _as = APPLIER.enter();
    if let Some(clock) = ThreadClock::of_this_thread() {
        let _ = shared.stalls.apply_thread.set(clock);
    }
    let mut thread_trace = shared.trace.trace_thread(*APPLIER);
    let mut this = ApplyLoop {
        slow_limit: applier.apply_timer.map_or(Duration::ZERO, |timer| timer.limit),
        applier,
        state: shared,
        to_commit,
        completion_batches: CompletionBatches::default(),
        dropped_states: Vec::new(),
        dropped_at: Duration::ZERO,
    };
    // Dispatch the outputs that the applier already has at the start.
    this.applier.step()?.dispatch(&mut this);
    loop {
        if !this.applier.has_work() {
            let next = if this.dropped_states.is_empty() {
                work.recv().map_err(RecvTimeoutError::from)
            } else {
                work.recv_timeout(this.drop_wait())
            };
            thread_trace.end_step(if shared.wait.is_empty() {
                StepKind::Idle
            } else {
                StepKind::WaitsFor(*RAFT)
            });
            match next {
                Ok(next) => this.applier.enqueue(next),
                Err(RecvTimeoutError::Timeout) => this.send_dropped_states(),
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
        work.try_iter().for_each(|next| this.applier.enqueue(next));
        this.step()?;
        thread_trace.end_step(StepKind::Running);
    }
}

/// When the apply loop ends, even by a panic, ends the threads that notify watchers. Otherwise
/// these threads would never end.
struct WatchCloser<'s>(&'s ServerState);

impl Drop for WatchCloser<'_> {
    fn drop(&mut self) {
        self.0.watch_server.close();
    }
}

impl ApplyLoop<'_> {
    fn step(&mut self) -> Result<()> {
        let (before, begin) = (self.applier.applied_position.index, self.state.start.elapsed());
        let outputs = self.applier.step()?;
        let entries = self.applier.applied_position.index.saturating_sub(before);
        let is_replaced = outputs.new_store.is_some();
        if entries > 0 && !is_replaced {
            let took = self.state.start.elapsed().saturating_sub(begin);
            self.state.metrics.record_applied(entries, took);
        }
        outputs.dispatch(self);
        if is_replaced {
            self.state.metrics.count_keys(&*self.applier.store)?;
        }
        if self.drop_wait().is_zero() {
            self.send_dropped_states();
        }
        Ok(())
    }

    /// Returns the time until [`DROPPED_STATES_WAIT`] has passed since the last message.
    fn drop_wait(&self) -> Duration {
        (self.dropped_at + DROPPED_STATES_WAIT).saturating_sub(self.state.start.elapsed())
    }

    fn send_dropped_states(&mut self) {
        self.dropped_at = self.state.start.elapsed();
        if !self.dropped_states.is_empty() {
            let dropped = std::mem::take(&mut self.dropped_states);
            let _ = self.to_commit.send(CommitCommand::DropStates(dropped));
        }
    }
}

impl ApplyReadyHandler for ApplyLoop<'_> {
    fn replace_store(&mut self, new: NewStore) {
        self.state.store.store(Arc::new(Arc::clone(&new.store) as _));
        self.state.watch_server.replace_store(&new.store);
        let _ = self.to_commit.send(CommitCommand::StoreReplaced(new));
    }

    fn publish_applied(&mut self, applied: ApplyReport) {
        self.state.publish_applied(&applied);
        self.state.raft_queue.push_applied(applied);
    }

    fn granted(&mut self, leases: Vec<i64>) {
        let now = self.state.start.elapsed();
        leases.into_iter().for_each(|lease| self.state.leases.start_expiry(lease, now));
    }

    fn report_slow(&mut self, slow: Vec<SlowEntry>) {
        for SlowEntry { took, lock_waits, request, outcome } in slow {
            let stages = RequestTrace::of_apply(took, lock_waits).to_string();
            self.state.metrics.slow_applies.fetch_add(1, Relaxed);
            let response = match outcome {
                Some(Ok(size)) => format!("size:{size}"),
                _ => String::new(),
            };
            let error = outcome.and_then(std::result::Result::err);
            tracing::warn!(
                ?took,
                "expected-duration" = ?self.slow_limit,
                prefix = "",
                %request,
                response,
                error,
                stages,
                "apply request took too long"
            );
        }
    }

    fn complete(&mut self, completions: Completions) {
        for (_, outcome) in &completions {
            self.state.metrics.record_completion(outcome);
        }
        self.completion_batches.deliver(completions, self.state);
        self.state.metrics.proposals_pending.store(self.state.wait.len() as u64, Relaxed);
    }

    fn publish_changes(&mut self, changes: Vec<(i64, Changes)>) {
        for (_, changes) in &changes {
            self.state.metrics.record_changes(changes);
        }
        self.state.watch_server.store.read().publish_all(changes);
    }

    fn drop_states(&mut self, dropped: Vec<DroppedStates>) {
        self.dropped_states.extend(dropped);
        if self.dropped_states.len() >= DROPPED_STATES_MAX {
            self.send_dropped_states();
        }
    }

    fn schedule_compaction(&mut self, job: CompactionJob) {
        let _ = self.to_commit.send(CommitCommand::Compact(job));
    }

    fn commit_store(&mut self) {
        let _ = self.to_commit.send(CommitCommand::Commit);
    }
}
