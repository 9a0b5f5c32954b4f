//! Rows of the matrix with requests to the services KV and Watch.

use clearlane_proto::etcdserverpb::compare::TargetUnion;
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{
    CompactionRequest, Compare, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
    RangeRequest, RangeResponse, RangeStreamResponse, RequestOp, TxnRequest, TxnResponse,
    WatchCreateRequest, WatchRequest, WatchResponse,
};

use crate::row::Row;
use crate::server::{LEASE_EXACT, LEASE_FREE, LEASE_NARROW, LEASE_OUTSIDE};

pub(crate) fn range(key: &'static str, range_end: &'static str) -> RangeRequest {
    RangeRequest { key: key.into(), range_end: range_end.into(), ..Default::default() }
}

pub(crate) fn put(key: &'static str) -> PutRequest {
    PutRequest { key: key.into(), value: "1".into(), ..Default::default() }
}

pub(crate) fn delete(key: &'static str, range_end: &'static str) -> DeleteRangeRequest {
    DeleteRangeRequest { key: key.into(), range_end: range_end.into(), ..Default::default() }
}

pub(crate) fn rows() -> Vec<Row> {
    [range_rows(), put_rows(), delete_rows(), txn_rows(), compact_rows(), watch_rows()]
        .into_iter()
        .flatten()
        .collect()
}

fn range_rows() -> Vec<Row> {
    let shapes = [
        ("k/1", range("k/1", "")),
        ("k/1, serializable", RangeRequest { serializable: true, ..range("k/1", "") }),
        ("k/9 (not there)", range("k/9", "")),
        ("z", range("z", "")),
        ("k/ .. k0", range("k/", "k0")),
        ("k/ .. k0, count_only", RangeRequest { count_only: true, ..range("k/", "k0") }),
        ("k/ .. k0, limit 1", RangeRequest { limit: 1, ..range("k/", "k0") }),
        ("k/1 .. k/2", range("k/1", "k/2")),
        ("k/2 .. k/1 (empty)", range("k/2", "k/1")),
        ("k/1 .. k/1 (empty)", range("k/1", "k/1")),
        ("k/ .. k1 (wider)", range("k/", "k1")),
        ("k .. k0 (wider)", range("k", "k0")),
        ("k/ .. \\0 (from key)", range("k/", "\0")),
        ("k/1 .. k/1\\0", range("k/1", "k/1\0")),
        ("\\0 .. \\0 (all)", range("\0", "\0")),
        ("no key", range("", "")),
        ("k/1, future revision", RangeRequest { revision: 1 << 40, ..range("k/1", "") }),
        ("z, future revision", RangeRequest { revision: 1 << 40, ..range("z", "") }),
    ];
    let mut rows = Vec::new();
    for (shape, request) in &shapes {
        let found = |reply: RangeResponse| format!("{}/{}", reply.kvs.len(), reply.count);
        rows.push(Row::new("KV/Range", shape, request.clone()).fact(found));
    }
    for (shape, request) in shapes {
        let found = |reply: RangeStreamResponse| {
            let part = reply.range_response.unwrap_or_default();
            format!("{}/{}", part.kvs.len(), part.count)
        };
        rows.push(Row::new("KV/RangeStream", shape, request).fact(found));
    }
    rows
}

fn put_rows() -> Vec<Row> {
    let ignore_value = PutRequest { ignore_value: true, value: "".into(), ..put("k/1") };
    let ignore_lease = PutRequest { ignore_lease: true, ..put("k/1") };
    let leased = |lease| PutRequest { lease, ..put("k/1") };
    let shapes = [
        ("k/1", put("k/1")),
        ("k/2", put("k/2")),
        ("z", put("z")),
        ("k/1, prev_kv", PutRequest { prev_kv: true, ..put("k/1") }),
        ("k/1, ignore_value", ignore_value.clone()),
        ("k/9, ignore_value (not there)", PutRequest { key: "k/9".into(), ..ignore_value }),
        ("k/1, ignore_lease", ignore_lease),
        ("k/1, lease without keys", leased(LEASE_FREE)),
        ("k/1, lease of k/1-lease", leased(LEASE_NARROW)),
        ("k/1, lease of k/3-lease", leased(LEASE_EXACT)),
        ("k/1, lease of z-lease", leased(LEASE_OUTSIDE)),
        ("k/1, no such lease", leased(4711)),
        ("z, no such lease", PutRequest { lease: 4711, ..put("z") }),
        ("no key", put("")),
    ];
    let had = |reply: PutResponse| if reply.prev_kv.is_some() { "prev" } else { "" }.to_owned();
    let row = |(shape, request)| {
        // Some of these puts attach a lease to the key. The put after each cell has no lease, so it
        // detaches the lease again.
        Row::new("KV/Put", shape, request).fact(had).after("KV/Put", put("k/1"))
    };
    shapes.into_iter().map(row).collect()
}

