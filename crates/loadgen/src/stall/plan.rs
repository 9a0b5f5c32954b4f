//! What each [row](Row) sends: the requests, how many at once, and how often.

use bytes::Bytes;
use clearlane_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use clearlane_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use clearlane_proto::etcdserverpb::request_op::Request as Op;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, LeaseRevokeRequest, PutRequest, RangeRequest, RequestOp,
    SnapshotRequest, TxnRequest, WatchCreateRequest, WatchRequest,
};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::{Row, StallOptions};
use crate::keys::{KeySpace, Sizes, ValueGenerator};
use crate::requests::{Call, range};
use crate::response_scanner::ResponseShape;
use crate::users::User;

const RANGE: &str = "/etcdserverpb.KV/Range";
const TXN: &str = "/etcdserverpb.KV/Txn";
const PUT: &str = "/etcdserverpb.KV/Put";
/// Beside the keys that are read, and beside those of the probes.
pub(super) const WRITTEN_PREFIX: &str = "/stall/";
const SORTED_LIMIT: i64 = 10;
const RANGES_OF_TXN: usize = 10;
const COMPARISONS_OF_TXN: usize = 10;
const LARGE_VALUE_BYTES: u64 = 1 << 20;

/// What the server has for a row alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Prepared {
    /// All keys are there as of this revision, and a later one has been written.
    pub(super) old_revision: i64,
    pub(super) lease: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// Each on a connection of its own, and again as soon as it is answered.
    Repeated(Vec<Call>),
    Once(Call),
    Held(HeldKind, u64),
    /// Like `Repeated`, but what is not answered when the time is over is given up: in the order of
    /// a queue it would all be answered, and long after that.
    UpToTheEnd(Vec<Call>),
}

/// What is opened at once and stays open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeldKind {
    /// With a get each.
    Connections,
    /// On one connection.
    Watches,
    /// A put of which the end does not come.
    HalfOpenPuts,
}

/// Keys of a row's own lease.
pub(super) fn lease_space(space: &KeySpace) -> KeySpace {
    let prefix = format!("{WRITTEN_PREFIX}lease/");
    KeySpace { prefix, count: space.count / 10, ..space.clone() }
}

pub(super) fn plan(
    row: Row,
    space: &KeySpace,
    prepared: Prepared,
    StallOptions { seed, clients, .. }: &StallOptions,
) -> Plan {
    let count = space.count;
    let all = || range(space, 0, count);
    let old = || RangeRequest { revision: prepared.old_revision, ..all() };
    let ranges = |range: RangeRequest, keys| Call::new(RANGE, &range, Some(keys));
    match row {
        Row::Calm => Plan::Repeated(Vec::new()),
        Row::RangeOld => Plan::Repeated(vec![ranges(old(), count); 4]),
        Row::CountOld => {
            let counted = RangeRequest { count_only: true, ..old() };
            Plan::Repeated(vec![ranges(counted, 0)])
        }
        Row::KeysOnly => {
            let keys = RangeRequest { keys_only: true, ..all() };
            Plan::Repeated(vec![ranges(keys, count)])
        }
        Row::RangeStream => {
            let call = Call::new("/etcdserverpb.KV/RangeStream", &all(), Some(count));
            Plan::Repeated(vec![Call { answer: ResponseShape::Stream, ..call }])
        }
        Row::TxnPutRange => Plan::Repeated(vec![put_and(&[all()])]),
        Row::TxnSorted => Plan::Repeated(vec![put_and(&vec![sorted(all()); RANGES_OF_TXN])]),
        Row::TxnCompare => Plan::Repeated(vec![put_if_all_are_there(space)]),
        Row::Delete => {
            let RangeRequest { key, range_end, .. } = range(space, 0, count / 2);
            let delete = DeleteRangeRequest { key, range_end, prev_kv: false };
            Plan::Once(Call::new("/etcdserverpb.KV/DeleteRange", &delete, None))
        }
        Row::Snapshot => {
            let path = "/etcdserverpb.Maintenance/Snapshot";
            let call = Call::new(path, &SnapshotRequest::default(), None);
            Plan::Repeated(vec![Call { answer: ResponseShape::Stream, ..call }])
        }
        Row::Watch => Plan::Repeated(vec![watch_from_the_beginning(space)]),
        Row::Watch20 => Plan::Repeated(vec![watch_from_the_beginning(space); 20]),
        Row::LargeWriters => {
            Plan::Repeated((0..4).map(|writer| large_put(writer, *seed)).collect())
        }
        Row::Revoke => {
            let revoke = LeaseRevokeRequest { id: prepared.lease };
            Plan::Once(Call::new("/etcdserverpb.Lease/LeaseRevoke", &revoke, None))
        }
        Row::SortCrowd => {
            let half = ranges(sorted(range(space, 0, count / 2)), SORTED_LIMIT as u64);
            Plan::Repeated(vec![half; 8])
        }
        Row::Connections => Plan::Held(HeldKind::Connections, count / 100),
        Row::Streams => Plan::Held(HeldKind::Watches, count / 20),
        Row::HalfOpen => Plan::Held(HeldKind::HalfOpenPuts, count / 10),
        Row::Authenticate => {
            let request = User::of_load().authenticate_request();
            let call = Call::new("/etcdserverpb.Auth/Authenticate", &request, None);
            Plan::UpToTheEnd(vec![call; *clients as usize])
        }
    }
}

