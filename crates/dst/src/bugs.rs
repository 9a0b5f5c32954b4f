//! Bugs, planted from outside of the members: the cluster must find each.
//!
//! A member does not know of them. What is altered is what goes into its two halves and what comes
//! out of them, its messages, its settings, and its disk: [`PlantedBug`] lies between a member and
//! the [cluster](crate::cluster). Without a bug it passes everything on as it is.
//!
//! `docs/dst.md` has a table of what is planted and how it is found.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use clearlane_proto::etcdserverpb::{PutResponse, ResponseHeader};
use clearlane_proto::nested::decode_raft_request;
use clearlane_raft::{Message, Role};
use clearlane_server::apply::{self, AppliedResponse};
use clearlane_server::replica::{
    AppliedConfChange, Applier, ApplyReady, ApplyReport, Completions, ProposalResult, Replica,
    ReplicaConfig, ReplicaInput, ReplicaReady, RequestOutcome, ToApply,
};
use clearlane_wal::group_commit::Batch;
use clearlane_wal::{Entry, EntryKind, HardState};
use protobuf::Message as _;
use raft::eraftpb::{self, MessageType};

use crate::checkers::requests::RequestChecker;

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    /// Every other batch is said to be on disk and is not, until the next one is.
    AcknowledgeBeforeSync,
    /// All questions of a member for the commit index have the same id.
    ReusedReadId,
    /// A leader answers reads without asking whether it still leads.
    SkippedQuorumCheck,
    /// A vote is said to be on disk and is not, until something else is.
    LostVote,
    /// A lease lasts longer than an election time-out, as with raft's own option for lease reads.
    LeaseTooLong,
    /// A lease is kept while leadership is handed over.
    LeaseKeptOverTransfer,
    /// The log is released up to what is applied, on disk or not.
    ReleaseByApplied,
    /// A put after a start is applied twice.
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
        Bug::LeaseTooLong,
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
            Bug::LeaseTooLong => "lease-too-long",
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

/// A message by which a leader hands over without knowing: its lease goes on.
pub fn unnoticed_transfer(from: u64, to: u64, term: u64) -> Option<Message> {
    let mut message = eraftpb::Message::default();
    message.set_msg_type(MessageType::MsgTimeoutNow);
    (message.from, message.to, message.term) = (from, to, term);
    from_raft(&message)
}

/// What is wrong with a member in one of its lives, if something is.
#[derive(Debug, Default)]
pub struct PlantedBug {
    bug: Option<Bug>,
    /// The id of the last question for the commit index.
    last_read_context: Bytes,
    /// Changes of members that raft has not been told of.
    delayed_conf_changes: Vec<AppliedConfChange>,
    has_applied_twice: bool,
    /// Whether the last batch was not synced.
    has_skipped_sync: bool,
    /// The last term and vote that were written.
    term_and_vote: (u64, u64),
    /// Reads that were answered before the replica has seen them.
    answered_reads: Completions,
}

impl PlantedBug {
    /// For a member that starts.
    pub fn new(bug: Option<Bug>) -> PlantedBug {
        PlantedBug { bug, ..PlantedBug::default() }
    }

