//! Tests of exact bytes. etcd writes or hashes the same bytes for these messages.
//!
//! The numbers in the hash test are HashKV responses of etcd 3.7.1 after the same requests.

use clearlane_proto::Message;
use clearlane_proto::authpb::{Permission, User, UserAddOptions, permission};
use clearlane_proto::etcdserverpb::{
    AuthEnableRequest, Compare, InternalRaftRequest, Member, Metadata, PutRequest, RangeRequest,
    RequestHeader, RequestOp, TxnRequest, compare, range_request, request_op,
};
use clearlane_proto::mvccpb::{Event, KeyValue, event};
use clearlane_proto::nested;
use clearlane_proto::raftpb::{ConfChange, ConfState, Entry, HardState};
use clearlane_proto::walpb::Record;

fn key_value(key: &'static str, revisions: [i64; 2], version: i64, value: &str) -> KeyValue {
    KeyValue {
        key: key.into(),
        create_revision: revisions[0],
        mod_revision: revisions[1],
        version,
        value: value.to_owned().into(),
        lease: 0,
    }
}

/// Returns a record as HashKV hashes it: its key in bucket `key`, then its value.
fn stored(main: u64, record: &KeyValue) -> Vec<u8> {
    let mut bytes = revision_key(main);
    bytes.extend(record.encode_to_vec());
    bytes
}

fn revision_key(main: u64) -> Vec<u8> {
    let mut bytes = main.to_be_bytes().to_vec();
    bytes.push(b'_');
    bytes.extend(0u64.to_be_bytes());
    bytes
}

#[test]
fn key_value_writes_fields_in_order_and_no_zeros() {
    let full = KeyValue { lease: 300, ..key_value("a", [2, 3], 2, "x") };
    assert_eq!(
        full.encode_to_vec(),
        [
            &[0x0a, 1, b'a'][..],
            &[0x10, 2],
            &[0x18, 3],
            &[0x20, 2],
            &[0x2a, 1, b'x'],
            &[0x30, 0xac, 0x02],
        ]
        .concat()
    );
    assert_eq!(KeyValue { key: "a".into(), ..Default::default() }.encode_to_vec(), b"\x0a\x01a");
    assert_eq!(KeyValue::default().encode_to_vec(), b"");
}

#[test]
fn key_value_hashes_as_in_etcd() {
    let mut hash = crc32c::crc32c(b"key");
    assert_eq!(hash, 1_084_519_789, "revision 1: the empty store");

    let mut append = |bytes: &[u8]| {
        hash = crc32c::crc32c_append(hash, bytes);
        hash
    };
    // put a 1
    assert_eq!(append(&stored(2, &key_value("a", [2, 2], 1, "1"))), 2_587_454_935);
    // put a 2
    assert_eq!(append(&stored(3, &key_value("a", [2, 3], 2, "2"))), 535_221_974);
    // put b x, put foo/bar y...y
    append(&stored(4, &key_value("b", [4, 4], 1, "x")));
    let value = "y".repeat(100);
    assert_eq!(append(&stored(5, &key_value("foo/bar", [5, 5], 1, &value))), 906_041_232);
    // del a: the key of a tombstone in the bucket ends with `t`, and its KeyValue has only `key`.
    let mut tombstone = revision_key(6);
    tombstone.push(b't');
    tombstone.extend(KeyValue { key: "a".into(), ..Default::default() }.encode_to_vec());
    assert_eq!(append(&tombstone), 125_361_055);
}

#[test]
fn raft_request_writes_the_put_before_the_header() {
    let header = RequestHeader { id: 7, username: "u".into(), auth_revision: 0 };
    let put = PutRequest { key: "a".into(), value: "1".into(), ..Default::default() };
    let request =
        InternalRaftRequest { header: Some(header), put: Some(put), ..Default::default() };
    let bytes = [
        &[0x22, 6, 0x0a, 1, b'a', 0x12, 1, b'1'][..], // field 4
        &[0xa2, 0x06, 5, 0x08, 7, 0x12, 1, b'u'],     // field 100
    ]
    .concat();
    assert_eq!(request.encode_to_vec(), bytes);
    assert_eq!(InternalRaftRequest::decode(&bytes[..]).unwrap(), request);
}

#[test]
fn raft_request_writes_the_header_before_auth_and_keeps_an_empty_request() {
    let request = InternalRaftRequest {
        header: Some(RequestHeader { id: 1, ..Default::default() }),
        auth_enable: Some(AuthEnableRequest {}),
        ..Default::default()
    };
    let bytes = [
        &[0xa2, 0x06, 2, 0x08, 1][..], // field 100
        &[0xc2, 0x3e, 0],              // field 1000, length 0
    ]
    .concat();
    assert_eq!(request.encode_to_vec(), bytes);
    assert_eq!(InternalRaftRequest::decode(&bytes[..]).unwrap(), request);
}

#[test]
fn compare_writes_the_range_end_as_field_64_and_a_zero_in_a_oneof() {
    let compare = Compare {
        result: compare::CompareResult::Equal.into(),
        target: compare::CompareTarget::Version.into(),
        key: "k".into(),
        range_end: "l".into(),
        // A member of a oneof is written even if it is zero.
        target_union: Some(compare::TargetUnion::Version(0)),
    };
    assert_eq!(compare.encode_to_vec(), b"\x1a\x01k\x20\x00\x82\x04\x01l");
}

