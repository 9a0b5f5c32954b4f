//! What can be told of a request before it is proposed, without the store.
//!
//! A request in the log is applied by every member, and cannot be taken out again. So what is wrong
//! in itself is refused here, by the member that was asked. The checks are made in etcd's order: a
//! request that is wrong twice gets the answer that etcd would give.
//!
//! A transaction inside of another has as its budget of operations what the longest of the outer
//! one's three lists has left over of `--max-txn-ops`: with 128, a hundred operations of which one
//! is a transaction of 28 are served, and with one of 29 they are refused. [`TXNS_DEEP_MAX`] bounds
//! how deep transactions lie in each other.

use clearlane_proto::Message;
use clearlane_proto::etcdserverpb::alarm_request::AlarmAction;
use clearlane_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::{
    DeleteRangeRequest, InternalRaftRequest, LeaseGrantRequest, PutRequest, RangeRequest,
    RequestOp, TxnRequest,
};
use clearlane_proto::nested::TXNS_DEEP_MAX;

use super::check_overlap::TouchedKeys;
use super::lease::ID_MASK;
use super::rejection::RequestRejection;

/// How much a request may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// etcd's `--max-txn-ops`.
    pub txn_ops_max: usize,
    /// etcd's `--max-request-bytes`: how long an entry of the log may be.
    pub request_bytes_max: usize,
}

/// etcd's.
impl Default for Limits {
    fn default() -> Limits {
        Limits { txn_ops_max: 128, request_bytes_max: 3 << 19 }
    }
}

/// Whether a client's request may be proposed. Its header counts: it is a part of the entry. So
/// there must be one with an id that is as long as the one that the entry gets.
///
/// The mark of a log read, a range without a key, comes from the member itself and not through
/// here.
pub fn check(request: &InternalRaftRequest, limits: &Limits) -> Result<(), RequestRejection> {
    if let Some(request) = &request.range {
        range(request)?;
    }
    if let Some(request) = &request.put {
        put(request)?;
    }
    if let Some(request) = &request.delete_range {
        delete_range(request)?;
    }
    if let Some(request) = &request.txn {
        txn(request, limits)?;
    }
    if let Some(request) = &request.alarm {
        AlarmAction::try_from(request.action).map_err(|_| RequestRejection::UnknownAlarmAction)?;
    }
    if entry_len(request) > limits.request_bytes_max {
        Err(RequestRejection::RequestTooLarge)
    } else {
        Ok(())
    }
}

/// How long an entry is once the lease that it grants, if it does, has an id.
fn entry_len(request: &InternalRaftRequest) -> usize {
    match (&request.lease_grant, &request.header) {
        (Some(grant), Some(header)) if grant.id == 0 => {
            let id = (header.id & ID_MASK) as i64;
            let lease_grant = Some(LeaseGrantRequest { id, ..*grant });
            let header = request.header.clone();
            InternalRaftRequest { header, lease_grant, ..Default::default() }.encoded_len()
        }
        _ => request.encoded_len(),
    }
}

/// Whether a range can be sent in pages. Of another order than that of the keys etcd looks only at
/// the direction: a target without one is served.
pub fn range_stream(request: &RangeRequest) -> Result<(), RequestRejection> {
    let has_direction = request.sort_order() != SortOrder::None;
    let has_order = has_direction && super::range::has_order(request);
    match (has_order, super::range::is_filtered(request)) {
        (true, _) => Err(RequestRejection::StreamOrder),
        (_, true) => Err(RequestRejection::StreamFilter),
        _ => Ok(()),
    }
}

/// Whether a range makes sense.
pub fn range(request: &RangeRequest) -> Result<(), RequestRejection> {
    check_key(&request.key)?;
    let order = SortOrder::try_from(request.sort_order);
    let target = SortTarget::try_from(request.sort_target);
    if order.is_ok() && target.is_ok() { Ok(()) } else { Err(RequestRejection::InvalidSortOption) }
}

fn put(request: &PutRequest) -> Result<(), RequestRejection> {
    check_key(&request.key)?;
    if request.ignore_value && !request.value.is_empty() {
        return Err(RequestRejection::ValueProvided);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(RequestRejection::LeaseProvided);
    }
    Ok(())
}

fn delete_range(request: &DeleteRangeRequest) -> Result<(), RequestRejection> {
    check_key(&request.key)
}

/// Whether a transaction makes sense.
pub fn txn(request: &TxnRequest, limits: &Limits) -> Result<(), RequestRejection> {
    check_txn(request, limits.txn_ops_max, TXNS_DEEP_MAX)?;
    TouchedKeys::collect(&request.success)?;
    TouchedKeys::collect(&request.failure)?;
    Ok(())
}

/// A transaction that may have so many operations and lie so deep.
fn check_txn(
    request: &TxnRequest,
    ops_max: usize,
    deep_max: usize,
) -> Result<(), RequestRejection> {
    let TxnRequest { compare, success, failure } = request;
    let longest = compare.len().max(success.len()).max(failure.len());
    let left = ops_max.checked_sub(longest).ok_or(RequestRejection::TooManyOps)?;
    let deeper = deep_max.checked_sub(1).ok_or(RequestRejection::TooManyOps)?;
    compare.iter().try_for_each(|compare| check_key(&compare.key))?;
    success.iter().chain(failure).try_for_each(|op| check_op(op, left, deeper))
}

fn check_op(op: &RequestOp, ops_max: usize, deep_max: usize) -> Result<(), RequestRejection> {
    match &op.request {
        Some(Request::RequestRange(request)) => range(request),
        Some(Request::RequestPut(request)) => put(request),
        Some(Request::RequestDeleteRange(request)) => delete_range(request),
        Some(Request::RequestTxn(request)) => check_txn(request, ops_max, deep_max),
        None => Err(RequestRejection::KeyNotFound),
    }
}

fn check_key(key: &[u8]) -> Result<(), RequestRejection> {
    if key.is_empty() { Err(RequestRejection::EmptyKey) } else { Ok(()) }
}
