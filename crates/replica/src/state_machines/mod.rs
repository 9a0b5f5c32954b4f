//! One member as two state machines: the raft half and the apply half (`docs/raft-and-apply.md`).
//!
//! ```text
//!                      ToApply: committed entries, a raft snapshot
//!   inputs ──▶ Replica ─────────────────────────────────────────▶ Applier ──▶ store
//!              │  ▲    ◀─────────────────────────────────────────
//!     messages,│  │     ApplyReport: applied index, members, alarms
//!     WAL batch▼  │
//!            network, disk ──▶ messages, WalWritten
//! ```
//!
//! The raft loop drives [`Replica`]: raft, the write-ahead log's queue, reads, proposals. The apply
//! loop drives [`Applier`]: committed entries become states of the store. The halves exchange
//! [`ToApply`] and [`ApplyReport`], in order. Neither half starts a thread or reads a clock, and
//! the only files that they open are stores, through a [`StoreDir`]. The simulated cluster runs
//! both halves as steps, in any order that is possible with threads.
//!
//! * A message that depends on a write is sent after that write is on disk (`RaftNode` ensures
//!   this).
//! * An entry is applied after a quorum and this member have synced it. A client receives the
//!   result of its write after this member has applied the entry. A client may receive a rejection
//!   or a time-out earlier.
//! * Entries are applied in order, each once. An entry that is not the next one stops the member.
//! * The log keeps all entries that the durable store does not have.
//!
//! In etcd: `raftNode.start` and `EtcdServer.applyAll`.

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
use clearlane_proto::nested::decode_raft_request;
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

/// Maximum number of committed entries that are not applied yet. If there are more, the member
/// rejects requests of clients before it proposes them, and forwarded proposals. It does not reject
/// membership changes of its clients or its own proposals. The number is etcd's.
const APPLY_GAP_MAX: u64 = 5000;
/// Number of ticks for which a removed member continues: its last messages inform the others that
/// the removal is committed. If the removed member led one other voter, that voter has no quorum
/// until it receives such a message.
const TICKS_AFTER_REMOVAL: usize = 10;
/// Maximum bytes of committed entries that are not applied yet. If there are more, the member
/// rejects the same requests as at [`APPLY_GAP_MAX`]. A follower also rejects entries from its
/// leader, which sends them again.
const APPLY_BYTES_MAX: u64 = 256 << 20;

#[derive(Debug)]
pub struct Replica {
    pub metadata: Metadata,
    config: ReplicaConfig,
    store_dir: Arc<dyn StoreDir>,
    raft: RaftNode,
    wal: WalPipeline,
    /// Index and term of the last applied entry, as reported by the apply loop.
    pub applied: (u64, u64),
    conf_state: ConfState,
    /// The members, as reported by the apply loop.
    pub members: Arc<Members>,
    /// The alarms, as reported by the apply loop.
    pub alarms: Arc<Alarms>,
    leases: Arc<Lessor>,
    auth: Arc<AuthStore>,
    /// The term in which this member, as the leader, has started the expiry times of leases. `None`
    /// unless it leads.
    lease_term: Option<u64>,
    /// Number of revocations that this member has proposed as the leader.
    pub leases_expired: u64,
    /// The time of the last poll.
    now: Duration,
    read_index: ReadIndexQueue<RequestId>,
    ids: RequestIdGenerator,
    pub wait: Arc<Wait>,
    queued_proposals: QueuedProposals,
    large_proposals: LargeProposals,
    held_proposals: HeldProposals,
    stalls: StallGuard,
    proposed_alarm: Option<ProposedAlarm>,
    /// The commit index at the time when this leader became the sole voter without learners. `None`
    /// otherwise.
    sole_voter_since: Option<u64>,
    /// The target of the leadership transfer at the last check, or `None` if there was no transfer.
    last_transferee: Option<u64>,
    /// Read indexes that are not applied yet, with the time at which each became known.
    pending_read_indexes: BTreeMap<u64, Duration>,
    /// Number of ticks until this member may vote.
    ticks_before_vote: usize,
    /// Number of ticks until this member stops, or `None` if it has not been removed.
    ticks_before_stop: Option<usize>,
    /// The index of the newest snapshot record in the write-ahead log. The next one is due after
    /// `snapshot_count` entries or `snapshot_bytes` bytes.
    recorded_index: u64,
    /// Bytes of the entries applied since this member wrote its last snapshot record.
    unrecorded_bytes: u64,
    is_commit_requested: bool,
    /// Last index and bytes of each batch that was sent to the apply loop and is not applied yet.
    unapplied: VecDeque<(u64, u64)>,
    unapplied_bytes: u64,
    /// The index of the last raft snapshot that raft has accepted. Reports of configuration changes
    /// up to this index are ignored.
    snapshot_index: u64,
    /// The commit index at startup. Once the entry at this index is applied, this becomes `None`,
    /// and a sole voter campaigns immediately.
    committed_at_start: Option<u64>,
    /// Raft snapshots that were received and not yet offered to raft.
    received_snapshots: Vec<ReceivedSnapshot>,
    offered_snapshots: BTreeSet<u64>,
    /// For each member that is being sent a raft snapshot, the index after which it will need
    /// entries.
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

