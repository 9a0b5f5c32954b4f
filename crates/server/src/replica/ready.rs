//! What comes out of a member's two halves, and the order in which it is carried out.
//!
//! A server carries it out with threads, a simulated member with events; the order is the same,
//! because it is here. Each line of it that matters for correctness says why.

use std::sync::Arc;

use clearlane_backend::DroppedStates;
use clearlane_engine::Engine;
use clearlane_mvcc::{Change, CompactionJob, WatchableKv};
use clearlane_raft::{Leadership, Message};
use clearlane_wal::group_commit::Batch;

use super::{ApplyReport, RequestId, RequestOutcome, SlowEntry, ToApply};
use crate::applied_position::AppliedPosition;
use crate::apply;
use crate::membership;

/// Outcomes for waiting requests.
pub type Completions = Vec<(RequestId, RequestOutcome)>;

/// What the raft half says.
#[derive(Debug, Default)]
pub struct ReplicaReady {
    /// To be sent now. What is for one member stays in order.
    pub messages: Vec<Message>,
    /// Each says "take a copy of the store", and is sent with one: see
    /// [`raft_snapshot`](crate::raft_snapshot). What has become of it comes back as
    /// [`RaftSnapshotSent`](super::ReplicaInput::RaftSnapshotSent).
    pub raft_snapshots: Vec<Message>,
    /// Goes to the write-ahead log, and what has become of it comes back as
    /// [`WalWritten`](super::ReplicaInput::WalWritten). There is no next one before that.
    pub wal_batch: Option<Batch>,
    /// For the apply loop, in order.
    pub to_apply: Vec<ToApply>,
    /// Segments of the write-ahead log of which a start from here needs nothing may go.
    pub purge_below: Option<u64>,
    /// The leader or the term has changed.
    pub leadership: Option<Leadership>,
    /// Reads that may go, and requests that were refused.
    pub completions: Completions,
    /// The log has grown so long that the store should be committed now.
    pub is_commit_due: bool,
    /// This member was removed, has told the others, and stops.
    pub is_stopping: bool,
    /// Whether [no other member need be asked](super::Replica::is_sole_voter_caught_up).
    pub is_sole_voter_caught_up: bool,
}

/// Carries out what the raft half says.
pub trait ReplicaReadyHandler {
    /// Whether this member is the sole voter, and caught up, from now on.
    fn set_sole_voter_caught_up(&mut self, is_alone: bool);
    /// Sends a message.
    fn send(&mut self, message: Message);
    /// Sends a copy of the store with a message.
    fn send_raft_snapshot(&mut self, message: Message);
    /// Gives a batch to the write-ahead log.
    fn write_wal(&mut self, batch: Batch);
    /// Lets segments of the write-ahead log go.
    fn purge_wal(&mut self, below: u64);
    /// Gives work to the apply loop.
    fn apply(&mut self, work: ToApply);
    /// Publishes the leader and the term.
    fn set_leadership(&mut self, now: Leadership);
    /// Hands outcomes to the requests that wait for them.
    fn complete(&mut self, completions: Completions);
    /// Has the store committed.
    fn commit_store(&mut self);
    /// This member was removed, and stops.
    fn stop(&mut self);
}

impl ReplicaReady {
    /// Carries it out.
    pub fn dispatch(self, effects: &mut impl ReplicaReadyHandler) {
        // Before anything of this goes to another member: a member that is elected by it, or has a
        // vote by it, may acknowledge what this one has not applied.
        effects.set_sole_voter_caught_up(self.is_sole_voter_caught_up);
        if let Some(batch) = self.wal_batch {
            effects.write_wal(batch);
        }
        for message in self.messages {
            effects.send(message);
        }
        for work in self.to_apply {
            effects.apply(work);
        }
        for message in self.raft_snapshots {
            effects.send_raft_snapshot(message);
        }
        if let Some(below) = self.purge_below {
            effects.purge_wal(below);
        }
        if self.is_stopping {
            effects.stop();
        }
        // Before outcomes: a client that is told of a leader finds it.
        if let Some(now) = self.leadership {
            effects.set_leadership(now);
        }
        if !self.completions.is_empty() {
            effects.complete(self.completions);
        }
        if self.is_commit_due {
            effects.commit_store();
        }
    }
}

