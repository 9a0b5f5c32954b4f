//! Whether a read may skip ReadIndex, because no other member could have acknowledged a write.
//!
//! A leader that is the only member acknowledges a write when it has applied it. What others may
//! have acknowledged was committed before this member became the only one, so that must be applied
//! here. Learners are told what is committed, and one that is promoted by an entry not applied here
//! yet may acknowledge: beside learners all that is committed must be applied.

use clearlane_raft::Role;

use super::Replica;

impl Replica {
    /// Whether this member leads, is the only voter, and has applied an entry of its term and all
    /// that another member may have acknowledged. Then everything acknowledged is applied here, and
    /// no other member can be elected until this one gives up leadership.
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
