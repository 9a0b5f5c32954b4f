//! Raft as a state machine that does nothing itself.
//!
//! # The idea
//!
//! tikv's `raft` decides who leads and what is committed. It has no network, no disk and no clock,
//! and this driver adds none: inputs go in by calls, and [`effects`](Driver::effects) says what is
//! to be done. So the code that the server runs with threads, sockets and a disk is the code that
//! a simulated cluster runs in one thread, under a seed.
//!
//! ```text
//!   tick, message, proposal, read ──▶ ┌────────┐ ──▶ append to the log ── durable ─▶ persisted
//!   persisted(n), applied(i) ───────▶ │ Driver │ ──▶ send
//!                                     └────────┘ ──▶ apply ───────────── applied ──▶ applied
//! ```
//!
//! # Nobody waits for the disk who need not
//!
//! An append gets a number, and raft goes on while it is on its way to the disk. A leader's
//! messages may leave at once: followers write while the leader does. What a follower has to say
//! about an append ("I have it", "you have my vote") must not be said before it is true, so such
//! messages stay here until [`persisted`](Driver::persisted) has been told the number.
//!
//! # Chance
//!
//! Raft draws election time-outs from the thread's own generator, and so would be different in
//! each run. The driver overwrites the time-out behind every call, and draws another, from its
//! seed, whenever term, role or leader have changed.
//!
//! # Invariants
//!
//! * A message that speaks of something leaves only when that is durable.
//! * Committed entries come out in order, each once, and only those that are in this member's log.
//! * Everything that waits here is bounded: what is proposed and not committed by bytes, what is
//!   sent to a follower and not acknowledged by number and size of messages.

mod chance;
mod convert;
mod effects;
mod error;
mod message;

use std::collections::VecDeque;
use std::fmt;

use bytes::Bytes;
use raft::{RawNode, Ready, SnapshotStatus, StateRole};

use self::chance::Chance;
pub use self::effects::{Append, Effects, Leadership, ReadAnswer, Role};
pub use self::error::{Error, Result};
pub use self::message::Message;
use crate::log::{Log, Position};
use crate::wire::{ConfChange, ConfState, Entry, EntryKind, HardState};

/// How a member takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Its id, which is not 0.
    pub id: u64,
    /// A follower waits for so many ticks, or up to twice as many, before it wants to lead.
    pub election_ticks: usize,
    /// A leader says that it is there every so many ticks.
    pub heartbeat_ticks: usize,
    /// So many appends to a follower may be on their way.
    pub inflight_max: usize,
    /// So many bytes of entries one message has, or a single entry that is larger.
    pub message_bytes_max: u64,
    /// So many bytes may be proposed and not committed.
    pub uncommitted_bytes_max: u64,
    /// So many bytes of entries are handed out to be applied at a time.
    pub committed_bytes_max: u64,
    /// Where election time-outs come from.
    pub seed: u64,
}

impl Settings {
    /// etcd's, in ticks of 100 ms.
    pub fn new(id: u64, seed: u64) -> Settings {
        Settings {
            id,
            election_ticks: 10,
            heartbeat_ticks: 1,
            inflight_max: 512,
            message_bytes_max: 1 << 20,
            uncommitted_bytes_max: 64 << 20,
            committed_bytes_max: 8 << 20,
            seed,
        }
    }
}

/// What a member has found on its disk.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The state of its store.
    pub store: Position,
    /// The last hard state of its log.
    pub hard_state: HardState,
    /// The entries of its log behind the store's position.
    pub entries: Vec<Entry>,
}