#[test]
fn enum_numbers_without_a_name_are_kept() {
    let request = RangeRequest::decode(&b"\x0a\x01k\x28\x09"[..]).unwrap();
    assert_eq!(request.sort_order, 9);
    assert_eq!(request.sort_order(), range_request::SortOrder::None);
    assert!(range_request::SortOrder::try_from(request.sort_order).is_err());
    assert_eq!(request.encode_to_vec(), b"\x0a\x01k\x28\x09");
}

#[test]
fn fields_nobody_knows_are_skipped_and_lost() {
    let record = KeyValue::decode(&b"\x0a\x01k\xf8\x3f\x01\x22\x00"[..]);
    assert!(record.is_err(), "field 4 with the wire type of bytes is refused");
    let record = KeyValue::decode(&b"\x0a\x01k\xf8\x3f\x01"[..]).unwrap();
    assert_eq!(record.encode_to_vec(), b"\x0a\x01k");
}

#[test]
fn stored_permissions_leave_out_read() {
    let read = Permission {
        perm_type: permission::Type::Read.into(),
        key: "a".into(),
        range_end: "\0".into(),
    };
    assert_eq!(read.encode_to_vec(), b"\x12\x01a\x1a\x01\0");
    // If a user is created with a password, the options are present but empty.
    let user = User { options: Some(UserAddOptions::default()), ..Default::default() };
    assert_eq!(user.encode_to_vec(), b"\x22\x00");
}

#[test]
fn deletes_are_told_apart_and_puts_are_silent() {
    let put = Event { r#type: event::EventType::Put.into(), ..Default::default() };
    let delete = Event { r#type: event::EventType::Delete.into(), ..Default::default() };
    assert_eq!(put.encode_to_vec(), b"");
    assert_eq!(delete.encode_to_vec(), b"\x08\x01");
}

#[test]
fn fields_with_upper_case_names_have_readable_ones_in_rust() {
    let member = Member {
        id: 1,
        name: String::new(),
        peer_urls: vec!["p".into()],
        client_urls: vec!["c".into()],
        is_learner: true,
    };
    assert_eq!(member.encode_to_vec(), b"\x08\x01\x1a\x01p\x22\x01c\x28\x01");
}

#[test]
fn proto2_writes_what_is_set_and_nothing_else() {
    let state = HardState { term: Some(1), vote: Some(0), commit: Some(0) };
    assert_eq!(state.encode_to_vec(), b"\x08\x01\x10\x00\x18\x00");
    assert_eq!(HardState::default().encode_to_vec(), b"");

    let no_op = Entry { r#type: Some(0), term: Some(2), index: Some(4), data: None };
    assert_eq!(no_op.encode_to_vec(), b"\x08\x00\x10\x02\x18\x04");

    let crc = Record { r#type: Some(4), crc: Some(0), data: None };
    assert_eq!(crc.encode_to_vec(), b"\x08\x04\x10\x00");

    let metadata = Metadata { node_id: Some(1), cluster_id: Some(2) };
    assert_eq!(metadata.encode_to_vec(), b"\x08\x01\x10\x02");

    let removal = ConfChange { r#type: Some(1), node_id: Some(5), ..Default::default() };
    assert_eq!(removal.encode_to_vec(), b"\x10\x01\x18\x05");
}

#[test]
fn conf_state_is_not_packed_and_reads_both_ways() {
    let state = ConfState { voters: vec![1, 2], auto_leave: Some(false), ..ConfState::default() };
    assert_eq!(state.encode_to_vec(), b"\x08\x01\x08\x02\x28\x00");
    assert_eq!(ConfState::decode(&b"\x0a\x02\x01\x02\x28\x00"[..]).unwrap(), state);
}

fn put_inside(transactions: usize) -> TxnRequest {
    let put = request_op::Request::RequestPut(PutRequest::default());
    let mut txn =
        TxnRequest { success: vec![RequestOp { request: Some(put) }], ..TxnRequest::default() };
    for _ in 1..transactions {
        let request = Some(request_op::Request::RequestTxn(txn));
        txn = TxnRequest { success: vec![RequestOp { request }], ..TxnRequest::default() };
    }
    txn
}

/// Checks that the decoder of requests and the decoder of log entries have the same limit, so every
/// accepted request can be read back. Both decoders accept a put inside 129 transactions. etcd's
/// limit of 128 operations, which other code checks, allows a put inside 128 transactions: 127
/// operations hold the next transaction, and the last operation is the put.
#[test]
fn what_the_wire_takes_can_be_read_back_from_the_log() {
    let from_client =
        |transactions| nested::decode_txn(put_inside(transactions).encode_to_vec().into()).is_ok();
    let from_log = |transactions| {
        let request =
            InternalRaftRequest { txn: Some(put_inside(transactions)), ..Default::default() };
        nested::decode_raft_request(request.encode_to_vec().into()).is_ok()
    };
    let deepest = nested::TXNS_DEEP_MAX;
    assert!(from_client(deepest) && !from_client(deepest + 1));
    assert!(from_log(deepest) && !from_log(deepest + 1));
}
