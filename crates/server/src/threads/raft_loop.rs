//! The raft loop: takes its events, polls the [`Replica`], which is the raft half of the member,
//! and carries out the results. While it is idle, the [network](super::Network) uses its thread to
//! send and receive messages.
//!
//! The raft loop uses neither the store nor a lock of an era, so no read or write of the store
//! delays a tick: see `clearlane_raft_tick_lateness_seconds`. In etcd: `raftNode.start`.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::mpsc::Sender;
use std::time::Duration;

use clearlane_proto::etcdserverpb::AlarmType;
use clearlane_raft::{Leadership, Message, Role};
use clearlane_replica::quota::UncheckedGrowth;
use clearlane_replica::{
    Completions, Error, Replica, ReplicaInput, ReplicaReadyHandler, RequestOutcome, Result,
    StallEvent, ToApply, alarms,
};
use clearlane_wal::group_commit::{Batch, BatchResult};

use super::commit_thread::CommitCommand;
use super::completions::CompletionBatches;
use super::lost_logs::LostLogLogger;
use super::raft_loop_queue::RaftLoopEvent;
use super::stalls::ProgressMonitor;
use super::wal_thread::LogWriter;
use super::{Network, ServerState};
use crate::observe::task_labels::{LOG, RAFT};
use crate::observe::trace::{StepKind, ThreadTrace};

/// The channels to other threads. A closed channel is ignored, because the thread at its other end
/// has failed and reported that.
pub(super) struct Channels {
    pub(super) log: LogWriter,
    pub(super) to_apply: Sender<ToApply>,
    pub(super) to_commit: Sender<CommitCommand>,
    pub(super) network: Box<dyn Network>,
}

struct RaftLoop<'s> {
    replica: Replica,
    state: &'s ServerState,
    channels: Channels,
    nospace_alarm: NospaceAlarm,
    growth: UncheckedGrowth,
    /// When the apply loop reaches this index, its report must wake the raft loop immediately.
    awaited_index: u64,
    tick: Duration,
    /// If true, a batch has been sent to the WAL thread and is not written yet.
    is_wal_writing: bool,
    /// The result of a batch that this thread has written, until the replica gets it. `None` if
    /// there is no such result.
    written: Option<BatchResult>,
    purged: Result<()>,
    unreachable: Vec<u64>,
    completion_batches: CompletionBatches,
    lost_logs: LostLogLogger,
    progress: ProgressMonitor,
    is_stopping: bool,
}

/// The state of the NOSPACE alarm that this member raises because of its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NospaceAlarm {
    /// The alarm was not raised, or was disarmed.
    None,
    /// The alarm has been proposed, but is not yet known to be applied.
    Proposed,
    Raised,
}

/// Runs until the member stops or fails.
pub(super) fn run(
    replica: Replica,
    tick: Duration,
    channels: Channels,
    shared: &ServerState,
) -> Result<()> {
    let mut thread_trace = shared.trace.trace_thread(*RAFT);
    let election_ticks = shared.election_timeout.div_duration_f64(tick).round() as usize;
    let is_apply_checked = !shared.era.waits_for_locks;
    let mut this = RaftLoop {
        progress: ProgressMonitor::new(election_ticks, is_apply_checked),
        replica,
        state: shared,
        channels,
        nospace_alarm: NospaceAlarm::None,
        growth: UncheckedGrowth::default(),
        awaited_index: 0,
        tick,
        is_wal_writing: false,
        written: None,
        purged: Ok(()),
        unreachable: Vec::new(),
        completion_batches: CompletionBatches::default(),
        lost_logs: LostLogLogger::default(),
        is_stopping: false,
    };
    let ended = this.run(shared, &mut thread_trace);
    ended.and(this.channels.log.close())
}

