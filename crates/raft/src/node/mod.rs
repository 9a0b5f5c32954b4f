//! tikv's `raft` as a state machine without a disk, a network or a clock. In etcd: `raftNode`.
//!
//! The owner passes inputs by calling methods. [`ready`](RaftNode::ready) returns the entries to
//! append, the messages to send and the entries to apply. The owner reports progress with
//! [`on_persisted`](RaftNode::on_persisted) and [`on_applied`](RaftNode::on_applied). Election
//! time-outs are drawn from the seed and the id.
//!
//! ```text
//!   tick, step, propose, read_index ──▶ RaftNode ──▶ ready ─┬─▶ append ─▶ disk ──▶ on_persisted
//!                                          ▲                ├─▶ messages ─▶ peers      │
//!                                          │                └─▶ committed entries      │
//!                                          │                      └─▶ on_applied ──────┤
//!                                          └───────────────────────────────────────────┘
//! ```
//!
//! * A message that depends on a write is sent only after that write is durable. A leader's appends
//!   may be sent immediately, so that followers write while the leader writes.
//! * Committed entries are returned in order, each once, and only if they are durable in this
//!   member's log. So a leader with a slow disk applies nothing before its own sync.
//! * All queues here are limited: see [`RaftNodeConfig`]. Input over a limit fails with
//!   [`Error::QueueFull`]. Raft may instead drop a proposal from another member without an error. A
//!   single proposal may exceed the limit of bytes.
//! * Raft 0.7 panics in states that its authors thought impossible. `check.rs` rejects messages
//!   that would lead to such a state. A call of the owner with an impossible index or number also
//!   fails with an error.
//!
//! See `docs/raft-and-apply.md`.

mod rng;
mod check;
mod ready;
mod error;
mod heartbeats;
mod lost_log;
mod fix_append;
mod message;
mod read_index_answer;
mod config;
mod split_append;
mod pending_appends;
mod yield_leadership;

use std::fmt;

use bytes::Bytes;
use raft::eraftpb::MessageType;
use raft::{GetEntriesContext, RawNode, SnapshotStatus, StateRole};

pub use self::config::{RaftNodeConfig, RecoveredState};
pub use self::error::{Error, Result};
pub use self::lost_log::{LostLog, LostLogReports};
pub use self::message::Message;
use self::pending_appends::{DurableAppends, PendingAppends};
pub use self::ready::{Leadership, ReadState, Ready, ReadyAppend, Role};
use self::rng::Rng;
pub use self::yield_leadership::VoterProgress;
use crate::convert::{self, RaftForm as _};
use crate::log::{LogPosition, LogStorage};
use clearlane_wal::{ConfChange, ConfState, Entry, EntryKind, HardState};

/// The term of the entries that add the first members. Leaders have larger terms.
const FIRST_TERM: u64 = 1;

pub struct RaftNode {
    raw_node: RawNode<LogStorage>,
    config: RaftNodeConfig,
    rng: Rng,
    election_timeout_ticks: usize,
    /// The leadership for which the election time-out was last drawn. A new leadership gets a new
    /// time-out.
    timeout_drawn_for: Leadership,
    reported_leadership: Leadership,
    pending_appends: PendingAppends,
    /// Messages for the next [`Ready`].
    sendable_messages: Vec<Message>,
    /// The index of the last committed entry, or of the newest raft snapshot, that was delivered to
    /// the owner. At the start, it is the store's position.
    delivered_index: u64,
    /// The index of the newest raft snapshot that is being installed, or `None` if there is none.
    installing_index: Option<u64>,
    /// Bytes of proposals forwarded since the last [`Ready`].
    forwarded_bytes: u64,
    lost_log_reports: LostLogReports,
    /// If true, this member does not campaign.
    is_held_back: bool,
}

