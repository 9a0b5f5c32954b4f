//! Faults that a programmer could make, planted on purpose: the deterministic cluster must find
//! each.
//!
//! They are compiled in only with the feature `planted-bugs`, and do nothing until
//! [`Replica::plant_bug`] is called.

use clearlane_proto::etcdserverpb::PutResponse;
use clearlane_proto::nested::decode_raft_request;
use clearlane_raft as raft;
use clearlane_raft::Role;
use clearlane_raft::read_index::ReadIndexEvent;
use clearlane_wal::EntryKind;

use super::{
    AppliedConfChange, Applier, ApplyReport, ProposalResult, Replica, RequestOutcome, ToApply,
};
use crate::applied_position::AppliedPosition;
use crate::apply::{AppliedResponse, header};
use crate::error::Result;

/// What is planted in a half of a member, and what it has done so far.
#[derive(Debug, Default)]
pub(super) struct PlantedBug {
    bug: Option<Bug>,
    last_read_context: u64,
    has_applied: bool,
    /// Changes of members that raft has not been told of.
    delayed_conf_changes: Vec<AppliedConfChange>,
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
    /// Raft is told of a change of members after it was told that its entry is applied.
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

impl Replica {
    /// Plants a fault, for as long as this member runs.
    pub fn plant_bug(&mut self, bug: Bug) {
        self.planted.bug = Some(bug);
        if bug == Bug::LostVote {
            // Its silence after a start would hide that it has forgotten its vote.
            self.ticks_before_vote = 0;
        }
    }

    pub(super) fn has_bug(&self, bug: Bug) -> bool {
        self.planted.bug == Some(bug)
    }

    pub(super) fn keeps_lease(&self) -> bool {
        self.has_bug(Bug::LeaseKeptOverTransfer)
    }

    /// What becomes of an append.
    pub(super) fn spoil_append(
        &mut self,
        mut append: raft::ReadyAppend,
    ) -> Result<raft::ReadyAppend> {
        if self.has_bug(Bug::AcknowledgeBeforeSync)
            && append.install_snapshot.is_none()
            && append.must_sync
        {
            self.raft.on_persisted(append.number)?;
        }
        if self.has_bug(Bug::LostVote)
            && let Some(state) = &mut append.hard_state
        {
            state.vote = 0;
        }
        Ok(append)
    }

    /// What becomes of a question for the commit index.
    pub(super) fn spoil_read_request(&mut self, context: u64) -> Option<u64> {
        if self.has_bug(Bug::SkippedQuorumCheck) && self.raft.leadership().role == Role::Leader {
            let index = self.raft.committed_index();
            self.read_index.handle_event(ReadIndexEvent::Answered { context, index });
            return None;
        }
        self.planted.last_read_context = context;
        Some(if self.has_bug(Bug::ReusedReadId) { self.metadata.node_id } else { context })
    }

    /// To which question an answer belongs.
    pub(super) fn spoil_read_context(&self, context: u64) -> u64 {
        if self.has_bug(Bug::ReusedReadId) { self.planted.last_read_context } else { context }
    }

    /// What raft is told of what is applied.
    pub(super) fn spoil_apply_report(&mut self, mut applied: ApplyReport) -> ApplyReport {
        if self.has_bug(Bug::ConfStateTooLate) {
            let late = std::mem::take(&mut applied.conf_changes);
            applied.conf_changes = std::mem::replace(&mut self.planted.delayed_conf_changes, late);
        }
        applied
    }

    /// A snapshot goes to the apply loop.
    pub(super) fn spoil_install(&mut self, index: u64) -> Result<()> {
        if self.has_bug(Bug::InstallNotAwaited) {
            self.wal.finish_install(index);
            self.raft.on_installed(index)?;
        }
        Ok(())
    }

    /// What the engine is said to have on disk.
    pub(super) fn spoil_durable(&self, durable: &AppliedPosition) -> AppliedPosition {
        let mut durable = durable.clone();
        if self.has_bug(Bug::ReleaseByApplied) {
            (durable.index, durable.term) = self.applied;
        }
        durable
    }
}

impl Applier {
    /// Plants a fault, for as long as this member runs.
    pub fn plant_bug(&mut self, bug: Bug) {
        self.planted.bug = Some(bug);
    }

    fn has_bug(&self, bug: Bug) -> bool {
        self.planted.bug == Some(bug)
    }

    /// Answers puts that are not applied.
    pub(super) fn complete_early(&mut self, work: &ToApply) {
        let ToApply::Entries(entries) = work else { return };
        if !self.has_bug(Bug::ReplyBeforeApply) {
            return;
        }
        let mut revision = self.store.begin_read().revision();
        for entry in entries.iter().filter(|entry| entry.kind == EntryKind::Normal) {
            let Ok(request) = decode_raft_request(entry.data.clone()) else { continue };
            let id = request.header.as_ref().map_or(0, |header| header.id);
            revision += 1;
            if request.put.is_some()
                && let Some(of) = self.wait.remove(id)
            {
                let put = PutResponse { header: Some(header(revision)), prev_kv: None };
                let answer = ProposalResult::Request(Ok(AppliedResponse::Put(put)));
                self.ready.completions.push((of, RequestOutcome::Applied(answer)));
            }
        }
    }

    /// Whether outcomes leave before entries are applied.
    pub(super) fn completes_before_apply(&self) -> bool {
        self.has_bug(Bug::ReplyBeforeApply) && !self.ready.completions.is_empty()
    }

    /// Whether some request is applied twice.
    pub(super) fn applies_twice(&self) -> bool {
        self.has_bug(Bug::ApplyTwice)
    }

    /// How often a request is applied.
    pub(super) fn apply_count(&mut self) -> usize {
        let first = !std::mem::replace(&mut self.planted.has_applied, true);
        if first && self.has_bug(Bug::ApplyTwice) { 2 } else { 1 }
    }

    /// How often a proposal is completed.
    pub(super) fn completion_count(&self) -> usize {
        if self.has_bug(Bug::CompletedTwice) { 2 } else { 1 }
    }
}
