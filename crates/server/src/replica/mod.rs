//! One member, as two state machines: the raft half and the apply half.
//!
//! [`Replica`] is what the raft loop drives: raft, the write-ahead log's queue, reads, proposals.
//! [`Applier`] is what the apply loop drives: it turns committed entries into states of the store.
//! They talk by [`ToApply`] and [`ApplyReport`], in order. Neither starts a thread, reads a clock
//! or opens a file but the store's: the server runs them on threads, the simulated cluster as steps
//! in any order that threads allow.
//!
//! * A message that speaks of something leaves after that is on disk (the driver sees to it).
//! * A write is answered after this member has applied it. Before, a quorum has synced it.
//! * Entries are applied in order, each once: one that is not the next stops the member.
//! * Nothing in the log is let go of that the durable store does not have.
//!
//! etcd's counterparts are `raftNode.start` and `EtcdServer.applyAll`. The story is told in
//! `docs/raft-and-apply.md`.

mod force_new_cluster;
mod applier;
mod apply;
mod apply_messages;
mod input;
mod leases;
mod ready;
mod own_alarm;
mod request_queue;
mod sole_voter;
mod wal_pipeline;
mod slow;
mod start;
mod queued_proposals;
mod wait;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clearlane_lease::Lessor;
use clearlane_proto::etcdserverpb::{InternalRaftRequest, RangeRequest, RequestHeader};
use clearlane_raft as raft;
use clearlane_raft::LogPosition;
use clearlane_raft::read_index::{
    ReadIndexAction, ReadIndexEvent, ReadIndexMetrics, ReadIndexQueue, RequestIdGenerator,
};
use clearlane_raft::{Leadership, Message, RaftNode, Ready, Role};
use clearlane_wal::group_commit::BatchResult;
use clearlane_wal::{ConfState, Entry, EntryKind, Metadata};
use prost::Message as _;

pub use self::applier::Applier;
pub use self::apply_messages::{AppliedConfChange, ApplyReport, ToApply};
pub use self::force_new_cluster::force_new_cluster;
pub use self::input::ReplicaInput;
use self::own_alarm::ProposedAlarm;
use self::queued_proposals::{Proposal, QueuedProposals};
pub use self::ready::{
    ApplyReady, ApplyReadyHandler, Completions, NewStore, ProposalResult, ReplicaReady,
    ReplicaReadyHandler,
};
pub use self::request_queue::{NO_DEADLINE, ROUND_LENGTH, RequestId, RequestOutcome, RequestQueue};
pub use self::slow::{ApplyTimer, SlowEntry};
use self::sole_voter::SoleVoter;
pub use self::start::{CompactionConfig, ReplicaConfig, StorageConfig, bootstrap, start};
pub use self::wait::Wait;
use self::wal_pipeline::{AfterSync, WalPipeline};
use crate::alarms::Alarms;
use crate::applied_position::AppliedPosition;
use crate::error::{Error, Result};
use crate::membership::{self, Members};
use crate::raft_snapshot::{ReceivedSnapshot, StoreDir};

/// Committed entries that may wait to be applied. More proposals are refused: etcd's number.
const APPLY_GAP_MAX: u64 = 5000;
/// Ticks for which a member goes on that was removed: its last messages tell the others that the
/// removal is committed. If it led one other voter, that one has no quorum until it knows.
const TICKS_AFTER_REMOVAL: usize = 10;
/// Bytes of committed entries that may wait to be applied. A leader takes no more proposals, and a
/// follower no more entries from its leader, which sends them again.
const APPLY_BYTES_MAX: u64 = 256 << 20;

