//! Tests of messages: bytes computed by hand, round trips, and a comparison with the generated
//! decoders.

use clearlane_proto::{Message, etcdserverpb, raftpb, walpb};
use clearlane_wal::wire::{DecodeError, Record, RecordKind};
use clearlane_wal::{
    ConfChange, ConfChangeKind, ConfState, Entry, EntryKind, HardState, MemberContext, Metadata,
    WalSnapshot,
};
use proptest::prelude::*;

fn refused<T>(decoded: Result<T, DecodeError>) -> &'static str {
    decoded.err().map_or("not refused", |garbage| garbage.what)
}

#[test]
fn entries_have_these_bytes() {
    let noop = Entry { term: 2, index: 4, ..Entry::default() };
    assert_eq!(noop.encode(), [8, 0, 16, 2, 24, 4]);
    let put = Entry { data: "ab".into(), index: 300, ..noop };
    assert_eq!(put.encode(), [8, 0, 16, 2, 24, 0xac, 2, 34, 2, b'a', b'b']);
    let change = Entry { kind: EntryKind::ConfChange, ..put };
    assert_eq!(change.encode()[..2], [8, 1]);
    // etcd 3.7 writes a normal entry like this, without its kind.
    assert_eq!(
        Entry::decode(&[16, 2, 24, 4]).unwrap(),
        Entry { term: 2, index: 4, ..Entry::default() }
    );
}

#[test]
fn states_and_metadata_have_these_bytes() {
    assert_eq!(HardState { term: 1, vote: 0, commit: 3 }.encode(), [8, 1, 16, 0, 24, 3]);
    assert_eq!(HardState::default().encode(), [8, 0, 16, 0, 24, 0]);
    assert_eq!(HardState::decode(&[]).unwrap(), HardState::default());
    assert_eq!(Metadata { node_id: 5, cluster_id: 128 }.encode(), [8, 5, 16, 0x80, 1]);
}

#[test]
fn configurations_have_these_bytes() {
    let state = ConfState { voters: vec![1, 2], learners: vec![3], ..ConfState::default() };
    assert_eq!(state.encode(), [8, 1, 8, 2, 16, 3, 40, 0]);
    assert_eq!(ConfState::decode(&[10, 2, 1, 2, 18, 1, 3]).unwrap(), state, "packed");
    let snapshot = WalSnapshot { index: 7, term: 2, conf_state: Some(state) };
    assert_eq!(snapshot.encode(), [8, 7, 16, 2, 26, 8, 8, 1, 8, 2, 16, 3, 40, 0]);
    assert_eq!(WalSnapshot::default().encode(), [8, 0, 16, 0]);
}

#[test]
fn changes_have_these_bytes() {
    let add = ConfChange { node_id: 9, context: "{}".into(), ..ConfChange::default() };
    assert_eq!(add.encode(), [16, 0, 24, 9, 34, 2, b'{', b'}']);
    let learner = ConfChange { id: 1, kind: ConfChangeKind::AddLearnerNode, ..add };
    assert_eq!(learner.encode()[..6], [8, 1, 16, 3, 24, 9]);
    let update = ConfChange { kind: ConfChangeKind::UpdateNode, ..learner };
    assert_eq!(update.encode()[..4], [8, 1, 16, 2]);
    let remove =
        ConfChange { id: 1, kind: ConfChangeKind::RemoveNode, node_id: 9, ..Default::default() };
    assert_eq!(remove.encode(), [8, 1, 16, 1, 24, 9]);
}

#[test]
fn records_have_these_bytes() {
    let mut out = Vec::new();
    Record { kind: RecordKind::Crc, crc: 0, data: None }.encode_to(&mut out);
    assert_eq!(out, [8, 4, 16, 0]);
    out.clear();
    Record { kind: RecordKind::State, crc: 1 << 31, data: Some(&[1, 2]) }.encode_to(&mut out);
    assert_eq!(out, [8, 3, 16, 0x80, 0x80, 0x80, 0x80, 8, 26, 2, 1, 2]);
}

