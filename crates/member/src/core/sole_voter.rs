//! Whether a read need ask no other member, because none could have acknowledged a write.
//!
//! If this member leads and is the only member, it alone acknowledges writes, and does so when it has applied
//! them. What others may have acknowledged while they were members was committed before this member became the
//! only one; so that must be applied here. Learners are told what is committed, and one that is promoted by an
//! entry that is not applied here yet may acknowledge: beside learners all that is committed must be applied.

use clearlane_raft_log::driver::Role;

use super::Core;

/// Since when this member is the only one.
#[derive(Debug, Default)]
pub(super) struct SoleVoter {
    /// What was committed then.
    committed: Option<u64>,
}

impl SoleVoter {
    pub(super) fn leadership_has_changed(&mut self) {
        self.committed = None;
    }
}

impl Core {
    /// Whether this member leads, no other votes, an entry of its term is applied, and with it all that another
    /// member may have acknowledged. Then all that was ever acknowledged is applied here, and no other can be
    /// elected before this member has let go.
    pub(super) fn is_alone(&mut self) -> bool {
        let leadership = self.driver.leadership();
        let (applied, term) = self.applied;
        let votes_alone = leadership.role == Role::Leader
            && self.voting.voters == [self.metadata.node_id]
            && self.voting.voters_outgoing.is_empty();
        if !votes_alone {
            self.sole_voter.committed = None;
            return false;
        }
        let committed = self.driver.committed();
        let needed = match self.voting.learners.is_empty() {
            true => *self.sole_voter.committed.get_or_insert(committed),
            false => {
                self.sole_voter.committed = None;
                committed
            }
        };
        leadership.term == term && applied >= needed
    }
}
