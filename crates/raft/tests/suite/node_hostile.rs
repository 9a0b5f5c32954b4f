//! Tests that no message from a peer and no call of the owner makes a `RaftNode` panic.
//!
//! Two members exchange valid messages. The first member also gets invalid ones: messages that are
//! made of random parts, real messages of the same run with a changed part, and random bytes. The
//! appends of the first member become durable from time to time. The first member may reject any
//! message.

use crate::cluster_support::disk;
use clearlane_raft::LogPosition;
use clearlane_raft::{Error, Message, RaftNode, RaftNodeConfig, Ready, RecoveredState, Role};
use clearlane_wal::wire::{ConfState, Entry, EntryKind, HardState};
use proptest::prelude::*;
use protobuf::{Message as _, ProtobufEnum as _};
use raft::eraftpb;

/// Returns a member of a cluster of three. Its store is at index 4, and its log has the entries 5
/// to 8. Entry 5 is committed.
fn member(id: u64) -> RaftNode {
    let members = ConfState { voters: vec![1, 2, 3], ..ConfState::default() };
    let store = LogPosition { index: 4, term: 2, conf_state: members };
    let entry =
        |index| Entry { kind: EntryKind::Normal, term: 2, index, data: b"a".to_vec().into() };
    let hard_state = HardState { term: 2, vote: 0, commit: 5 };
    let found =
        RecoveredState { store_position: store, hard_state, entries: (5..=8).map(entry).collect() };
    RaftNode::new(RaftNodeConfig { reads_max: 8, ..RaftNodeConfig::new(id, 7) }, found).unwrap()
}

/// Carries out the work that a node gives to its owner. If `writes` is true, reports the append as
/// durable. Returns the messages to send.
fn handle_ready(node: &mut RaftNode, effects: Ready, writes: bool) -> Vec<Message> {
    for entry in &effects.committed_entries {
        // An entry that changes several members at once is not applied. A server stops at it.
        if entry.kind == EntryKind::ConfChange {
            let _ = node.apply_conf_change(disk::decode_change(&entry.data).as_ref());
        }
    }
    if let Some(last) = effects.committed_entries.last() {
        node.on_applied(last.index).unwrap();
    }
    if let Some(append) = effects.append.filter(|_| writes) {
        node.on_persisted(append.number).unwrap();
    }
    effects.messages
}

fn drain(node: &mut RaftNode, writes: bool) -> Vec<Message> {
    let mut sent = Vec::new();
    while let Some(effects) = node.ready() {
        sent.extend(handle_ready(node, effects, writes));
    }
    sent
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..14u64, 1 => Just(u64::MAX), 1 => Just(u64::MAX - 1), 1 => Just(1 << 62)]
}

fn ids() -> impl Strategy<Value = Vec<u64>> {
    proptest::collection::vec(0..5u64, 0..4)
}

prop_compose! {
    fn entry()(
        kind in 0..3, term in number(), index in number(), more in any::<(u8, bool)>(),
        data in prop_oneof![
            Just(vec![]),
            Just(b"x".to_vec()),
            proptest::collection::vec(any::<u8>(), 0..8),
            (0..4u8, 0..5u8).prop_map(|(kind, id)| vec![0x7a, 4, 0x10, kind, 0x18, id]),
            // An entry with several membership changes. etcd's raft library can write such an
            // entry, but no server proposes it.
            (0..4u8, 0..5u8).prop_map(|(kind, id)| vec![0x12, 0, 0x7a, 4, 0x10, kind, 0x18, id]),
        ],
    ) -> eraftpb::Entry {
        let mut entry = eraftpb::Entry::default();
        entry.set_entry_type(eraftpb::EntryType::from_i32(kind).unwrap());
        entry.set_term(term);
        entry.set_index(index);
        entry.set_data(data.into());
        entry.set_sync_log(more == (0, true));
        entry
    }
}

prop_compose! {
    fn snapshot()(
        index in number(), term in number(), voters in ids(), learners in ids(),
        outgoing in ids(), next in ids(), plain in any::<bool>(), leave in any::<bool>(),
    ) -> eraftpb::Snapshot {
        let mut members = eraftpb::ConfState::default();
        members.set_voters(if plain { vec![1, 2, 3] } else { voters });
        members.set_learners(learners);
        if !plain {
            members.set_voters_outgoing(outgoing);
            members.set_learners_next(next);
            members.set_auto_leave(leave);
        }
        let mut snapshot = eraftpb::Snapshot::default();
        snapshot.mut_metadata().set_conf_state(members);
        snapshot.mut_metadata().set_index(index);
        snapshot.mut_metadata().set_term(term);
        snapshot
    }
}

