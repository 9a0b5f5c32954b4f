//! The output of a member's two halves, and the order in which it is carried out: the same in a
//! server with threads and in a simulated member.

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
    /// To be sent now, in order per member.
    pub messages: Vec<Message>,
    /// `MsgSnap`s, each to be sent with a copy of the store: see
    /// [`raft_snapshot`](crate::raft_snapshot). The result comes back as
    /// [`RaftSnapshotSent`](super::ReplicaInput::RaftSnapshotSent).
    pub raft_snapshots: Vec<Message>,
    /// To be written to the write-ahead log. There is no next batch before its result,
    /// [`WalWritten`](super::ReplicaInput::WalWritten).
    pub wal_batch: Option<Batch>,
    /// In order.
    pub to_apply: Vec<ToApply>,
    /// Segments that a start from the newest record does not need may be removed.
    pub purge_below: Option<u64>,
    /// If the leader or the term has changed.
    pub leadership: Option<Leadership>,
    /// Confirmed reads, and requests that were refused.
    pub completions: Completions,
    /// The log has grown so long that the store should be committed now.
    pub is_commit_due: bool,
    /// This member was removed and has told the others.
    pub is_stopping: bool,
    /// See [`Replica::is_sole_voter_caught_up`](super::Replica::is_sole_voter_caught_up).
    pub is_sole_voter_caught_up: bool,
    /// Stalls, recoveries and hand-overs since the last call, oldest first.
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
        // Before a message leaves: a member that is elected with its help may acknowledge what this
        // one has not applied.
        handler.set_sole_voter_caught_up(self.is_sole_voter_caught_up);
        // The disk works meanwhile: `messages` have only what may leave before the sync.
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
        // Before completions: a client that is told of a leader finds it.
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
    /// By revision, for watchers.
    pub changes: Vec<(i64, Changes)>,
    /// Scheduled compactions; their steps are run one job after the other.
    pub compactions: Vec<CompactionJob>,
    /// To be dropped on a thread that may take its time.
    pub dropped_states: Vec<DroppedStates>,
    /// So much is pending that the store should be committed now.
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
    /// Also moves the watchers of the old store.
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
    /// Makes the reads that are left to the requests, for an owner without a read pool.
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
        // Before the new store's changes and its index are published.
        if let Some(new) = self.new_store {
            handler.replace_store(new);
        }
        // Before completions: a client that asks at once finds what was applied.
        handler.publish_applied(self.report);
        // Not at the start of the step: an earlier entry may have taken longer than the TTL.
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
