//! The state of a member that any thread may read without a lock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use clearlane_raft::Leadership;
use clearlane_replica::membership::Members;
use clearlane_replica::{Applier, Replica};

#[derive(Debug, Default)]
pub struct Status {
    leader: AtomicU64,
    term: AtomicU64,
    applied: AtomicU64,
    pub(super) committed: AtomicU64,
    is_learner: AtomicBool,
    /// See [`ReplicaReady`](clearlane_replica::ReplicaReady::is_sole_voter_caught_up).
    pub(super) is_sole_voter_caught_up: AtomicBool,
    /// The time at which the last leader became known, on the clock of
    /// [`ServerThreads::now`](super::ServerThreads::now). `leader_lost_ns` is the start of the last
    /// period without a leader.
    leader_elected_ns: AtomicU64,
    leader_lost_ns: AtomicU64,
}

impl Status {
    /// Returns the leader, or 0 if none is known.
    pub fn leader(&self) -> u64 {
        self.leader.load(Ordering::Relaxed)
    }

    pub fn term(&self) -> u64 {
        self.term.load(Ordering::Relaxed)
    }

    pub fn applied(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    /// Returns the highest commit index that this member knows.
    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    pub fn is_learner(&self) -> bool {
        self.is_learner.load(Ordering::Relaxed)
    }

    /// Returns the time at which the last leader became known, on the clock of
    /// [`ServerThreads::now`](super::ServerThreads::now).
    pub fn leader_elected(&self) -> Duration {
        Duration::from_nanos(self.leader_elected_ns.load(Ordering::Relaxed))
    }

    /// Returns the start of the current period without a leader, or of the last such period.
    pub fn leader_lost(&self) -> Duration {
        Duration::from_nanos(self.leader_lost_ns.load(Ordering::Relaxed))
    }

    /// Updates this member's role. A member that joins keeps its role until it has applied the
    /// entry that adds it.
    pub(super) fn set_members(&self, members: &Members, this: u64) {
        if let Some(member) = members.get(this) {
            self.is_learner.store(member.is_learner, Ordering::Relaxed);
        }
    }

    /// Sets the initial state. Called before anything is applied.
    pub(super) fn init(
        &self,
        replica: &Replica,
        applier: &Applier,
        joins_as_learner: Option<bool>,
    ) {
        let committed = replica.raft().committed_index();
        self.set_leadership(replica.raft().leadership(), Duration::ZERO);
        self.committed.store(committed, Ordering::Relaxed);
        self.set_applied(applier.applied_position.index);
        let is_new = applier.members.is_empty() && committed == 0;
        // A member that knows no members and has not learned its role is treated as a learner: it
        // may be one, and a learner must not respond as a voter does.
        let is_learner = is_new && joins_as_learner.unwrap_or(true);
        self.is_learner.store(is_learner, Ordering::Relaxed);
        self.set_members(&applier.members, replica.metadata.node_id);
    }

    pub(super) fn set_leadership(&self, now: Leadership, at: Duration) {
        if now.leader != self.leader() {
            let at_ns = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
            let changed =
                if now.leader == 0 { &self.leader_lost_ns } else { &self.leader_elected_ns };
            changed.store(at_ns, Ordering::Relaxed);
        }
        self.leader.store(now.leader, Ordering::Relaxed);
        self.term.store(now.term, Ordering::Relaxed);
    }

    pub(super) fn set_applied(&self, index: u64) {
        self.applied.store(index, Ordering::Release);
    }
}
