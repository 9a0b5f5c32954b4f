//! The rows, which are kinds of expensive requests, and the requests of each row: how many are sent
//! at the same time, and how often.

use bytes::Bytes;
use clap::ValueEnum;
use clearlane_proto::etcdserverpb::compare::CompareResult;
use clearlane_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use clearlane_proto::etcdserverpb::request_op::Request as Op;
use clearlane_proto::etcdserverpb::{
    LeaseRevokeRequest, PutRequest, RangeRequest, TxnRequest, WatchCreateRequest,
};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::keys::{KeySpace, Sizes, ValueGenerator};
use crate::requests::{
    Call, DELETE_RANGE, PUT, RANGE, RANGE_STREAM, TXN, compare_version, delete, operations, range,
    watch_all,
};
use crate::users::User;

/// Prefix of the keys that rows write. Neither rows nor probes read such keys.
const WRITTEN_PREFIX: &str = "/stall/";
const SORTED_LIMIT: i64 = 10;
const RANGES_OF_TXN: usize = 10;
const COMPARISONS_OF_TXN: usize = 10;
const LARGE_VALUE_BYTES: u64 = 1 << 20;
/// Number of connections of the row `half-open`, whose puts never end. etcd and Clearlane allow any
/// number of streams on a connection by default. But h2 treats many small unread frames on one
/// connection as an attack, so these puts are spread over several connections.
const CONNECTIONS_OF_PUTS: u64 = 10;

/// A kind of expensive request, named after its row in the table of results. `clearlane-load rows`
/// shows the first line of each variant's doc comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Row {
    /// no requests
    Calm,
    /// 4 ranges at once, each of all keys at an old revision
    RangeOld,
    /// a count of all keys at an old revision
    CountOld,
    /// a range of all keys without their values
    KeysOnly,
    /// a RangeStream of all keys
    RangeStream,
    /// a transaction: a put, and a range of all keys
    TxnPutRange,
    /// a transaction: a put, and 10 ranges of all keys, each sorted by value and limited to 10 keys
    TxnSorted,
    /// a transaction: a put if 10 comparisons hold, each of them over all keys
    TxnCompare,
    /// one deletion of half of the keys
    Delete,
    /// a snapshot
    Snapshot,
    /// a watch of all keys from revision 1, which ends after one event for each key
    Watch,
    /// 20 watches at once, each like the row watch
    #[value(name = "watch-20")]
    Watch20,
    /// puts of 1 MiB, 4 at once
    LargeWriters,
    /// one revocation of a lease that has a tenth of the number of keys
    Revoke,
    /// 8 ranges at once of half of the keys, each sorted by value and limited to 10 keys
    SortCrowd,
    /// new connections at once, a hundredth of the number of keys; each has a get and stays open
    Connections,
    /// new watches at once on one connection, a twentieth of the number of keys; they stay open
    Streams,
    /// half-sent puts at once on 10 connections, a tenth of the number of keys; they stay open
    HalfOpen,
    /// 200 clients, or --clients, that log in again and again with a password
    Authenticate,
}

/// Data that has been prepared on the server for the rows that need it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Prepared {
    /// A revision that contains all keys. For the rows with an old revision, a later put has made
    /// it older than the current revision.
    pub(super) old_revision: i64,
    pub(super) lease: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// Calls that are sent at the same time, each on its own connection.
    Calls(Vec<Call>, Repetition),
    Held(HeldCalls),
}

/// How often a call is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repetition {
    Once,
    /// The call is sent again as soon as it is answered, while the window lasts.
    InWindow,
    /// Like `InWindow`, but calls without a response at the end of the window are given up. The
    /// server keeps such calls in a queue, and would answer them long after the window.
    CutOff,
}

/// Copies of a call that are opened at the same time and stay open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeldCalls {
    pub(super) call: Call,
    pub(super) count: u64,
    /// Number of connections that the calls share. If it is 0, each call has its own connection,
    /// which stays open after the response.
    pub(super) connections: u64,
    pub(super) opened: Opened,
}

/// The event that ends the latency of a held call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opened {
    /// The response is complete.
    Answered,
    /// The first bytes of the response have arrived.
    FirstBytes,
    /// The call is sent, and the server allows another stream.
    Sent,
}

/// The keys of the lease that the row `revoke` revokes.
pub(super) fn lease_space(space: &KeySpace) -> KeySpace {
    let prefix = format!("{WRITTEN_PREFIX}lease/");
    KeySpace { prefix, count: space.count / 10, ..space.clone() }
}

