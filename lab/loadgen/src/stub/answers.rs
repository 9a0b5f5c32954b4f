//! What is answered to which request: messages of the length that a server's would have, made of
//! one record again and again.

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

use super::body::Pieces;
use crate::requests::framed;

pub(super) const WATCH: &str = "/etcdserverpb.Watch/Watch";
/// Of a piece of records.
const PIECE_BYTES: usize = 64 << 10;
/// etcd's, and ours.
const SNAPSHOT_CHUNK_BYTES: u64 = 32 << 10;
/// As after a fill of a million keys, a transaction each for 128.
const REVISION: i64 = 7813;
const LEASE: i64 = 7_587_888_888_888_888_888;
const LENGTH_DELIMITED: u64 = 2;
const RESPONSES_OF_TXN: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StubSizes {
    /// In bytes, of each key and of each value that is read.
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

/// Equal records, one behind the other.
#[derive(Debug)]
struct Records {
    piece: Bytes,
    record_bytes: usize,
    per_piece: u64,
}

impl Records {
    /// `message` has one record and nothing else.
    fn of(message: &impl Message) -> Records {
        let record = message.encode_to_vec();
        let per_piece = (PIECE_BYTES / record.len()).max(1);
        let (piece, record_bytes) = (record.repeat(per_piece).into(), record.len());
        Records { piece, record_bytes, per_piece: per_piece as u64 }
    }

    fn first(&self, count: u64) -> Bytes {
        self.piece.slice(..count as usize * self.record_bytes)
    }

    fn take(&self, count: u64) -> Pieces {
        let mut pieces = Pieces::default();
        pieces.push(self.piece.clone(), count / self.per_piece);
        pieces.push(self.first(count % self.per_piece), 1);
        pieces
    }

    /// In messages of a piece each, as `wrap` encodes them.
    fn in_messages(&self, count: u64, wrap: impl Fn(Bytes) -> Bytes) -> Pieces {
        let mut pieces = Pieces::default();
        pieces.push(wrap(self.piece.clone()), count / self.per_piece);
        let rest = count % self.per_piece;
        pieces.push(wrap(self.first(rest)), u64::from(rest > 0));
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

    /// `None` for a method that no row needs, and for a request that is none.
    pub(super) fn answer(&self, path: &str, request: &Bytes) -> Option<Pieces> {
        let message = match path {
            "/etcdserverpb.KV/Range" => self.range(&decoded(request)?),
            "/etcdserverpb.KV/RangeStream" => return Some(self.range_stream(&decoded(request)?)),
            "/etcdserverpb.KV/Put" => encoded(&PutResponse { header: header(), prev_kv: None }),
            "/etcdserverpb.KV/DeleteRange" => encoded(&deleted(&decoded(request)?)),
            "/etcdserverpb.KV/Txn" => self.txn(&decoded(request)?),
            "/etcdserverpb.Lease/LeaseGrant" => {
                encoded(&LeaseGrantResponse { header: header(), id: LEASE, ..Default::default() })
            }
            "/etcdserverpb.Lease/LeaseRevoke" => encoded(&LeaseRevokeResponse { header: header() }),
            "/etcdserverpb.Auth/Authenticate" => {
                encoded(&AuthenticateResponse { header: header(), token: "stub.1".to_owned() })
            }
            "/etcdserverpb.Maintenance/Snapshot" => return Some(self.snapshot()),
            WATCH => return self.watch(&decoded(request)?),
            _ => return None,
        };
        Some(with_prefix(message))
    }

    fn range(&self, range: &RangeRequest) -> Pieces {
        let count = keys_between(&range.key, &range.range_end);
        let sent = match range {
            RangeRequest { count_only: true, .. } => 0,
            RangeRequest { limit: 1.., .. } => count.min(range.limit as u64),
            _ => count,
        };
        let mut message = encoded(&RangeResponse { header: header(), ..Default::default() });
        let records = if range.keys_only { &self.keys } else { &self.whole };
        message.append(records.take(sent));
        let (count, more) = (count as i64, sent < count && !range.count_only);
        message.append(encoded(&RangeResponse { count, more, ..Default::default() }));
        message
    }

    fn range_stream(&self, range: &RangeRequest) -> Pieces {
        let count = keys_between(&range.key, &range.range_end);
        let mut messages = self.whole.in_messages(count, |records| {
            let mut part = Pieces::default();
            part.push(records, 1);
            with_prefix(part.nested(1)).concat()
        });
        let last = RangeResponse { header: header(), count: count as i64, ..Default::default() };
        messages.push(framed(&RangeStreamResponse { range_response: Some(last) }), 1);
        messages
    }

    fn txn(&self, txn: &TxnRequest) -> Pieces {
        let start = TxnResponse { header: header(), succeeded: true, responses: Vec::new() };
        let mut message = encoded(&start);
        for operation in txn.success.iter().filter_map(|operation| operation.request.as_ref()) {
            let response = match operation {
                Op::RequestRange(range) => self.range(range).nested(1),
                Op::RequestPut(_) => encoded(&PutResponse::default()).nested(2),
                Op::RequestDeleteRange(delete) => encoded(&deleted(delete)).nested(3),
                Op::RequestTxn(_) => encoded(&TxnResponse::default()).nested(4),
            };
            message.append(response.nested(RESPONSES_OF_TXN));
        }
        message
    }

    /// The past of as many keys as are watched, all at once, if it is asked for.
    fn watch(&self, watch: &WatchRequest) -> Option<Pieces> {
        let Some(RequestUnion::CreateRequest(create)) = &watch.request_union else { return None };
        let mut messages = Pieces::default();
        let created = WatchResponse { header: header(), created: true, ..Default::default() };
        messages.push(framed(&created), 1);
        if create.start_revision > 0 {
            let count = keys_between(&create.key, &create.range_end);
            let start = WatchResponse { header: header(), ..Default::default() };
            messages.append(self.events.in_messages(count, |records| {
                let mut message = encoded(&start);
                message.push(records, 1);
                with_prefix(message).concat()
            }));
        }
        Some(messages)
    }

    fn snapshot(&self) -> Pieces {
        let chunk = |bytes: u64| {
            let blob = vec![0; bytes as usize].into();
            framed(&SnapshotResponse { header: header(), blob, ..Default::default() })
        };
        let rest = self.snapshot_bytes % SNAPSHOT_CHUNK_BYTES;
        let mut messages = Pieces::default();
        messages.push(chunk(SNAPSHOT_CHUNK_BYTES), self.snapshot_bytes / SNAPSHOT_CHUNK_BYTES);
        messages.push(chunk(rest), 1);
        messages
    }
}

impl Pieces {
    /// As a field of another message.
    fn nested(mut self, field: u64) -> Pieces {
        let mut start = Vec::new();
        push_varint(&mut start, field << 3 | LENGTH_DELIMITED);
        push_varint(&mut start, self.length() as u64);
        self.push_front(start);
        self
    }
}

fn decoded<M: Message + Default>(request: &Bytes) -> Option<M> {
    M::decode(request.clone()).ok()
}

fn encoded(message: &impl Message) -> Pieces {
    let mut pieces = Pieces::default();
    pieces.push(message.encode_to_vec(), 1);
    pieces
}

fn with_prefix(mut message: Pieces) -> Pieces {
    // More than a message may have is not asked for.
    let length = (message.length() as u32).to_be_bytes();
    message.push_front([&[0], &length[..]].concat());
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

/// One key without an end; else as many as the numbers behind the last slashes say.
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
