//! The responses of the stub. A message has the length of a real server's message, but all its
//! records are copies of one record.

use bytes::Bytes;
use clearlane_proto::Message;
use clearlane_proto::etcdserverpb::request_op::Request as Op;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{
    AuthenticateResponse, DeleteRangeRequest, DeleteRangeResponse, LeaseGrantResponse,
    LeaseRevokeResponse, PutResponse, RangeRequest, RangeResponse, RangeStreamResponse,
    ResponseHeader, SnapshotResponse, TxnRequest, TxnResponse, WatchRequest, WatchResponse,
};
use clearlane_proto::mvccpb::{Event, KeyValue};

use super::{Pieces, length};
use crate::requests::{
    AUTHENTICATE, DELETE_RANGE, LEASE_GRANT, PUT, RANGE, RANGE_STREAM, SNAPSHOT, TXN, WATCH, framed,
};

/// Approximate size of a piece of records.
const PIECE_BYTES: usize = 64 << 10;
/// Bytes in each chunk of a snapshot, as in etcd and Clearlane.
const SNAPSHOT_CHUNK_BYTES: u64 = 32 << 10;
/// The revision in all responses. A real server has about this revision after a fill of a million
/// keys, in transactions of 128 puts.
const REVISION: i64 = 7813;
const LEASE: i64 = 7_587_888_888_888_888_888;
const RESPONSES_OF_TXN: u64 = 3;
const LENGTH_DELIMITED: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StubSizes {
    /// The size of each key in bytes. `value` is the size of each value that is read, and
    /// `snapshot` is the size of a snapshot.
    pub key: usize,
    pub value: usize,
    pub snapshot: u64,
}

#[derive(Debug)]
pub(super) struct Answers {
    keys: Records,
    whole: Records,
    events: Records,
    snapshot_bytes: u64,
}

/// A record that may be repeated any number of times. `piece` has `per_piece` copies of the record,
/// of `record_bytes` each.
#[derive(Debug)]
struct Records {
    piece: Bytes,
    record_bytes: usize,
    per_piece: u64,
}

impl Records {
    /// Encodes the record. `message` has one record and no other field.
    fn of(message: &impl Message) -> Records {
        let record = message.encode_to_vec();
        let per_piece = (PIECE_BYTES / record.len()).max(1);
        let (piece, record_bytes) = (record.repeat(per_piece).into(), record.len());
        Records { piece, record_bytes, per_piece: per_piece as u64 }
    }

    /// Returns `count` records, in full pieces and a shorter last piece. `wrap` is called for each
    /// piece, for example to turn it into a message.
    fn take(&self, count: u64, wrap: impl Fn(Bytes) -> Bytes) -> Pieces {
        let (full, rest) = (count / self.per_piece, count % self.per_piece);
        let mut pieces = vec![wrap(self.piece.clone()); full as usize];
        if rest > 0 {
            pieces.push(wrap(self.piece.slice(..rest as usize * self.record_bytes)));
        }
        pieces
    }
}

impl Answers {
    pub(super) fn new(sizes: StubSizes) -> Answers {
        let kv = |value: usize| KeyValue {
            key: vec![b'k'; sizes.key].into(),
            create_revision: REVISION,
            mod_revision: REVISION,
            version: 1,
            value: vec![b'v'; value].into(),
            lease: 0,
        };
        let range = |value| RangeResponse { kvs: vec![kv(value)], ..RangeResponse::default() };
        let event = Event { kv: Some(kv(sizes.value)), ..Event::default() };
        let events = WatchResponse { events: vec![event], ..WatchResponse::default() };
        Answers {
            keys: Records::of(&range(0)),
            whole: Records::of(&range(sizes.value)),
            events: Records::of(&events),
            snapshot_bytes: sizes.snapshot,
        }
    }

    /// Returns the response to a request. `None` for a method that no row uses, and for bytes that
    /// are not a valid request.
    pub(super) fn answer(&self, path: &str, request: &Bytes) -> Option<Pieces> {
        Some(match path {
            RANGE => with_prefix(self.range(&decoded(request)?)),
            TXN => with_prefix(self.txn(&decoded(request)?)),
            RANGE_STREAM => self.range_stream(&decoded(request)?),
            SNAPSHOT => self.snapshot(),
            WATCH => self.watch(&decoded(request)?)?,
            PUT => vec![framed(&PutResponse { header: header(), prev_kv: None })],
            DELETE_RANGE => vec![framed(&deleted(&decoded(request)?))],
            "/etcdserverpb.Lease/LeaseRevoke" => {
                vec![framed(&LeaseRevokeResponse { header: header() })]
            }
            LEASE_GRANT => {
                let (header, id) = (header(), LEASE);
                vec![framed(&LeaseGrantResponse { header, id, ..Default::default() })]
            }
            AUTHENTICATE => {
                let (header, token) = (header(), "stub.1".to_owned());
                vec![framed(&AuthenticateResponse { header, token })]
            }
            _ => return None,
        })
    }

