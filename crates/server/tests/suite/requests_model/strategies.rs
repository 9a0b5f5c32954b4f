//! Random requests. They use few keys, so that requests have keys in common, and all options, so
//! that options are combined.

use bytes::Bytes;
use clearlane_proto::etcdserverpb::compare::TargetUnion;
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::{
    CompactionRequest, Compare, DeleteRangeRequest, InternalRaftRequest, PutRequest, RangeRequest,
    RequestOp, TxnRequest,
};
use proptest::prelude::*;

pub(crate) fn request() -> impl Strategy<Value = InternalRaftRequest> {
    let empty = InternalRaftRequest::default;
    prop_oneof![
        8 => put().prop_map(move |put| InternalRaftRequest { put: Some(put), ..empty() }),
        1 => delete().prop_map(move |it| InternalRaftRequest { delete_range: Some(it), ..empty() }),
        8 => range().prop_map(move |range| InternalRaftRequest { range: Some(range), ..empty() }),
        8 => txn(2).prop_map(move |txn| InternalRaftRequest { txn: Some(txn), ..empty() }),
        1 => revision().prop_map(move |revision| InternalRaftRequest {
            compaction: Some(CompactionRequest { revision, physical: false }),
            ..empty()
        }),
    ]
}

/// Transactions of writes and ranges over the same few keys, with other writes and compactions
/// between them.
pub(crate) fn writing_request() -> impl Strategy<Value = InternalRaftRequest> {
    let empty = InternalRaftRequest::default;
    prop_oneof![
        2 => put().prop_map(move |put| InternalRaftRequest { put: Some(put), ..empty() }),
        2 => delete().prop_map(move |it| InternalRaftRequest { delete_range: Some(it), ..empty() }),
        6 => prop::collection::vec(op(2), 1..7).prop_map(move |success| InternalRaftRequest {
            txn: Some(TxnRequest { success, ..TxnRequest::default() }),
            ..empty()
        }),
        2 => (0..60_i64).prop_map(move |revision| InternalRaftRequest {
            compaction: Some(CompactionRequest { revision, physical: false }),
            ..empty()
        }),
    ]
}

fn key() -> impl Strategy<Value = Bytes> {
    let one = prop::sample::select(vec!["0", "a", "b", "c", "d", "e", "bb"]);
    prop_oneof![60 => one, 1 => Just("")].prop_map(Bytes::from)
}

fn range_end() -> impl Strategy<Value = Bytes> {
    prop_oneof![3 => Just(Bytes::new()), 2 => Just(Bytes::from("\0")), 2 => key()]
}

fn value() -> impl Strategy<Value = Bytes> {
    prop::sample::select(vec!["", "x", "y", "z"]).prop_map(Bytes::from)
}

fn lease() -> impl Strategy<Value = i64> {
    prop_oneof![6 => Just(0), 2 => 1..3_i64, 1 => Just(7)]
}

fn revision() -> impl Strategy<Value = i64> {
    prop_oneof![8 => -2..4_i64, 4 => 0..20_i64, 1 => Just(1000)]
}

fn seldom() -> impl Strategy<Value = bool> {
    prop::bool::weighted(0.15)
}

fn put() -> impl Strategy<Value = PutRequest> {
    (key(), value(), lease(), any::<bool>(), seldom(), seldom(), any::<bool>()).prop_map(
        |(key, value, lease, prev_kv, ignore_value, ignore_lease, sane)| PutRequest {
            key,
            value: if sane && ignore_value { Bytes::new() } else { value },
            lease: if sane && ignore_lease { 0 } else { lease },
            prev_kv,
            ignore_value,
            ignore_lease,
        },
    )
}

fn delete() -> impl Strategy<Value = DeleteRangeRequest> {
    (key(), range_end(), any::<bool>()).prop_map(|(key, range_end, prev_kv)| DeleteRangeRequest {
        key,
        range_end,
        prev_kv,
    })
}

fn range() -> impl Strategy<Value = RangeRequest> {
    let bound = || prop_oneof![9 => Just(0), 1 => -1..12_i64];
    let sort = (prop_oneof![30 => 0..3, 1 => Just(9)], prop_oneof![30 => 0..5, 1 => Just(-1)]);
    let limit = prop_oneof![3 => Just(0), 3 => -1..4_i64, 1 => Just(i64::MAX)];
    let at = prop_oneof![3 => Just(0), 1 => revision()];
    (
        (key(), range_end(), limit, at),
        sort,
        (seldom(), seldom()),
        [bound(), bound(), bound(), bound()],
    )
        .prop_map(|((key, range_end, limit, revision), (order, target), only, bounds)| {
            RangeRequest {
                key,
                range_end,
                limit,
                revision,
                sort_order: order,
                sort_target: target,
                serializable: false,
                keys_only: only.0,
                count_only: only.1,
                min_mod_revision: bounds[0],
                max_mod_revision: bounds[1],
                min_create_revision: bounds[2],
                max_create_revision: bounds[3],
            }
        })
}

fn compare() -> impl Strategy<Value = Compare> {
    let result = prop_oneof![20 => 0..4, 1 => Just(11)];
    let target = prop_oneof![20 => 0..5, 1 => Just(11)];
    let given = (0..7, -1..9_i64, value()).prop_map(|(kind, number, value)| match kind {
        0 => Some(TargetUnion::Version(number)),
        1 => Some(TargetUnion::CreateRevision(number)),
        2 => Some(TargetUnion::ModRevision(number)),
        3 | 4 => Some(TargetUnion::Value(value)),
        5 => Some(TargetUnion::Lease(number)),
        _ => None,
    });
    (result, target, key(), given, range_end()).prop_map(
        |(result, target, key, target_union, range_end)| Compare {
            result,
            target,
            key,
            target_union,
            range_end,
        },
    )
}

fn txn(depth: u32) -> BoxedStrategy<TxnRequest> {
    let ops = || prop::collection::vec(op(depth), 0..4);
    (prop::collection::vec(compare(), 0..3), ops(), ops())
        .prop_map(|(compare, success, failure)| TxnRequest { compare, success, failure })
        .boxed()
}

fn op(depth: u32) -> BoxedStrategy<RequestOp> {
    let flat = prop_oneof![
        30 => range().prop_map(|range| Some(Request::RequestRange(range))),
        30 => put().prop_map(|put| Some(Request::RequestPut(put))),
        8 => delete().prop_map(|delete| Some(Request::RequestDeleteRange(delete))),
        1 => Just(None),
    ];
    let request = match depth {
        0 => flat.boxed(),
        _ => prop_oneof![
            4 => flat,
            1 => txn(depth - 1).prop_map(|txn| Some(Request::RequestTxn(txn))),
        ]
        .boxed(),
    };
    request.prop_map(|request| RequestOp { request }).boxed()
}
