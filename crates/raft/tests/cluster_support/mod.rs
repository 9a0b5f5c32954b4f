//! A cluster of `RaftNode`s in one thread, driven step by step.
//!
//! Messages stay in a pool until they are delivered or lost. A test can also duplicate a message. A
//! fast disk writes an append immediately. A slow disk writes only when a test calls `persist`. A
//! crash keeps the written data and the last synced store. Events become lines of text, which
//! golden scripts show.
//!
//! Some rules always hold and are checked at each step:
//!
//! * A term has at most one leader.
//! * If two members apply entries with the same index, these entries are equal. Each member applies
//!   the entries in order, each once.
//! * An applied entry is on the disks of a majority of the voters.
//! * The state that a message claims is on the disk of its sender.
//! * A read returns an index that was committed when the read was requested, or a later one.

#![allow(dead_code, reason = "each test uses a part of it")]

pub(crate) mod disk;
pub(crate) mod script;

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;

use clearlane_raft::{Error, Message, RaftNode, RaftNodeConfig, Ready, ReadyAppend, Role};
use clearlane_wal::wire::{ConfState, Entry, EntryKind};
use disk::{Disk, Store};
use protobuf::Message as _;
use raft::eraftpb::{self, MessageType};

#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    pub(crate) message: Message,
    /// The store that is sent with a snapshot message. `None` for any other message.
    snapshot_store: Option<Store>,
}

impl InFlight {
    pub(crate) fn edge(&self) -> (u64, u64) {
        let raw = eraftpb::Message::parse_from_bytes(&self.message.encode()).unwrap();
        // In a request to transfer leadership, the field `from` has the id of the next leader, and
        // not of the sender.
        (raw.from, raw.to)
    }
}

#[derive(Debug)]
pub(crate) struct Member {
    /// The node, or `None` while the member is down.
    pub(crate) node: Option<RaftNode>,
    pub(crate) disk: Disk,
    pub(crate) store: Store,
    pub(crate) slow: bool,
    /// Stores that arrived with raft snapshots, by index.
    received: BTreeMap<u64, Store>,
}

pub(crate) struct Cluster {
    pub(crate) members: BTreeMap<u64, Member>,
    pub(crate) pool: Vec<InFlight>,
    cut: BTreeSet<(u64, u64)>,
    settings: RaftNodeConfig,
    /// If true, the sender of a raft snapshot learns immediately whether it has arrived.
    pub(crate) reports_snapshots: bool,
    lines: Vec<String>,
    pub(crate) digest: DefaultHasher,
    leaders: BTreeMap<u64, u64>,
    /// All entries that any member has applied.
    pub(crate) committed: BTreeMap<u64, Entry>,
    reads: BTreeMap<Vec<u8>, u64>,
}

impl Cluster {
    pub(crate) fn new(voters: u64, settings: RaftNodeConfig) -> Cluster {
        let mut cluster = Cluster {
            members: BTreeMap::new(),
            pool: Vec::new(),
            cut: BTreeSet::new(),
            settings,
            reports_snapshots: false,
            lines: Vec::new(),
            digest: DefaultHasher::new(),
            leaders: BTreeMap::new(),
            committed: BTreeMap::new(),
            reads: BTreeMap::new(),
        };
        for id in 1..=voters {
            cluster.add(id, Disk::first(voters));
        }
        for id in 1..=voters {
            cluster.restart(id);
        }
        cluster.take_lines();
        cluster
    }

    fn add(&mut self, id: u64, disk: Disk) {
        let (store, received) = (Store::default(), BTreeMap::new());
        self.members.insert(id, Member { node: None, disk, store, slow: false, received });
    }

    /// Starts a new member with an empty disk, so that it knows no other member.
    pub(crate) fn start(&mut self, id: u64) {
        self.add(id, Disk::default());
        self.restart(id);
    }

    pub(crate) fn restart(&mut self, id: u64) {
        let settings = RaftNodeConfig { id, ..self.settings };
        let member = self.members.get_mut(&id).unwrap();
        member.store = member.disk.store.clone();
        member.node = Some(RaftNode::new(settings, member.disk.found()).unwrap());
        self.handle(id);
    }

    pub(crate) fn crash(&mut self, id: u64) {
        let member = self.members.get_mut(&id).unwrap();
        member.node = None;
        member.disk.queue.clear();
        member.received.clear();
    }

    pub(crate) fn take_lines(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }

    pub(crate) fn line(&mut self, line: String) {
        self.lines.push(line);
    }

    pub(crate) fn is_up(&self, id: u64) -> bool {
        self.members.get(&id).is_some_and(|member| member.node.is_some())
    }

    pub(crate) fn ids(&self) -> Vec<u64> {
        self.members.keys().copied().collect()
    }

    pub(crate) fn node(&mut self, id: u64) -> &mut RaftNode {
        self.members.get_mut(&id).unwrap().node.as_mut().unwrap()
    }

    /// Calls a node, and carries out the work that the node then has ready. Returns `None` if the
    /// node is down.
    pub(crate) fn call<T>(&mut self, id: u64, what: impl FnOnce(&mut RaftNode) -> T) -> Option<T> {
        let result = what(self.members.get_mut(&id)?.node.as_mut()?);
        self.handle(id);
        Some(result)
    }

