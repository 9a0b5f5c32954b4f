//! One member, as two state machines: the raft half and the apply half (`docs/raft-and-apply.md`).
//!
//! The raft loop drives [`Replica`]: raft, the write-ahead log's queue, reads, proposals. The apply
//! loop drives [`Applier`]: committed entries become states of the store. They exchange [`ToApply`]
//! and [`ApplyReport`], in order. Neither starts a thread, reads a clock or opens a file but the
//! store's: the simulated cluster runs them as steps in any order that threads allow.
//!
//! * A message that speaks of something leaves after that is on disk (the driver sees to it).
//! * A write is answered after this member has applied it. Before, a quorum has synced it.
//! * Entries are applied in order, each once: one that is not the next stops the member.
//! * The log keeps what the durable store does not have.
//!
//! etcd's counterparts are `raftNode.start` and `EtcdServer.applyAll`.

mod force_new_cluster;
mod applier;
mod apply;
mod apply_messages;
mod input;
mod large_proposals;
mod leases;
mod reach_store;
mod ready;
mod report;
mod own_alarm;
mod request_queue;
mod sole_voter;
mod wal_pipeline;
mod slow;
mod stall;
mod start;
mod queued_proposals;
mod held_proposals;
mod voter_watch;
mod wait;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clearlane_auth::AuthStore;
use clearlane_lease::Lessor;
use clearlane_proto::etcdserverpb::{InternalRaftRequest, RangeRequest, RequestHeader};
use clearlane_raft as raft;
use clearlane_raft::LogPosition;
use clearlane_raft::read_index::{
    ReadIndexAction, ReadIndexMetrics, ReadIndexQueue, RequestIdGenerator,
};
use clearlane_raft::{Leadership, Message, RaftNode, Ready, Role};
use clearlane_wal::group_commit::BatchResult;
use clearlane_wal::{ConfState, Entry, EntryKind, Metadata};
use prost::Message as _;

pub use self::applier::Applier;
pub use self::apply_messages::{AppliedConfChange, ApplyReport, ToApply};
pub use self::force_new_cluster::force_new_cluster;
use self::held_proposals::HeldProposals;
pub use self::input::ReplicaInput;
use self::large_proposals::LargeProposals;
use self::own_alarm::ProposedAlarm;
use self::queued_proposals::{QueuedProposal, QueuedProposals};
pub use self::ready::{
    ApplyReady, ApplyReadyHandler, Completions, NewStore, ReplicaReady, ReplicaReadyHandler,
};
pub use self::request_queue::{NO_DEADLINE, ROUND_LENGTH, RequestId, RequestOutcome, RequestQueue};
pub use self::slow::{ApplyTimer, SlowEntry};
use self::stall::StallGuard;
pub use self::stall::{Part, StallEvent};
pub use self::start::{
    CompactionConfig, ReplicaConfig, StorageConfig, bootstrap, bootstrap_admitted, start,
};
pub use self::wait::Wait;
use self::wait::WaitingRequest;
use self::wal_pipeline::{AfterSync, WalPipeline};
use crate::alarms::Alarms;
use crate::applied_position::AppliedPosition;
use crate::error::{Error, Result};
use crate::membership::{self, Members};
use crate::raft_snapshot::{ReceivedSnapshot, StoreDir};

/// Committed entries not applied yet; at more, proposals are refused. etcd's number.
const APPLY_GAP_MAX: u64 = 5000;
/// Ticks for which a removed member goes on: its last messages tell the others that the removal is
/// committed. If it led one other voter, that one has no quorum until it knows.
const TICKS_AFTER_REMOVAL: usize = 10;
/// Bytes of committed entries not applied yet. At more, a leader refuses proposals, and a follower
/// its leader's entries, which are sent again.
const APPLY_BYTES_MAX: u64 = 256 << 20;