impl RaftLoop<'_> {
    fn run(&mut self, shared: &ServerState, thread_trace: &mut ThreadTrace<'_>) -> Result<()> {
        let mut next_tick = shared.start.elapsed() + self.tick;
        loop {
            let ready = self.replica.poll(shared.start.elapsed())?;
            // Publish the status first: when a client learns that its entry is applied, the
            // published commit index must include the entry.
            self.publish_status();
            ready.dispatch(self);
            std::mem::replace(&mut self.purged, Ok(()))?;
            if self.is_stopping {
                return Err(Error::Removed);
            }
            for id in self.unreachable.drain(..) {
                self.replica.handle_input(ReplicaInput::Unreachable(id))?;
            }
            if let Some(written) = self.written.take() {
                self.replica.handle_input(ReplicaInput::WalWritten(written))?;
                continue;
            }
            let due = self.replica.next_poll().map_or(next_tick, |poll| poll.min(next_tick));
            thread_trace.end_step(StepKind::Running);
            // A recording shows the network's work during this wait as idle time, or as a wait for
            // the log while a batch is being written.
            let wait = due.saturating_sub(shared.start.elapsed());
            self.channels.network.wait(shared.raft_queue.waiter(), wait);
            let (applied, inputs) = shared.raft_queue.drain();
            let log = StepKind::WaitsFor(*LOG);
            thread_trace.end_step(if self.is_wal_writing { log } else { StepKind::Idle });
            // Handle the report of the apply loop first. A proposal is rejected if too many
            // committed entries are not applied, and the report reduces this number.
            if let Some(applied) = applied {
                self.growth.record_applied(applied.growth_index, applied.disarm_index);
                self.replica.handle_input(ReplicaInput::Applied(applied))?;
            }
            for input in inputs {
                match input {
                    RaftLoopEvent::Replica(input) => self.handle_input(input)?,
                    RaftLoopEvent::DiskSpace => self.update_nospace_alarm(),
                    // The caller may have stopped waiting.
                    RaftLoopEvent::ReportTo(request, reply) => {
                        drop(reply.send(self.replica.report_to(&request)));
                    }
                    RaftLoopEvent::Removed => return Err(Error::Removed),
                    RaftLoopEvent::Stop => return Ok(()),
                }
            }
            self.check_quota();
            let now = shared.start.elapsed();
            if now >= next_tick {
                self.tick(now.saturating_sub(next_tick));
                next_tick = now.max(next_tick) + self.tick;
            }
        }
    }

    fn handle_input(&mut self, input: ReplicaInput) -> Result<()> {
        self.is_wal_writing &= !matches!(input, ReplicaInput::WalWritten(_));
        if let ReplicaInput::StoreCommitted(durable) = &input {
            self.growth.record_durable(durable.index);
        }
        self.replica.handle_input(input)
    }

    /// Makes one tick. Missed ticks are skipped: if several ticks were made in a row, a follower
    /// could vote before the leader's lease is over.
    fn tick(&mut self, late: Duration) {
        let metrics = &self.state.metrics;
        metrics.record_tick(late);
        // The apply loop also sets this metric when it completes requests.
        metrics.proposals_pending.store(self.replica.wait.len() as u64, Relaxed);
        self.check_heartbeat_lateness(late);
        self.progress.before_tick(&mut self.replica, self.state);
        self.replica.tick();
    }

    fn publish_status(&mut self) {
        let metrics = &self.state.metrics;
        let reads = self.replica.read_index_metrics();
        metrics.slow_read_indexes.store(reads.late_answers + reads.timed_out, Relaxed);
        metrics.leases_expired.store(self.replica.leases_expired, Relaxed);
        self.lost_logs.report(self.replica.raft().lost_log_reports(), self.state);
        self.state.status.committed.store(self.replica.raft().committed_index(), Relaxed);
        let awaited = self.replica.awaited_index();
        if awaited != std::mem::replace(&mut self.awaited_index, awaited) {
            self.state.raft_queue.set_awaited_index(awaited);
        }
    }

    /// Logs and counts a heartbeat that is late by more than one tick. A leader sends a heartbeat
    /// with each tick. Late heartbeats may cost the leader its leadership.
    fn check_heartbeat_lateness(&self, late: Duration) {
        let leadership = self.replica.raft().leadership();
        let others = self.replica.members.iter().count().saturating_sub(1);
        if late <= self.tick || leadership.role != Role::Leader || others == 0 {
            return;
        }
        self.state.metrics.late_heartbeats.fetch_add(others as u64, Relaxed);
        tracing::warn!(
            "heartbeat-interval" = ?self.tick,
            "expected-duration" = ?(2 * self.tick),
            "exceeded-duration" = ?(late - self.tick),
            "leader failed to send out heartbeat on time; took too long, leader is overloaded likely \
             from slow disk"
        );
    }

    /// Raises NOSPACE if the store has grown over its quota. If the proposal is lost, the next
    /// request that the quota rejects raises the alarm.
    fn check_quota(&mut self) {
        if !self.growth.take_due() {
            return;
        }
        let member = self.replica.metadata.node_id;
        let has_room = self.state.quota.allows(self.state.sizes.size(), 0);
        if !has_room && !self.replica.alarms.is_raised_by(member, AlarmType::Nospace) {
            self.replica.propose_alarm(alarms::no_space(member));
        }
    }

    /// Raises NOSPACE if the disk is low, and disarms the alarm when the disk and the quota have
    /// space. A proposal may be applied late, so this member considers its alarm disarmed only if
    /// it has seen the alarm raised before. A learner raises no alarm, because the other members do
    /// not need its data. Also transfers leadership while the log waits for space.
    fn update_nospace_alarm(&mut self) {
        let member = self.replica.metadata.node_id;
        let is_raised = self.replica.alarms.is_raised_by(member, AlarmType::Nospace);
        let room = &self.state.disk_space;
        if room.is_wal_waiting.load(Relaxed) {
            self.transfer_leadership();
        }
        match (self.nospace_alarm, is_raised) {
            // Propose again in both states, because an earlier proposal may have been lost.
            (NospaceAlarm::None | NospaceAlarm::Proposed, false)
                if room.is_low() && !self.state.status.is_learner() =>
            {
                self.nospace_alarm = NospaceAlarm::Proposed;
                self.replica.propose_alarm(alarms::no_space(member));
            }
            (NospaceAlarm::Proposed, true) => self.nospace_alarm = NospaceAlarm::Raised,
            (NospaceAlarm::Raised, false) => self.nospace_alarm = NospaceAlarm::None,
            (NospaceAlarm::Raised, true)
                if !room.is_low() && self.state.quota.allows(self.state.sizes.size(), 0) =>
            {
                self.replica.propose_alarm(alarms::disarm_no_space(member));
            }
            _ => {}
        }
        room.has_raised_alarm.store(self.nospace_alarm != NospaceAlarm::None, Relaxed);
    }

    /// Transfers leadership when the log waits for space, because a leader that cannot write blocks
    /// all members.
    fn transfer_leadership(&mut self) {
        let (leadership, own) = (self.replica.raft().leadership(), self.replica.metadata.node_id);
        if leadership.role != Role::Leader || !self.replica.can_propose() {
            return;
        }
        let members = &self.replica.members;
        let votes = |id: u64| members.get(id).is_some_and(|member| !member.is_learner);
        let others = self
            .replica
            .raft()
            .match_indexes()
            .into_iter()
            .filter(|(id, _)| *id != own && votes(*id));
        if let Some((heir, _)) = others.max_by_key(|(_, matched)| *matched) {
            self.replica.transfer_leader(heir);
        }
    }
}

