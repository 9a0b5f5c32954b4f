//! Bugs that are planted outside of the members' code. The tests must find each bug: `docs/dst.md`
//! has a table.
//!
//! [`PlantedBug`] is between a member and the [cluster](crate::cluster). It alters the inputs and
//! outputs of the member's two halves (raft and apply), its messages, its settings, and the syncs
//! of its disk. For three bugs it also changes the member's store or users between two steps. If no
//! bug is planted, it changes nothing.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use clap::ValueEnum;
use clearlane_proto::etcdserverpb::{InternalAuthenticateRequest, PutResponse, ResponseHeader};
use clearlane_proto::nested::decode_raft_request;
use clearlane_raft::{Message, Role};
use clearlane_replica::apply::{self, AppliedResponse, TxnReadMode};
use clearlane_replica::{
    AppliedConfChange, Applier, ApplyReady, ApplyReport, Completions, Part, Replica, ReplicaConfig,
    ReplicaInput, ReplicaReady, RequestOutcome, ToApply,
};
use clearlane_wal::group_commit::Batch;
use clearlane_wal::{Entry, EntryKind, HardState};
use protobuf::Message as _;
use raft::eraftpb::{self, MessageType};

use crate::checkers::requests::RequestChecker;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Bug {
    /// Every second batch is acknowledged without a sync. The sync of the next batch covers it.
    AcknowledgeBeforeSync,
    /// All ReadIndex requests of a member carry the same context.
    ReusedReadId,
    /// A leader answers reads although no quorum has confirmed that it still leads.
    SkippedQuorumCheck,
    /// A batch with a new vote and no entries is acknowledged without a sync.
    LostVote,
    /// A leader's lease for reads lasts longer than an election time-out, as with raft's own option
    /// for lease reads.
    LeaseTooLong,
    /// A leader keeps its lease for reads while it transfers its leadership.
    LeaseKeptOverTransfer,
    /// The log is released up to the applied index, even if the store on disk is at an earlier
    /// index.
    ReleaseByApplied,
    /// Once per start, a put is applied twice: the first put that is the first entry of a step of
    /// the apply half.
    ApplyTwice,
    /// A put is answered when the apply half receives its entry, before the entry is applied.
    ReplyBeforeApply,
    /// The raft half learns of a membership change one report too late: the previous report already
    /// included the change's entry as applied.
    ConfStateTooLate,
    /// A snapshot is reported to raft as installed before the apply half has installed it.
    InstallNotAwaited,
    /// An applied request is completed a second time.
    CompletedTwice,
    /// A member with a wiped disk starts without the other members' permission.
    NoIdentityCheck,
    /// A member with a wiped disk starts as with `NoIdentityCheck`. In addition, it continues after
    /// a heartbeat shows that it has lost acknowledged entries.
    LostLogAccepted,
    /// A leader treats its stalled disk as a working disk.
    StalledLeaderLeads,
    /// The permission for a write or a lease operation is checked only when it is proposed, not
    /// when it is applied.
    PermissionOnlyProposed,
    /// An entry is applied although users or roles have changed since it was proposed.
    AuthRevisionIgnored,
    /// A member that installs a snapshot keeps its old users and roles.
    AuthNotInstalled,
    /// A read is answered although users or roles have changed since its permission was checked.
    RevisionNotCompared,
    /// The permission for a linearizable read is checked before the member is fresh enough. The
    /// auth revision for the comparison is read after the wait.
    AuthorizedBeforeWait,
    /// A user's tokens stay valid after the user's password was changed.
    TokensOutlivePasswords,
    /// The leader's revocation of an expired lease names no user.
    RevocationUnnamed,
}

impl Bug {
    /// Returns whether the bug needs a run that wipes disks.
    pub fn is_about_wiped_disks(self) -> bool {
        matches!(self, Bug::NoIdentityCheck | Bug::LostLogAccepted)
    }

    /// Returns whether the bug needs a run with users. These bugs are the last ones of the enum.
    pub fn is_about_users(self) -> bool {
        self >= Bug::PermissionOnlyProposed
    }
}