impl Found {
    /// The log as raft is to see it; an error if its parts do not fit together.
    fn into_log(self) -> Result<Log> {
        let Found { store, mut hard_state, mut entries } = self;
        let damaged = |words: String| Err(Error::Stopped(words));
        if let Some(same) = entries.iter().find(|entry| entry.index == store.index)
            && same.term != store.term
        {
            let (index, term) = (store.index, store.term);
            return damaged(format!(
                "entry {index} is of term {}, the store's of {term}",
                same.term
            ));
        }
        entries.retain(|entry| entry.index > store.index);
        let mut before = (store.index, store.term);
        for entry in &entries {
            if entry.index != before.0 + 1 || entry.term < before.1 {
                let (index, term) = (entry.index, entry.term);
                return damaged(format!("entry {index}@{term} follows {}@{}", before.0, before.1));
            }
            before = (entry.index, entry.term);
        }
        // A commit index alone is not synced: the store may know of more.
        hard_state.commit = hard_state.commit.max(store.index);
        if hard_state.commit > before.0 {
            let commit = hard_state.commit;
            return damaged(format!("{commit} is committed, and the log ends at {}", before.0));
        }
        if hard_state.term < before.1 {
            let term = hard_state.term;
            return damaged(format!("the term is {term}, and the log has one of {}", before.1));
        }
        let mut log = Log::at(store);
        log.append(&entries.iter().map(Entry::to_raft).collect::<Vec<_>>());
        log.hard_state = hard_state.to_raft();
        Ok(log)
    }
}

/// One member's raft.
pub struct Driver {
    node: RawNode<Log>,
    chance: Chance,
    timeout: usize,
    /// What the time-out was drawn for.
    situation: Leadership,
    election_ticks: usize,
    /// Readies that are on their way to the disk, and what is to be said behind them.
    on_the_way: VecDeque<OnTheWay>,
    /// What may be said now.
    free: Vec<Message>,
}

#[derive(Debug)]
struct OnTheWay {
    number: u64,
    /// Whether the owner was given something to write.
    writes: bool,
    messages: Vec<Message>,
}

impl Driver {
    /// A member as it finds itself. A new one finds a store at index 0, and the first members among
    /// its entries.
    pub fn new(settings: Settings, found: Found) -> Result<Driver> {
        let stopped = |error: raft::Error| Error::Stopped(error.to_string());
        let applied = found.store.index;
        let log = found.into_log()?;
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let node = RawNode::new(&config(settings, applied), log, &logger).map_err(stopped)?;
        let mut driver = Driver {
            node,
            chance: Chance::from_seed(settings.seed),
            timeout: settings.election_ticks,
            situation: Leadership::default(),
            election_ticks: settings.election_ticks,
            on_the_way: VecDeque::new(),
            free: Vec::new(),
        };
        driver.draw();
        Ok(driver)
    }

    /// A tick of the clock has passed.
    pub fn tick(&mut self) {
        self.node.tick();
        self.settle();
    }

    /// Wants to lead, without waiting for the time-out.
    pub fn campaign(&mut self) {
        // It fails for a member that may not, which then does not lead.
        let _ = self.node.campaign();
        self.settle();
    }

    /// A message has come.
    pub fn step(&mut self, message: Message) -> Result<()> {
        let from = message.from();
        let kind = message.0.get_msg_type();
        let stepped = self.node.step(message.0);
        self.settle();
        match stepped {
            Ok(()) | Err(raft::Error::ProposalDropped) => Ok(()),
            Err(raft::Error::StepLocalMsg) => Err(Error::Message(format!("{kind:?}"))),
            Err(raft::Error::StepPeerNotFound) => Err(Error::Stranger(from)),
            Err(error) => Err(Error::Stopped(error.to_string())),
        }
    }

    /// Proposes a request. It is forwarded if another member leads, and may get lost.
    pub fn propose(&mut self, data: Bytes) -> Result<()> {
        self.propose_as(EntryKind::Normal, data)
    }

    /// Proposes a change of the members, as [`ConfChange`] encodes it. One that is proposed while
    /// another is under way becomes an entry that says nothing.
    pub fn propose_change(&mut self, data: Bytes) -> Result<()> {
        self.propose_as(EntryKind::ConfChange, data)
    }

