//! What comes out of a member's two halves, and the order in which it is carried out.
//!
//! A server carries it out with threads, a simulated member with events; the order is the same, because it is
//! here. Each line of it that matters for correctness says why.

use std::sync::Arc;

use clearlane_backend::Retired;
use clearlane_engine::Engine;
use clearlane_mvcc::{Change, CompactionJob, Store};
use clearlane_raft_log::driver::{Leadership, Message};
use clearlane_raft_log::wal::group::Batch;

use super::{Applied, Outcome, RequestId, Slow, ToApply};
use crate::membership;
use crate::progress::Progress;
use crate::requests;

/// Outcomes for waiting requests.
pub type Completions = Vec<(RequestId, Outcome)>;

/// What the raft half says.
#[derive(Debug, Default)]
pub struct Outputs {
    /// To be sent now. What is for one member stays in order.
    pub send: Vec<Message>,
    /// Each says "take a copy of the store", and is sent with one: see [`copies`](crate::copies).
    /// What has become of it comes back as [`Input::CopySent`](super::Input::CopySent).
    pub copies: Vec<Message>,
    /// Goes to the write-ahead log, and what has become of it comes back as
    /// [`Input::Written`](super::Input::Written). There is no next one before that.
    pub write: Option<Batch>,
    /// For the apply loop, in order.
    pub apply: Vec<ToApply>,
    /// Segments of the write-ahead log of which a start from here needs nothing may go.
    pub purge: Option<u64>,
    /// The leader or the term has changed.
    pub leadership: Option<Leadership>,
    /// Reads that may go, and requests that were refused.
    pub completions: Completions,
    /// The log has grown so long that the store should be committed now.
    pub commit_due: bool,
    /// This member was removed, has told the others, and stops.
    pub stops: bool,
    /// Whether [this member is alone](super::Core::is_alone).
    pub is_alone: bool,
    /// Which request was proposed under which id, for checkers.
    #[cfg(feature = "planted-bugs")]
    pub proposed: Vec<(RequestId, u64)>,
    /// Why messages could not be used, for checkers.
    #[cfg(feature = "planted-bugs")]
    pub unusable: Vec<clearlane_raft_log::driver::Error>,
}

/// Carries out what the raft half says.
pub trait RaftEffects {
    /// Whether this member is alone from now on.
    fn is_alone(&mut self, is_alone: bool);
    /// Sends a message.
    fn send(&mut self, message: Message);
    /// Sends a copy of the store with a message.
    fn send_copy(&mut self, message: Message);
    /// Gives a batch to the write-ahead log.
    fn write(&mut self, batch: Batch);
    /// Lets segments of the write-ahead log go.
    fn purge(&mut self, below: u64);
    /// Gives work to the apply loop.
    fn apply(&mut self, work: ToApply);
    /// Publishes the leader and the term.
    fn leads(&mut self, now: Leadership);
    /// Hands outcomes to the requests that wait for them.
    fn complete(&mut self, completions: Completions);
    /// Has the store committed.
    fn commit(&mut self);
    /// This member was removed, and stops.
    fn stops(&mut self);
}

impl Outputs {
    /// Carries it out.
    pub fn carry_out(self, effects: &mut impl RaftEffects) {
        // Before anything of this goes to another member: a member that is elected by it, or has a vote by it,
        // may acknowledge what this one has not applied.
        effects.is_alone(self.is_alone);
        if let Some(batch) = self.write {
            effects.write(batch);
        }
        for message in self.send {
            effects.send(message);
        }
        for work in self.apply {
            effects.apply(work);
        }
        for message in self.copies {
            effects.send_copy(message);
        }
        if let Some(below) = self.purge {
            effects.purge(below);
        }
        if self.stops {
            effects.stops();
        }
        // Before outcomes: a client that is told of a leader finds it.
        if let Some(now) = self.leadership {
            effects.leads(now);
        }
        if !self.completions.is_empty() {
            effects.complete(self.completions);
        }
        if self.commit_due {
            effects.commit();
        }
    }
}

/// What the apply half says.
#[derive(Debug, Default)]
pub struct ApplyOutputs {
    /// The store was replaced by another member's: this is the new one.
    pub replaced: Option<NewStore>,
    /// For the raft loop.
    pub applied: Applied,
    /// Entries that took long.
    pub slow: Vec<Slow>,
    /// Leases that were granted.
    pub granted: Vec<i64>,
    /// What has become of proposals.
    pub completions: Completions,
    /// What has changed, by revision: for watchers.
    pub changes: Vec<(i64, Vec<Change>)>,
    /// Compactions that are scheduled; their steps are to be run, one job after the other.
    pub compactions: Vec<CompactionJob>,
    /// To be dropped where it does not matter how long that takes.
    pub retired: Vec<Retired>,
    /// So much is pending that the store should be committed now.
    pub commit_due: bool,
    /// Every entry that was applied, for checkers.
    #[cfg(feature = "planted-bugs")]
    pub entries: Vec<clearlane_raft_log::Entry>,
}

/// A store that came from another member.
#[derive(Clone, Debug)]
pub struct NewStore {
    /// The store.
    pub store: Arc<dyn Store<Progress>>,
    /// The engine below it.
    pub engine: Arc<dyn Engine>,
}

/// Carries out what the apply half says.
pub trait ApplyEffects {
    /// Publishes another store, and moves what watches the old one.
    fn replace(&mut self, new: NewStore);
    /// Publishes how far this member has applied the log, its members and alarms; tells the raft loop.
    fn applied(&mut self, applied: Applied);
    /// Lets the time of leases begin.
    fn granted(&mut self, leases: Vec<i64>);
    /// Reports entries that took long.
    fn slow(&mut self, slow: Vec<Slow>);
    /// Hands outcomes to the requests that wait for them.
    fn complete(&mut self, completions: Completions);
    /// Hands changes to watchers.
    fn publish(&mut self, changes: Vec<(i64, Vec<Change>)>);
    /// Drops what takes long to drop.
    fn retire(&mut self, retired: Vec<Retired>);
    /// Runs a compaction.
    fn compact(&mut self, job: CompactionJob);
    /// Has the store committed.
    fn commit(&mut self);
}

impl ApplyOutputs {
    /// Carries it out.
    pub fn carry_out(self, effects: &mut impl ApplyEffects) {
        // Before the new store's changes are published, and before its index is.
        if let Some(new) = self.replaced {
            effects.replace(new);
        }
        // Before outcomes: a client that asks at once must find what was applied.
        effects.applied(self.applied);
        // Not when the step began: an entry before the grant may have taken longer than the lease lives.
        if !self.granted.is_empty() {
            effects.granted(self.granted);
        }
        if !self.slow.is_empty() {
            effects.slow(self.slow);
        }
        if !self.completions.is_empty() {
            effects.complete(self.completions);
        }
        if !self.changes.is_empty() {
            effects.publish(self.changes);
        }
        effects.retire(self.retired);
        for job in self.compactions {
            effects.compact(job);
        }
        if self.commit_due {
            effects.commit();
        }
    }
}

/// What has become of a proposal.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Of a request.
    Request(requests::Answer),
    /// Of a change of members: who is one now, or why nothing has changed.
    Members(std::result::Result<Vec<membership::Member>, membership::Refused>),
}
