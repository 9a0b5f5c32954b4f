//! Giving up leadership without waiting for the next leader, and the facts that decide when.
//!
//! [`RaftNode::transfer_leader`] keeps sending heartbeats until another member leads. A leader that
//! can no longer do its work must not keep the others from electing one.

use raft::{ProgressState, StateRole};

use super::{Message, RaftNode};

/// What this leader knows about another voter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VoterProgress {
    pub id: u64,
    /// The voter has acknowledged all entries up to this index, so they are on its disk.
    pub matched: u64,
    /// The voter needs a raft snapshot first. It acknowledges no entries until it has one.
    pub needs_snapshot: bool,
}

impl RaftNode {
    /// Stops leading at once. If `heir` is not `None`, that member is asked to campaign, even if
    /// its log is shorter than this member's: then it leads only if a quorum has no longer log.
    /// Does nothing unless this member leads.
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

    /// While `is_held_back`, this member does not campaign, even if a leader asks it to.
    pub fn set_held_back(&mut self, is_held_back: bool) {
        self.is_held_back = is_held_back;
    }

    /// The other voters, by id; empty unless this member leads.
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