impl RaftNode {
    /// Creates a node from its configuration and the state on its disk. A new member has a store at
    /// index 0. If it is a first member of a cluster, its entries add the first members. If it
    /// joins a cluster, it has no entries.
    pub fn new(settings: RaftNodeConfig, found: RecoveredState) -> Result<RaftNode> {
        let stopped = |error: raft::Error| Error::Fatal(error.to_string());
        if settings.id == 0 {
            return Err(Error::Fatal("the id of this member is 0".to_owned()));
        }
        let applied = found.store_position.index;
        let log = found.into_log()?;
        let durable_term = log.hard_state.term;
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let mut node = RaftNode {
            raw_node: RawNode::new(&settings.to_raft(applied), log, &logger).map_err(stopped)?,
            config: settings,
            rng: Rng::from_seed(settings.seed, settings.id),
            election_timeout_ticks: settings.election_ticks,
            timeout_drawn_for: Leadership::default(),
            reported_leadership: Leadership::default(),
            pending_appends: PendingAppends::new(durable_term),
            sendable_messages: Vec::new(),
            delivered_index: applied,
            installing_index: None,
            forwarded_bytes: 0,
            lost_log_reports: LostLogReports::default(),
            is_held_back: false,
        };
        node.draw_election_timeout();
        node.reported_leadership = node.leadership();
        Ok(node)
    }

    /// Advances the time by one tick. A tick that would start an election is skipped while
    /// [`can_campaign`](Self::can_campaign) is false: the disk does not have all of the log, a
    /// store is being installed, or the owner holds the member back.
    pub fn tick(&mut self) {
        let raft = &self.raw_node.raft;
        let begins_election = raft.state != StateRole::Leader
            && raft.promotable()
            && raft.election_elapsed + 1 >= self.election_timeout_ticks;
        if !begins_election || self.can_campaign() {
            self.raw_node.tick();
        }
        self.update_election_timeout();
    }

    /// Campaigns without waiting for the time-out. Does nothing while
    /// [`can_campaign`](Self::can_campaign) is false, for example on a learner. Also does nothing
    /// if this member leads, or has not applied a committed change of the members yet.
    pub fn campaign(&mut self) {
        if self.can_campaign() {
            // Raft returns no error here. It ignores the call if this member leads, or if a
            // committed change of the members is not applied yet.
            let _ = self.raw_node.campaign();
        }
        self.update_election_timeout();
    }

    /// Returns whether this member may campaign. It must be a voter, and its owner must not hold it
    /// back. Its log must be on disk, as raft assumes of a candidate: vote requests would wait for
    /// the write, but the only voter wins without sending any. It must not be installing a store,
    /// because the log then has a gap after the applied index.
    fn can_campaign(&self) -> bool {
        let is_installing = self.installing_index.is_some();
        self.raw_node.raft.promotable()
            && !self.pending_appends.has_log_changes()
            && !is_installing
            && !self.is_held_back
    }

    /// Processes a message from another member. A message that raft cannot use now is dropped
    /// without an error, including proposals: a client repeats its request. After an error nothing
    /// has changed, except that the first entries of a forwarded proposal may have been accepted.
    /// After [`Error::LostLog`] the owner must stop the member.
    pub fn step(&mut self, mut message: Message) -> Result<()> {
        self.check_message(&message)?;
        let from = message.from();
        let kind = message.0.get_msg_type();
        let leads = self.raw_node.raft.state == StateRole::Leader;
        // A member that does not lead would forward a request to transfer leadership with the
        // sender's term. Raft asserts that it never forwards a message that has a term. So the
        // request is dropped.
        let lost = kind == MessageType::MsgTransferLeader && !leads;
        if lost || (kind == MessageType::MsgTimeoutNow && !leads && !self.can_campaign()) {
            return Ok(());
        }
        if self.answer_read_index(&message) {
            return Ok(());
        }
        if let Some(lost) = lost_log::check_rejection(&mut message.0, &self.raw_node.raft) {
            self.lost_log_reports.count += 1;
            self.lost_log_reports.last = Some(lost);
            return Ok(());
        }
        match kind {
            // Raft would forward both kinds under the id of the original sender, but over a
            // connection of this member. So this member forwards a proposal under its own id. It
            // drops a ReadIndex request, which the original sender repeats.
            MessageType::MsgPropose if !leads => return self.append_forwarded(&message),
            MessageType::MsgReadIndex if !leads => return Ok(()),
            _ => {}
        }
        let stepped = self.raw_node.step(message.0);
        self.update_election_timeout();
        match stepped {
            Ok(()) | Err(raft::Error::ProposalDropped) => Ok(()),
            Err(raft::Error::StepPeerNotFound) => Err(Error::UnknownPeer(from)),
            Err(error) => Err(Error::Fatal(error.to_string())),
        }
    }