fn delete_rows() -> Vec<Row> {
    let prev = |request| DeleteRangeRequest { prev_kv: true, ..request };
    let shapes = [
        ("k/1", delete("k/1", "")),
        ("k/1, prev_kv", prev(delete("k/1", ""))),
        ("k/9 (not there)", delete("k/9", "")),
        ("k/9, prev_kv (not there)", prev(delete("k/9", ""))),
        ("z", delete("z", "")),
        ("k/1 .. k/1-", delete("k/1", "k/1-")),
        ("k/7 .. k0", delete("k/7", "k0")),
        ("k/7 .. k0, prev_kv", prev(delete("k/7", "k0"))),
        ("k/7 .. k1 (wider)", delete("k/7", "k1")),
        ("zz .. \\0 (from key)", delete("zz", "\0")),
        ("k/1 .. k/0 (empty)", delete("k/1", "k/0")),
        ("no key", delete("", "")),
    ];
    let deleted = |reply: DeleteRangeResponse| {
        let prev = if reply.prev_kvs.is_empty() { "" } else { "prev" };
        format!("{}{prev}", reply.deleted)
    };
    let row = |(shape, request)| {
        let row = Row::new("KV/DeleteRange", shape, request).fact(deleted);
        row.before("KV/Put", put("k/7")).after("KV/Put", put("k/1")).after("KV/Put", put("z"))
    };
    shapes.into_iter().map(row).collect()
}

fn compare(key: &'static str, range_end: &'static str) -> Compare {
    Compare {
        result: clearlane_proto::etcdserverpb::compare::CompareResult::Greater as i32,
        key: key.into(),
        range_end: range_end.into(),
        target_union: Some(TargetUnion::Version(0)),
        ..Default::default()
    }
}

fn reads(key: &'static str, range_end: &'static str) -> RequestOp {
    RequestOp { request: Some(Request::RequestRange(range(key, range_end))) }
}

fn puts(request: PutRequest) -> RequestOp {
    RequestOp { request: Some(Request::RequestPut(request)) }
}

fn deletes(request: DeleteRangeRequest) -> RequestOp {
    RequestOp { request: Some(Request::RequestDeleteRange(request)) }
}

fn nested(txn: TxnRequest) -> RequestOp {
    RequestOp { request: Some(Request::RequestTxn(txn)) }
}

fn txn(
    compare: impl Into<Vec<Compare>>,
    success: impl Into<Vec<RequestOp>>,
    failure: impl Into<Vec<RequestOp>>,
) -> TxnRequest {
    TxnRequest { compare: compare.into(), success: success.into(), failure: failure.into() }
}

