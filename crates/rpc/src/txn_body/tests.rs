//! Encodes random responses in parts, and compares the bytes with the encoding by `prost`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use clearlane_proto::etcdserverpb::{PutResponse, ResponseHeader, ResponseOp};
use clearlane_proto::mvccpb::KeyValue;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::grpc_frame::frame;

fn header() -> impl Strategy<Value = Option<ResponseHeader>> {
    let revision = select(vec![0, 1, 300, i64::MAX]);
    option::of(revision.prop_map(|revision| ResponseHeader { revision, ..Default::default() }))
}

/// Maximum length of an encoded record with its tag and its length, in bytes.
const RECORD_BYTES_MAX: usize = CHUNK_BYTES + 1100;

/// Makes a record. One in 31 is longer than a chunk.
fn record() -> impl Strategy<Value = KeyValue> {
    let length = prop_oneof![30 => 0..300_usize, 1 => Just(CHUNK_BYTES + 1000)];
    (0..20_usize, length, any::<i64>()).prop_map(|(key, value, lease)| KeyValue {
        key: vec![b'k'; key].into(),
        value: vec![b'v'; value].into(),
        lease,
        ..KeyValue::default()
    })
}

fn records() -> impl Strategy<Value = Vec<KeyValue>> {
    prop_oneof![Just(Vec::new()), prop::collection::vec(record(), 0..9)]
}

fn range() -> impl Strategy<Value = RangeResponse> {
    let count = select(vec![0, 1, 1000]);
    (header(), records(), any::<bool>(), count)
        .prop_map(|(header, kvs, more, count)| RangeResponse { header, kvs, more, count })
}

fn delete_range() -> impl Strategy<Value = DeleteRangeResponse> {
    (header(), records(), 0..200_i64).prop_map(|(header, prev_kvs, deleted)| DeleteRangeResponse {
        header,
        deleted,
        prev_kvs,
    })
}

fn put() -> impl Strategy<Value = PutResponse> {
    (header(), option::of(record())).prop_map(|(header, prev_kv)| PutResponse { header, prev_kv })
}

fn txn_of(op: impl Strategy<Value = Option<OpResponse>>) -> impl Strategy<Value = TxnResponse> {
    let op = op.prop_map(|response| ResponseOp { response });
    (header(), any::<bool>(), prop::collection::vec(op, 0..6))
        .prop_map(|(header, succeeded, responses)| TxnResponse { header, succeeded, responses })
}

fn txn() -> impl Strategy<Value = TxnResponse> {
    let op = prop_oneof![
        1 => Just(None),
        6 => range().prop_map(|range| Some(OpResponse::ResponseRange(range))),
        3 => put().prop_map(|put| Some(OpResponse::ResponsePut(put))),
        3 => delete_range().prop_map(|delete| Some(OpResponse::ResponseDeleteRange(delete))),
    ];
    let nested = op.prop_recursive(3, 24, 6, |op| {
        txn_of(op).prop_map(|txn| Some(OpResponse::ResponseTxn(txn)))
    });
    txn_of(nested)
}

/// Returns the bytes that are sent, and the number of streamed parts. Each turn reads about the
/// number of bytes that is next in `turns`.
fn sent<M: EncodeOperations>(message: M, inline_bytes: u64, turns: &[usize]) -> (Vec<u8>, usize) {
    let (length, mut parts) = encode_parts(message.into(), inline_bytes).unwrap();
    let (mut bytes, mut turns) = (Vec::new(), turns.iter().cycle());
    let streamed = parts.parts.len();
    assert!(streamed == 0 || parts.encoded_len() == (FRAME_HEAD_BYTES + length) as u64);
    while !parts.is_empty() {
        for chunk in parts.read(*turns.next().unwrap()).unwrap() {
            assert!(!chunk.is_empty());
            assert!(chunk.len() < CHUNK_BYTES + RECORD_BYTES_MAX, "{} bytes", chunk.len());
            bytes.extend_from_slice(&chunk);
        }
    }
    assert_eq!(bytes.len(), FRAME_HEAD_BYTES + length);
    (bytes, streamed)
}

fn operations(message: &mut impl OperationResponses) -> usize {
    let mut operations = 0;
    message.visit_operations(&mut |_| operations += 1);
    operations
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_parts_of_a_txn_are_its_encoding(
        mut message in txn(),
        inline_bytes in select(vec![0, 0, 100, 1000, u64::MAX]),
        turns in prop::collection::vec(select(vec![1, 100, 3000, 64 << 10, usize::MAX]), 1..5),
    ) {
        let whole = frame(&message);
        let operations = operations(&mut message);
        let (bytes, streamed) = sent(message, inline_bytes, &turns);
        prop_assert!(bytes == whole, "{} bytes, and not {}", bytes.len(), whole.len());
        prop_assert!(streamed <= operations && (inline_bytes < u64::MAX || streamed == 0));
    }

    #[test]
    fn the_parts_of_a_delete_are_its_encoding(
        message in delete_range(),
        inline_bytes in select(vec![0, 100, u64::MAX]),
        turn in select(vec![1, 100, 64 << 10, usize::MAX]),
    ) {
        let (whole, is_streamed) = (frame(&message), inline_bytes == 0 && !message.prev_kvs.is_empty());
        let (bytes, streamed) = sent(message, inline_bytes, &[turn]);
        prop_assert!(bytes == whole);
        prop_assert!(!is_streamed || streamed == 1);
    }

    #[test]
    fn what_is_streamed_comes_back_into_the_message(
        message in txn(),
        inline_bytes in select(vec![0, 100]),
    ) {
        let mut streamed = StreamedResponse::from(message.clone());
        streamed.stream_records(inline_bytes);
        prop_assert_eq!(streamed.into_message().unwrap(), message);
    }
}

