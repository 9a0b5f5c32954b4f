//! Faults that somebody could make, planted on purpose: the deterministic cluster must find each.
//!
//! They are compiled in only with the feature `planted-bugs`, and do nothing until
//! [`Core::plant`] is called.

use clearlane_proto::etcdserverpb::PutResponse;
use clearlane_proto::nested::decode_raft_request;
use clearlane_raft_log::EntryKind;
use clearlane_raft_log::driver::{self, Role};
use clearlane_read_index::Event;

use super::{Answer, Applied, AppliedChange, Applier, Core, Outcome, ToApply};
use crate::error::Result;
use crate::progress::Progress;
use crate::requests::{Reply, header};

/// What is planted in a half of a member, and what it has done so far.
#[derive(Debug, Default)]
pub(super) struct Planted {
    bug: Option<Bug>,
    asked: u64,
    has_applied: bool,
    /// Changes of members that raft has not been told of.
    changes: Vec<AppliedChange>,
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
    /// A put is answered when the apply loop gets it, and applied later.
    ReplyBeforeApply,
    /// Raft hears of a change of members after it has heard that its entry is applied.
    ConfStateTooLate,
    /// Raft goes on behind a snapshot that the apply loop has not installed yet.
    InstallNotAwaited,
    /// A proposal is completed twice.
    CompletedTwice,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 12] = [
        Bug::AcknowledgeBeforeSync,
        Bug::ReusedReadId,
        Bug::SkippedQuorumCheck,
        Bug::LostVote,
        Bug::LeaseBasedOption,
        Bug::LeaseKeptOverTransfer,
        Bug::ReleaseByApplied,
        Bug::ApplyTwice,
        Bug::ReplyBeforeApply,
        Bug::ConfStateTooLate,
        Bug::InstallNotAwaited,
        Bug::CompletedTwice,
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
            Bug::ReplyBeforeApply => "reply-before-apply",
            Bug::ConfStateTooLate => "conf-state-too-late",
            Bug::InstallNotAwaited => "install-not-awaited",
            Bug::CompletedTwice => "completed-twice",
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
    pub(super) fn spoil_append(&mut self, mut append: driver::Append) -> Result<driver::Append> {
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

    /// What raft hears of what is applied.
    pub(super) fn spoil_applied(&mut self, mut applied: Applied) -> Applied {
        if self.has(Bug::ConfStateTooLate) {
            let late = std::mem::take(&mut applied.changes);
            applied.changes = std::mem::replace(&mut self.planted.changes, late);
        }
        applied
    }

    /// A snapshot goes to the apply loop.
    pub(super) fn spoil_install(&mut self, index: u64) -> Result<()> {
        if self.has(Bug::InstallNotAwaited) {
            self.log.installed(index);
            self.driver.installed(index)?;
        }
        Ok(())
    }

    /// What the engine is said to have on disk.
    pub(super) fn spoil_durable(&self, durable: &Progress) -> Progress {
        let mut durable = durable.clone();
        if self.has(Bug::ReleaseByApplied) {
            (durable.index, durable.term) = self.applied;
        }
        durable
    }
}

impl Applier {
    /// Plants a fault, for as long as this member runs.
    pub fn plant(&mut self, bug: Bug) {
        self.planted.bug = Some(bug);
    }

    fn has(&self, bug: Bug) -> bool {
        self.planted.bug == Some(bug)
    }

    /// Answers puts that are not applied.
    pub(super) fn answer_early(&mut self, work: &ToApply) {
        let ToApply::Entries(entries) = work else { return };
        if !self.has(Bug::ReplyBeforeApply) {
            return;
        }
        let mut revision = self.store.read().revision();
        for entry in entries.iter().filter(|entry| entry.kind == EntryKind::Normal) {
            let Ok(request) = decode_raft_request(entry.data.clone()) else { continue };
            let id = request.header.as_ref().map_or(0, |header| header.id);
            revision += 1;
            if request.put.is_some()
                && let Some(of) = self.wait.take(id)
            {
                let put = PutResponse { header: Some(header(revision)), prev_kv: None };
                let answer = Answer::Request(Ok(Reply::Put(put)));
                self.out.completions.push((of, Outcome::Applied(answer)));
            }
        }
    }

    /// Whether outcomes leave before entries are applied.
    pub(super) fn replies_first(&self) -> bool {
        self.has(Bug::ReplyBeforeApply) && !self.out.completions.is_empty()
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

    /// How often a proposal is completed.
    pub(super) fn answers(&self) -> usize {
        if self.has(Bug::CompletedTwice) { 2 } else { 1 }
    }
}