    pub(crate) fn read(&mut self, id: u64, context: &str) -> Option<Result<(), Error>> {
        let newest = self.committed.keys().next_back().copied().unwrap_or(0);
        self.reads.entry(context.into()).or_insert(newest);
        self.call(id, |node| node.read_index(context.into()))
    }

    fn handle(&mut self, id: u64) {
        while let Some(effects) = self.node(id).ready() {
            format!("{id} {effects:?}").hash(&mut self.digest);
            self.apply_effects(id, effects);
        }
    }

    fn apply_effects(&mut self, id: u64, effects: Ready) {
        if let Some(now) = effects.leadership {
            let (role, leader, term) = (now.role, now.leader, now.term);
            self.line(format!("{id}: {role:?} term={term} leader={leader}"));
            if role == Role::Leader {
                let first = *self.leaders.entry(term).or_insert(id);
                assert_eq!(first, id, "two leaders in term {term}");
            }
        }
        for message in effects.messages {
            self.check_is_durable(id, &message);
            let message = Message::decode(&message.encode()).unwrap();
            self.send(id, message);
        }
        if let Some(append) = effects.append {
            self.append(id, append);
        }
        for read in effects.read_states {
            let context = String::from_utf8_lossy(&read.context).into_owned();
            self.line(format!("{id}: read {context} at {}", read.index));
            assert!(read.index >= self.reads[&read.context], "a stale read {context}");
        }
        self.apply(id, &effects.committed_entries);
    }

    fn send(&mut self, id: u64, mut message: Message) {
        let mut copy = None;
        if message.is_snapshot() {
            let store = self.members[&id].store.clone();
            assert!(
                store.position.index >= message.snapshot_position().index,
                "a snapshot is older than it was announced"
            );
            message.set_snapshot_position(&store.position);
            copy = Some(store);
        }
        message.encode().hash(&mut self.digest);
        self.pool.push(InFlight { message, snapshot_store: copy });
    }

    fn append(&mut self, id: u64, append: ReadyAppend) {
        let member = self.members.get_mut(&id).unwrap();
        let copy = append.install_snapshot.as_ref().map(|at| member.received[&at.index].clone());
        let slow = member.slow;
        let words = describe(&append);
        member.disk.queue.push_back((append, copy));
        if slow {
            self.line(format!("{id}: writes {words}"));
        } else {
            self.write(id);
        }
    }

    /// Writes the oldest append in the queue of a member's disk. Returns `false` if the queue is
    /// empty.
    pub(crate) fn write(&mut self, id: u64) -> bool {
        let member = self.members.get_mut(&id).unwrap();
        let Some((append, store)) = member.disk.write() else { return false };
        let installed = store.as_ref().map(|store| store.position.index);
        if let Some(store) = store {
            member.received.retain(|index, _| *index > store.position.index);
            let index = store.position.index;
            member.store = store;
            self.line(format!("{id}: install {index}"));
        }
        if append.must_sync {
            self.node(id).on_persisted(append.number).unwrap();
        }
        if let Some(index) = installed {
            self.node(id).on_installed(index).unwrap();
        }
        true
    }

    /// Writes up to this number of appends.
    pub(crate) fn persist(&mut self, id: u64, count: usize) {
        for _ in 0..count {
            if !self.is_up(id) || !self.write(id) {
                break;
            }
            self.handle(id);
        }
    }

    fn apply(&mut self, id: u64, entries: &[Entry]) {
        for entry in entries {
            let next = self.members[&id].store.position.index + 1;
            assert_eq!(entry.index, next, "{id} applies out of order");
            let first = self.committed.entry(entry.index).or_insert_with(|| entry.clone());
            assert_eq!(first, entry, "{id} applies something else");
            self.check_durable(id, entry);
            let changed = self.apply_entry(id, entry);
            let store = &mut self.members.get_mut(&id).unwrap().store;
            if let Some(members) = changed {
                store.position.conf_state = members;
            } else if !entry.data.is_empty() {
                store.data.push((entry.index, entry.data.clone()));
            }
            store.position.index = entry.index;
            store.position.term = entry.term;
        }
        if let Some(last) = entries.last() {
            self.node(id).on_applied(last.index).unwrap();
        }
    }

    /// Applies an entry. Returns the new members if the entry changes the members, otherwise
    /// `None`.
    fn apply_entry(&mut self, id: u64, entry: &Entry) -> Option<ConfState> {
        let at = format!("{id}: apply {}@{}", entry.index, entry.term);
        let node = self.node(id);
        let changed = match entry.kind {
            EntryKind::Normal => {
                self.line(format!("{at} {}", entry.data.escape_ascii()).trim_end().to_owned());
                return None;
            }
            EntryKind::ConfChange => {
                node.apply_conf_change(disk::decode_change(&entry.data).as_ref())
            }
            EntryKind::ConfChangeV2 => panic!("no member changes several members at once"),
        };
        let members = node.conf_state();
        let refused = changed.err().map(|error| format!(" ({error})")).unwrap_or_default();
        self.line(format!("{at} members {}{refused}", names(&members)));
        Some(members)
    }