    fn is(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// With which settings a member starts.
    pub fn alter_config(&self, config: &mut ReplicaConfig) {
        if self.is(Bug::LeaseTooLong) {
            config.read_index.election_timeout = Duration::from_secs(5);
        }
    }

    /// A member has started.
    pub fn after_start(&self, replica: &mut Replica, election_ticks: usize) {
        if self.is(Bug::LostVote) {
            // Its silence after a start would hide that it has forgotten its vote.
            (0..election_ticks).for_each(|_| replica.tick());
        }
    }

    /// What goes into the raft half, if anything does.
    pub fn alter_input(&mut self, replica: &Replica, input: ReplicaInput) -> Option<ReplicaInput> {
        match (self.bug, input) {
            (Some(Bug::ReusedReadId), ReplicaInput::Message(message)) => {
                let message = self.restore_read_context(replica.metadata().node_id, message);
                Some(ReplicaInput::Message(message))
            }
            (Some(Bug::SkippedQuorumCheck), ReplicaInput::ReadIndex(of))
                if replica.leadership().role == Role::Leader
                    && replica.last_applied().0 >= replica.committed() =>
            {
                self.answered_reads.push((of, RequestOutcome::ReadReady(Duration::ZERO)));
                None
            }
            (Some(Bug::ReleaseByApplied), ReplicaInput::StoreCommitted(mut durable)) => {
                (durable.index, durable.term) = replica.last_applied();
                Some(ReplicaInput::StoreCommitted(durable))
            }
            (Some(Bug::ConfStateTooLate), ReplicaInput::Applied(mut report)) => {
                std::mem::swap(&mut report.conf_changes, &mut self.delayed_conf_changes);
                Some(ReplicaInput::Applied(report))
            }
            (_, input) => Some(input),
        }
    }

    /// What comes out of the raft half.
    pub fn alter_ready(
        &mut self,
        replica: &mut Replica,
        ready: &mut ReplicaReady,
    ) -> clearlane_server::Result<()> {
        ready.completions.append(&mut self.answered_reads);
        for work in ready.to_apply.iter().filter(|_| self.is(Bug::InstallNotAwaited)) {
            if let ToApply::Install(position) = work {
                let (index, term, installed) =
                    (position.index, position.term, Some(position.clone()));
                let report = ApplyReport { index, term, installed, ..ApplyReport::default() };
                replica.handle_input(ReplicaInput::Applied(Box::new(report)))?;
            }
        }
        Ok(())
    }

    /// What a member sends.
    pub fn alter_sent(&mut self, member: u64, message: Message) -> Message {
        if !self.is(Bug::ReusedReadId) {
            return message;
        }
        let Some(mut altered) = to_raft(&message) else { return message };
        let Some(context) = read_context(&mut altered) else { return message };
        let is_own = context[..2] == member.to_be_bytes()[6..];
        if !is_own {
            return message;
        }
        self.last_read_context = context.clone();
        *context = same_read_context(member);
        from_raft(&altered).unwrap_or(message)
    }

    /// To which question an answer is said to belong.
    fn restore_read_context(&self, member: u64, message: Message) -> Message {
        let Some(mut altered) = to_raft(&message) else { return message };
        match read_context(&mut altered) {
            Some(context)
                if *context == same_read_context(member) && !self.last_read_context.is_empty() =>
            {
                *context = self.last_read_context.clone();
                from_raft(&altered).unwrap_or(message)
            }
            _ => message,
        }
    }

    /// Whether a batch is not synced, and is said to be.
    pub fn skips_sync(&mut self, batch: &Batch) -> bool {
        let state = batch.appends().iter().rev().find_map(|append| append.hard_state);
        let HardState { term, vote, .. } = state.unwrap_or_default();
        let is_vote = vote != 0 && self.term_and_vote != (term, vote);
        if is_vote {
            self.term_and_vote = (term, vote);
        }
        let has_entries = batch.appends().iter().any(|append| !append.entries.is_empty());
        self.has_skipped_sync = match self.bug {
            Some(Bug::AcknowledgeBeforeSync) => !self.has_skipped_sync,
            Some(Bug::LostVote) => is_vote && !has_entries,
            _ => false,
        };
        self.has_skipped_sync
    }

    /// What is answered before the apply half gets its work.
    pub fn answer_early(
        &self,
        work: &ToApply,
        applier: &Applier,
        requests: &RequestChecker,
    ) -> Completions {
        let ToApply::Entries(entries) = work else { return Completions::new() };
        let mut revision = applier.store().begin_read().revision();
        let mut early = Completions::new();
        for entry in entries.iter().filter(|_| self.is(Bug::ReplyBeforeApply)) {
            let Some(id) = put_id(entry) else { continue };
            revision += 1;
            if let Some(request) = requests.proposed_as(id) {
                let header = Some(ResponseHeader { revision, ..ResponseHeader::default() });
                let put = AppliedResponse::Put(PutResponse { header, prev_kv: None });
                early.push((request, applied(ProposalResult::Request(Ok(put)))));
            }
        }
        early
    }

    /// The apply half takes a step now, which begins with the first of these entries.
    pub fn before_apply(
        &mut self,
        applier: &Applier,
        entries: &VecDeque<Entry>,
    ) -> clearlane_server::Result<()> {
        if !self.is(Bug::ApplyTwice) || self.has_applied_twice {
            return Ok(());
        }
        if let Some(entry) = entries.front()
            && put_id(entry).is_some()
            && let Ok(request) = decode_raft_request(entry.data.clone())
        {
            let (leases, position) = (applier.leases(), applier.applied_position().clone());
            let has_lease = |lease| leases.contains(lease);
            apply::apply(&**applier.store(), &has_lease, &request, position)?;
            self.has_applied_twice = true;
        }
        Ok(())
    }

    /// What comes out of the apply half.
    pub fn alter_applied(&self, ready: &mut ApplyReady) {
        if self.is(Bug::CompletedTwice) {
            let again = ready.completions.iter().filter_map(|(request, outcome)| match outcome {
                RequestOutcome::Applied(result) => Some((*request, applied(result.clone()))),
                _ => None,
            });
            let again: Completions = again.collect();
            ready.completions.extend(again);
        }
    }
}

fn applied(result: ProposalResult) -> RequestOutcome {
    RequestOutcome::Applied(result)
}

/// The id of an entry that puts.
fn put_id(entry: &Entry) -> Option<u64> {
    let is_request = entry.kind == EntryKind::Normal && !entry.data.is_empty();
    let request = is_request.then(|| decode_raft_request(entry.data.clone()).ok())??;
    request.put?;
    request.header.map(|header| header.id)
}

/// What all questions of a member have as their id.
fn same_read_context(member: u64) -> Bytes {
    Bytes::copy_from_slice(&member.to_be_bytes())
}

/// Where a message has the id of a question for the commit index, if it has one.
fn read_context(message: &mut eraftpb::Message) -> Option<&mut Bytes> {
    let context = match message.get_msg_type() {
        MessageType::MsgReadIndex | MessageType::MsgReadIndexResp => {
            &mut message.mut_entries().first_mut()?.data
        }
        MessageType::MsgHeartbeat | MessageType::MsgHeartbeatResponse => &mut message.context,
        _ => return None,
    };
    (context.len() == 8).then_some(context)
}

fn to_raft(message: &Message) -> Option<eraftpb::Message> {
    eraftpb::Message::parse_from_bytes(&message.encode()).ok()
}

fn from_raft(message: &eraftpb::Message) -> Option<Message> {
    Message::decode(&message.write_to_bytes().ok()?).ok()
}