prop_compose! {
    /// Makes a message of random parts. If `fits` is true, a forwarded kind has term 0, and the
    /// entries of any other kind follow the message's index without a gap and have its term.
    fn message()(
        kind in 0..19, from in 0..5u64, to in prop_oneof![9 => Just(1u64), 1 => number()],
        numbers in proptest::collection::vec(number(), 7), reject in any::<bool>(),
        entries in proptest::collection::vec(entry(), 0..3), fits in any::<bool>(),
        snapshot in snapshot(), transfer in any::<bool>(), priority in any::<(i64, bool)>(),
    ) -> eraftpb::Message {
        let mut message = eraftpb::Message::default();
        message.set_msg_type(eraftpb::MessageType::from_i32(kind).unwrap());
        message.set_from(from);
        message.set_to(to);
        message.set_term(numbers[0]);
        message.set_index(numbers[1]);
        message.set_log_term(numbers[2]);
        message.set_commit(numbers[3]);
        message.set_commit_term(numbers[4]);
        message.set_reject_hint(numbers[5]);
        message.set_request_snapshot(if fits { 0 } else { numbers[6] });
        message.set_reject(reject);
        message.set_entries(entries.into());
        message.set_snapshot(snapshot);
        message.set_priority(if priority.1 { priority.0 } else { 0 });
        if fits {
            make_fit(&mut message);
        }
        if transfer {
            message.set_context(b"CampaignTransfer".to_vec().into());
        }
        message
    }
}

fn make_fit(message: &mut eraftpb::Message) {
    let forwarded = [eraftpb::MessageType::MsgPropose, eraftpb::MessageType::MsgReadIndex];
    if forwarded.contains(&message.get_msg_type()) {
        return message.set_term(0);
    }
    let (mut index, term) = (message.index, message.term);
    for entry in message.mut_entries().iter_mut() {
        index = index.saturating_add(1);
        entry.set_index(index);
        entry.set_term(term);
        entry.set_sync_log(false);
    }
}

#[derive(Clone, Debug)]
enum Event {
    Nonsense(Box<eraftpb::Message>),
    /// A real message of this run with a changed part: the number of the message, the part, and the
    /// new value.
    Mutated(usize, u8, u64),
    Bytes(Vec<u8>),
    Tick(u8),
    Talk,
    Persisted(u64),
    Call(u8, u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => message().prop_map(|message| Event::Nonsense(Box::new(message))),
        6 => (any::<usize>(), any::<u8>(), number()).prop_map(|(at, part, to)| Event::Mutated(at, part, to)),
        1 => proptest::collection::vec(any::<u8>(), 0..40).prop_map(Event::Bytes),
        3 => (1..25u8).prop_map(Event::Tick),
        6 => Just(Event::Talk),
        2 => number().prop_map(Event::Persisted),
        2 => (any::<u8>(), number()).prop_map(|(what, number)| Event::Call(what, number)),
    ]
}

fn mutate(message: &mut eraftpb::Message, part: u8, to: u64) {
    match part % 14 {
        0 => message.set_term(to),
        1 => message.set_index(to),
        2 => message.set_log_term(to),
        3 => message.set_commit(to),
        4 => message.set_commit_term(to),
        5 => message.set_reject_hint(to),
        6 => message.set_reject(to.is_multiple_of(2)),
        7 => message.set_from(to),
        8 => drop(message.take_entries()),
        9 => message.mut_entries().iter_mut().for_each(|entry| entry.set_index(to)),
        10 => message.mut_entries().iter_mut().for_each(|entry| entry.set_term(to)),
        11 => {
            let kind = eraftpb::MessageType::from_i32((to % 19) as i32).unwrap();
            message.set_msg_type(kind);
        }
        12 => message.mut_snapshot().mut_metadata().set_index(to),
        _ => message.mut_snapshot().mut_metadata().set_term(to),
    }
}