impl ReplicaReadyHandler for RaftLoop<'_> {
    fn set_sole_voter_caught_up(&mut self, is_alone: bool) {
        self.state.status.is_sole_voter_caught_up.store(is_alone, Release);
    }

    fn send(&mut self, message: Message) {
        if let Err(message) = self.channels.network.send(message) {
            self.unreachable.push(message.to());
        }
    }

    fn send_raft_snapshot(&mut self, message: Message) {
        let store = Arc::clone(&**self.state.store.load());
        self.channels.network.send_raft_snapshot(message, store);
    }

    fn write_wal(&mut self, batch: Batch) {
        self.written = self.channels.log.write(batch);
        self.is_wal_writing = self.written.is_none();
    }

    fn purge_wal(&mut self, below: u64) {
        if let Err(error) = self.channels.log.purge(below) {
            self.purged = Err(error);
        }
    }

    fn apply(&mut self, work: ToApply) {
        let _ = self.channels.to_apply.send(work);
    }

    fn set_leadership(&mut self, now: Leadership) {
        match now.leader {
            0 => tracing::info!(term = now.term, "no leader is known"),
            id => tracing::info!(leader = format!("{id:x}"), term = now.term, "a member leads"),
        }
        self.state.metrics.record_leader(now.leader);
        self.state.status.set_leadership(now, self.state.start.elapsed());
        self.state.leadership.send_replace(now);
    }

    fn complete(&mut self, completions: Completions) {
        let metrics = &self.state.metrics;
        for (_, outcome) in &completions {
            match outcome {
                RequestOutcome::NotProposed(_) => metrics.proposals_failed.fetch_add(1, Relaxed),
                RequestOutcome::ReadFailed(_) => metrics.reads_failed.fetch_add(1, Relaxed),
                _ => continue,
            };
        }
        self.completion_batches.deliver(completions, self.state);
    }

    fn commit_store(&mut self) {
        let _ = self.channels.to_commit.send(CommitCommand::Commit);
    }

    fn report_stall(&mut self, event: StallEvent) {
        self.state.stalls.record(event, self.state.start.elapsed(), self.tick);
    }

    fn stop(&mut self) {
        self.is_stopping = true;
    }
}
