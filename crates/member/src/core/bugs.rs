//! Faults that somebody could make, planted on purpose: the deterministic cluster must find each.
//!
//! They are compiled in only with the feature `planted-bugs`, and do nothing until
//! [`Core::plant`] is called.

use clearlane_raft_log::driver::{self, Role};
use clearlane_read_index::Event;

use super::Core;
use crate::error::Result;

/// What is planted in a member, and what it has done so far.
#[derive(Debug, Default)]
pub(super) struct Planted {
    bug: Option<Bug>,
    asked: u64,
    has_applied: bool,
}

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    /// Raft is told that an append is on disk while it is on its way.
    AcknowledgeBeforeSync,
    /// All questions of a member for the commit index have the same id.
    ReusedReadId,
    /// A leader answers reads without asking whether it still leads.
    SkippedQuorumCheck,
    /// A vote is not written down.
    LostVote,
    /// Raft's own option for lease reads. It is in the settings of raft: planting it does nothing.
    LeaseBasedOption,
    /// A lease is kept while leadership is handed over.
    LeaseKeptOverTransfer,
    /// The log is released up to what is applied, on disk or not.
    ReleaseByApplied,
    /// The first request after a start is applied twice.
    ApplyTwice,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 8] = [
        Bug::AcknowledgeBeforeSync,
        Bug::ReusedReadId,
        Bug::SkippedQuorumCheck,
        Bug::LostVote,
        Bug::LeaseBasedOption,
        Bug::LeaseKeptOverTransfer,
        Bug::ReleaseByApplied,
        Bug::ApplyTwice,
    ];

    /// The name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Bug::AcknowledgeBeforeSync => "acknowledge-before-sync",
            Bug::ReusedReadId => "reused-read-id",
            Bug::SkippedQuorumCheck => "skipped-quorum-check",
            Bug::LostVote => "lost-vote",
            Bug::LeaseBasedOption => "lease-based-option",
            Bug::LeaseKeptOverTransfer => "lease-kept-over-transfer",
            Bug::ReleaseByApplied => "release-by-applied",
            Bug::ApplyTwice => "apply-twice",
        }
    }
}

impl Core {
    /// Plants a fault, for as long as this member runs.
    pub fn plant(&mut self, bug: Bug) {
        self.planted.bug = Some(bug);
        if bug == Bug::LostVote {
            // Its silence after a start would hide that it has forgotten its vote.
            self.silent_ticks = 0;
        }
    }

    pub(super) fn has(&self, bug: Bug) -> bool {
        self.planted.bug == Some(bug)
    }

    pub(super) fn keeps_lease(&self) -> bool {
        self.has(Bug::LeaseKeptOverTransfer)
    }

    /// What becomes of an append.
    pub(super) fn spoil(&mut self, mut append: driver::Append) -> Result<driver::Append> {
        if self.has(Bug::AcknowledgeBeforeSync) && append.install.is_none() && append.must_sync {
            self.driver.persisted(append.number)?;
        }
        if self.has(Bug::LostVote)
            && let Some(state) = &mut append.hard_state
        {
            state.vote = 0;
        }
        Ok(append)
    }

    /// What becomes of a question for the commit index.
    pub(super) fn spoil_question(&mut self, context: u64) -> Option<u64> {
        if self.has(Bug::SkippedQuorumCheck) && self.driver.leadership().role == Role::Leader {
            let index = self.driver.committed();
            self.barrier.hear(Event::Answered { context, index });
            return None;
        }
        self.planted.asked = context;
        Some(if self.has(Bug::ReusedReadId) { self.metadata.node_id } else { context })
    }

    /// To which question an answer belongs.
    pub(super) fn spoil_answer(&self, context: u64) -> u64 {
        if self.has(Bug::ReusedReadId) { self.planted.asked } else { context }
    }

    /// Whether some request is applied twice.
    pub(super) fn applies_twice(&self) -> bool {
        self.has(Bug::ApplyTwice)
    }

    /// How often a request is applied.
    pub(super) fn times(&mut self) -> usize {
        let first = !std::mem::replace(&mut self.planted.has_applied, true);
        if first && self.has(Bug::ApplyTwice) { 2 } else { 1 }
    }
}