    /// Returns the newest id of this member. Proposals, ReadIndex requests and new leases get ids.
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

    /// Processes a message from another member. Fails if raft rejects the message; raft drops some
    /// messages without an error. Raft does not get the message in the following cases:
    ///
    /// * An append with entries is rejected above [`APPLY_BYTES_MAX`].
    /// * A proposal is rejected above that limit or above [`APPLY_GAP_MAX`].
    /// * A snapshot message is rejected, because its store arrives with
    ///   [`ReplicaInput::RaftSnapshot`].
    /// * A vote request is ignored for some ticks after a restart.
    ///
    /// A proposal may be held until a leader can accept it.
    pub fn receive(&mut self, message: Message) -> raft::Result<()> {
        // A restarted member does not remember which leader's lease it has supported. So it does
        // not vote until such a lease has ended.
        if self.ticks_before_vote > 0 && message.is_vote_request() {
            return Ok(());
        }
        if message.is_snapshot() {
            // Raft would accept the message, but there would be no store to install.
            return Err(raft::Error::InvalidMessage(format!(
                "{message}: it arrived without its store"
            )));
        }
        self.stalls.voters.record_message(message.from());
        let is_behind = match (message.is_append(), message.is_proposal()) {
            (true, _) => self.unapplied_bytes > APPLY_BYTES_MAX,
            (_, true) => self.apply_is_behind(|| revokes_leases(&message)),
            _ => false,
        };
        if is_behind {
            return Err(raft::Error::QueueFull);
        }
        if !message.is_proposal() {
            return self.raft.step(message);
        }
        self.hold_proposal(message).map_or(Ok(()), |message| self.step_or_hold(message))
    }

    /// Returns whether a leader is known, and this member knows of no transfer of leadership.
    /// Otherwise raft would reject or drop a proposal.
    pub fn can_propose(&self) -> bool {
        self.raft.leadership().leader != 0 && self.raft.lead_transferee().is_none()
    }

    /// Returns whether [`APPLY_GAP_MAX`] or [`APPLY_BYTES_MAX`] is exceeded. If the configuration
    /// prefers revocations, a proposal that revokes leases may exceed the limits by a tenth,
    /// because it frees space that other proposals fill.
    fn apply_is_behind(&self, is_revocation: impl FnOnce() -> bool) -> bool {
        let gap = self.raft.committed_index().saturating_sub(self.applied.0);
        let exceeds = |tenths: u64| {
            gap > APPLY_GAP_MAX / 10 * tenths
                || self.unapplied_bytes > APPLY_BYTES_MAX / 10 * tenths
        };
        exceeds(10) && (exceeds(11) || !self.config.prefers_revocations || !is_revocation())
    }