/// The raft half of a member.
#[derive(Debug)]
pub struct Replica {
    metadata: Metadata,
    config: ReplicaConfig,
    store_dir: Arc<dyn StoreDir>,
    raft: RaftNode,
    wal: WalPipeline,
    /// As far as the apply loop has said.
    applied: (u64, u64),
    /// Raft's members.
    conf_state: ConfState,
    members: Arc<Members>,
    alarms: Arc<Alarms>,
    leases: Arc<Lessor>,
    /// The term in which this member has begun the leases' time, while it leads.
    lease_term: Option<u64>,
    /// Leases that ran out while this member led.
    leases_expired: u64,
    /// What the last poll was told.
    now: Duration,
    read_index: Box<dyn ReadIndexQueue<RequestId>>,
    ids: RequestIdGenerator,
    wait: Arc<Wait>,
    queued_proposals: QueuedProposals,
    proposed_alarm: Option<ProposedAlarm>,
    sole_voter: SoleVoter,
    /// What was published last, to the ReadIndex queue too.
    last_reported: LastReported,
    /// Up to where readers must see, and since when that is known, where it is not applied yet.
    pending_read_indexes: BTreeMap<u64, Duration>,
    /// Ticks until this member may vote for another.
    ticks_before_vote: usize,
    /// This member was removed, and stops after so many ticks.
    ticks_before_stop: Option<usize>,
    /// The last position that the log has on record.
    recorded_index: u64,
    /// Bytes of the entries that were applied since.
    unrecorded_bytes: u64,
    /// The log has grown so long that a commit of the store was asked for.
    is_commit_requested: bool,
    /// What the apply loop was given: the last index of each part, and its bytes.
    unapplied: VecDeque<(u64, u64)>,
    unapplied_bytes: u64,
    /// The position of the last raft snapshot that raft has taken: what was changed before counts
    /// no more.
    snapshot_index: u64,
    /// Committed at the start, and not applied yet: then a sole voter need not wait for others to
    /// lead.
    committed_at_start: Option<u64>,
    /// Copies that have come, for the next poll.
    received_snapshots: Vec<ReceivedSnapshot>,
    /// Copies that raft is offered, by index.
    offered_snapshots: BTreeSet<u64>,
    /// From which index on each member that is being sent a copy will go on.
    sending_snapshots: BTreeMap<u64, u64>,
    /// What has gathered since the last poll.
    ready: ReplicaReady,
}

#[derive(Debug, Default)]
struct LastReported {
    transferee: Option<u64>,
    committed: u64,
}

