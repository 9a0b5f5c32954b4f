//! The output of each half of a member, and the order in which its owner carries out the output.
//! The order is the same in a server with threads and in a simulated member.

use std::sync::Arc;

use clearlane_backend::DroppedStates;
use clearlane_engine::Engine;
use clearlane_mvcc::{Changes, CompactionJob, WatchableKv};
use clearlane_raft::{Leadership, Message};
use clearlane_wal::group_commit::Batch;

use super::{ApplyReport, RequestId, RequestOutcome, SlowEntry, StallEvent, ToApply};
use crate::applied_position::AppliedPosition;
use crate::apply::split_error;
use crate::error::Result;

pub type Completions = Vec<(RequestId, RequestOutcome)>;

#[derive(Debug, Default)]
pub struct ReplicaReady {
    /// Messages to send now, in this order. A message that has waited for the write-ahead log may
    /// follow newer messages to the same member.
    pub messages: Vec<Message>,
    /// Snapshot messages. The owner sends each of them with a store: see
    /// [`raft_snapshot`](crate::raft_snapshot). It reports the result with
    /// [`RaftSnapshotSent`](super::ReplicaInput::RaftSnapshotSent).
    pub raft_snapshots: Vec<Message>,
    /// A batch to write to the write-ahead log, or `None` if there is none. The next batch follows
    /// only after the result of this one, [`WalWritten`](super::ReplicaInput::WalWritten).
    pub wal_batch: Option<Batch>,
    /// Work for the apply loop, in order.
    pub to_apply: Vec<ToApply>,
    /// The index of a snapshot record. Segments of the log that a start from this record does not
    /// need may be removed. `None` if there is nothing to remove.
    pub purge_below: Option<u64>,
    /// The new leadership, or `None` if the leader, the term and the role are unchanged.
    pub leadership: Option<Leadership>,
    /// Outcomes that the raft half decides: released and failed reads, and proposals that were
    /// rejected before they became entries.
    pub completions: Completions,
    /// If true, the store should be committed now: the log has grown long, or large proposals wait
    /// for a commit.
    pub is_commit_due: bool,
    /// If true, this member was removed, and the ticks in which it could inform the other members
    /// have passed. It must stop, whether or not its messages have arrived.
    pub is_stopping: bool,
    /// See [`Replica::is_sole_voter_caught_up`](super::Replica::is_sole_voter_caught_up).
    pub is_sole_voter_caught_up: bool,
    /// Stalls and recoveries of this member, and transfers of leadership because of stalls, since
    /// the last poll. The oldest event is first.
    pub stall_events: Vec<StallEvent>,
}

pub trait ReplicaReadyHandler {
    fn set_sole_voter_caught_up(&mut self, is_alone: bool);
    fn send(&mut self, message: Message);
    fn send_raft_snapshot(&mut self, message: Message);
    fn write_wal(&mut self, batch: Batch);
    fn purge_wal(&mut self, below: u64);
    fn apply(&mut self, work: ToApply);
    fn set_leadership(&mut self, now: Leadership);
    fn complete(&mut self, completions: Completions);
    fn commit_store(&mut self);
    fn report_stall(&mut self, event: StallEvent);
    fn stop(&mut self);
}

impl ReplicaReady {
    pub fn dispatch(self, handler: &mut impl ReplicaReadyHandler) {
        // Must precede the messages: a vote among the messages may elect another member, which may
        // then acknowledge writes that this member has not applied.
        handler.set_sole_voter_caught_up(self.is_sole_voter_caught_up);
        // The batch is handed over first, so that the disk works while the messages are being sent:
        // `messages` has only messages that may be sent before the sync.
        if let Some(batch) = self.wal_batch {
            handler.write_wal(batch);
        }
        for message in self.messages {
            handler.send(message);
        }
        for work in self.to_apply {
            handler.apply(work);
        }
        for message in self.raft_snapshots {
            handler.send_raft_snapshot(message);
        }
        if let Some(below) = self.purge_below {
            handler.purge_wal(below);
        }
        if self.is_stopping {
            handler.stop();
        }
        // Must precede the completions: a client that queries the leader after its response must
        // see this leadership.
        if let Some(now) = self.leadership {
            handler.set_leadership(now);
        }
        if !self.completions.is_empty() {
            handler.complete(self.completions);
        }
        if self.is_commit_due {
            handler.commit_store();
        }
        for event in self.stall_events {
            handler.report_stall(event);
        }
    }
}

#[derive(Debug, Default)]
pub struct ApplyReady {
    pub new_store: Option<NewStore>,
    pub report: ApplyReport,
    pub slow_entries: Vec<SlowEntry>,
    pub granted: Vec<i64>,
    pub completions: Completions,
    /// Changes by revision, for watchers.
    pub changes: Vec<(i64, Changes)>,
    /// Scheduled compactions. Their steps run one job after the other.
    pub compactions: Vec<CompactionJob>,
    /// Old states of the store. They are dropped on another thread, because dropping them may take
    /// a long time.
    pub dropped_states: Vec<DroppedStates>,
    /// If true, so much data is pending that the store should be committed now.
    pub is_commit_due: bool,
}

/// A store received as a raft snapshot.
#[derive(Clone, Debug)]
pub struct NewStore {
    pub store: Arc<dyn WatchableKv<AppliedPosition>>,
    /// The engine below `store`.
    pub engine: Arc<dyn Engine>,
}

pub trait ApplyReadyHandler {
    /// Replaces the store, and moves the watchers of the old store.
    fn replace_store(&mut self, new: NewStore);
    /// Publishes the applied index, members and alarms, and reports to the raft loop.
    fn publish_applied(&mut self, applied: ApplyReport);
    /// Starts the TTL of granted leases.
    fn granted(&mut self, leases: Vec<i64>);
    fn report_slow(&mut self, slow: Vec<SlowEntry>);
    fn complete(&mut self, completions: Completions);
    fn publish_changes(&mut self, changes: Vec<(i64, Changes)>);
    fn drop_states(&mut self, dropped: Vec<DroppedStates>);
    fn schedule_compaction(&mut self, job: CompactionJob);
    fn commit_store(&mut self);
}

impl ApplyReady {
    /// Makes the reads that were deferred to the requests, for an owner without a read pool.
    pub fn make_deferred_reads(&mut self) -> Result<()> {
        for (request, outcome) in std::mem::take(&mut self.completions) {
            let outcome = match outcome {
                RequestOutcome::AppliedInPart(response) => {
                    RequestOutcome::Applied(split_error(response.make_reads())?)
                }
                outcome => outcome,
            };
            self.completions.push((request, outcome));
        }
        Ok(())
    }

    pub fn dispatch(self, handler: &mut impl ApplyReadyHandler) {
        // Must precede the new store's changes and its applied index.
        if let Some(new) = self.new_store {
            handler.replace_store(new);
        }
        // Must precede the completions: a client that reads immediately must find the applied
        // entries.
        handler.publish_applied(self.report);
        // The TTL starts now and not at the start of the step, because an earlier entry of the step
        // may have taken longer than the TTL.
        if !self.granted.is_empty() {
            handler.granted(self.granted);
        }
        if !self.slow_entries.is_empty() {
            handler.report_slow(self.slow_entries);
        }
        if !self.completions.is_empty() {
            handler.complete(self.completions);
        }
        if !self.changes.is_empty() {
            handler.publish_changes(self.changes);
        }
        handler.drop_states(self.dropped_states);
        for job in self.compactions {
            handler.schedule_compaction(job);
        }
        if self.is_commit_due {
            handler.commit_store();
        }
    }
}