/// Returns a `MsgTimeoutNow` that the leader's raft has not created. So the leader's raft does not
/// know about the transfer, and keeps its lease for reads. Returns `None` only if the message
/// cannot be converted.
pub fn unnoticed_transfer(from: u64, to: u64, term: u64) -> Option<Message> {
    let mut message = eraftpb::Message::default();
    message.set_msg_type(MessageType::MsgTimeoutNow);
    (message.from, message.to, message.term) = (from, to, term);
    from_raft(&message)
}

/// The planted bug of a member, with its state in one incarnation.
#[derive(Debug, Default)]
pub struct PlantedBug {
    pub(crate) bug: Option<Bug>,
    last_read_context: Bytes,
    delayed_conf_changes: Vec<AppliedConfChange>,
    has_applied_twice: bool,
    /// If true, the last batch was not synced.
    has_skipped_sync: bool,
    /// The term and vote of the last vote that was written to the log.
    term_and_vote: (u64, u64),
    /// Outcomes of reads that `SkippedQuorumCheck` answers. The replica never receives these reads.
    answered_reads: Completions,
    /// The assigned tokens, by the index of their entry.
    pub(crate) tokens: BTreeMap<u64, InternalAuthenticateRequest>,
}

impl PlantedBug {
    pub fn new(bug: Option<Bug>) -> PlantedBug {
        PlantedBug { bug, ..PlantedBug::default() }
    }