    fn propose_as(&mut self, kind: EntryKind, data: Bytes) -> Result<()> {
        let mut proposal = convert::proposal(kind, data);
        proposal.set_from(self.node.raft.id);
        let proposed = self.node.raft.step(proposal);
        self.settle();
        match proposed {
            Ok(()) => Ok(()),
            Err(raft::Error::ProposalDropped) if self.node.raft.leader_id == 0 => {
                Err(Error::NoLeader)
            }
            Err(raft::Error::ProposalDropped) if self.node.raft.lead_transferee.is_some() => {
                Err(Error::Transferring)
            }
            Err(raft::Error::ProposalDropped) => Err(Error::QueueFull),
            Err(error) => Err(Error::Stopped(error.to_string())),
        }
    }

    /// Asks how far the log is committed. The answer is among the effects, some day or never: raft
    /// forgets the question if there is no leader, or it has not committed anything in its term.
    /// `context` must never have been used before, by nobody.
    pub fn read_index(&mut self, context: Vec<u8>) {
        self.node.read_index(context);
        self.settle();
    }

    /// Hands leadership to another member.
    pub fn transfer_leader(&mut self, to: u64) {
        self.node.transfer_leader(to);
        self.settle();
    }

    /// A message to a member could not be sent.
    pub fn unreachable(&mut self, id: u64) {
        self.node.report_unreachable(id);
        self.settle();
    }