/// Why members cannot be changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberChangeError {
    /// The members do not allow it.
    #[error(transparent)]
    Rejected(#[from] membership::MembershipRejection),
    /// Raft does not take it now.
    #[error(transparent)]
    Raft(#[from] raft::Error),
    /// Only the leader knows whether it may be.
    #[error("etcdserver: not leader")]
    NotLeader,
}

impl Replica {
    /// A tick of the clock has passed.
    pub fn tick(&mut self) {
        self.ticks_before_vote = self.ticks_before_vote.saturating_sub(1);
        // It may end a transfer, and the lease must go before the next poll.
        self.check_transfer();
        self.raft.tick();
        if let Some(last) = &mut self.ticks_before_stop {
            *last = last.saturating_sub(1);
            self.ready.is_stopping |= *last == 0;
        }
    }

    /// A message has come from another member. An error says that raft cannot use it, and nothing
    /// has changed.
    pub fn receive(&mut self, message: Message) -> raft::Result<()> {
        // What it had granted to a leader's lease before it was started was in memory only.
        if self.ticks_before_vote > 0 && message.is_vote_request() {
            return Ok(());
        }
        if message.is_snapshot() {
            // Raft would take it, and there would be nothing to install.
            return Err(raft::Error::InvalidMessage(format!(
                "{message}: its copy did not come with it"
            )));
        }
        let is_behind = match (message.is_append(), message.is_proposal()) {
            (true, _) => self.unapplied_bytes > APPLY_BYTES_MAX,
            (_, true) => self.apply_is_behind(),
            _ => false,
        };
        if is_behind {
            return Err(raft::Error::QueueFull);
        }
        self.raft.step(message)
    }

    /// Whether a proposal would be taken now, here or by the leader to which it is forwarded.
    pub fn can_propose(&self) -> bool {
        self.raft.leadership().leader != 0 && self.raft.lead_transferee().is_none()
    }

    /// Whether so much waits for the apply loop that no more may be proposed, here or by a member
    /// that forwards.
    fn apply_is_behind(&self) -> bool {
        let gap = self.raft.committed_index().saturating_sub(self.applied.0);
        gap > APPLY_GAP_MAX || self.unapplied_bytes > APPLY_BYTES_MAX
    }

    /// Gives a proposal to raft. It may get lost; then its request waits until its time is over.
    fn propose(&mut self, proposal: Proposal, of: RequestId) {
        let is_late = self.apply_is_behind();
        let id = self.ids.next();
        let proposed = match proposal {
            Proposal::Request(_) if is_late => Err(raft::Error::QueueFull),
            Proposal::Request(mut request) => {
                self.assign_lease_id(&mut request);
                request.header.get_or_insert_default().id = id;
                self.wait.register(id, of);
                self.raft.propose(request.encode_to_vec().into())
            }
            Proposal::MemberChange(change) => {
                self.wait.register(id, of);
                self.raft.propose_conf_change(change.to_conf_change(id).encode().into())
            }
        };
        if let Err(error) = proposed {
            self.wait.cancel(of);
            self.complete(of, RequestOutcome::NotProposed(error));
        }
    }

    /// Proposes what has waited for a leader. Says whether it has proposed anything.
    fn propose_queued(&mut self) -> bool {
        let mut has_proposed = false;
        while self.can_propose()
            && let Some((proposal, of)) = self.queued_proposals.pop()
        {
            self.propose(proposal, of);
            has_proposed = true;
        }
        has_proposed
    }

    fn complete(&mut self, of: RequestId, outcome: RequestOutcome) {
        self.ready.completions.push((of, outcome));
    }

    /// Hands leadership to another member, if it votes and this one leads.
    pub fn transfer_leader(&mut self, to: u64) {
        self.raft.transfer_leader(to);
    }

    /// Wants to lead, without waiting for the time-out: for a sole voter.
    fn campaign_as_sole_voter(&mut self) {
        if self.committed_at_start.take_if(|index| *index <= self.applied.0).is_some()
            && self.conf_state.voters == [self.metadata.node_id]
        {
            self.raft.campaign();
        }
    }

    fn handle_written(&mut self, written: BatchResult) -> Result<()> {
        self.wal.finish_batch(written)?;
        self.after_sync()
    }

    /// What may happen now that more of the log is on disk.
    fn after_sync(&mut self) -> Result<()> {
        while let Some(behind) = self.wal.next_synced() {
            match behind {
                AfterSync::Appended(number) => self.raft.on_persisted(number)?,
                AfterSync::Install { number, position } => {
                    self.ready.to_apply.push(ToApply::Install(position));
                    self.raft.on_persisted(number)?;
                }
                AfterSync::Recorded(position) => {
                    let kept = position.index.saturating_sub(self.config.catch_up_entries);
                    let bytes = self.config.catch_up_bytes;
                    let kept = kept.max(self.raft.release_index_for_bytes(position.index, bytes));
                    let wanted = self.sending_snapshots.values().copied().min().unwrap_or(u64::MAX);
                    self.raft.release(kept.min(wanted));
                    self.ready.purge_below = Some(position.index);
                }
            }
        }
        Ok(())
    }

    /// The apply loop has come further.
    fn handle_applied(&mut self, applied: ApplyReport) -> Result<()> {
        let ApplyReport {
            index,
            term,
            conf_changes: changes,
            installed,
            log_reads,
            members,
            alarms,
            is_removed: removed,
        } = applied;
        self.members = members.unwrap_or(Arc::clone(&self.members));
        if let Some(alarms) = alarms {
            self.alarms = alarms;
            self.proposed_alarm = None;
        }
        for change in changes {
            self.handle_conf_change(change)?;
        }
        self.applied = (index, term);
        if let Some(position) = installed {
            self.handle_installed(&position)?;
        }
        // With entries behind the snapshot, if there are some.
        self.raft.on_applied(index)?;
        for (context, index) in log_reads {
            self.read_index.handle_event(ReadIndexEvent::Answered { context, index });
        }
        self.read_index.handle_event(ReadIndexEvent::Applied { index });
        self.count_applied(index);
        if removed {
            self.ticks_before_stop.get_or_insert(TICKS_AFTER_REMOVAL);
        }
        self.campaign_as_sole_voter();
        Ok(())
    }

    /// Before raft is told that its entry is applied: it lets no other change be proposed until
    /// then.
    fn handle_conf_change(&mut self, applied: AppliedConfChange) -> Result<()> {
        let AppliedConfChange { index, change, conf_state: members } = applied;
        if index <= self.snapshot_index {
            return Ok(());
        }
        self.conf_state = self.raft.apply_conf_change(change.as_ref())?;
        if self.conf_state != members {
            let why =
                format!("at entry {index} raft has {:?}, the store {members:?}", self.conf_state);
            return Err(Error::damaged("the members", why));
        }
        if let Some(change) = change
            && !members.voters.contains(&change.node_id)
            && !members.learners.contains(&change.node_id)
        {
            // What has become of a copy that was on its way there will not be told.
            self.sending_snapshots.remove(&change.node_id);
        }
        Ok(())
    }

    fn handle_installed(&mut self, position: &LogPosition) -> Result<()> {
        self.recorded_index = position.index;
        self.conf_state = self.raft.conf_state();
        self.wal.finish_install(position.index);
        Ok(self.raft.on_installed(position.index)?)
    }

    /// Asks for a commit of the store if the log has grown long without one: it could never be
    /// shortened. Once: a commit is a sync.
    fn count_applied(&mut self, index: u64) {
        while let Some((_, bytes)) = self.unapplied.pop_front_if(|(last, _)| *last <= index) {
            self.unapplied_bytes -= bytes;
            self.unrecorded_bytes += bytes;
        }
        if self.is_snapshot_due(index) && !std::mem::replace(&mut self.is_commit_requested, true) {
            self.ready.is_commit_due = true;
        }
    }

    /// The store was committed.
    fn handle_store_committed(&mut self, durable: &AppliedPosition) -> Result<()> {
        self.is_commit_requested = false;
        // What is on its way out need not be recorded any more.
        if self.wal.pending_installs().next().is_some() {
            return Ok(());
        }
        self.raft.set_durable_position(durable.position())?;
        if durable.index > self.recorded_index && self.is_snapshot_due(durable.index) {
            self.recorded_index = durable.index;
            self.unrecorded_bytes = 0;
            self.wal.record_snapshot(durable.position())?;
        }
        Ok(())
    }

    /// Whether the log should be shortened at this index.
    fn is_snapshot_due(&self, index: u64) -> bool {
        let entries = index - self.recorded_index.min(index);
        entries >= self.config.snapshot_count || self.unrecorded_bytes >= self.config.snapshot_bytes
    }

    /// Bytes of the log that the durable store does not have.
    pub fn bytes_to_apply_again(&self) -> u64 {
        self.raft.bytes_after_durable()
    }

    fn handle_received_snapshot(&mut self, copy: ReceivedSnapshot) -> Result<()> {
        let index = copy.index;
        if !self.store_dir.kept_indexes()?.contains(&index) {
            // Another of the same index was refused or installed, and they were one in the store
            // directory. Raft must not take what is not there: its record in the log could not be
            // undone.
            return Ok(());
        }
        self.offered_snapshots.insert(index);
        self.received_snapshots.push(copy);
        Ok(())
    }

    /// Offers raft the copies that have come. When it takes one its members are those of the
    /// snapshot: what the apply loop says of earlier changes counts no more from there on, and that
    /// is noted with the append.
    fn step_received_snapshots(&mut self) -> Result<()> {
        for copy in std::mem::take(&mut self.received_snapshots) {
            match self.raft.step(copy.message) {
                Ok(()) => {}
                Err(error @ raft::Error::Fatal(_)) => return Err(error.into()),
                Err(_) => self.discard_snapshot(copy.index)?,
            }
        }
        Ok(())
    }

    fn discard_snapshot(&mut self, index: u64) -> Result<()> {
        self.offered_snapshots.remove(&index);
        // One of the same index may have come before, which raft has taken.
        if !self.wal.pending_installs().any(|installed| installed == index) {
            self.store_dir.discard(index)?;
        }
        Ok(())
    }

    fn handle_snapshot_sent(&mut self, to: u64, arrived: bool) {
        self.sending_snapshots.remove(&to);
        self.raft.report_snapshot(to, arrived);
    }

    /// Does what there is to do, and says what the owner has to do now. `now` counts from any fixed
    /// moment, on a clock that goes forward; it is looked up after the last input and before this
    /// call. After an error the process stops.
    pub fn poll(&mut self, now: Duration) -> Result<ReplicaReady> {
        self.now = now;
        // A change that removes the new leader ends the transfer.
        self.check_transfer();
        self.step_received_snapshots()?;
        loop {
            while let Some(effects) = self.raft.ready() {
                self.handle_raft_ready(effects)?;
            }
            self.update_read_index();
            let asked = self.run_read_actions(now);
            if !self.propose_due_leases() && !asked && !self.propose_queued() {
                break;
            }
        }
        for refused in std::mem::take(&mut self.offered_snapshots) {
            self.discard_snapshot(refused)?;
        }
        self.ready.wal_batch = self.wal.next_batch();
        self.ready.is_sole_voter_caught_up = self.is_sole_voter_caught_up();
        Ok(std::mem::take(&mut self.ready))
    }

    /// When to poll again if nothing happens before.
    pub fn next_poll(&self) -> Option<Duration> {
        self.read_index.next_poll().into_iter().chain(self.next_lease_due()).min()
    }

    /// The index that something waits for to be applied; `u64::MAX` if nothing does. What the apply
    /// loop says below it is [not urgent](ApplyReport::is_urgent).
    pub fn awaited_index(&self) -> u64 {
        self.read_index
            .awaited_index()
            .into_iter()
            .chain(self.committed_at_start)
            .min()
            .unwrap_or(u64::MAX)
    }

    fn handle_raft_ready(&mut self, effects: Ready) -> Result<()> {
        let Ready {
            append,
            messages: send,
            committed_entries: committed,
            read_states: reads,
            leadership,
        } = effects;
        if let Some(now) = leadership {
            self.handle_leadership(now);
        }
        for message in send {
            match message.is_snapshot() {
                true => {
                    self.sending_snapshots.insert(message.to(), message.snapshot_position().index);
                    self.ready.raft_snapshots.push(message);
                }
                false => self.ready.messages.push(message),
            }
        }
        if let Some(append) = append {
            self.append(append)?;
        }
        for read in reads {
            if let Ok(context) = <[u8; 8]>::try_from(&read.context[..]) {
                let context = u64::from_be_bytes(context);
                if read.index > self.applied.0 {
                    self.pending_read_indexes.entry(read.index).or_insert(self.now);
                }
                self.read_index
                    .handle_event(ReadIndexEvent::Answered { context, index: read.index });
            }
        }
        self.send_to_apply(committed);
        Ok(())
    }

    /// Gives committed entries to the apply loop.
    fn send_to_apply(&mut self, committed: Vec<Entry>) {
        let Some(last) = committed.last() else { return };
        let bytes = committed.iter().map(|entry| entry.data.len() as u64).sum();
        self.unapplied.push_back((last.index, bytes));
        self.unapplied_bytes += bytes;
        let begins_a_term =
            |entry: &Entry| entry.kind == EntryKind::Normal && entry.data.is_empty();
        if committed.iter().any(begins_a_term) {
            // Raft can answer reads from here on.
            self.read_index.handle_event(ReadIndexEvent::FirstCommit);
        }
        match self.ready.to_apply.last_mut() {
            Some(ToApply::Entries(entries)) => entries.extend(committed),
            _ => self.ready.to_apply.push(ToApply::Entries(committed.into())),
        }
    }

    fn append(&mut self, append: raft::ReadyAppend) -> Result<()> {
        if let Some(position) = &append.install_snapshot {
            self.offered_snapshots.remove(&position.index);
            self.snapshot_index = position.index;
        }
        Ok(self.wal.append(append)?)
    }

    fn handle_leadership(&mut self, now: Leadership) {
        let leader = (now.leader != 0).then_some(now.leader);
        self.read_index.handle_event(ReadIndexEvent::Leader { leader, term: now.term });
        self.last_reported.transferee = None;
        self.update_lessor(now);
        self.sole_voter.reset();
        self.ready.leadership = Some(now);
        if now.role != Role::Leader {
            // Copies that this member has sent are for the next leader to look after.
            self.sending_snapshots.clear();
        }
    }

    fn check_transfer(&mut self) {
        let transferee = self.raft.lead_transferee();
        if transferee != self.last_reported.transferee {
            self.last_reported.transferee = transferee;
            if transferee.is_some() {
                self.read_index.handle_event(ReadIndexEvent::TransferStarted);
            }
        }
    }

    /// What raft does not report by itself.
    fn update_read_index(&mut self) {
        self.check_transfer();
        let committed = self.raft.committed_index();
        if committed > self.last_reported.committed {
            self.last_reported.committed = committed;
            self.read_index.handle_event(ReadIndexEvent::Committed { index: committed });
        }
    }

    /// Carries out what the ReadIndex queue wants. Says whether raft has something to do now.
    fn run_read_actions(&mut self, now: Duration) -> bool {
        let mut asked = false;
        for action in self.read_index.poll(now, &mut self.ids) {
            match action {
                ReadIndexAction::RequestReadIndex { context, .. } => {
                    // Refused or forgotten by raft: the ReadIndex queue asks again.
                    let _ = self.raft.read_index(context.to_be_bytes().to_vec());
                    asked = true;
                }
                ReadIndexAction::Propose { context, .. } => {
                    // Lost or refused: the ReadIndex queue asks again after its time-out.
                    let _ = self.raft.propose(log_read(context));
                    asked = true;
                }
                ReadIndexAction::Release { index, readers } => {
                    let later = self.pending_read_indexes.split_off(&(index + 1));
                    let known = std::mem::replace(&mut self.pending_read_indexes, later);
                    let since = known.into_values().min();
                    let applying = since.map(|at| now.saturating_sub(at)).unwrap_or_default();
                    let go = |of| (of, RequestOutcome::ReadReady(applying));
                    self.ready.completions.extend(readers.into_iter().map(go));
                }
                ReadIndexAction::Fail { error, readers } => {
                    let fail = |of| (of, RequestOutcome::ReadFailed(error));
                    self.ready.completions.extend(readers.into_iter().map(fail));
                }
            }
        }
        asked
    }

    /// This member and its cluster.
    pub fn metadata(&self) -> Metadata {
        self.metadata
    }

    /// The last entry that is applied, as far as the apply loop has said, and its term.
    pub fn last_applied(&self) -> (u64, u64) {
        self.applied
    }

    /// The last entry that raft takes for applied: the same, or less.
    pub fn applied_in_raft(&self) -> u64 {
        self.raft.applied_index()
    }

    /// Raft's members, as far as the apply loop has said; `None` while a raft snapshot is being
    /// installed, of which raft has the members already.
    pub fn conf_state(&self) -> Option<&ConfState> {
        Some(&self.conf_state).filter(|_| self.applied.0 >= self.snapshot_index)
    }

    /// The leader, as far as this member knows.
    pub fn leadership(&self) -> Leadership {
        self.raft.leadership()
    }

    /// The table of members, as far as the apply loop has said.
    pub fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// The alarms that are raised, as far as the apply loop has said.
    pub fn alarms(&self) -> &Arc<Alarms> {
        &self.alarms
    }

    /// Requests that wait for their entry to be applied.
    pub fn wait(&self) -> &Arc<Wait> {
        &self.wait
    }

    /// Up to where the log is committed, as far as this member knows.
    pub fn committed(&self) -> u64 {
        self.raft.committed_index()
    }

    /// How far each other member's log is known to agree with this leader's.
    pub fn matched(&self) -> Vec<(u64, u64)> {
        self.raft.match_indexes()
    }

    /// The first and the last entry that are kept in memory.
    pub fn log_bounds(&self) -> (u64, u64) {
        self.raft.kept_indexes()
    }

    /// The newest id of a proposal or a question.
    pub fn last_id(&self) -> u64 {
        self.ids.last()
    }

    /// What the ReadIndex queue has done so far.
    pub fn read_index_metrics(&self) -> ReadIndexMetrics {
        self.read_index.metrics()
    }
}

/// The entry of a read in mode `log`: a range over nothing, which changes nothing.
fn log_read(id: u64) -> Bytes {
    let header = Some(RequestHeader { id, ..RequestHeader::default() });
    let range = Some(RangeRequest::default());
    InternalRaftRequest { header, range, ..InternalRaftRequest::default() }.encode_to_vec().into()
}