/// Calls a method of the node with arbitrary arguments. Invalid arguments may cause an error, but
/// no panic.
fn call(node: &mut RaftNode, what: u8, number: u64) {
    let id = number % 5;
    match what % 11 {
        0 => drop(node.on_applied(number)),
        1 => {
            let members = ConfState { voters: vec![1, 2, 3], ..ConfState::default() };
            drop(node.set_durable_position(LogPosition {
                index: number,
                term: 2,
                conf_state: members,
            }));
        }
        2 => node.release(number),
        3 => node.transfer_leader(id),
        4 => node.report_unreachable(id),
        5 => node.report_snapshot(id, number.is_multiple_of(2)),
        6 => drop(node.read_index(vec![1; (number % 70) as usize])),
        7 => drop(node.propose(vec![0; (number % 3) as usize].into())),
        8 => drop(node.propose_conf_change(vec![0x10, (number % 4) as u8, 0x18, id as u8].into())),
        9 => node.campaign(),
        _ => {
            let change = disk::decode_change(&[0x10, (number % 4) as u8, 0x18, id as u8]);
            drop(node.apply_conf_change(change.as_ref()));
        }
    }
}

fn exchange_messages(
    one: &mut RaftNode,
    other: &mut RaftNode,
    writes: bool,
    heard: &mut Vec<eraftpb::Message>,
) {
    for _ in 0..4 {
        for message in drain(one, writes).into_iter().filter(|message| message.to() == 2) {
            let _ = other.step(message);
        }
        for message in drain(other, true).into_iter().filter(|message| message.to() == 1) {
            heard.push(eraftpb::Message::parse_from_bytes(&message.encode()).unwrap());
            let _ = one.step(message);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_stops_it(
        leads in any::<bool>(), writes in any::<bool>(),
        events in proptest::collection::vec(event(), 1..80),
    ) {
        let (mut one, mut other) = (member(1), member(2));
        let mut heard = Vec::new();
        drain(&mut one, true);
        if leads {
            one.campaign();
            exchange_messages(&mut one, &mut other, true, &mut heard);
            prop_assert_eq!(one.leadership().role, Role::Leader);
        } else {
            other.campaign();
            exchange_messages(&mut one, &mut other, true, &mut heard);
            prop_assert_eq!(other.leadership().role, Role::Leader);
        }
        for event in events {
            let nonsense = match event {
                Event::Nonsense(message) => message.write_to_bytes().unwrap(),
                Event::Mutated(at, part, to) => {
                    let mut message = heard[at % heard.len()].clone();
                    mutate(&mut message, part, to);
                    message.write_to_bytes().unwrap()
                }
                Event::Bytes(bytes) => bytes,
                Event::Tick(ticks) => {
                    (0..ticks).for_each(|_| one.tick());
                    continue;
                }
                Event::Talk => {
                    let _ = other.propose(b"b".to_vec().into());
                    exchange_messages(&mut one, &mut other, writes, &mut heard);
                    continue;
                }
                Event::Persisted(number) => {
                    let _ = one.on_persisted(number);
                    continue;
                }
                Event::Call(what, number) => {
                    call(&mut one, what, number);
                    continue;
                }
            };
            let Ok(message) = Message::decode(&nonsense) else { continue };
            let stepped = one.step(message);
            prop_assert!(!matches!(stepped, Err(Error::Fatal(_))), "{:?}", stepped);
            drain(&mut one, writes);
        }
        drain(&mut one, true);
    }
}

fn found(store: u64, commit: u64, term: u64, entries: &[(u64, u64)]) -> RecoveredState {
    let members = ConfState { voters: vec![1], ..ConfState::default() };
    let entry =
        |(index, term): &(u64, u64)| Entry { term: *term, index: *index, ..Entry::default() };
    RecoveredState {
        store_position: LogPosition { index: store, term: 2.min(store), conf_state: members },
        hard_state: HardState { term, vote: 0, commit },
        entries: entries.iter().map(entry).collect(),
    }
}

/// Opens a node on the state of a disk. Returns its commit index.
fn opened(found: RecoveredState) -> Result<u64, String> {
    let node = RaftNode::new(RaftNodeConfig::new(1, 1), found);
    node.map(|node| node.committed_index()).map_err(|error| error.to_string())
}

#[test]
fn a_disk_that_does_not_fit_together_is_refused() {
    // The next three states are valid: the store may be above the commit index on disk, and the log
    // may still have entries that the store has applied.
    assert_eq!(opened(found(5, 3, 2, &[(4, 2), (5, 2), (6, 2)])), Ok(5));
    assert_eq!(opened(found(5, 6, 2, &[(6, 2)])), Ok(6));
    assert_eq!(opened(found(5, 0, 2, &[])), Ok(5));
    // In the next state, the power failed after an entry was written and before the hard state with
    // the entry's term was written.
    let torn = RaftNode::new(RaftNodeConfig::new(1, 1), found(5, 5, 2, &[(6, 3)])).unwrap();
    assert_eq!(torn.leadership().term, 3);
    let refused = |found: RecoveredState| opened(found).unwrap_err();
    assert_eq!(refused(found(5, 5, 2, &[(7, 2)])), "raft stopped: entry 7@2 follows 5@2");
    assert_eq!(refused(found(5, 5, 2, &[(6, 1)])), "raft stopped: entry 6@1 follows 5@2");
    assert_eq!(refused(found(0, 0, 2, &[(1, 0)])), "raft stopped: entry 1@0 follows 0@0");
    assert_eq!(
        refused(found(5, 5, 3, &[(5, 3), (6, 3)])),
        "raft stopped: entry 5 has term 3 in the log, but term 2 in the store"
    );
    assert_eq!(
        refused(found(5, 9, 2, &[(6, 2)])),
        "raft stopped: entry 9 is committed, but the log ends at entry 6"
    );
    let mut strange = found(5, 5, 2, &[]);
    strange.store_position.conf_state.learners = vec![1];
    assert_eq!(
        refused(strange),
        "raft stopped: invalid members in the store: a learner is also a voter"
    );
    let mut huge = found(5, 5, 2, &[]);
    huge.hard_state.term = u64::MAX;
    assert!(refused(huge).starts_with("raft stopped: entry 5 or term "));
    let without_id = RaftNode::new(RaftNodeConfig::new(0, 1), RecoveredState::default());
    assert!(matches!(without_id, Err(Error::Fatal(_))));
}

/// Opens a node on the state of a disk. Returns the first and the last index of the entries that
/// the node keeps. If it keeps no entries, the first index is one above the last.
fn kept(found: RecoveredState) -> Result<(u64, u64), String> {
    let node = RaftNode::new(RaftNodeConfig::new(1, 1), found);
    node.map(|node| node.kept_indexes()).map_err(|error| error.to_string())
}

#[test]
fn entries_that_the_store_has_are_kept_for_others() {
    // The node keeps all entries if they start at index 1. Otherwise it keeps the entries after an
    // entry whose term it knows: after the first entry on the disk, or after the last entry in the
    // store.
    assert_eq!(kept(found(3, 3, 2, &[(1, 1), (2, 2), (3, 2), (4, 2)])), Ok((1, 4)));
    assert_eq!(kept(found(5, 5, 3, &[(3, 1), (4, 1), (5, 2), (6, 3)])), Ok((4, 6)));
    assert_eq!(kept(found(5, 5, 2, &[(4, 1), (5, 2)])), Ok((5, 5)));
    assert_eq!(kept(found(5, 5, 2, &[(5, 2)])), Ok((6, 5)));
    assert_eq!(kept(found(5, 5, 2, &[(5, 2), (6, 2)])), Ok((6, 6)));
    assert_eq!(kept(found(5, 5, 2, &[(6, 2)])), Ok((6, 6)));
    assert_eq!(kept(found(5, 5, 2, &[])), Ok((6, 5)));
    // This log ends before the store's position, so the next entry would not follow it. The node
    // keeps none of its entries.
    assert_eq!(kept(found(5, 4, 2, &[(1, 1), (2, 2), (3, 2), (4, 2)])), Ok((6, 5)));
}

#[test]
fn entries_that_the_store_has_must_fit_too() {
    let refused = |store, entries: &[(u64, u64)]| kept(found(store, 0, 2, entries)).unwrap_err();
    let gap = refused(5, &[(2, 1), (4, 2), (5, 2)]);
    assert_eq!(gap, "raft stopped: entry 4@2 follows 2@1");
    let gap = refused(5, &[(2, 1), (3, 1), (6, 2)]);
    assert_eq!(gap, "raft stopped: entry 6@2 follows 3@1");
    assert_eq!(refused(5, &[(3, 2), (4, 1), (5, 2)]), "raft stopped: entry 4@1 follows 3@2");
    let other = "raft stopped: entry 5 has term 1 in the log, but term 2 in the store";
    assert_eq!(refused(5, &[(3, 1), (4, 1), (5, 1), (6, 2)]), other);
    assert_eq!(refused(5, &[(5, 1)]), other);
    assert_eq!(refused(5, &[(4, 0), (5, 2)]), "raft stopped: entry 4@0 follows 5@2");
    assert_eq!(refused(5, &[(0, 0), (1, 1), (5, 2)]), "raft stopped: entry 0@0 follows 5@2");
}

#[test]
fn what_is_kept_is_released_as_ever() {
    let entries: Vec<_> = (2..=8).map(|index| (index, 2)).collect();
    let mut node = RaftNode::new(RaftNodeConfig::new(1, 1), found(6, 7, 2, &entries)).unwrap();
    assert_eq!((node.kept_indexes(), node.committed_index()), ((3, 8), 7));
    node.release(4);
    assert_eq!(node.kept_indexes(), (5, 8));
    // The node does not release entries that the durable store does not have, even if they are
    // committed.
    node.release(u64::MAX);
    assert_eq!(node.kept_indexes(), (7, 8));
    let committed = node.ready().unwrap().committed_entries;
    assert_eq!(committed.iter().map(|entry| entry.index).collect::<Vec<_>>(), [7]);
}

#[test]
fn figures_that_cannot_be_are_errors() {
    let mut node = member(1);
    assert!(matches!(node.on_persisted(1), Err(Error::Fatal(_))));
    assert!(matches!(node.on_applied(5), Err(Error::Fatal(_))), "not handed out yet");
    let effects = node.ready().unwrap();
    assert_eq!(effects.committed_entries.len(), 1);
    assert_eq!(node.on_applied(5), Ok(()));
    assert_eq!(node.on_applied(4), Ok(()), "told late");
    assert!(matches!(node.on_applied(6), Err(Error::Fatal(_))));
    let beyond = LogPosition { index: 6, term: 2, ..node.durable_position().clone() };
    assert!(matches!(node.set_durable_position(beyond), Err(Error::Fatal(_))));
}

/// Returns a message from member 2 to member 1.
fn from_two(kind: eraftpb::MessageType, term: u64) -> eraftpb::Message {
    let mut message = eraftpb::Message::default();
    message.set_msg_type(kind);
    message.set_from(2);
    message.set_to(1);
    message.set_term(term);
    message
}

fn step(node: &mut RaftNode, message: &eraftpb::Message) -> Result<(), Error> {
    node.step(Message::decode(&message.write_to_bytes().unwrap()).unwrap())
}

/// Returns the text of the node's error.
fn refused(node: &mut RaftNode, message: &eraftpb::Message) -> String {
    let error = step(node, message).unwrap_err().to_string();
    error.rsplit(": ").next().unwrap().to_owned()
}

#[test]
fn a_vote_that_was_not_asked_for_does_not_count() {
    use eraftpb::MessageType::{
        MsgAppendResponse, MsgRequestPreVoteResponse, MsgRequestVoteResponse,
    };
    let mut node = member(1);
    drain(&mut node, true);
    node.campaign();
    drain(&mut node, true);
    assert_eq!(step(&mut node, &from_two(MsgRequestPreVoteResponse, 3)), Ok(()));
    let append = node.ready().unwrap().append.unwrap();
    assert_eq!(node.leadership().role, Role::Candidate);
    // The member's own vote is not durable, so it has not requested votes. No other member can have
    // voted for it.
    let vote = from_two(MsgRequestVoteResponse, 3);
    assert_eq!(refused(&mut node, &vote), "a vote for a request that was not sent yet");
    node.on_persisted(append.number).unwrap();
    assert_eq!(step(&mut node, &vote), Ok(()));
    assert_eq!(node.leadership().role, Role::Leader);

    let mut has = from_two(MsgAppendResponse, 3);
    has.set_index(10);
    assert_eq!(refused(&mut node, &has), "it acknowledges entries that the leader does not have");
    has.set_index(9);
    assert_eq!(step(&mut node, &has), Ok(()));
}

#[test]
fn copies_of_nonsense_are_refused() {
    let mut node = member(1);
    drain(&mut node, true);
    let copy = |voters: &[u64], learners: &[u64], outgoing: &[u64], next: &[u64], leave: bool| {
        let mut message = from_two(eraftpb::MessageType::MsgSnapshot, 2);
        let metadata = message.mut_snapshot().mut_metadata();
        metadata.set_index(20);
        metadata.set_term(2);
        let members = metadata.mut_conf_state();
        members.set_voters(voters.to_vec());
        members.set_learners(learners.to_vec());
        members.set_voters_outgoing(outgoing.to_vec());
        members.set_learners_next(next.to_vec());
        members.set_auto_leave(leave);
        message
    };
    for (message, words) in [
        (copy(&[], &[1], &[], &[], false), "a raft snapshot without voters"),
        (copy(&[1, 0], &[], &[], &[], false), "a member has the id 0"),
        (copy(&[1, 1], &[], &[], &[], false), "a member is listed twice"),
        (copy(&[1, 2], &[2], &[], &[], false), "a learner is also a voter"),
        (copy(&[1, 2], &[3], &[3], &[], false), "a learner is also a voter"),
        (copy(&[1, 2], &[], &[2, 3], &[2], false), "a voter is also a future learner"),
        (copy(&[1, 2], &[], &[], &[3], false), "a future learner is not an outgoing voter"),
        (copy(&[1, 2], &[], &[], &[], true), "there is no joint configuration to leave"),
    ] {
        assert_eq!(refused(&mut node, &message), words);
    }
    let mut impossible = copy(&[1], &[], &[], &[], false);
    impossible.mut_snapshot().mut_metadata().set_term(3);
    assert_eq!(refused(&mut node, &impossible), "a raft snapshot with an impossible term");
    assert!(drain(&mut node, true).is_empty());

    let joint = copy(&[1, 2], &[4], &[2, 3], &[3], true);
    assert_eq!(step(&mut node, &joint), Ok(()));
    let install = node.ready().unwrap().append.unwrap().install_snapshot.unwrap();
    assert_eq!((install.index, install.conf_state.voters_outgoing), (20, vec![2, 3]));
}

#[test]
fn what_raft_does_not_know_to_be_applied_is_not_released() {
    let mut node = member(1);
    let effects = node.ready().unwrap();
    assert_eq!(effects.committed_entries.len(), 1);
    let synced = LogPosition { index: 5, term: 2, ..node.durable_position().clone() };
    node.set_durable_position(synced).unwrap();
    node.release(5);
    assert_eq!(node.kept_indexes(), (5, 8));
    node.on_applied(5).unwrap();
    node.release(8);
    assert_eq!(node.kept_indexes(), (6, 8), "no more than the synced store has");
}

#[test]
fn a_disk_that_does_not_keep_up_takes_no_more() {
    let mut node = member(1);
    drain(&mut node, true);
    let append = |index: u64| {
        let mut message = from_two(eraftpb::MessageType::MsgAppend, 2);
        message.set_index(index - 1);
        message.set_log_term(2);
        let mut entry = eraftpb::Entry::default();
        entry.set_index(index);
        entry.set_term(2);
        entry.set_data(vec![0; 40 << 20].into());
        message.set_entries(vec![entry].into());
        message
    };
    step(&mut node, &append(9)).unwrap();
    let first = node.ready().unwrap().append.unwrap();
    step(&mut node, &append(10)).unwrap();
    let _ = node.ready().unwrap();
    assert_eq!(step(&mut node, &append(11)), Err(Error::QueueFull));
    node.on_persisted(first.number).unwrap();
    assert_eq!(step(&mut node, &append(11)), Ok(()));
}

#[test]
fn forwarded_proposals_are_bounded() {
    let mut node = member(1);
    drain(&mut node, true);
    step(&mut node, &from_two(eraftpb::MessageType::MsgHeartbeat, 2)).unwrap();
    let large = || bytes::Bytes::from(vec![0; 65 << 20]);
    assert_eq!(node.propose(large()), Ok(()));
    assert_eq!(node.propose(large()), Err(Error::QueueFull));
    drain(&mut node, true);
    assert_eq!(node.propose(large()), Ok(()));
}

#[test]
fn several_changes_in_one_proposal_are_refused() {
    let mut node = member(1);
    drain(&mut node, true);
    let mut message = from_two(eraftpb::MessageType::MsgPropose, 0);
    let mut entry = eraftpb::Entry::default();
    entry.set_entry_type(eraftpb::EntryType::EntryConfChangeV2);
    entry.set_data(vec![0x12, 0, 0x7a, 4, 0x10, 0, 0x18, 2].into());
    message.set_entries(vec![entry].into());
    assert_eq!(refused(&mut node, &message), "one entry changes several members");
}
