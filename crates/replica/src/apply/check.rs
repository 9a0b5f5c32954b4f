//! Checks that a request must pass before it is proposed. They do not need the store.
//!
//! Every member applies every entry, so a request that is invalid whatever the store contains must
//! be rejected before it becomes an entry. The checks are in etcd's order, so a request with two
//! errors gets the same error as in etcd.
//!
//! `--max-txn-ops` limits each of the three lists of a transaction: compares, success and failure.
//! For a nested transaction the limit is smaller, by the length of the longest list of the outer
//! transaction. With a limit of 128, for example, a list of a hundred operations may contain a
//! transaction with 28 operations, but not one with 29. [`TXNS_DEEP_MAX`] limits the nesting.

use clearlane_engine::KEY_BYTES_MAX;
use clearlane_proto::Message;
use clearlane_proto::etcdserverpb::alarm_request::AlarmAction;
use clearlane_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::{
    InternalRaftRequest, LeaseGrantRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
};
use clearlane_proto::nested::TXNS_DEEP_MAX;

use super::check_overlap::TouchedKeys;
use super::lease::ID_MASK;
use super::rejection::RequestRejection;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// etcd's `--max-txn-ops`.
    pub txn_ops_max: usize,
    /// etcd's `--max-request-bytes`: the maximum length of an entry.
    pub request_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { txn_ops_max: 128, request_bytes_max: 3 << 19 }
    }
}

/// Checks whether a client's request may be proposed. The header is a part of the entry's length.
/// So the caller must set a header whose id has as many bytes as the final id of the entry. A log
/// read (a range without a key) is proposed by the member itself and is not checked here.
pub fn check(request: &InternalRaftRequest, limits: &Limits) -> Result<(), RequestRejection> {
    if let Some(request) = &request.range {
        range(request)?;
    }
    if let Some(request) = &request.put {
        put(request)?;
    }
    if let Some(request) = &request.delete_range {
        check_key(&request.key)?;
    }
    if let Some(request) = &request.txn {
        txn(request, limits)?;
    }
    if let Some(request) = &request.alarm {
        AlarmAction::try_from(request.action).map_err(|_| RequestRejection::UnknownAlarmAction)?;
    }
    let user = request.auth_user_add.as_ref().map(|add| &add.name);
    let role = request.auth_role_add.as_ref().map(|add| &add.name);
    if let Some(name) = user.or(role).filter(|name| name.len() > KEY_BYTES_MAX) {
        return Err(RequestRejection::NameTooLong(name.len()));
    }
    entry_size(request, limits)
}

pub fn entry_size(request: &InternalRaftRequest, limits: &Limits) -> Result<(), RequestRejection> {
    if entry_len(request) > limits.request_bytes_max {
        Err(RequestRejection::RequestTooLarge)
    } else {
        Ok(())
    }
}

/// Returns the length of the entry. If a lease is requested without an id, the length includes an
/// id, because the member sets one before it proposes the request.
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

/// Checks whether a range can be streamed. Rejects revision filters, and a sort direction other
/// than ascending by key. As in etcd, a sort target without a direction is allowed.
pub fn range_stream(request: &RangeRequest) -> Result<(), RequestRejection> {
    let has_direction = request.sort_order() != SortOrder::None;
    let has_order = has_direction && super::range::has_order(request);
    match (has_order, super::range::is_filtered(request)) {
        (true, _) => Err(RequestRejection::StreamOrder),
        (_, true) => Err(RequestRejection::StreamFilter),
        _ => Ok(()),
    }
}

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

pub fn txn(request: &TxnRequest, limits: &Limits) -> Result<(), RequestRejection> {
    check_txn(request, limits.txn_ops_max, TXNS_DEEP_MAX)?;
    TouchedKeys::collect(&request.success)?;
    TouchedKeys::collect(&request.failure)?;
    Ok(())
}

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
        Some(Request::RequestDeleteRange(request)) => check_key(&request.key),
        Some(Request::RequestTxn(request)) => check_txn(request, ops_max, deep_max),
        None => Err(RequestRejection::KeyNotFound),
    }
}

fn check_key(key: &[u8]) -> Result<(), RequestRejection> {
    if key.is_empty() { Err(RequestRejection::EmptyKey) } else { Ok(()) }
}