    fn check_message(&self, message: &Message) -> Result<()> {
        let raft = &self.raw_node.raft;
        let nonsense = |words: &str| Err(Error::InvalidMessage(format!("{message}: {words}")));
        if message.to() != raft.id {
            return nonsense("it is for another member");
        }
        let asked = self.pending_appends.durable_term >= raft.term;
        let shape = check::check_form(&message.0);
        if let Err(words) = shape.and_then(|()| check::check_against_state(&message.0, raft, asked))
        {
            return nonsense(words);
        }
        lost_log::check_heartbeat(&message.0, raft)?;
        let known = raft.prs().get(message.from()).is_some();
        match message.0.get_msg_type() {
            MessageType::MsgPropose | MessageType::MsgReadIndex if !known => {
                Err(Error::UnknownPeer(message.from()))
            }
            MessageType::MsgPropose => self.check_proposal_capacity(entry_bytes(message)),
            MessageType::MsgReadIndex => self.check_read_capacity(),
            // The disk does not keep up. The leader will send the append again.
            MessageType::MsgAppend
                if !message.0.entries.is_empty()
                    && self.pending_appends.bytes > self.config.uncommitted_bytes_max =>
            {
                Err(Error::QueueFull)
            }
            _ => Ok(()),
        }
    }

    /// Fails with [`Error::QueueFull`] if a proposal of this number of bytes would exceed a limit.
    ///
    /// On a leader, this function checks only the number of entries; raft itself limits the bytes
    /// when it accepts the proposal. Other members limit the bytes that they forward between two
    /// calls of [`ready`](RaftNode::ready).
    fn check_proposal_capacity(&self, bytes: u64) -> Result<()> {
        let log = &self.raw_node.raft.raft_log;
        let entries = log.last_index() - log.committed.min(log.persisted);
        let full = match self.raw_node.raft.state {
            // On a leader, raft checks the bytes. A proposal of any size is accepted if it is the
            // only one: on a leader if nothing is uncommitted, on other members if nothing else was
            // forwarded since the last `ready`.
            StateRole::Leader => entries >= self.config.uncommitted_entries_max,
            _ if self.forwarded_bytes == 0 => false,
            _ => self.forwarded_bytes + bytes > self.config.uncommitted_bytes_max,
        };
        if full { Err(Error::QueueFull) } else { Ok(()) }
    }

    fn check_read_capacity(&self) -> Result<()> {
        let raft = &self.raw_node.raft;
        let waiting = raft.pending_read_count() + raft.ready_read_count() + raft.msgs.len();
        if waiting >= self.config.reads_max { Err(Error::QueueFull) } else { Ok(()) }
    }

    /// Proposes a request. `data` must not be empty. If another member leads, the proposal is
    /// forwarded. A proposal may get lost in transit, or because the leader changes.
    pub fn propose(&mut self, data: Bytes) -> Result<()> {
        self.append_proposal(EntryKind::Normal, data)
    }

    /// Proposes a change of members. `data` is an encoded [`ConfChange`]. Raft replaces the change
    /// with an empty entry while an earlier change is in progress, and on a new leader that has not
    /// applied all entries that were in its log when it was elected.
    pub fn propose_conf_change(&mut self, data: Bytes) -> Result<()> {
        self.append_proposal(EntryKind::ConfChange, data)
    }