    /// Checks that an applied entry is on the disks of a majority of the voters that this member
    /// knows.
    fn check_durable(&self, id: u64, entry: &Entry) {
        let voters = &self.members[&id].store.position.conf_state.voters;
        let has = |voter: &&u64| {
            self.members.get(voter).is_some_and(|member| member.disk.has(entry.index, entry.term))
        };
        let durable = voters.iter().filter(has).count();
        assert!(durable * 2 > voters.len() || voters.is_empty(), "{entry:?} is not durable");
    }

    /// Checks that the state a message claims is on the disk of its sender.
    fn check_is_durable(&self, id: u64, message: &Message) {
        let disk = &self.members[&id].disk;
        let raw = eraftpb::Message::parse_from_bytes(&message.encode()).unwrap();
        let (term, vote) = (disk.hard_state.term, disk.hard_state.vote);
        let holds = match raw.get_msg_type() {
            MessageType::MsgAppendResponse if !raw.reject => {
                raw.index <= disk.last() && raw.term <= term
            }
            MessageType::MsgRequestVote => (term, vote) == (raw.term, id),
            MessageType::MsgRequestVoteResponse if !raw.reject => {
                // The member may have moved to a later term since it voted.
                term > raw.term || (term, vote) == (raw.term, raw.to)
            }
            MessageType::MsgAppend | MessageType::MsgHeartbeat | MessageType::MsgSnapshot => {
                raw.term <= term
            }
            _ => true,
        };
        assert!(
            holds,
            "{message} is said by a disk with {:?} up to {}",
            disk.hard_state,
            disk.last()
        );
    }

    pub(crate) fn cut(&mut self, one: u64, other: u64) {
        self.cut.extend([(one, other), (other, one)]);
    }

    pub(crate) fn heal(&mut self) {
        self.cut.clear();
    }

    /// Takes a message out of the pool and delivers it. The message is lost if the link is cut or
    /// the receiver is down.
    pub(crate) fn deliver(&mut self, at: usize) {
        let sent = self.pool.remove(at);
        let (from, to) = sent.edge();
        if self.cut.contains(&(from, to)) || !self.is_up(to) {
            return self.lose(&sent);
        }
        self.line(sent.message.to_string());
        if let Some(copy) = sent.snapshot_store {
            let received = &mut self.members.get_mut(&to).unwrap().received;
            received.insert(copy.position.index, copy);
            self.report(from, to, true);
        }
        let error = self.call(to, |node| node.step(sent.message)).unwrap().err();
        if let Some(error) = error {
            self.line(format!("{to}: error: {error}"));
        }
    }

    pub(crate) fn lose(&mut self, sent: &InFlight) {
        self.line(format!("{} lost", sent.message));
        if sent.message.is_snapshot() {
            let (from, to) = sent.edge();
            self.report(from, to, false);
        }
    }

    fn report(&mut self, from: u64, to: u64, arrived: bool) {
        if self.reports_snapshots {
            self.call(from, |node| node.report_snapshot(to, arrived));
        }
    }

    /// Delivers messages until the pool is empty.
    pub(crate) fn run(&mut self) {
        for _ in 0..10_000 {
            if self.pool.is_empty() {
                return;
            }
            self.deliver(0);
        }
        panic!("messages without end");
    }

    /// Syncs the store, and releases the log up to an index.
    pub(crate) fn sync(&mut self, id: u64, release: u64) {
        let member = self.members.get_mut(&id).unwrap();
        let Some(node) = member.node.as_mut() else { return };
        // The store is not synced if it is about to be replaced by a received store.
        if member.disk.queue.iter().any(|(append, _)| append.install_snapshot.is_some()) {
            return;
        }
        member.disk.store = member.store.clone();
        node.set_durable_position(member.store.position.clone()).unwrap();
        node.release(release);
        let (first, _) = node.kept_indexes();
        member.disk.entries = member.disk.entries.split_off(&first);
    }
}

pub(crate) fn names(members: &ConfState) -> String {
    let mut names = format!("{:?}", members.voters);
    for (what, ids) in [
        ("outgoing", &members.voters_outgoing),
        ("learners", &members.learners),
        ("learners next", &members.learners_next),
    ] {
        if !ids.is_empty() {
            names += &format!(" {what} {ids:?}");
        }
    }
    names
}

fn describe(append: &ReadyAppend) -> String {
    let mut words = format!("#{}", append.number);
    if let Some(position) = &append.install_snapshot {
        words += &format!(" install {}@{}", position.index, position.term);
    }
    if let (Some(first), Some(last)) = (append.entries.first(), append.entries.last()) {
        words += &format!(" {}@{}..{}@{}", first.index, first.term, last.index, last.term);
    }
    if let Some(state) = append.hard_state {
        words += &format!(" term={} vote={} commit={}", state.term, state.vote, state.commit);
    }
    if append.must_sync { words } else { words + " unsynced" }
}
