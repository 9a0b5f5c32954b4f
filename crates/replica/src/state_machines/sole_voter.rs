//! Decides whether a read may skip ReadIndex. It may if this member has applied every acknowledged
//! write, and no other member can acknowledge a later one.
//!
//! A sole voter may answer a read without ReadIndex if it has applied every write that any member
//! acknowledged. It acknowledges its own writes only after applying them. Other members
//! acknowledged only entries committed before it became the sole voter. If there are learners, it
//! must have applied all committed entries: an entry that is not applied may promote a learner to a
//! voter.

use clearlane_raft::Role;

use super::Replica;

impl Replica {
    /// Returns whether this member leads, is the only voter, and has applied an entry of its term
    /// and all entries that another member may have acknowledged. Then everything acknowledged is
    /// applied here, and no other member can be elected until this member gives up leadership.
    pub(super) fn is_sole_voter_caught_up(&mut self) -> bool {
        let leadership = self.raft.leadership();
        let (applied, term) = self.applied;
        let votes_alone = leadership.role == Role::Leader
            && self.conf_state.voters == [self.metadata.node_id]
            && self.conf_state.voters_outgoing.is_empty();
        if !votes_alone {
            self.sole_voter_since = None;
            return false;
        }
        let committed = self.raft.committed_index();
        let needed = match self.conf_state.learners.is_empty() {
            true => *self.sole_voter_since.get_or_insert(committed),
            false => {
                self.sole_voter_since = None;
                committed
            }
        };
        leadership.term == term && applied >= needed
    }
}