/// What the apply half says.
#[derive(Debug, Default)]
pub struct ApplyReady {
    /// The store was replaced by another member's: this is the new one.
    pub new_store: Option<NewStore>,
    /// For the raft loop.
    pub report: ApplyReport,
    /// Entries that took long.
    pub slow_entries: Vec<SlowEntry>,
    /// Leases that were granted.
    pub granted: Vec<i64>,
    /// What has become of proposals.
    pub completions: Completions,
    /// What has changed, by revision: for watchers.
    pub changes: Vec<(i64, Vec<Change>)>,
    /// Compactions that are scheduled; their steps are to be run, one job after the other.
    pub compactions: Vec<CompactionJob>,
    /// To be dropped where it does not matter how long that takes.
    pub dropped_states: Vec<DroppedStates>,
    /// So much is pending that the store should be committed now.
    pub is_commit_due: bool,
}

/// A store that came from another member.
#[derive(Clone, Debug)]
pub struct NewStore {
    /// The store.
    pub store: Arc<dyn WatchableKv<AppliedPosition>>,
    /// The engine below it.
    pub engine: Arc<dyn Engine>,
}

/// Carries out what the apply half says.
pub trait ApplyReadyHandler {
    /// Publishes another store, and moves what watches the old one.
    fn replace_store(&mut self, new: NewStore);
    /// Publishes how far this member has applied the log, its members and alarms; tells the raft
    /// loop.
    fn publish_applied(&mut self, applied: ApplyReport);
    /// Lets the time of leases begin.
    fn granted(&mut self, leases: Vec<i64>);
    /// Reports entries that took long.
    fn report_slow(&mut self, slow: Vec<SlowEntry>);
    /// Hands outcomes to the requests that wait for them.
    fn complete(&mut self, completions: Completions);
    /// Hands changes to watchers.
    fn publish_changes(&mut self, changes: Vec<(i64, Vec<Change>)>);
    /// Drops what takes long to drop.
    fn drop_states(&mut self, retired: Vec<DroppedStates>);
    /// Runs a compaction.
    fn schedule_compaction(&mut self, job: CompactionJob);
    /// Has the store committed.
    fn commit_store(&mut self);
}

impl ApplyReady {
    /// Carries it out.
    pub fn dispatch(self, effects: &mut impl ApplyReadyHandler) {
        // Before the new store's changes are published, and before its index is.
        if let Some(new) = self.new_store {
            effects.replace_store(new);
        }
        // Before outcomes: a client that asks at once must find what was applied.
        effects.publish_applied(self.report);
        // Not when the step began: an entry before the grant may have taken longer than the lease
        // lives.
        if !self.granted.is_empty() {
            effects.granted(self.granted);
        }
        if !self.slow_entries.is_empty() {
            effects.report_slow(self.slow_entries);
        }
        if !self.completions.is_empty() {
            effects.complete(self.completions);
        }
        if !self.changes.is_empty() {
            effects.publish_changes(self.changes);
        }
        effects.drop_states(self.dropped_states);
        for job in self.compactions {
            effects.schedule_compaction(job);
        }
        if self.is_commit_due {
            effects.commit_store();
        }
    }
}

/// What has become of a proposal.
#[derive(Clone, Debug)]
pub enum ProposalResult {
    /// Of a request.
    Request(apply::ApplyResult),
    /// Of a change of members: the members now, or why nothing has changed.
    MemberChange(std::result::Result<Vec<membership::Member>, membership::MembershipRejection>),
}
