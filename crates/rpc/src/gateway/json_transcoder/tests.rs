//! Compares the text of the transcoder, which receives the bytes of a message in pieces, with the
//! text of `json::of_message`, which receives all bytes together. The pieces end at random bytes.

use clearlane_proto::etcdserverpb::response_op::Response as Done;
use clearlane_proto::etcdserverpb::{
    AlarmMember, AlarmResponse, AuthUserListResponse, LeaseTimeToLiveResponse, RangeResponse,
    ResponseHeader, ResponseOp, TxnResponse,
};
use clearlane_proto::mvccpb::KeyValue;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use prost::Message;

use super::super::bindings::{self, TABLE};
use super::super::json;
use super::*;

fn kind_of(path: &str) -> MessageDescriptor {
    bindings::find(path).unwrap().method.output()
}

/// Passes the bytes to a transcoder in pieces, and returns the text. `cuts` has the lengths of the
/// pieces. After the last length, the first one is used again.
fn walked(kind: &MessageDescriptor, bytes: &[u8], cuts: &[usize]) -> Result<String, Status> {
    let mut walk = JsonTranscoder::new(kind.clone(), bytes.len() as u64);
    let (mut whole, mut left) = (Vec::new(), Bytes::copy_from_slice(bytes));
    let mut cuts = cuts.iter().cycle();
    while !walk.is_done() {
        let mut piece = left.split_to(left.len().min(*cuts.next().unwrap()));
        loop {
            let mut text = Vec::new();
            walk.transcode(&mut piece, &mut text)?;
            assert!(text.len() <= 3 * CHUNK_BYTES, "{} bytes at once", text.len());
            whole.append(&mut text);
            if piece.is_empty() || walk.is_done() {
                break;
            }
        }
        assert!(walk.is_done() || !left.is_empty(), "more is expected than there is");
    }
    Ok(String::from_utf8(whole).unwrap())
}

fn same(path: &str, message: &impl Message, cuts: &[usize]) {
    let (kind, bytes) = (kind_of(path), message.encode_to_vec());
    let whole = json::of_message(&kind, bytes.clone().into()).unwrap();
    assert_eq!(walked(&kind, &bytes, cuts).unwrap(), String::from_utf8(whole).unwrap());
}

prop_compose! {
    /// Makes a record. Some records have an empty value, as with `keys_only`. One in 21 has a value
    /// of about one to three chunks.
    fn records()(
        key in vec(any::<u8>(), 0..20),
        value in prop_oneof![
            20 => vec(any::<u8>(), 0..40),
            1 => (CHUNK_BYTES - 2..3 * CHUNK_BYTES, any::<u8>()).prop_map(|(len, byte)| vec![byte; len]),
        ],
        numbers in any::<[i64; 3]>(),
        lease in prop_oneof![Just(0), any::<i64>()],
    ) -> KeyValue {
        let [create_revision, mod_revision, version] = numbers;
        let (key, value) = (key.into(), value.into());
        KeyValue { key, value, create_revision, mod_revision, version, lease }
    }
}

prop_compose! {
    /// Makes a response to a range. Some responses have no records, like the response to a
    /// `count_only` request.
    fn ranges()(
        header in option::of(any::<(u64, u64, i64, u64)>()),
        kvs in vec(records(), 0..12),
        more in any::<bool>(),
        count in prop_oneof![Just(0), any::<i64>()],
    ) -> RangeResponse {
        let header = header.map(|(cluster_id, member_id, revision, raft_term)| {
            ResponseHeader { cluster_id, member_id, revision, raft_term }
        });
        RangeResponse { header, kvs, more, count }
    }
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![vec(1..8_usize, 1..5), vec(1..2 * CHUNK_BYTES, 1..5), Just(vec![usize::MAX])]
}

