//! Whether a read need ask no other member, because none could have acknowledged a write.
//!
//! If this member leads and is the only member, it alone acknowledges writes, and does so when it
//! has applied them. What others may have acknowledged while they were members was committed before
//! this member became the only one; so that must be applied here. Learners are told what is
//! committed, and one that is promoted by an entry that is not applied here yet may acknowledge:
//! beside learners all that is committed must be applied.

use clearlane_raft::Role;

use super::Replica;

/// Since when this member is the only one.
#[derive(Debug, Default)]
pub(super) struct SoleVoter {
    /// What was committed then.
    committed_at_begin: Option<u64>,
}

impl SoleVoter {
    pub(super) fn reset(&mut self) {
        self.committed_at_begin = None;
    }
}

impl Replica {
    /// Whether this member leads, no other votes, an entry of its term is applied, and with it all
    /// that another member may have acknowledged. Then all that was ever acknowledged is applied
    /// here, and no other can be elected before this member has let go.
    pub(super) fn is_sole_voter_caught_up(&mut self) -> bool {
        let leadership = self.raft.leadership();
        let (applied, term) = self.applied;
        let votes_alone = leadership.role == Role::Leader
            && self.conf_state.voters == [self.metadata.node_id]
            && self.conf_state.voters_outgoing.is_empty();
        if !votes_alone {
            self.sole_voter.committed_at_begin = None;
            return false;
        }
        let committed = self.raft.committed_index();
        let needed = match self.conf_state.learners.is_empty() {
            true => *self.sole_voter.committed_at_begin.get_or_insert(committed),
            false => {
                self.sole_voter.committed_at_begin = None;
                committed
            }
        };
        leadership.term == term && applied >= needed
    }
}
