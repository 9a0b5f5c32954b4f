//! Tests of bytes from outside. A message must be unchanged after it is encoded and decoded. Random
//! or damaged bytes may be accepted or rejected, but decoding them must not panic. Nesting that is
//! too deep and lengths beyond the end are rejected.

use clearlane_proto::Message;
use clearlane_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, InternalRaftRequest, PutRequest, RangeRequest, RequestOp,
    TxnRequest, WatchRequest, compare, request_op,
};
use clearlane_proto::mvccpb::KeyValue;
use clearlane_proto::{raftpb, walpb};
use proptest::collection::vec;
use proptest::prelude::*;

/// Decodes the bytes as each of six messages that arrive from outside or are read from disk. If a
/// decoder accepts the bytes, the message must be unchanged after it is encoded and decoded again.
fn decode_as_everything(bytes: &[u8]) {
    fn check<M: Message + Default + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
        if let Ok(message) = M::decode(bytes) {
            let again = M::decode(&message.encode_to_vec()[..]);
            assert!(again.as_ref() == Ok(&message), "{message:?} came back as {again:?}");
        }
    }
    check::<KeyValue>(bytes);
    check::<InternalRaftRequest>(bytes);
    check::<TxnRequest>(bytes);
    check::<WatchRequest>(bytes);
    check::<raftpb::Message>(bytes);
    check::<walpb::Record>(bytes);
}

fn bytes() -> impl Strategy<Value = bytes::Bytes> {
    vec(any::<u8>(), 0..20).prop_map(bytes::Bytes::from)
}

fn key_value() -> impl Strategy<Value = KeyValue> {
    (bytes(), any::<[i64; 4]>(), bytes()).prop_map(|(key, numbers, value)| {
        let [create_revision, mod_revision, version, lease] = numbers;
        KeyValue { key, create_revision, mod_revision, version, value, lease }
    })
}

fn compare() -> impl Strategy<Value = Compare> {
    let target = prop_oneof![
        any::<i64>().prop_map(compare::TargetUnion::Version),
        any::<i64>().prop_map(compare::TargetUnion::CreateRevision),
        any::<i64>().prop_map(compare::TargetUnion::ModRevision),
        any::<i64>().prop_map(compare::TargetUnion::Lease),
        bytes().prop_map(compare::TargetUnion::Value),
    ];
    (0..4i32, 0..5i32, bytes(), bytes(), proptest::option::of(target)).prop_map(
        |(result, target, key, range_end, target_union)| Compare {
            result,
            target,
            key,
            range_end,
            target_union,
        },
    )
}

fn simple_request() -> impl Strategy<Value = request_op::Request> {
    let range = (bytes(), bytes(), any::<[i64; 2]>(), any::<bool>()).prop_map(
        |(key, range_end, [limit, revision], serializable)| {
            request_op::Request::RequestRange(RangeRequest {
                key,
                range_end,
                limit,
                revision,
                serializable,
                ..RangeRequest::default()
            })
        },
    );
    let put =
        (bytes(), bytes(), any::<i64>(), any::<bool>()).prop_map(|(key, value, lease, prev_kv)| {
            request_op::Request::RequestPut(PutRequest {
                key,
                value,
                lease,
                prev_kv,
                ..PutRequest::default()
            })
        });
    let delete = (bytes(), bytes(), any::<bool>()).prop_map(|(key, range_end, prev_kv)| {
        request_op::Request::RequestDeleteRange(DeleteRangeRequest { key, range_end, prev_kv })
    });
    prop_oneof![range, put, delete]
}

fn txn() -> impl Strategy<Value = TxnRequest> {
    let request = simple_request()
        .prop_recursive(4, 24, 4, |inner| txn_of(inner).prop_map(request_op::Request::RequestTxn));
    txn_of(request)
}

fn txn_of(
    request: impl Strategy<Value = request_op::Request> + Clone + 'static,
) -> impl Strategy<Value = TxnRequest> {
    let operation = proptest::option::of(request).prop_map(|request| RequestOp { request });
    (vec(compare(), 0..3), vec(operation.clone(), 0..4), vec(operation, 0..4))
        .prop_map(|(compare, success, failure)| TxnRequest { compare, success, failure })
}

proptest! {
    #[test]
    fn key_value_comes_back(record in key_value()) {
        let bytes = record.encode_to_vec();
        prop_assert_eq!(bytes.len(), record.encoded_len());
        prop_assert_eq!(KeyValue::decode(&bytes[..]).unwrap(), record);
    }

    #[test]
    fn txn_comes_back(txn in txn()) {
        let request = InternalRaftRequest { txn: Some(txn), ..InternalRaftRequest::default() };
        let bytes = request.encode_to_vec();
        prop_assert_eq!(InternalRaftRequest::decode(&bytes[..]).unwrap(), request);
    }

    #[test]
    fn noise_does_not_panic(noise in vec(any::<u8>(), 0..200)) {
        decode_as_everything(&noise);
    }

    #[test]
    fn damage_does_not_panic(
        txn in txn(),
        flips in vec((any::<proptest::sample::Index>(), any::<u8>()), 1..5),
        cut in any::<proptest::sample::Index>(),
    ) {
        let mut bytes = txn.encode_to_vec();
        if !bytes.is_empty() {
            for (place, value) in flips {
                let place = place.index(bytes.len());
                bytes[place] = value;
            }
            decode_as_everything(&bytes);
            decode_as_everything(&bytes[..cut.index(bytes.len())]);
        }
    }
}

fn nested(tags: &[u8], levels: usize) -> Vec<u8> {
    let mut reversed = Vec::new();
    for level in 0..levels {
        let mut length = Vec::new();
        encode_varint(reversed.len(), &mut length);
        reversed.extend(length.iter().rev());
        reversed.push(tags[(levels - 1 - level) % tags.len()]);
    }
    reversed.reverse();
    reversed
}

fn encode_varint(mut number: usize, into: &mut Vec<u8>) {
    while number >= 0x80 {
        into.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

#[test]
fn deep_nesting_is_refused() {
    // TxnRequest.success is field 2, RequestOp.request_txn is field 4.
    let deep_txn = nested(&[0x12, 0x22], 200_000);
    assert!(TxnRequest::decode(&deep_txn[..]).is_err());
    let shallow_txn = nested(&[0x12, 0x22], 20);
    assert!(TxnRequest::decode(&shallow_txn[..]).is_ok(), "the test builds what it says");

    // raftpb.Message.responses is field 14.
    assert!(raftpb::Message::decode(&nested(&[0x72], 200_000)[..]).is_err());
    // These bytes open unknown groups inside each other. The decoder skips unknown fields, and
    // limits the depth of the groups that it skips.
    assert!(KeyValue::decode(&[0x7b; 200_000][..]).is_err());
}

#[test]
fn lengths_beyond_the_end_are_refused() {
    // A key that claims a length of 2^63 - 1 bytes. The decoder rejects it before it allocates
    // memory.
    let claim = b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f";
    assert!(KeyValue::decode(&claim[..]).is_err());
}