fn puts(values: usize, value: usize) -> Vec<OpResponse> {
    let prev_kv = KeyValue { value: vec![b'p'; value].into(), ..KeyValue::default() };
    let put = PutResponse { prev_kv: Some(prev_kv), ..PutResponse::default() };
    vec![OpResponse::ResponsePut(put); values]
}

/// The records of ranges are streamed, but puts with a previous version are encoded before anything
/// is sent. Checks that such long encoded bytes before, between and after streams are sent in
/// chunks.
#[test]
fn what_lies_between_two_streams_is_sent_in_chunks() {
    let range = |values: usize| {
        let kvs = vec![KeyValue { value: vec![b'v'; 1000].into(), ..KeyValue::default() }; values];
        OpResponse::ResponseRange(RangeResponse { kvs, ..RangeResponse::default() })
    };
    let chunk = CHUNK_BYTES;
    for (before, between, behind) in [
        (puts(20, chunk / 4), puts(1, 3 * chunk), puts(100, chunk / 8)),
        (puts(1, 10), puts(200, 1000), puts(1, chunk)),
        // Here the puts before, between and after the streams are each about as long as a chunk.
        (puts(1, chunk - 100), puts(1, chunk - 100), puts(1, chunk - 10)),
        (Vec::new(), puts(2, 10 * chunk), Vec::new()),
    ] {
        let between = [vec![range(300)], between, vec![range(1), range(70)]].concat();
        let responses = [before, between, behind].concat().into_iter();
        let responses = responses.map(|response| ResponseOp { response: Some(response) }).collect();
        let message = TxnResponse { responses, ..TxnResponse::default() };
        let whole = frame(&message);
        for turn in [1, 1000, chunk, 1 << 20, usize::MAX] {
            let (mut encoded, mut most, mut sent) = (Vec::new(), 0, 0);
            let (_, mut parts) = encode_parts(message.clone().into(), 100).unwrap();
            while !parts.is_empty() {
                let chunks = parts.read(turn).unwrap();
                let bytes = chunks.iter().map(Bytes::len).sum::<usize>();
                // A turn may exceed its size: it completes its last chunk, and contains the rest of
                // the previous turn.
                assert!(
                    bytes <= turn.saturating_add(3 * chunk),
                    "{bytes} bytes in a turn of {turn}"
                );
                most = chunks.iter().map(Bytes::len).fold(most, usize::max);
                encoded.extend(chunks.iter().flatten().copied());
                sent += 1;
            }
            assert!(encoded == whole, "{} bytes, and not {}", encoded.len(), whole.len());
            assert!(most <= chunk + 1100, "a chunk of {most} bytes");
            assert!(turn == usize::MAX || sent >= whole.len() / (turn + 3 * chunk), "{sent} turns");
        }
    }
}

/// Encodes 91 nested transactions. Each response must be measured only once, or else the time would
/// grow with the square of the depth.
#[test]
fn a_deep_txn_is_encoded_in_linear_time() {
    let found = || RangeResponse { kvs: vec![KeyValue::default(); 3], ..RangeResponse::default() };
    let mut txn = TxnResponse::default();
    for _ in 0..90 {
        let ops = [OpResponse::ResponseRange(found()), OpResponse::ResponseTxn(txn)];
        let responses = ops.map(|response| ResponseOp { response: Some(response) }).to_vec();
        txn = TxnResponse { responses, ..TxnResponse::default() };
    }
    let whole = frame(&txn);
    let mut lengths = Lengths::new(&[]);
    txn.measure(&mut lengths);
    assert_eq!(lengths.found.len(), 180, "each is measured once");
    assert!(sent(txn, 0, &[1]).0 == whole);
}

#[test]
fn a_message_that_is_too_long_is_refused_before_a_byte_is_sent() {
    // All records share this buffer, so the test needs little memory.
    let value = Bytes::from(vec![0; 1 << 20]);
    let record = KeyValue { value, ..KeyValue::default() };
    let kvs = vec![record; 2048];
    let range = OpResponse::ResponseRange(RangeResponse { kvs, ..RangeResponse::default() });
    let responses = vec![ResponseOp { response: Some(range) }];
    let txn = TxnResponse { responses, ..TxnResponse::default() };
    let length = txn.encoded_len();
    let status = encode_parts(txn.into(), 0).unwrap_err();
    let message =
        format!("grpc: trying to send message larger than max ({length} vs. {})", i32::MAX);
    assert_eq!((status.code(), status.message()), (tonic::Code::ResourceExhausted, &message[..]));
}