    fn range(&self, range: &RangeRequest) -> Pieces {
        let count = keys_between(&range.key, &range.range_end);
        let sent = match range {
            RangeRequest { count_only: true, .. } => 0,
            RangeRequest { limit: 1.., .. } => count.min(range.limit as u64),
            _ => count,
        };
        let records = if range.keys_only { &self.keys } else { &self.whole };
        let mut message = records.take(sent, |records| records);
        let (count, more) = (count as i64, sent < count && !range.count_only);
        let rest = RangeResponse { header: header(), count, more, ..Default::default() };
        message.push(encoded(&rest));
        message
    }

    fn range_stream(&self, range: &RangeRequest) -> Pieces {
        let count = keys_between(&range.key, &range.range_end);
        let part = |records| with_prefix(nested(1, vec![records])).concat().into();
        let mut messages = self.whole.take(count, part);
        let last = RangeResponse { header: header(), count: count as i64, ..Default::default() };
        messages.push(framed(&RangeStreamResponse { range_response: Some(last) }));
        messages
    }

    fn txn(&self, txn: &TxnRequest) -> Pieces {
        let start = TxnResponse { header: header(), succeeded: true, responses: Vec::new() };
        let mut message = vec![encoded(&start)];
        for operation in txn.success.iter().filter_map(|operation| operation.request.as_ref()) {
            let response = match operation {
                Op::RequestRange(range) => nested(1, self.range(range)),
                Op::RequestPut(_) => nested(2, vec![encoded(&PutResponse::default())]),
                Op::RequestDeleteRange(delete) => nested(3, vec![encoded(&deleted(delete))]),
                Op::RequestTxn(_) => nested(4, vec![encoded(&TxnResponse::default())]),
            };
            message.extend(nested(RESPONSES_OF_TXN, response));
        }
        message
    }

    /// Returns the first responses of a watch. If the watch starts at an old revision, one event
    /// for each watched key follows immediately.
    fn watch(&self, watch: &WatchRequest) -> Option<Pieces> {
        let Some(RequestUnion::CreateRequest(create)) = &watch.request_union else { return None };
        let created = WatchResponse { header: header(), created: true, ..Default::default() };
        let mut messages = vec![framed(&created)];
        if create.start_revision > 0 {
            let count = keys_between(&create.key, &create.range_end);
            let start = encoded(&WatchResponse { header: header(), ..Default::default() });
            let part = |events| with_prefix(vec![start.clone(), events]).concat().into();
            messages.extend(self.events.take(count, part));
        }
        Some(messages)
    }

    fn snapshot(&self) -> Pieces {
        let chunk = |bytes: u64| {
            let blob = vec![0; bytes as usize].into();
            framed(&SnapshotResponse { header: header(), blob, ..Default::default() })
        };
        let whole = self.snapshot_bytes / SNAPSHOT_CHUNK_BYTES;
        let mut chunks = vec![chunk(SNAPSHOT_CHUNK_BYTES); whole as usize];
        chunks.push(chunk(self.snapshot_bytes % SNAPSHOT_CHUNK_BYTES));
        chunks
    }
}

fn decoded<M: Message + Default>(request: &Bytes) -> Option<M> {
    M::decode(request.clone()).ok()
}

fn encoded(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

/// Encodes pieces as a field of another message.
fn nested(field: u64, mut message: Pieces) -> Pieces {
    let mut head = Vec::new();
    push_varint(&mut head, field << 3 | LENGTH_DELIMITED);
    push_varint(&mut head, length(&message) as u64);
    message.insert(0, head.into());
    message
}

/// Adds the gRPC prefix of a message.
fn with_prefix(mut message: Pieces) -> Pieces {
    // The length fits into 32 bits, because no client requests a response that is too long for a
    // message.
    let length = (length(&message) as u32).to_be_bytes();
    message.insert(0, [&[0], &length[..]].concat().into());
    message
}

fn push_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn header() -> Option<ResponseHeader> {
    let (cluster_id, member_id) = (0xcdf8_1818_e32c_d2af, 0x8e9e_05c5_2164_694d);
    Some(ResponseHeader { cluster_id, member_id, revision: REVISION, raft_term: 2 })
}

fn deleted(delete: &DeleteRangeRequest) -> DeleteRangeResponse {
    let deleted = keys_between(&delete.key, &delete.range_end) as i64;
    DeleteRangeResponse { header: header(), deleted, ..Default::default() }
}

/// Returns the number of keys in a range. If there is no range end, it is 1. Otherwise it is the
/// difference of the numbers that follow the last slashes of both keys, or 0 if one of these
/// strings is not a number.
fn keys_between(key: &[u8], range_end: &[u8]) -> u64 {
    if range_end.is_empty() {
        return 1;
    }
    let number = |key: &[u8]| {
        let text = std::str::from_utf8(key).ok()?;
        text.rsplit('/').next()?.parse::<u64>().ok()
    };
    number(range_end).zip(number(key)).map_or(0, |(end, begin)| end.saturating_sub(begin))
}