    pub(crate) fn is(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    pub fn alter_config(&self, config: &mut ReplicaConfig) {
        if self.is(Bug::LeaseTooLong) {
            config.read_index.election_timeout = Duration::from_secs(5);
        }
    }

    pub fn after_start(&self, replica: &mut Replica, election_ticks: usize) {
        if self.is(Bug::LostVote) {
            // A starting member does not vote at first. Without these ticks, that pause would hide
            // that the member has forgotten its vote.
            (0..election_ticks).for_each(|_| replica.tick());
        }
    }

    pub fn before_tick(&self, replica: &mut Replica) {
        if self.is(Bug::StalledLeaderLeads) {
            replica.record_progress(Part::Log);
        }
    }

    /// Returns the input for the replica, or `None` if the bug withholds it.
    pub fn alter_input(&mut self, replica: &Replica, input: ReplicaInput) -> Option<ReplicaInput> {
        match (self.bug, input) {
            (Some(Bug::ReusedReadId), ReplicaInput::Message(message)) => {
                let message = self.restore_read_context(replica.metadata.node_id, message);
                Some(ReplicaInput::Message(message))
            }
            (Some(Bug::LostLogAccepted), ReplicaInput::Message(message)) => {
                Some(ReplicaInput::Message(without_lost_commit(replica, message)))
            }
            (Some(Bug::SkippedQuorumCheck), ReplicaInput::ReadIndex(of, _))
                if replica.raft().leadership().role == Role::Leader
                    && replica.applied.0 >= replica.raft().committed_index() =>
            {
                self.answered_reads.push((of, RequestOutcome::ReadReady(Duration::ZERO)));
                None
            }
            (Some(Bug::ReleaseByApplied), ReplicaInput::StoreCommitted(mut durable)) => {
                (durable.index, durable.term) = replica.applied;
                Some(ReplicaInput::StoreCommitted(durable))
            }
            (Some(Bug::ConfStateTooLate), ReplicaInput::Applied(mut report)) => {
                std::mem::swap(&mut report.conf_changes, &mut self.delayed_conf_changes);
                Some(ReplicaInput::Applied(report))
            }
            (_, input) => Some(input),
        }
    }

    pub fn alter_ready(
        &mut self,
        replica: &mut Replica,
        ready: &mut ReplicaReady,
    ) -> clearlane_replica::Result<()> {
        ready.completions.append(&mut self.answered_reads);
        for work in ready.to_apply.iter().filter(|_| self.is(Bug::InstallNotAwaited)) {
            if let ToApply::Install(position) = work {
                let report = ApplyReport {
                    index: position.index,
                    term: position.term,
                    installed: Some(position.clone()),
                    ..ApplyReport::default()
                };
                replica.handle_input(ReplicaInput::Applied(Box::new(report)))?;
            }
        }
        Ok(())
    }

    pub fn alter_sent(&mut self, member: u64, message: Message) -> Message {
        if !self.is(Bug::ReusedReadId) {
            return message;
        }
        let Some(mut altered) = to_raft(&message) else { return message };
        let Some(context) = read_context(&mut altered) else { return message };
        if context[..2] != member.to_be_bytes()[6..] {
            return message;
        }
        self.last_read_context = context.clone();
        *context = same_read_context(member);
        from_raft(&altered).unwrap_or(message)
    }

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

    /// Returns whether the batch is acknowledged without a sync.
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

    pub fn answer_early(
        &self,
        work: &ToApply,
        applier: &Applier,
        requests: &RequestChecker,
    ) -> Completions {
        let ToApply::Entries(entries) = work else { return Completions::new() };
        let mut revision = applier.store.begin_read().revision();
        let mut early = Completions::new();
        for entry in entries.iter().filter(|_| self.is(Bug::ReplyBeforeApply)) {
            let Some(id) = put_id(entry) else { continue };
            revision += 1;
            if let Some(request) = requests.proposed_as(id) {
                let header = Some(ResponseHeader { revision, ..ResponseHeader::default() });
                let put = AppliedResponse::Put(PutResponse { header, prev_kv: None });
                early.push((request, RequestOutcome::Applied(Ok(put))));
            }
        }
        early
    }

    /// If the bug is `ApplyTwice`, applies the entry `entries.front()`, if it is a put and no put
    /// has been applied twice since the start. This function is called before the apply half takes
    /// a step, which applies the same entry again.
    pub fn before_apply(
        &mut self,
        applier: &Applier,
        entries: &VecDeque<Entry>,
    ) -> clearlane_replica::Result<()> {
        if !self.is(Bug::ApplyTwice) || self.has_applied_twice {
            return Ok(());
        }
        if let Some(entry) = entries.front()
            && put_id(entry).is_some()
            && let Ok(request) = decode_raft_request(entry.data.clone())
        {
            let (leases, position) = (&applier.leases, applier.applied_position.clone());
            let has_lease = |lease| leases.contains(lease);
            let store = &*applier.store;
            apply::apply(store, &has_lease, &request, position, TxnReadMode::Inline, None)?;
            self.has_applied_twice = true;
        }
        Ok(())
    }

    pub fn alter_applied(&self, ready: &mut ApplyReady) {
        if self.is(Bug::CompletedTwice) {
            let again = ready.completions.iter().filter_map(|(request, outcome)| match outcome {
                RequestOutcome::Applied(result) => {
                    Some((*request, RequestOutcome::Applied(result.clone())))
                }
                _ => None,
            });
            let again: Completions = again.collect();
            ready.completions.extend(again);
        }
    }
}

/// If the commit index of a heartbeat is above the member's last entry, lowers it to that entry's
/// index. Returns any other message unchanged.
fn without_lost_commit(replica: &Replica, message: Message) -> Message {
    let Some(lost) = lost_commit(replica, &message) else { return message };
    let Some(mut altered) = to_raft(&message) else { return message };
    altered.commit -= lost;
    from_raft(&altered).unwrap_or(message)
}

/// Returns the number of entries that a heartbeat commits and the member does not have. Returns
/// `None` if there are none, if the heartbeat's term is older than the member's term, and for other
/// messages.
pub fn lost_commit(replica: &Replica, message: &Message) -> Option<u64> {
    let message = to_raft(message)?;
    let counts = message.get_msg_type() == MessageType::MsgHeartbeat
        && message.term >= replica.raft().leadership().term;
    let lost = message.commit.saturating_sub(replica.raft().last_index());
    (counts && lost > 0).then_some(lost)
}

fn put_id(entry: &Entry) -> Option<u64> {
    let is_request = entry.kind == EntryKind::Normal && !entry.data.is_empty();
    let request = is_request.then(|| decode_raft_request(entry.data.clone()).ok())??;
    request.put?;
    request.header.map(|header| header.id)
}

fn same_read_context(member: u64) -> Bytes {
    Bytes::copy_from_slice(&member.to_be_bytes())
}

/// Returns the ReadIndex context of a ReadIndex message, a heartbeat, or a response to one of these
/// messages. Returns `None` for other messages, and if the context is not 8 bytes long.
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

pub(crate) fn to_raft(message: &Message) -> Option<eraftpb::Message> {
    eraftpb::Message::parse_from_bytes(&message.encode()).ok()
}

fn from_raft(message: &eraftpb::Message) -> Option<Message> {
    Message::decode(&message.write_to_bytes().ok()?).ok()
}
