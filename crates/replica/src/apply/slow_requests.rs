//! Finds requests that may take a long time to apply.

use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::{InternalRaftRequest, RequestOp, TxnRequest};

/// Returns whether a request may take a long time: it deletes a range of keys, revokes a lease, or
/// is a transaction that reads, compares or deletes a range. The number of keys is not known
/// beforehand.
pub(crate) fn may_take_long(request: &InternalRaftRequest) -> bool {
    let deletes = request.delete_range.as_ref().is_some_and(|delete| !delete.range_end.is_empty());
    deletes || request.lease_revoke.is_some() || request.txn.as_ref().is_some_and(txn)
}

fn txn(request: &TxnRequest) -> bool {
    request.compare.iter().any(|compare| !compare.range_end.is_empty())
        || request.success.iter().chain(&request.failure).any(op)
}

fn op(op: &RequestOp) -> bool {
    match &op.request {
        Some(Request::RequestRange(range)) => !range.range_end.is_empty(),
        Some(Request::RequestDeleteRange(delete)) => !delete.range_end.is_empty(),
        Some(Request::RequestTxn(nested)) => txn(nested),
        Some(Request::RequestPut(_)) | None => false,
    }
}