    /// A copy of the store has arrived at a member, or has not.
    pub fn snapshot_sent(&mut self, to: u64, arrived: bool) {
        let status = if arrived { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.node.report_snapshot(to, status);
        self.settle();
    }

    /// An append is durable, and with it all before.
    pub fn persisted(&mut self, number: u64) {
        let mut newest = None;
        while let Some(first) = self.on_the_way.front()
            && (first.number <= number || !first.writes)
        {
            let done = self.on_the_way.pop_front().expect("there is a first");
            self.free.extend(done.messages);
            newest = Some(done.number);
        }
        if let Some(newest) = newest {
            self.node.on_persist_ready(newest);
            self.settle();
        }
    }

    /// Entries up to this index are applied.
    pub fn applied(&mut self, index: u64) {
        self.node.advance_apply_to(index);
        self.settle();
    }

    /// Tells raft of a change that was committed and is applied now, or was refused (`None`).
    /// Returns who is a member from here on.
    pub fn apply_change(&mut self, change: Option<&ConfChange>) -> Result<ConfState> {
        let members = self.node.apply_conf_change(&convert::change_to_raft(change));
        self.settle();
        match members {
            Ok(members) => Ok(ConfState::of_raft(&members)),
            Err(error) => Err(Error::Stopped(error.to_string())),
        }
    }

    /// The store was synced in this state.
    pub fn durable(&mut self, position: Position) {
        self.node.mut_store().set_durable(position);
    }

    /// Lets go of entries up to an index, as far as the durable store has them.
    pub fn release(&mut self, up_to: u64) {
        self.node.mut_store().release(up_to);
    }

    /// What is to be done, if there is anything.
    pub fn effects(&mut self) -> Option<Effects> {
        let mut effects = Effects { send: std::mem::take(&mut self.free), ..Effects::default() };
        if !self.node.has_ready() {
            return (!effects.send.is_empty()).then_some(effects);
        }
        let mut ready = self.node.ready();
        effects.leadership = ready.ss().map(|_| self.leadership());
        effects.reads = ready.take_read_states().into_iter().map(read_answer).collect();
        effects.committed = ready.take_committed_entries().iter().map(Entry::of_raft).collect();
        effects.send.extend(ready.take_messages().into_iter().map(Message));
        let messages = ready.take_persisted_messages().into_iter().map(Message).collect();
        effects.append = self.append(&ready);
        let writes = effects.append.is_some();
        self.on_the_way.push_back(OnTheWay { number: ready.number(), writes, messages });
        self.node.advance_append_async(ready);
        self.free_what_writes_nothing(&mut effects);
        Some(effects)
    }

    /// What of a ready goes to the log. Raft must be able to read it from here on.
    fn append(&mut self, ready: &Ready) -> Option<Append> {
        let log = self.node.mut_store();
        let metadata = ready.snapshot().get_metadata();
        let install = (metadata.index > 0).then(|| Position::of_raft(metadata));
        if let Some(position) = &install {
            log.install(position.clone());
        }
        log.append(ready.entries());
        if let Some(hard_state) = ready.hs() {
            log.hard_state = hard_state.clone();
        }
        let append = Append {
            number: ready.number(),
            install,
            entries: ready.entries().iter().map(Entry::of_raft).collect(),
            hard_state: ready.hs().map(HardState::of_raft),
            must_sync: ready.must_sync(),
        };
        let writes =
            append.install.is_some() || !append.entries.is_empty() || append.hard_state.is_some();
        writes.then_some(append)
    }

    /// A ready with nothing to write is durable as soon as all before it are.
    fn free_what_writes_nothing(&mut self, effects: &mut Effects) {
        if self.on_the_way.front().is_some_and(|first| !first.writes) {
            self.persisted(0);
            effects.send.append(&mut self.free);
        }
    }

    /// Who leads, as far as this member knows.
    pub fn leadership(&self) -> Leadership {
        let raft = &self.node.raft;
        let role = match raft.state {
            StateRole::Follower => Role::Follower,
            StateRole::PreCandidate => Role::PreCandidate,
            StateRole::Candidate => Role::Candidate,
            StateRole::Leader => Role::Leader,
        };
        Leadership { leader: raft.leader_id, term: raft.term, role }
    }

    /// Whether this member leads and has committed something in its term: before that it cannot
    /// know what is committed, and answers no reads.
    pub fn may_answer_reads(&self) -> bool {
        self.node.raft.state == StateRole::Leader && self.node.raft.commit_to_current_term()
    }

    /// Up to where entries are committed, as far as this member knows.
    pub fn committed(&self) -> u64 {
        self.node.raft.raft_log.committed
    }

    /// The first and the last index that are kept in memory.
    pub fn kept(&self) -> (u64, u64) {
        (self.node.store().first(), self.node.store().last())
    }

    /// The state in which the store was last synced.
    pub fn durable_position(&self) -> &Position {
        self.node.store().durable()
    }

    /// How far each other member's log is known to agree with this leader's.
    pub fn matched(&self) -> Vec<(u64, u64)> {
        let mut matched: Vec<(u64, u64)> =
            self.node.raft.prs().iter().map(|(id, progress)| (*id, progress.matched)).collect();
        matched.sort_unstable();
        matched
    }

    /// Behind every call: the time-out is ours, whatever raft has drawn.
    fn settle(&mut self) {
        if self.situation != self.leadership() {
            self.draw();
        }
        self.node.raft.set_randomized_election_timeout(self.timeout);
    }

    fn draw(&mut self) {
        self.situation = self.leadership();
        self.timeout = self.chance.pick(self.election_ticks, 2 * self.election_ticks);
        self.node.raft.set_randomized_election_timeout(self.timeout);
    }
}

fn config(settings: Settings, applied: u64) -> raft::Config {
    raft::Config {
        id: settings.id,
        election_tick: settings.election_ticks,
        heartbeat_tick: settings.heartbeat_ticks,
        applied,
        max_size_per_msg: settings.message_bytes_max,
        max_inflight_msgs: settings.inflight_max,
        check_quorum: true,
        pre_vote: true,
        max_uncommitted_size: settings.uncommitted_bytes_max,
        max_committed_size_per_ready: settings.committed_bytes_max,
        ..raft::Config::default()
    }
}

fn read_answer(state: raft::ReadState) -> ReadAnswer {
    ReadAnswer { index: state.index, context: state.request_ctx }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("id", &self.node.raft.id)
            .field("leadership", &self.leadership())
            .field("committed", &self.committed())
            .finish_non_exhaustive()
    }
}