    /// Takes a proposal that another member has forwarded to this member, which does not lead.
    /// Forwards it to the leader as a proposal of this member, or drops it if no leader is known.
    /// Fails at the first entry that exceeds a limit.
    fn append_forwarded(&mut self, proposal: &Message) -> Result<()> {
        for (kind, data) in proposal.proposed_entries() {
            match self.append_proposal(kind, data) {
                Ok(()) | Err(Error::NoLeader) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn append_proposal(&mut self, kind: EntryKind, data: Bytes) -> Result<()> {
        check::check_proposal(kind.to_raft(), &data)
            .map_err(|words| Error::InvalidMessage(words.to_owned()))?;
        let bytes = data.len() as u64;
        if self.raw_node.raft.leader_id == 0 {
            return Err(Error::NoLeader);
        }
        self.check_proposal_capacity(bytes)?;
        if self.raw_node.raft.state != StateRole::Leader {
            self.forwarded_bytes += bytes;
        }
        let proposal = convert::proposal_message(self.raw_node.raft.id, kind, data);
        let proposed = self.raw_node.raft.step(proposal);
        self.update_election_timeout();
        match proposed {
            Ok(()) => Ok(()),
            Err(raft::Error::ProposalDropped) if self.raw_node.raft.lead_transferee.is_some() => {
                Err(Error::Transferring)
            }
            Err(raft::Error::ProposalDropped) => Err(Error::QueueFull),
            Err(error) => Err(Error::Fatal(error.to_string())),
        }
    }

    /// Sends a ReadIndex request. The response is in a later [`Ready`], or never arrives: a message
    /// may get lost, and raft drops the request if there is no leader, or if the leader has not
    /// committed an entry of its term. `context` must have 1 to 64 bytes and must not have been
    /// used before, by any member.
    pub fn read_index(&mut self, context: Vec<u8>) -> Result<()> {
        check::check_context(&context).map_err(|words| Error::InvalidMessage(words.to_owned()))?;
        self.check_read_capacity()?;
        self.raw_node.read_index(context);
        self.update_election_timeout();
        Ok(())
    }

    /// Shortens the time until the next election to at most two ticks plus the random part of the
    /// time-out, as etcd does after a start, once the member has connections. Does nothing if a
    /// leader is known, if the member already campaigns, or if it is not a voter.
    pub fn advance_election(&mut self) {
        let ticks = self.config.election_ticks.saturating_sub(2);
        let raft = &mut self.raw_node.raft;
        if raft.leader_id == 0 && raft.state == StateRole::Follower && raft.promotable() {
            raft.election_elapsed = raft.election_elapsed.max(ticks);
        }
        self.update_election_timeout();
    }

    /// Starts a transfer of leadership to member `to`. Does nothing unless this member leads: a
    /// follower's raft would forward the request to the leader under the id of member `to`.
    pub fn transfer_leader(&mut self, to: u64) {
        if to != 0 && self.raw_node.raft.state == StateRole::Leader {
            self.raw_node.transfer_leader(to);
        }
        self.update_election_timeout();
    }

    pub fn report_unreachable(&mut self, id: u64) {
        self.raw_node.report_unreachable(id);
        self.update_election_timeout();
    }

    pub fn report_snapshot(&mut self, to: u64, arrived: bool) {
        let status = if arrived { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.raw_node.report_snapshot(to, status);
        self.update_election_timeout();
    }

    /// Reports that the append with this number and all earlier appends are durable. Numbers may be
    /// reported late or twice. A number above the number of the newest ready is an error.
    pub fn on_persisted(&mut self, number: u64) -> Result<()> {
        if number > self.pending_appends.newest_ready {
            return Err(Error::Fatal(format!(
                "append {number} was reported durable, but was never returned"
            )));
        }
        if let Some(done) = self.pending_appends.remove_durable(number) {
            self.finish_appends(done);
        }
        Ok(())
    }

    fn finish_appends(&mut self, done: DurableAppends) {
        self.sendable_messages.extend(done.messages);
        self.raw_node.on_persist_ready(done.ready);
        self.update_election_timeout();
    }

    /// Reports that the store of a raft snapshot is installed, and that the entries it contains are
    /// applied. Before this call the member votes and acknowledges durable entries, but does not
    /// campaign. The append of the snapshot must be durable before this call.
    pub fn on_installed(&mut self, index: u64) -> Result<()> {
        self.installing_index = self.installing_index.filter(|newest| *newest > index);
        self.on_applied(index)
    }

    /// Reports the index of the last applied entry. The report may be late. An index that was not
    /// delivered is an error.
    pub fn on_applied(&mut self, index: u64) -> Result<()> {
        let log = &self.raw_node.raft.raft_log;
        if index > self.delivered_index.min(log.committed).min(log.persisted) {
            return Err(Error::Fatal(format!(
                "entry {index} was reported applied, but was never delivered"
            )));
        }
        if index > log.applied {
            self.raw_node.advance_apply_to(index);
        }
        self.update_election_timeout();
        Ok(())
    }

    /// Reports that a change of one member is being applied now. `None` reports that the change was
    /// rejected. Returns the members after this call. Fails if raft rejects the change.
    pub fn apply_conf_change(&mut self, change: Option<&ConfChange>) -> Result<ConfState> {
        let Some(change) = change.and_then(convert::change_to_raft) else {
            return Ok(self.conf_state());
        };
        let changed = self.raw_node.apply_conf_change(&change);
        let raft = &mut self.raw_node.raft;
        // At the next commit, a leader that is no longer a voter would look up its own progress,
        // and raft asserts that this progress exists. So such a leader stops leading here.
        if !raft.promotable() && raft.state != StateRole::Follower {
            let term = raft.term;
            raft.become_follower(term, 0);
        }
        self.update_election_timeout();
        match changed {
            Ok(members) => Ok(ConfState::from_raft(&members)),
            Err(error) => Err(Error::InvalidConfChange(error.to_string())),
        }
    }

    pub fn set_durable_position(&mut self, position: LogPosition) -> Result<()> {
        if position.index > self.delivered_index {
            let index = position.index;
            return Err(Error::Fatal(format!(
                "entry {index} was reported synced, but was never delivered"
            )));
        }
        self.raw_node.mut_store().set_durable(position);
        Ok(())
    }

    /// Drops the entries up to an index. Keeps entries that the durable store does not contain, and
    /// entries that were not reported as applied.
    pub fn release(&mut self, up_to: u64) {
        let applied = self.raw_node.raft.raft_log.applied;
        self.raw_node.mut_store().release(up_to.min(applied));
    }

    /// Returns the index up to which entries must be released. After that, the data of the kept
    /// entries up to `up_to` has at most `bytes` bytes.
    pub fn release_index_for_bytes(&self, up_to: u64, bytes: u64) -> u64 {
        self.raw_node.store().release_index_for_bytes(up_to, bytes)
    }

    /// Returns the bytes of the entries after the durable store's position.
    pub fn bytes_after_durable(&self) -> u64 {
        self.raw_node.store().bytes_after(self.durable_position().index)
    }

    /// Returns the owner's next work, or `None` if there is nothing to do.
    pub fn ready(&mut self) -> Option<Ready> {
        self.forwarded_bytes = 0;
        let mut effects = Ready::default();
        if self.raw_node.has_ready() {
            self.fill_ready(&mut effects);
        } else if self.sendable_messages.is_empty() {
            return None;
        }
        effects.messages.append(&mut self.sendable_messages);
        // Raft iterates over the members in the order of a hash map. Sorting makes the order
        // deterministic.
        effects.messages.sort_by_key(Message::to);
        heartbeats::keep_last_heartbeats(&mut effects.messages);
        Some(effects)
    }

    fn fill_ready(&mut self, effects: &mut Ready) {
        let mut ready = self.raw_node.ready();
        let now = self.leadership();
        effects.leadership = (self.reported_leadership != now).then_some(now);
        self.reported_leadership = now;
        let read_states = ready.take_read_states().into_iter();
        effects.read_states = read_states
            .map(|state| ReadState { index: state.index, context: state.request_ctx })
            .collect();
        effects.committed_entries =
            ready.take_committed_entries().iter().map(Entry::from_raft).collect();
        let mut messages = ready.take_messages();
        messages.append(&mut ready.take_persisted_messages());
        let term = self.pending_appends.durable_term;
        let bytes_max = self.config.message_bytes_max;
        let term_at = |index| self.raw_node.raft.raft_log.term(index).ok();
        let messages = messages
            .into_iter()
            .map(|message| fix_append::fix_append_index(message, term_at))
            .flat_map(|message| split_append::split_append(message, bytes_max))
            .map(Message);
        let later;
        (effects.messages, later) = messages.partition(|message| message.can_send(term));
        effects.append = self.append_to_log(&ready);
        let installed = effects.append.as_ref().and_then(|append| append.install_snapshot.as_ref());
        let newest = effects.committed_entries.last().map(|entry| entry.index);
        self.installing_index = installed.map(|at| at.index).or(self.installing_index);
        self.delivered_index = newest
            .or(self.installing_index)
            .unwrap_or(self.delivered_index)
            .max(self.delivered_index);
        let number = ready.number();
        self.raw_node.advance_append_async(ready);
        if let Some(done) = self.pending_appends.push(number, effects.append.as_ref(), later) {
            self.finish_appends(done);
        }
    }

    /// Appends new entries to raft's log in memory, because raft must be able to read them after
    /// this call. Returns the data that the owner must write to the disk, or `None` if there is
    /// none.
    fn append_to_log(&mut self, ready: &raft::Ready) -> Option<ReadyAppend> {
        let log = self.raw_node.mut_store();
        let metadata = ready.snapshot().get_metadata();
        let install = (metadata.index > 0).then(|| LogPosition::from_raft(metadata));
        if let Some(position) = &install {
            log.install(position.clone());
        }
        log.append(ready.entries());
        let append = ReadyAppend {
            number: ready.number(),
            install_snapshot: install,
            entries: ready.entries().iter().map(Entry::from_raft).collect(),
            hard_state: ready.hs().map(HardState::from_raft),
            must_sync: ready.must_sync(),
        };
        (append.must_sync || append.hard_state.is_some()).then_some(append)
    }

    /// Returns the leader, the term and this member's role, as far as this member knows.
    pub fn leadership(&self) -> Leadership {
        let raft = &self.raw_node.raft;
        let role = match raft.state {
            StateRole::Follower => Role::Follower,
            StateRole::PreCandidate => Role::PreCandidate,
            StateRole::Candidate => Role::Candidate,
            StateRole::Leader => Role::Leader,
        };
        Leadership { leader: raft.leader_id, term: raft.term, role }
    }

    /// Returns the member to which this leader is transferring leadership, or `None` if no transfer
    /// is in progress.
    pub fn lead_transferee(&self) -> Option<u64> {
        self.raw_node.raft.lead_transferee
    }

    /// Returns the highest index that this member knows to be committed.
    pub fn committed_index(&self) -> u64 {
        self.raw_node.raft.raft_log.committed
    }

    pub fn last_index(&self) -> u64 {
        self.raw_node.raft.raft_log.last_index()
    }

    /// Returns whether the log has only the entries that create its cluster. They have the first
    /// term, which has no leader.
    pub fn has_only_first_entries(&self) -> bool {
        self.raw_node.raft.raft_log.last_term() <= FIRST_TERM
    }

    /// Returns the entries above an index that are in memory, committed or not.
    pub fn entries_above(&self, index: u64) -> Vec<Entry> {
        let log = &self.raw_node.raft.raft_log;
        let first = log.first_index().max(index + 1);
        let context = GetEntriesContext::empty(false);
        let entries = log.slice(first, log.last_index() + 1, None, context);
        entries.unwrap_or_default().iter().map(Entry::from_raft).collect()
    }

    /// Returns the index that a member has acknowledged to this leader. Returns 0 if this member
    /// does not lead, or if `id` is not a member.
    pub fn acknowledged_by(&self, id: u64) -> u64 {
        let raft = &self.raw_node.raft;
        let progress = raft.prs().get(id).filter(|_| raft.state == StateRole::Leader);
        progress.map_or(0, |progress| progress.matched)
    }

    /// Returns the index up to which this member's log is on disk.
    pub fn persisted_index(&self) -> u64 {
        self.raw_node.raft.raft_log.persisted
    }

    /// Returns the index up to which this member's raft regards entries as applied.
    pub fn applied_index(&self) -> u64 {
        self.raw_node.raft.raft_log.applied
    }

    /// Returns the first and the last index of the entries in memory. If no entry is in memory, the
    /// first index is one above the last.
    pub fn kept_indexes(&self) -> (u64, u64) {
        (self.raw_node.store().first(), self.raw_node.store().last())
    }

    /// Returns the position of the store on disk.
    pub fn durable_position(&self) -> &LogPosition {
        &self.raw_node.store().durable
    }

    /// Returns the number of rejections at or below an acknowledged index, counted while this
    /// member led, and the loss that the newest of these rejections shows. Late rejections are
    /// counted as well.
    pub fn lost_log_reports(&self) -> LostLogReports {
        self.lost_log_reports
    }

    /// Returns the id of each member, with the highest index up to which its log is known to match
    /// the leader's. All indexes, including this member's own, are valid only on a leader.
    pub fn match_indexes(&self) -> Vec<(u64, u64)> {
        let mut matched: Vec<(u64, u64)> =
            self.raw_node.raft.prs().iter().map(|(id, progress)| (*id, progress.matched)).collect();
        matched.sort_unstable();
        matched
    }

    /// Returns the members after the last change that the owner has passed to
    /// [`apply_conf_change`](RaftNode::apply_conf_change). If raft has accepted a raft snapshot
    /// since, returns the members of that snapshot, even before it is installed.
    pub fn conf_state(&self) -> ConfState {
        ConfState::from_raft(&self.raw_node.raft.prs().conf().to_conf_state())
    }

    /// Replaces raft's election time-out with ours. Must follow every call into raft that may
    /// change the leader, the term or the role, because raft then draws a time-out without a seed.
    fn update_election_timeout(&mut self) {
        if self.timeout_drawn_for != self.leadership() {
            self.draw_election_timeout();
        }
        self.raw_node.raft.set_randomized_election_timeout(self.election_timeout_ticks);
    }

    /// Draws a time-out by raft's own rule: all numbers of ticks from `election_ticks` to less than
    /// `2 * election_ticks` are equally likely.
    fn draw_election_timeout(&mut self) {
        self.timeout_drawn_for = self.leadership();
        let ticks = self.config.election_ticks;
        self.election_timeout_ticks = self.rng.pick(ticks, 2 * ticks);
        self.raw_node.raft.set_randomized_election_timeout(self.election_timeout_ticks);
    }
}

fn entry_bytes(message: &Message) -> u64 {
    message.0.entries.iter().map(|entry| entry.data.len() as u64).sum()
}

impl fmt::Debug for RaftNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RaftNode")
            .field("id", &self.raw_node.raft.id)
            .field("leadership", &self.leadership())
            .field("committed", &self.committed_index())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a member that has just started. It is one of three voters.
    fn voter(id: u64, seed: u64) -> RaftNode {
        let members = ConfState { voters: vec![1, 2, 3], ..ConfState::default() };
        let store = LogPosition { index: 3, term: 1, conf_state: members };
        let hard_state = HardState { term: 1, vote: 0, commit: 3 };
        let found = RecoveredState { store_position: store, hard_state, entries: Vec::new() };
        RaftNode::new(RaftNodeConfig::new(id, seed), found).unwrap()
    }

    fn message(kind: MessageType, from: u64, to: u64) -> raft::eraftpb::Message {
        raft::eraftpb::Message { msg_type: kind, from, to, term: 2, ..Default::default() }
    }

    /// Returns member 1, which follows member 3 in term 2.
    fn follower() -> RaftNode {
        let mut node = voter(1, 0);
        node.step(Message(message(MessageType::MsgHeartbeat, 3, 1))).unwrap();
        node
    }

    fn sent(node: &mut RaftNode, kind: MessageType) -> Vec<(u64, u64)> {
        let mut sent = Vec::new();
        while let Some(effects) = node.ready() {
            let of_kind = effects.messages.iter().filter(|message| message.0.msg_type == kind);
            sent.extend(of_kind.map(|message| (message.from(), message.to())));
            if let Some(append) = effects.append {
                node.on_persisted(append.number).unwrap();
            }
        }
        sent
    }

    /// A member that has just transferred leadership still receives messages that are meant for the
    /// leader. It must drop a message that it could only forward under the name of another member.
    /// (For proposals see `tests/golden/node/forwarded_back`.)
    #[test]
    fn what_a_member_cannot_forward_for_another_is_dropped() {
        let mut node = follower();
        let entries = vec![raft::eraftpb::Entry { data: "id".into(), ..Default::default() }].into();
        let request = message(MessageType::MsgReadIndex, 2, 1);
        node.step(Message(raft::eraftpb::Message { term: 0, entries, ..request })).unwrap();
        assert_eq!(sent(&mut node, MessageType::MsgReadIndex), []);
        node.transfer_leader(2);
        assert_eq!(sent(&mut node, MessageType::MsgTransferLeader), []);
    }

    #[test]
    fn a_member_votes_and_does_not_campaign_while_a_snapshot_is_installed() {
        let mut node = follower();
        let mut snapshot = message(MessageType::MsgSnapshot, 3, 1);
        let metadata = snapshot.mut_snapshot().mut_metadata();
        (metadata.index, metadata.term) = (10, 2);
        metadata.mut_conf_state().set_voters(vec![1, 2, 3]);
        node.step(Message(snapshot)).unwrap();
        assert_eq!(sent(&mut node, MessageType::MsgAppendResponse), [(1, 3)]);
        assert_eq!(node.applied_index(), 3);
        node.campaign();
        assert_eq!(node.leadership().role, Role::Follower);

        let mut asks = message(MessageType::MsgRequestVote, 2, 1);
        (asks.term, asks.index, asks.log_term, asks.context) =
            (3, 10, 2, "CampaignTransfer".into());
        node.step(Message(asks)).unwrap();
        assert_eq!(sent(&mut node, MessageType::MsgRequestVoteResponse), [(1, 2)]);

        node.on_installed(10).unwrap();
        assert_eq!(node.applied_index(), 10);
        node.campaign();
        assert_eq!(node.leadership().role, Role::PreCandidate);
    }

    #[test]
    fn each_time_out_is_as_likely_and_so_is_each_first_candidate() {
        let (mut times, mut first) = ([0; 20], [0; 4]);
        for seed in 0..3000 {
            let timeouts =
                [1, 2, 3].map(|id| (voter(id, seed).election_timeout_ticks, id as usize));
            timeouts.iter().for_each(|(ticks, _)| times[*ticks] += 1);
            let (soonest, id) = *timeouts.iter().min().unwrap();
            if timeouts.iter().filter(|(ticks, _)| *ticks == soonest).count() == 1 {
                first[id] += 1;
            }
        }
        // Each of the ten time-outs is expected about 900 times. Each member is expected to be the
        // only first candidate about 860 times.
        assert!(times[10..].iter().all(|count| (750..1050).contains(count)), "{times:?}");
        assert_eq!(times[..10], [0; 10]);
        assert!(first[1..].iter().all(|count| (700..1000).contains(count)), "{first:?}");
    }
}
