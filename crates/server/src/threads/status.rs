//! What any thread may read of a member without a lock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use clearlane_raft::Leadership;

use crate::membership::Members;
use crate::replica::{Applier, Replica};

#[derive(Debug, Default)]
pub struct Status {
    leader: AtomicU64,
    term: AtomicU64,
    applied: AtomicU64,
    pub(super) committed: AtomicU64,
    is_learner: AtomicBool,
    /// See [`ReplicaReady`](crate::replica::ReplicaReady::is_sole_voter_caught_up).
    pub(super) is_sole_voter_caught_up: AtomicBool,
    /// On the clock of [`ServerThreads::now`](super::ServerThreads::now).
    leader_elected_ns: AtomicU64,
    leader_lost_ns: AtomicU64,
}

impl Status {
    /// 0 if none is known.
    pub fn leader(&self) -> u64 {
        self.leader.load(Ordering::Relaxed)
    }

    pub fn term(&self) -> u64 {
        self.term.load(Ordering::Relaxed)
    }

    pub fn applied(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    /// As far as this member knows.
    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    pub fn is_learner(&self) -> bool {
        self.is_learner.load(Ordering::Relaxed)
    }

    /// On the clock of [`ServerThreads::now`](super::ServerThreads::now).
    pub fn leader_elected(&self) -> Duration {
        Duration::from_nanos(self.leader_elected_ns.load(Ordering::Relaxed))
    }

    /// The start of the current time without a leader, otherwise of the last one.
    pub fn leader_lost(&self) -> Duration {
        Duration::from_nanos(self.leader_lost_ns.load(Ordering::Relaxed))
    }

    /// A member that joins keeps its role until it has applied the entry that adds it.
    pub(super) fn set_members(&self, members: &Members, this: u64) {
        if let Some(member) = members.get(this) {
            self.is_learner.store(member.is_learner, Ordering::Relaxed);
        }
    }

    /// Called before anything is applied.
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
        // Without members and without an answer this counts as a learner: a learner must not answer
        // as if it voted.
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