fn txn_rows() -> Vec<Row> {
    let leased = |lease| PutRequest { lease, ..put("k/1") };
    let prev_put = PutRequest { prev_kv: true, ..put("k/1") };
    let prev_delete = DeleteRangeRequest { prev_kv: true, ..delete("k/9", "") };
    let shapes = [
        ("empty", txn([], [], [])),
        ("compare k/1", txn([compare("k/1", "")], [], [])),
        ("compare z", txn([compare("z", "")], [], [])),
        ("compare k/ .. k0", txn([compare("k/", "k0")], [], [])),
        ("compare k/ .. \\0", txn([compare("k/", "\0")], [], [])),
        ("read k/1", txn([], [reads("k/1", "")], [])),
        ("read k/ .. k0", txn([], [reads("k/", "k0")], [])),
        ("read k/ .. \\0", txn([], [reads("k/", "\0")], [])),
        ("put k/1", txn([], [puts(put("k/1"))], [])),
        ("put k/1, prev_kv", txn([], [puts(prev_put)], [])),
        ("put k/1, lease of k/3-lease", txn([], [puts(leased(LEASE_EXACT))], [])),
        ("put k/1, lease of z-lease", txn([], [puts(leased(LEASE_OUTSIDE))], [])),
        ("put k/1, no such lease", txn([], [puts(leased(4711))], [])),
        ("delete k/9", txn([], [deletes(delete("k/9", ""))], [])),
        ("delete k/9, prev_kv", txn([], [deletes(prev_delete)], [])),
        ("delete k/8 .. k/9", txn([], [deletes(delete("k/8", "k/9"))], [])),
        ("read k/1, put k/1", txn([], [reads("k/1", ""), puts(put("k/1"))], [])),
        ("compare k/1, put k/1", txn([compare("k/1", "")], [puts(put("k/1"))], [])),
        ("read k/1; not taken: put z", txn([], [reads("k/1", "")], [puts(put("z"))])),
        ("put k/1; not taken: read z", txn([], [puts(put("k/1"))], [reads("z", "")])),
        ("not taken: put k/1", txn([], [], [puts(put("k/1"))])),
        ("nested: read k/1", txn([], [nested(txn([], [reads("k/1", "")], []))], [])),
        ("nested: put z", txn([], [nested(txn([], [puts(put("z"))], []))], [])),
        ("nested: compare z", txn([], [nested(txn([compare("z", "")], [], []))], [])),
        ("nested, not taken: put z", txn([], [], [nested(txn([], [], [puts(put("z"))]))])),
        ("nested: empty", txn([], [nested(txn([], [], []))], [])),
        ("an empty op", txn([], [RequestOp::default()], [])),
        ("put z twice", txn([], [puts(put("z")), puts(put("z"))], [])),
        ("read: no key", txn([], [reads("", "")], [])),
    ];
    let done = |reply: TxnResponse| format!("{}/{}", reply.succeeded, reply.responses.len());
    let row = |(shape, request)| {
        Row::new("KV/Txn", shape, request).fact(done).after("KV/Put", put("k/1"))
    };
    shapes.into_iter().map(row).collect()
}

fn compact_rows() -> Vec<Row> {
    let future = CompactionRequest { revision: 1 << 40, ..Default::default() };
    vec![Row::new("KV/Compact", "future revision", future)]
}

/// Describes the first response of a watcher.
fn watcher(reply: WatchResponse) -> String {
    let id = if reply.watch_id == 0 { String::new() } else { format!(",id={}", reply.watch_id) };
    let created = if reply.created { "created" } else { "" };
    let canceled = if reply.canceled { ",canceled" } else { "" };
    let reason = match reply.cancel_reason.as_str() {
        "" => String::new(),
        reason => format!(",{reason}"),
    };
    format!("{created}{id}{canceled}{reason}")
}

fn watch_rows() -> Vec<Row> {
    let watch = |key: &'static str, range_end: &'static str| WatchCreateRequest {
        key: key.into(),
        range_end: range_end.into(),
        ..Default::default()
    };
    let shapes = [
        ("k/1", watch("k/1", "")),
        ("z", watch("z", "")),
        ("k/ .. k0", watch("k/", "k0")),
        ("k/1 .. k/2", watch("k/1", "k/2")),
        ("k/ .. k1 (wider)", watch("k/", "k1")),
        ("k/ .. \\0 (from key)", watch("k/", "\0")),
        ("k/2 .. k/1 (empty)", watch("k/2", "k/1")),
        ("no key", watch("", "")),
        ("no key .. \\0 (all)", watch("", "\0")),
        ("\\0 .. \\0 (all)", watch("\0", "\0")),
        ("k/1, prev_kv", WatchCreateRequest { prev_kv: true, ..watch("k/1", "") }),
        ("k/1, from revision 1", WatchCreateRequest { start_revision: 1, ..watch("k/1", "") }),
        ("k/1, from revision -1", WatchCreateRequest { start_revision: -1, ..watch("k/1", "") }),
        ("k/1, id 7", WatchCreateRequest { watch_id: 7, ..watch("k/1", "") }),
    ];
    let mut rows = Vec::new();
    for (shape, create) in shapes {
        let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        rows.push(Row::new("Watch/Watch", shape, request).fact(watcher));
    }
    rows
}