pub(super) fn plan(
    row: Row,
    space: &KeySpace,
    prepared: Prepared,
    (seed, clients): (u64, u64),
) -> Plan {
    let count = space.count;
    let all = || range(space, 0, count);
    let old = || RangeRequest { revision: prepared.old_revision, ..all() };
    let half = || range(space, 0, count / 2);
    let call_of_range = |range: RangeRequest, keys| Call::new(RANGE, &range, Some(keys));
    let watch = || Call::watch(watch_all(space, 1), Some(count));
    let calls = match row {
        Row::Connections | Row::Streams | Row::HalfOpen => return Plan::Held(held(row, space)),
        Row::Calm => Vec::new(),
        Row::RangeOld => vec![call_of_range(old(), count); 4],
        Row::CountOld => vec![call_of_range(RangeRequest { count_only: true, ..old() }, 0)],
        Row::KeysOnly => vec![call_of_range(RangeRequest { keys_only: true, ..all() }, count)],
        Row::RangeStream => vec![Call::stream(RANGE_STREAM, &all(), Some(count))],
        Row::TxnPutRange => vec![put_and(&[all()])],
        Row::TxnSorted => vec![put_and(&vec![sorted(all()); RANGES_OF_TXN])],
        Row::TxnCompare => vec![put_if_all_exist(space)],
        Row::Delete => vec![Call::new(DELETE_RANGE, &delete(half()), None)],
        Row::Snapshot => vec![Call::snapshot()],
        Row::Watch => vec![watch()],
        Row::Watch20 => vec![watch(); 20],
        Row::LargeWriters => (0..4).map(|writer| large_put(writer, seed)).collect(),
        Row::Revoke => {
            let revoke = LeaseRevokeRequest { id: prepared.lease };
            vec![Call::new("/etcdserverpb.Lease/LeaseRevoke", &revoke, None)]
        }
        Row::SortCrowd => vec![call_of_range(sorted(half()), SORTED_LIMIT as u64); 8],
        Row::Authenticate => vec![Call::login(&User::of_load()); clients as usize],
    };
    let repetition = match row {
        Row::Delete | Row::Revoke => Repetition::Once,
        Row::Authenticate => Repetition::CutOff,
        _ => Repetition::InWindow,
    };
    Plan::Calls(calls, repetition)
}

fn held(row: Row, space: &KeySpace) -> HeldCalls {
    let count = space.count;
    match row {
        Row::Streams => {
            // Nothing writes this key, so the watches receive no events.
            let key = format!("{WRITTEN_PREFIX}watched").into();
            let create = WatchCreateRequest { key, ..WatchCreateRequest::default() };
            let call = Call::watch(create, None);
            HeldCalls { call, count: count / 20, connections: 1, opened: Opened::FirstBytes }
        }
        Row::HalfOpen => {
            let whole = Call::new(PUT, &put("half"), None);
            let call = Call { body: whole.body.slice(..whole.body.len() / 2), ..whole };
            let connections = CONNECTIONS_OF_PUTS;
            HeldCalls { call, count: count / 10, connections, opened: Opened::Sent }
        }
        _ => {
            let call = Call::new(RANGE, &range(space, 0, 1), Some(1));
            HeldCalls { call, count: count / 100, connections: 0, opened: Opened::Answered }
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

/// Returns a put of the key with this name. Each call with the same name overwrites the key.
pub(super) fn put(name: &str) -> PutRequest {
    let key = format!("{WRITTEN_PREFIX}{name}").into();
    PutRequest { key, value: Bytes::from_static(&[b'v'; 64]), ..PutRequest::default() }
}

fn put_and(ranges: &[RangeRequest]) -> Call {
    let ranges = ranges.iter().cloned().map(Op::RequestRange);
    let success = operations([Op::RequestPut(put("txn"))].into_iter().chain(ranges));
    Call::new(TXN, &TxnRequest { success, ..TxnRequest::default() }, None)
}

/// Returns a put with compares that hold if all keys exist. All keys do exist, so the server has to
/// visit every key for each compare.
fn put_if_all_exist(space: &KeySpace) -> Call {
    let all_exist = compare_version(&range(space, 0, space.count), CompareResult::Greater);
    let success = operations([Op::RequestPut(put("txn"))]);
    let compare = vec![all_exist; COMPARISONS_OF_TXN];
    Call::new(TXN, &TxnRequest { compare, success, failure: Vec::new() }, None)
}

fn large_put(writer: u64, seed: u64) -> Call {
    let seed = seed.wrapping_add(writer);
    let values = ValueGenerator::new(Sizes::constant(LARGE_VALUE_BYTES), seed);
    let value = values.random_value(&mut SmallRng::seed_from_u64(seed));
    Call::new(PUT, &PutRequest { value, ..put(&format!("large/{writer}")) }, None)
}