    /// Returns whether the apply loop has entries that it has not reported as applied.
    pub fn has_unapplied(&self) -> bool {
        !self.unapplied.is_empty()
    }

    /// Passes a proposal to raft. A large proposal may wait first. If the proposal is rejected, its
    /// request is completed with the error. If raft loses it, its request waits until it times out.
    fn start_proposal(&mut self, proposal: QueuedProposal, of: RequestId) {
        let is_late = match &proposal {
            QueuedProposal::Request(request, _) => {
                self.apply_is_behind(|| request.lease_revoke.is_some())
            }
            QueuedProposal::MemberChange(_) => false,
        };
        let id = self.ids.next();
        let proposed = match proposal {
            QueuedProposal::Request(..) if is_late => Err(raft::Error::QueueFull),
            QueuedProposal::Request(mut request, compares) => {
                self.assign_lease_id(&mut request);
                request.header.get_or_insert_default().id = id;
                self.wait.register(id, WaitingRequest { id: of, compares });
                self.propose_or_hold(id, request.encode_to_vec().into())
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

    /// Proposes the queued proposals if a leader can accept them. Returns whether any was proposed.
    fn start_queued_proposals(&mut self) -> bool {
        let mut has_proposed = false;
        while self.can_propose()
            && let Some((proposal, of)) = self.queued_proposals.pop()
        {
            self.start_proposal(proposal, of);
            has_proposed = true;
        }
        has_proposed
    }

    fn complete(&mut self, of: RequestId, outcome: RequestOutcome) {
        self.ready.completions.push((of, outcome));
    }

    /// If this member is the sole voter, campaigns without waiting for the election time-out. This
    /// happens once, when all entries that were committed at startup are applied.
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
        // Entries after the raft snapshot may also have been applied.
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

    /// Must be called before raft learns that the entry is applied: until then raft replaces other
    /// proposed changes with empty entries.
    fn handle_conf_change(&mut self, applied: AppliedConfChange) -> Result<()> {
        let AppliedConfChange { index, change, conf_state } = applied;
        if index <= self.snapshot_index {
            return Ok(());
        }
        self.conf_state = self.raft.apply_conf_change(change.as_ref())?;
        if self.conf_state != conf_state {
            let why = format!(
                "at entry {index} raft has {:?}, but the store has {conf_state:?}",
                self.conf_state
            );
            return Err(Error::damaged("the members", why));
        }
        if let Some(change) = change
            && !conf_state.voters.contains(&change.node_id)
            && !conf_state.learners.contains(&change.node_id)
        {
            // The result of sending a raft snapshot to a removed member is not reported.
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

    /// Counts the batches up to `index` as applied. If the log has grown long, also requests one
    /// commit of the store: the log can be shortened only up to the store's durable position.
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
        // The position of a store that is about to be replaced is not recorded. A report of the
        // old store that arrives after the replacement has a lower index, and changes nothing.
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
            // Another raft snapshot of the same index was rejected or installed, and the store
            // directory had one store for both. Raft must not accept a raft snapshot without a
            // store, because its record in the log could not be undone.
            return Ok(());
        }
        self.offered_snapshots.insert(index);
        self.received_snapshots.push(copy);
        Ok(())
    }

    /// Offers the received raft snapshots to raft. If raft accepts one, it takes the members from
    /// that snapshot, and later reports of earlier changes are ignored.
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
        // Raft may have accepted an earlier raft snapshot of the same index.
        if !self.wal.pending_installs().any(|installed| installed == index) {
            self.store_dir.discard(index)?;
        }
        Ok(())
    }

    /// Returns the tasks for the owner. `now` is the time since any fixed time on a monotonic
    /// clock. The caller must read the clock after the last input and before this call. After an
    /// error the process stops.
    pub fn poll(&mut self, now: Duration) -> Result<ReplicaReady> {
        self.now = now;
        // The last inputs may have started a transfer of leadership, and the steps below may end
        // it. The ReadIndex queue must learn of each transfer, so it is notified first.
        self.check_transfer();
        self.step_received_snapshots()?;
        loop {
            while let Some(ready) = self.raft.ready() {
                self.handle_raft_ready(ready)?;
            }
            self.check_transfer();
            self.read_index.on_committed(self.raft.committed_index());
            let asked = self.run_read_actions();
            let has_proposed = self.handle_due_leases()
                | self.step_held_proposals()
                | self.start_queued_proposals()
                | self.propose_held();
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

    /// Returns the time of the next poll if there is no input before it, or `None` if no poll is
    /// needed without input.
    pub fn next_poll(&self) -> Option<Duration> {
        self.read_index.next_poll().into_iter().chain(self.leases.next_due()).min()
    }

    /// Returns the lowest index that must be applied before a reader is released, or before this
    /// member may campaign as the sole voter. Returns `u64::MAX` if there is no such index. An
    /// [`ApplyReport`] below this index is urgent only for [another
    /// reason](ApplyReport::is_urgent).
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
        // An entry is applied only after this member has synced it. So the store is never ahead of
        // the log, and startup relies on that.
        assert!(last.index <= self.raft.persisted_index(), "an entry is applied before its sync");
        let bytes = committed.iter().map(|entry| entry.data.len() as u64).sum();
        self.unapplied.push_back((last.index, bytes));
        self.unapplied_bytes += bytes;
        let begins_a_term =
            |entry: &Entry| entry.kind == EntryKind::Normal && entry.data.is_empty();
        if committed.iter().any(begins_a_term) {
            // After this entry raft can answer reads.
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
            // The next leader sends its own raft snapshots.
            self.sending_snapshots.clear();
        }
    }

    fn check_transfer(&mut self) {
        let before = std::mem::replace(&mut self.last_transferee, self.raft.lead_transferee());
        if self.last_transferee.is_some() && self.last_transferee != before {
            self.read_index.on_transfer_started();
        }
    }

    /// Carries out the actions of the ReadIndex queue. Returns whether raft has something to do
    /// now.
    fn run_read_actions(&mut self) -> bool {
        let mut asked = false;
        for action in self.read_index.poll(self.now, &mut self.ids) {
            match action {
                ReadIndexAction::RequestReadIndex { context, .. } => {
                    // If raft rejects or drops the attempt, the ReadIndex queue retries it.
                    let _ = self.raft.read_index(context.to_be_bytes().to_vec());
                    asked = true;
                }
                ReadIndexAction::Propose { context, .. } => {
                    // If the proposal is lost or rejected, its readers fail after the time-out of
                    // the ReadIndex queue.
                    let _ = self.raft.propose(log_read(context));
                    asked = true;
                }
                ReadIndexAction::Release { index, readers } => {
                    // The wait is measured from the time at which the first of the read indexes up
                    // to `index` became known.
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

    /// Returns raft's members as of the apply loop's last report. While a raft snapshot is being
    /// installed, these members are outdated: raft already has the members of that snapshot. So
    /// this returns `None`.
    pub fn conf_state(&self) -> Option<&ConfState> {
        Some(&self.conf_state).filter(|_| self.applied.0 >= self.snapshot_index)
    }
}

/// Returns the entry of a read in mode `log`: an empty range, which changes nothing.
fn log_read(id: u64) -> Bytes {
    let header = Some(RequestHeader { id, ..RequestHeader::default() });
    let range = Some(RangeRequest::default());
    InternalRaftRequest { header, range, ..InternalRaftRequest::default() }.encode_to_vec().into()
}

/// Returns whether each entry of a forwarded proposal revokes a lease.
fn revokes_leases(proposal: &Message) -> bool {
    proposal.proposed_entries().into_iter().all(|(_, data)| {
        decode_raft_request(data).is_ok_and(|request| request.lease_revoke.is_some())
    })
}