fn sorted(range: RangeRequest) -> RangeRequest {
    RangeRequest {
        sort_order: SortOrder::Ascend as i32,
        sort_target: SortTarget::Value as i32,
        limit: SORTED_LIMIT,
        ..range
    }
}

/// One key, which is written again and again.
pub(super) fn put(name: &str) -> PutRequest {
    let key = format!("{WRITTEN_PREFIX}{name}").into();
    PutRequest { key, value: Bytes::from_static(&[b'v'; 64]), ..PutRequest::default() }
}

fn put_and(ranges: &[RangeRequest]) -> Call {
    let ranges = ranges.iter().cloned().map(Op::RequestRange);
    let operations = [Op::RequestPut(put("txn"))].into_iter().chain(ranges);
    let success = operations.map(|operation| RequestOp { request: Some(operation) }).collect();
    Call::new(TXN, &TxnRequest { success, ..TxnRequest::default() }, None)
}

/// Each comparison holds for each key, so that none ends early.
fn put_if_all_are_there(space: &KeySpace) -> Call {
    let RangeRequest { key, range_end, .. } = range(space, 0, space.count);
    let is_there = Compare {
        key,
        range_end,
        target: CompareTarget::Version as i32,
        result: CompareResult::Greater as i32,
        target_union: Some(TargetUnion::Version(0)),
    };
    let put = RequestOp { request: Some(Op::RequestPut(put("txn"))) };
    let compare = vec![is_there; COMPARISONS_OF_TXN];
    Call::new(TXN, &TxnRequest { compare, success: vec![put], failure: Vec::new() }, None)
}

fn watch_from_the_beginning(space: &KeySpace) -> Call {
    let RangeRequest { key, range_end, .. } = range(space, 0, space.count);
    let create = WatchCreateRequest { key, range_end, start_revision: 1, ..Default::default() };
    let watch = watch_request(create);
    let call = Call::new(WATCH, &watch, Some(space.count));
    Call { answer: ResponseShape::Watch, ..call }
}

pub(super) const WATCH: &str = "/etcdserverpb.Watch/Watch";

fn watch_request(create: WatchCreateRequest) -> WatchRequest {
    WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
}

/// Of a key that is never written.
pub(super) fn watch_of_one_key() -> Call {
    let key = format!("{WRITTEN_PREFIX}watched").into();
    Call::new(WATCH, &watch_request(WatchCreateRequest { key, ..Default::default() }), None)
}

pub(super) fn get(space: &KeySpace) -> Call {
    Call::new(RANGE, &range(space, 0, 1), Some(1))
}

/// The first half of a put.
pub(super) fn half_put() -> Call {
    let whole = Call::new(PUT, &put("half"), None);
    Call { body: whole.body.slice(..whole.body.len() / 2), ..whole }
}

fn large_put(writer: u64, seed: u64) -> Call {
    let seed = seed.wrapping_add(writer);
    let values = ValueGenerator::new(Sizes::constant(LARGE_VALUE_BYTES), seed);
    let value = values.random_value(&mut SmallRng::seed_from_u64(seed));
    Call::new(PUT, &PutRequest { value, ..put(&format!("large/{writer}")) }, None)
}