#[test]
fn contexts_have_this_text() {
    let voter = MemberContext {
        id: u64::MAX,
        peer_urls: vec!["http://a:2380".to_owned(), "http://b".to_owned()],
        name: "<a&\"b\\\u{1}\n\u{2028}>".to_owned(),
        ..MemberContext::default()
    };
    let text = r#"{"id":18446744073709551615,"peerURLs":["http://a:2380","http://b"],"name":"\u003ca\u0026\"b\\\u0001\n\u2028\u003e"}"#;
    assert_eq!(voter.encode(), text);
    let promotion = MemberContext { id: 7, is_promote: Some(true), ..MemberContext::default() };
    assert_eq!(promotion.encode(), r#"{"id":7,"peerURLs":null,"isPromote":true}"#);
    let learner = MemberContext {
        id: 7,
        is_learner: true,
        peer_urls: vec!["http://a".to_owned()],
        client_urls: vec!["http://c".to_owned()],
        is_promote: Some(false),
        ..MemberContext::default()
    };
    let text = r#"{"id":7,"peerURLs":["http://a"],"isLearner":true,"clientURLs":["http://c"],"isPromote":false}"#;
    assert_eq!(learner.encode(), text);
}

#[test]
fn contexts_are_read_leniently_and_garbage_is_not() {
    let read = |text: &str| MemberContext::decode(text.as_bytes());
    assert_eq!(read(r#" {"id": 7, "new": [1]} "#).unwrap().id, 7);
    assert_eq!(refused(read("[]")), "not a JSON object");
    assert_eq!(refused(read(r#"{"id":-1}"#)), "the id is not a number");
    assert_eq!(refused(read(r#"{"id":1,"peerURLs":[1]}"#)), "not a string");
    assert_eq!(refused(read(r#"{"id":1,"isLearner":0}"#)), "neither true nor false");
    assert!(read(r#"{"id":1"#).is_err() && read("{} {}").is_err());
}

#[test]
fn garbage_is_refused() {
    let (entry, state) = (|bytes: &[u8]| refused(Entry::decode(bytes)), HardState::decode);
    assert_eq!(entry(&[8, 3]), "unknown kind");
    assert_eq!(entry(&[40, 1]), "an unknown field, or a field of the wrong type");
    assert_eq!(entry(&[34, 9, 1]), "a field longer than the message");
    assert_eq!(entry(&[8]), "a number that is cut off or longer than 64 bits");
    assert_eq!(
        entry(&[&[16][..], &[0x80; 11]].concat()),
        "a number that is cut off or longer than 64 bits"
    );
    let too_large = [&[16][..], &[255; 9], &[2]].concat();
    assert_eq!(entry(&too_large), "a number that is cut off or longer than 64 bits");
    assert_eq!(entry(&[13, 0, 0, 0, 0]), "a field of an unknown type");
    assert_eq!(entry(&[10, 0]), "an unknown field, or a field of the wrong type");
    assert_eq!(refused(state(&[32, 1])), "an unknown field, or a field of the wrong type");
    assert_eq!(refused(ConfState::decode(&[40, 2])), "neither true nor false");
    assert_eq!(refused(ConfChange::decode(&[16, 4])), "unknown kind");
    let record = |bytes: &'static [u8]| refused(Record::decode(bytes));
    assert_eq!(record(&[16, 0, 8, 4]), "its first field is not its type");
    assert_eq!(record(&[8, 4, 26, 0]), "its second field is not its crc");
    assert_eq!(record(&[8, 4, 16, 0, 16, 0]), "more bytes after its data");
    assert_eq!(record(&[8, 2, 16, 0]), "a crc record with data, or another record without data");
    assert_eq!(
        record(&[8, 4, 16, 0, 26, 0]),
        "a crc record with data, or another record without data"
    );
    assert_eq!(record(&[8, 6, 16, 0, 26, 0]), "unknown type");
    assert_eq!(record(&[8, 4, 16, 0x80, 0x80, 0x80, 0x80, 16]), "a crc of more than 32 bits");
}

fn entries() -> impl Strategy<Value = Entry> {
    let kinds = [EntryKind::Normal, EntryKind::ConfChange, EntryKind::ConfChangeV2];
    let data = proptest::collection::vec(any::<u8>(), 0..40);
    (proptest::sample::select(kinds.to_vec()), any::<u64>(), any::<u64>(), data)
        .prop_map(|(kind, term, index, data)| Entry { kind, term, index, data: data.into() })
}

fn ids() -> impl Strategy<Value = Vec<u64>> {
    proptest::collection::vec(any::<u64>(), 0..4)
}

fn conf_states() -> impl Strategy<Value = ConfState> {
    (ids(), ids(), ids(), ids(), any::<bool>()).prop_map(
        |(voters, learners, voters_outgoing, learners_next, auto_leave)| ConfState {
            voters,
            learners,
            voters_outgoing,
            learners_next,
            auto_leave,
        },
    )
}

fn changes() -> impl Strategy<Value = ConfChange> {
    use ConfChangeKind::{AddLearnerNode, AddNode, RemoveNode, UpdateNode};
    let kinds = vec![AddNode, RemoveNode, UpdateNode, AddLearnerNode];
    let context = proptest::collection::vec(any::<u8>(), 0..40);
    (any::<u64>(), proptest::sample::select(kinds), any::<u64>(), context).prop_map(
        |(id, kind, node_id, context)| ConfChange { id, kind, node_id, context: context.into() },
    )
}

fn contexts() -> impl Strategy<Value = MemberContext> {
    let urls = || proptest::collection::vec(".*", 0..3);
    (any::<u64>(), urls(), any::<bool>(), ".*", urls(), any::<Option<bool>>()).prop_map(
        |(id, peer_urls, is_learner, name, client_urls, is_promote)| MemberContext {
            id,
            peer_urls,
            is_learner,
            name,
            client_urls,
            is_promote,
        },
    )
}

proptest! {
    #[test]
    fn entries_come_back(entry in entries()) {
        let bytes = entry.encode();
        prop_assert_eq!(&Entry::decode(&bytes).unwrap(), &entry);
        let generated = raftpb::Entry::decode(&bytes[..]).unwrap();
        prop_assert_eq!(generated.r#type, Some(entry.kind as i32));
        prop_assert_eq!((generated.term, generated.index), (Some(entry.term), Some(entry.index)));
        prop_assert_eq!(generated.data.unwrap_or_default(), entry.data);
    }

    #[test]
    fn states_come_back(term: u64, vote: u64, commit: u64) {
        let state = HardState { term, vote, commit };
        prop_assert_eq!(HardState::decode(&state.encode()).unwrap(), state);
        let generated = raftpb::HardState::decode(&state.encode()[..]).unwrap();
        let fields = (generated.term, generated.vote, generated.commit);
        prop_assert_eq!(fields, (Some(term), Some(vote), Some(commit)));
        let metadata = Metadata { node_id: term, cluster_id: vote };
        prop_assert_eq!(Metadata::decode(&metadata.encode()).unwrap(), metadata);
        let generated = etcdserverpb::Metadata::decode(&metadata.encode()[..]).unwrap();
        prop_assert_eq!((generated.node_id, generated.cluster_id), (Some(term), Some(vote)));
    }

    #[test]
    fn snapshots_come_back(index: u64, term: u64, state in proptest::option::of(conf_states())) {
        let snapshot = WalSnapshot { index, term, conf_state: state.clone() };
        prop_assert_eq!(&WalSnapshot::decode(&snapshot.encode()).unwrap(), &snapshot);
        let generated = walpb::Snapshot::decode(&snapshot.encode()[..]).unwrap();
        prop_assert_eq!((generated.index, generated.term), (Some(index), Some(term)));
        // The generated encoder writes the same bytes: ids are unpacked, and all fields are
        // written.
        prop_assert_eq!(generated.encode_to_vec(), snapshot.encode());
        prop_assert_eq!(generated.conf_state.is_some(), state.is_some());
    }

    #[test]
    fn changes_come_back(change in changes()) {
        prop_assert_eq!(&ConfChange::decode(&change.encode()).unwrap(), &change);
        let generated = raftpb::ConfChange::decode(&change.encode()[..]).unwrap();
        prop_assert_eq!(generated.r#type, Some(change.kind as i32));
        prop_assert_eq!(generated.node_id, Some(change.node_id));
        prop_assert_eq!(generated.id.unwrap_or_default(), change.id);
    }

    #[test]
    fn contexts_come_back(context in contexts()) {
        let text = context.encode();
        prop_assert_eq!(MemberContext::decode(text.as_bytes()).unwrap(), context);
        let has_raw = text.contains(['<', '>', '&', '\n', '\u{2028}']);
        prop_assert!(!has_raw);
    }

    #[test]
    fn records_come_back(crc: u32, data in proptest::collection::vec(any::<u8>(), 0..40)) {
        let record = Record { kind: RecordKind::Entry, crc, data: Some(&data) };
        let mut bytes = Vec::new();
        record.encode_to(&mut bytes);
        prop_assert_eq!(Record::decode(&bytes).unwrap(), record);
        let generated = walpb::Record::decode(&bytes[..]).unwrap();
        prop_assert_eq!((generated.r#type, generated.crc), (Some(2), Some(crc)));
    }

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        let _ = (Entry::decode(&bytes), HardState::decode(&bytes), ConfState::decode(&bytes));
        let _ = (ConfChange::decode(&bytes), WalSnapshot::decode(&bytes), Record::decode(&bytes));
        let _ = (Metadata::decode(&bytes), MemberContext::decode(&bytes));
    }
}
