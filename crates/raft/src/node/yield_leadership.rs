//! Lets a leader stop leading without waiting for the next leader. Also returns the progress of the
//! other voters, so that the leader's owner can decide when the leader should stop.
//!
//! After [`RaftNode::transfer_leader`], the leader still sends heartbeats until another member
//! leads. A leader that can no longer do its work must not keep the others from electing a new
//! leader.

use raft::{ProgressState, StateRole};

use super::{Message, RaftNode};

/// What this leader knows about another voter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VoterProgress {
    pub id: u64,
    /// The voter has acknowledged all entries up to this index, so they are on its disk.
    pub matched: u64,
    /// If true, the voter needs a raft snapshot. It acknowledges no entries before it has received
    /// the raft snapshot.
    pub needs_snapshot: bool,
}

impl RaftNode {
    /// Stops leading immediately. If `heir` is not `None`, asks that member to campaign, even if
    /// its log is shorter than this member's log. The heir is elected only by a quorum whose logs
    /// are not longer than the heir's log. The heir is not asked if it is this member, or while
    /// this member's term is not on disk. Does nothing unless this member leads.
    pub fn step_down(&mut self, heir: Option<u64>) {
        let raft = &mut self.raw_node.raft;
        if raft.state != StateRole::Leader {
            return;
        }
        if let Some(heir) = heir.filter(|heir| *heir != raft.id) {
            let mut message = raft::eraftpb::Message::default();
            message.set_msg_type(raft::eraftpb::MessageType::MsgTimeoutNow);
            (message.from, message.to, message.term) = (raft.id, heir, raft.term);
            let message = Message(message);
            if message.can_send(self.pending_appends.durable_term) {
                self.sendable_messages.push(message);
            }
        }
        let term = raft.term;
        raft.become_follower(term, 0);
        self.update_election_timeout();
    }

    /// While `is_held_back` is true, this member does not campaign, even if a leader asks it to.
    pub fn set_held_back(&mut self, is_held_back: bool) {
        self.is_held_back = is_held_back;
    }

    /// Returns the other voters, by id. The list is empty unless this member leads.
    pub fn voter_progress(&self) -> Vec<VoterProgress> {
        let raft = &self.raw_node.raft;
        if raft.state != StateRole::Leader {
            return Vec::new();
        }
        let voters = raft.prs().conf().voters();
        let others = raft.prs().iter().filter(|(id, _)| **id != raft.id && voters.contains(**id));
        let mut progress: Vec<_> = others
            .map(|(id, progress)| VoterProgress {
                id: *id,
                matched: progress.matched,
                needs_snapshot: progress.state == ProgressState::Snapshot,
            })
            .collect();
        progress.sort_unstable_by_key(|voter| voter.id);
        progress
    }
}