proptest! {
    #[test]
    fn a_range_has_the_same_text(range in ranges(), cuts in cuts()) {
        same("/kv/range", &range, &cuts);
    }

    #[test]
    fn a_txn_has_the_same_text(
        ranges in vec(ranges(), 0..4),
        succeeded in any::<bool>(),
        depth in 0..4_usize,
        cuts in cuts(),
    ) {
        let op = |done| ResponseOp { response: Some(done) };
        let header = Some(ResponseHeader::default());
        let mut responses: Vec<_> =
            ranges.into_iter().map(|range| op(Done::ResponseRange(range))).collect();
        responses.push(ResponseOp { response: None });
        let mut txn = TxnResponse { header, succeeded, responses };
        for _ in 0..depth {
            let responses = vec![op(Done::ResponseTxn(txn))];
            txn = TxnResponse { responses, ..Default::default() };
        }
        same("/kv/txn", &txn, &cuts);
    }

    #[test]
    fn strings_enums_and_lists_of_bytes_have_the_same_text(
        users in vec(any::<String>(), 0..5),
        keys in vec(vec(any::<u8>(), 0..5), 0..5),
        alarms in vec((any::<u64>(), -1..5_i32), 0..5),
        cuts in cuts(),
    ) {
        same("/auth/user/list", &AuthUserListResponse { users, header: None }, &cuts);
        let keys = keys.into_iter().map(Bytes::from).collect();
        let lease = LeaseTimeToLiveResponse { keys, ttl: -1, ..Default::default() };
        same("/lease/timetolive", &lease, &cuts);
        let member = |(member_id, alarm)| AlarmMember { member_id, alarm };
        let alarms = alarms.into_iter().map(member).collect();
        same("/maintenance/alarm", &AlarmResponse { alarms, header: None }, &cuts);
    }

    /// For random bytes, the transcoder fails or reaches the end, and does not panic. If it reaches
    /// the end, its text is the same as the text of `json::of_message`.
    #[test]
    fn what_is_malformed_is_refused(bytes in vec(any::<u8>(), 0..60), cuts in cuts()) {
        let kind = kind_of("/kv/txn");
        if let Ok(text) = walked(&kind, &bytes, &cuts) {
            let whole = json::of_message(&kind, bytes.into()).unwrap();
            prop_assert_eq!(text, String::from_utf8(whole).unwrap());
        }
    }
}

#[test]
fn what_is_unknown_or_a_written_default_is_left_out() {
    let kind = kind_of("/kv/range");
    // Unknown fields: number 15 with the value 7, number 14 with two bytes, number 13 with four
    // bytes, and number 12 with eight bytes. Known fields: `more` is false, and `count` is 1.
    let bytes =
        b"\x78\x07\x72\x02ab\x6d\x01\x02\x03\x04\x61\x01\x02\x03\x04\x05\x06\x07\x08\x18\0\x20\x01";
    for cut in 1..bytes.len() {
        assert_eq!(walked(&kind, bytes, &[cut]).unwrap(), r#"{"count":"1"}"#);
    }
}

#[test]
fn bytes_that_no_answer_has_are_refused_by_what_they_are() {
    let kind = kind_of("/kv/range");
    let cases: [(&[u8], &str); 6] = [
        (b"\x20\x01\x18\x01", "fields that are not in the order of their numbers"),
        (b"\x20\x01\x20\x01", "fields that are not in the order of their numbers"),
        (b"\x12\x05\x0a\x01", "a field that is longer than its message"),
        (b"\x20\x80", "a message that ends within a field"),
        (b"\x22\x01\x01", "packed numbers, which no response has"),
        (b"\x21\0\0\0\0\0\0\0\0", "a field type that no response has"),
    ];
    for (bytes, why) in cases {
        let refused = walked(&kind, bytes, &[1]).unwrap_err();
        assert_eq!(refused.message(), format!("the response has {why}"));
    }
}

#[test]
fn every_answer_can_be_walked() {
    let mut kinds: Vec<MessageDescriptor> = TABLE.iter().map(|(path, _)| kind_of(path)).collect();
    let mut seen = std::collections::BTreeSet::new();
    while let Some(kind) = kinds.pop() {
        if !seen.insert(kind.full_name().to_owned()) {
            continue;
        }
        assert!(!kind.full_name().starts_with("google."), "{kind:?} has JSON of its own");
        for field in kind.fields() {
            assert!(!field.is_map() && !field.is_packed() && !field.is_group(), "{field:?}");
            match field.kind() {
                Kind::Message(of_field) => kinds.push(of_field),
                Kind::Bool | Kind::Int32 | Kind::Uint32 | Kind::Int64 | Kind::Uint64 => {}
                Kind::Enum(_) | Kind::String | Kind::Bytes => {}
                _ => panic!("{field:?}"),
            }
        }
    }
    assert!(seen.contains("mvccpb.KeyValue"));
}