#[derive(Debug)]
pub struct Replica {
    pub metadata: Metadata,
    config: ReplicaConfig,
    store_dir: Arc<dyn StoreDir>,
    raft: RaftNode,
    wal: WalPipeline,
    /// Index and term, as reported by the apply loop.
    pub applied: (u64, u64),
    conf_state: ConfState,
    /// As reported by the apply loop.
    pub members: Arc<Members>,
    /// As reported by the apply loop.
    pub alarms: Arc<Alarms>,
    leases: Arc<Lessor>,
    auth: Arc<AuthStore>,
    /// The term for which this leader has started the leases' time.
    lease_term: Option<u64>,
    /// Counted while this member leads.
    pub leases_expired: u64,
    /// As of the last poll.
    now: Duration,
    read_index: ReadIndexQueue<RequestId>,
    ids: RequestIdGenerator,
    pub wait: Arc<Wait>,
    queued_proposals: QueuedProposals,
    large_proposals: LargeProposals,
    held_proposals: HeldProposals,
    stalls: StallGuard,
    proposed_alarm: Option<ProposedAlarm>,
    /// The commit index when this member became the sole voter.
    sole_voter_since: Option<u64>,
    /// As the ReadIndex queue was last told.
    last_transferee: Option<u64>,
    /// Read indexes that are not applied yet, with the time at which each became known.
    pending_read_indexes: BTreeMap<u64, Duration>,
    /// Ticks until this member may vote.
    ticks_before_vote: usize,
    /// Set when this member was removed.
    ticks_before_stop: Option<usize>,
    /// The newest position recorded in the log.
    recorded_index: u64,
    /// Bytes of entries applied since `recorded_index`.
    unrecorded_bytes: u64,
    is_commit_requested: bool,
    /// Last index and bytes of each batch sent to the apply loop and not applied yet.
    unapplied: VecDeque<(u64, u64)>,
    unapplied_bytes: u64,
    /// The last raft snapshot that raft has accepted: configuration changes up to here are ignored.
    snapshot_index: u64,
    /// Entries committed at the start: once they are applied, a sole voter campaigns at once.
    committed_at_start: Option<u64>,
    /// Received and not yet offered to raft.
    received_snapshots: Vec<ReceivedSnapshot>,
    offered_snapshots: BTreeSet<u64>,
    /// Per member that is being sent a copy, the index from which it will go on.
    sending_snapshots: BTreeMap<u64, u64>,
    ready: ReplicaReady,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberChangeError {
    #[error(transparent)]
    Rejected(#[from] membership::MembershipRejection),
    #[error(transparent)]
    Raft(#[from] raft::Error),
    /// Only the leader knows whether a learner is ready.
    #[error("etcdserver: not leader")]
    NotLeader,
}

impl Replica {
    pub fn raft(&self) -> &RaftNode {
        &self.raft
    }

    pub fn transfer_leader(&mut self, to: u64) {
        self.raft.transfer_leader(to);
    }

    pub fn read_index_metrics(&self) -> ReadIndexMetrics {
        self.read_index.metrics()
    }

    /// Of the newest proposal or ReadIndex request.
    pub fn last_id(&self) -> u64 {
        self.ids.last()
    }

    pub fn tick(&mut self) {
        self.ticks_before_vote = self.ticks_before_vote.saturating_sub(1);
        // The tick may end a transfer of leadership.
        self.check_transfer();
        self.raft.tick();
        self.held_proposals.tick();
        self.tick_stalls();
        if let Some(last) = &mut self.ticks_before_stop {
            *last = last.saturating_sub(1);
            self.ready.is_stopping |= *last == 0;
        }
    }

    /// An error means that raft cannot use the message; nothing has changed.
    pub fn receive(&mut self, message: Message) -> raft::Result<()> {
        // What this member granted to a leader's lease before a restart is forgotten.
        if self.ticks_before_vote > 0 && message.is_vote_request() {
            return Ok(());
        }
        if message.is_snapshot() {
            // Raft would accept it, and there would be no store to install.
            return Err(raft::Error::InvalidMessage(format!(
                "{message}: its copy did not come with it"
            )));
        }
        self.stalls.voters.record_message(message.from());
        let is_behind = match (message.is_append(), message.is_proposal()) {
            (true, _) => self.unapplied_bytes > APPLY_BYTES_MAX,
            (_, true) => self.apply_is_behind(),
            _ => false,
        };
        if is_behind {
            return Err(raft::Error::QueueFull);
        }
        if !message.is_proposal() {
            return self.raft.step(message);
        }
        self.hold_proposal(message).map_or(Ok(()), |message| self.step_proposal(message))
    }

    /// Whether a proposal would be accepted, here or by the leader to which it is forwarded.
    pub fn can_propose(&self) -> bool {
        self.raft.leadership().leader != 0 && self.raft.lead_transferee().is_none()
    }

    /// Whether [`APPLY_GAP_MAX`] or [`APPLY_BYTES_MAX`] is exceeded.
    fn apply_is_behind(&self) -> bool {
        let gap = self.raft.committed_index().saturating_sub(self.applied.0);
        gap > APPLY_GAP_MAX || self.unapplied_bytes > APPLY_BYTES_MAX
    }

    /// Whether the apply loop has entries that it has not reported as applied.
    pub fn has_unapplied(&self) -> bool {
        !self.unapplied.is_empty()
    }

    /// The proposal may be lost; then its request waits until it times out.
    fn propose(&mut self, proposal: QueuedProposal, of: RequestId) {
        let is_late = self.apply_is_behind();
        let id = self.ids.next();
        let proposed = match proposal {
            QueuedProposal::Request(..) if is_late => Err(raft::Error::QueueFull),
            QueuedProposal::Request(mut request, compares) => {
                self.assign_lease_id(&mut request);
                request.header.get_or_insert_default().id = id;
                self.wait.register(id, WaitingRequest { id: of, compares });
                self.propose_data(id, request.encode_to_vec().into())
            }
            QueuedProposal::MemberChange(change) => {
                self.wait.register(id, WaitingRequest { id: of, compares: None });
                self.raft.propose_conf_change(change.to_conf_change(id).encode().into())
            }
        };
        if let Err(error) = proposed {
            self.wait.cancel(of);
            self.complete(of, RequestOutcome::NotProposed(error));
        }
    }

    /// Proposes what has waited for a leader. Returns whether there was anything.
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

    /// Campaigns without waiting for the election time-out, if this is the sole voter.
    fn campaign_as_sole_voter(&mut self) {
        if self.committed_at_start.take_if(|index| *index <= self.applied.0).is_some()
            && self.conf_state.voters == [self.metadata.node_id]
        {
            self.raft.campaign();
        }
    }

    fn handle_written(&mut self, written: BatchResult) -> Result<()> {
        self.record_progress(Part::Log);
        for behind in self.wal.finish_batch(written)? {
            match behind {
                AfterSync::Appended { number, install } => {
                    self.ready.to_apply.extend(install.map(ToApply::Install));
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

    fn handle_applied(&mut self, applied: ApplyReport) -> Result<()> {
        let index = applied.index;
        if let Some(members) = applied.members {
            self.members = members;
        }
        if let Some(alarms) = applied.alarms {
            self.alarms = alarms;
            self.proposed_alarm = None;
        }
        for change in applied.conf_changes {
            self.handle_conf_change(change)?;
        }
        if index > self.applied.0 {
            self.record_progress(Part::Apply);
        }
        self.applied = (index, applied.term);
        if let Some(position) = applied.installed {
            self.handle_installed(&position)?;
        }
        // The entries after the snapshot, if there are some.
        self.raft.on_applied(index)?;
        for (context, index) in applied.log_reads {
            self.read_index.on_answer(context, index);
        }
        self.read_index.on_applied(index);
        self.count_applied(index);
        if applied.is_removed {
            self.ticks_before_stop.get_or_insert(TICKS_AFTER_REMOVAL);
        }
        self.campaign_as_sole_voter();
        Ok(())
    }

    /// Called before raft is told that the entry is applied: until then raft refuses other changes.
    fn handle_conf_change(&mut self, applied: AppliedConfChange) -> Result<()> {
        let AppliedConfChange { index, change, conf_state } = applied;
        if index <= self.snapshot_index {
            return Ok(());
        }
        self.conf_state = self.raft.apply_conf_change(change.as_ref())?;
        if self.conf_state != conf_state {
            let why = format!(
                "at entry {index} raft has {:?}, the store {conf_state:?}",
                self.conf_state
            );
            return Err(Error::damaged("the members", why));
        }
        if let Some(change) = change
            && !conf_state.voters.contains(&change.node_id)
            && !conf_state.learners.contains(&change.node_id)
        {
            // The result of sending a copy to a removed member is not reported.
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

    /// Asks once for a commit of the store if the log has grown long without one: the log can only
    /// be shortened up to what is durable.
    fn count_applied(&mut self, index: u64) {
        while let Some((_, bytes)) = self.unapplied.pop_front_if(|(last, _)| *last <= index) {
            self.unapplied_bytes -= bytes;
            self.unrecorded_bytes += bytes;
        }
        if self.is_snapshot_due(index) && !std::mem::replace(&mut self.is_commit_requested, true) {
            self.ready.is_commit_due = true;
        }
    }

    fn handle_store_committed(&mut self, durable: &AppliedPosition) -> Result<()> {
        self.is_commit_requested = false;
        // A store that is about to be replaced is not recorded.
        if self.wal.pending_installs().next().is_some() {
            return Ok(());
        }
        self.raft.set_durable_position(durable.position())?;
        if durable.index > self.recorded_index && self.is_snapshot_due(durable.index) {
            self.recorded_index = durable.index;
            self.unrecorded_bytes = 0;
            self.wal.record_snapshot(durable.position());
        }
        Ok(())
    }

    fn is_snapshot_due(&self, index: u64) -> bool {
        let entries = index - self.recorded_index.min(index);
        entries >= self.config.snapshot_count || self.unrecorded_bytes >= self.config.snapshot_bytes
    }

    fn handle_received_snapshot(&mut self, copy: ReceivedSnapshot) -> Result<()> {
        let index = copy.index;
        if !self.store_dir.kept_indexes()?.contains(&index) {
            // A copy of the same index was refused or installed, and the store directory had one
            // for both. Raft must not accept a snapshot without a store: its record in the log
            // could not be undone.
            return Ok(());
        }
        self.offered_snapshots.insert(index);
        self.received_snapshots.push(copy);
        Ok(())
    }

    /// Offers raft the received copies. When it accepts one, its members are those of the snapshot:
    /// reports of earlier changes are ignored from then on.
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
        // Raft may have accepted an earlier copy of the same index.
        if !self.wal.pending_installs().any(|installed| installed == index) {
            self.store_dir.discard(index)?;
        }
        Ok(())
    }

    /// Returns what the owner has to do now. `now` counts from any fixed moment on a monotonic
    /// clock, and is read after the last input and before this call. After an error the process
    /// stops.
    pub fn poll(&mut self, now: Duration) -> Result<ReplicaReady> {
        self.now = now;
        // A change that removes the new leader ends the transfer.
        self.check_transfer();
        self.step_received_snapshots()?;
        loop {
            while let Some(ready) = self.raft.ready() {
                self.handle_raft_ready(ready)?;
            }
            self.check_transfer();
            self.read_index.on_committed(self.raft.committed_index());
            let asked = self.run_read_actions();
            let has_proposed = self.propose_due_leases()
                | self.step_held_proposals()
                | self.propose_queued()
                | self.propose_waiting_large();
            if !asked && !has_proposed {
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

    /// When to poll again if there is no input before.
    pub fn next_poll(&self) -> Option<Duration> {
        self.read_index.next_poll().into_iter().chain(self.leases.next_due()).min()
    }

    /// The index whose application is awaited; `u64::MAX` if none is. A report below it is
    /// [not urgent](ApplyReport::is_urgent).
    pub fn awaited_index(&self) -> u64 {
        self.read_index
            .awaited_index()
            .into_iter()
            .chain(self.committed_at_start)
            .min()
            .unwrap_or(u64::MAX)
    }

    fn handle_raft_ready(&mut self, ready: Ready) -> Result<()> {
        if let Some(now) = ready.leadership {
            self.handle_leadership(now);
        }
        for message in ready.messages {
            if message.is_snapshot() {
                self.sending_snapshots.insert(message.to(), message.snapshot_position().index);
                self.ready.raft_snapshots.push(message);
            } else {
                self.ready.messages.push(message);
            }
        }
        if let Some(append) = ready.append {
            if let Some(position) = &append.install_snapshot {
                self.offered_snapshots.remove(&position.index);
                self.snapshot_index = position.index;
            }
            self.wal.append(append);
        }
        for read in ready.read_states {
            if let Ok(context) = <[u8; 8]>::try_from(&read.context[..]) {
                let context = u64::from_be_bytes(context);
                if read.index > self.applied.0 {
                    self.pending_read_indexes.entry(read.index).or_insert(self.now);
                }
                self.read_index.on_answer(context, read.index);
            }
        }
        self.send_to_apply(ready.committed_entries);
        Ok(())
    }

    fn send_to_apply(&mut self, committed: Vec<Entry>) {
        let Some(last) = committed.last() else { return };
        // So the store is never ahead of the log: a start relies on it.
        assert!(last.index <= self.raft.persisted_index(), "an entry is applied before its sync");
        let bytes = committed.iter().map(|entry| entry.data.len() as u64).sum();
        self.unapplied.push_back((last.index, bytes));
        self.unapplied_bytes += bytes;
        let begins_a_term =
            |entry: &Entry| entry.kind == EntryKind::Normal && entry.data.is_empty();
        if committed.iter().any(begins_a_term) {
            // Raft can answer reads from here on.
            self.read_index.on_first_commit();
        }
        match self.ready.to_apply.last_mut() {
            Some(ToApply::Entries(entries)) => entries.extend(committed),
            _ => self.ready.to_apply.push(ToApply::Entries(committed.into())),
        }
    }

    fn handle_leadership(&mut self, now: Leadership) {
        let leader = (now.leader != 0).then_some(now.leader);
        self.read_index.on_leader(leader, now.term);
        self.last_transferee = None;
        self.update_lessor(now);
        self.sole_voter_since = None;
        self.ready.leadership = Some(now);
        if now.role != Role::Leader {
            // The next leader sends its own copies.
            self.sending_snapshots.clear();
        }
    }

    fn check_transfer(&mut self) {
        let before = std::mem::replace(&mut self.last_transferee, self.raft.lead_transferee());
        if self.last_transferee.is_some() && self.last_transferee != before {
            self.read_index.on_transfer_started();
        }
    }

    /// Returns whether raft has something to do now.
    fn run_read_actions(&mut self) -> bool {
        let mut asked = false;
        for action in self.read_index.poll(self.now, &mut self.ids) {
            match action {
                ReadIndexAction::RequestReadIndex { context, .. } => {
                    // If raft refuses or drops it, the ReadIndex queue asks again.
                    let _ = self.raft.read_index(context.to_be_bytes().to_vec());
                    asked = true;
                }
                ReadIndexAction::Propose { context, .. } => {
                    // If it is lost or refused, the ReadIndex queue asks again after its time-out.
                    let _ = self.raft.propose(log_read(context));
                    asked = true;
                }
                ReadIndexAction::Release { index, readers } => {
                    let later = self.pending_read_indexes.split_off(&(index + 1));
                    let known = std::mem::replace(&mut self.pending_read_indexes, later);
                    let since = known.into_values().min();
                    let applying = since.map(|at| self.now.saturating_sub(at)).unwrap_or_default();
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

    /// Raft's members as of the last report; `None` while a raft snapshot is being installed, of
    /// which raft has the members already.
    pub fn conf_state(&self) -> Option<&ConfState> {
        Some(&self.conf_state).filter(|_| self.applied.0 >= self.snapshot_index)
    }
}

/// The entry of a read in mode `log`: an empty range, which changes nothing.
fn log_read(id: u64) -> Bytes {
    let header = Some(RequestHeader { id, ..RequestHeader::default() });
    let range = Some(RangeRequest::default());
    InternalRaftRequest { header, range, ..InternalRaftRequest::default() }.encode_to_vec().into()
}
