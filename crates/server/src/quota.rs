//! How large may the store become?
//!
//! # The problem
//!
//! A store that grows until its disk is full ends badly: the log cannot be written any more, and
//! nothing that would make room can be, either. So it is stopped before, while deletes and
//! compactions still have a place to be written to.
//!
//! # The idea
//!
//! Each request has a *cost*, etcd's estimate of what it adds, and the store a *size*:
//!
//! ```text
//!   put              256 + key + value
//!   lease            64
//!   transaction      the dearer of its two lists
//!   anything else    0: it is let through, whatever the size
//!
//!   size + cost < quota    proposed
//!   otherwise              the member raises NOSPACE (see [`alarms`](crate::alarms)) and refuses
//! ```
//!
//! The check comes before the log, with the size as of the last commit. Requests that are on their
//! way together do not see each other, so the size may pass the quota by what a moment brings. The
//! member that finds itself beyond it after a commit raises the alarm then; so does a follower whose
//! store is larger than the leader's.
//!
//! # Which size?
//!
//! Not that of the files. An engine allots in advance and gives back late, and by how much is its own
//! affair: the smallest file of one is larger than a quota that a test of etcd's may set. What counts
//! is the bytes of all keys and values, history included, at their height since the store was last
//! rewritten:
//!
//! ```text
//!   bytes        ___compact___
//!          _____/             \        in use
//!     ____/                    \________
//!          __________________________
//!     ____/                          \__   size: falls by a defragmentation
//!                             defragment
//! ```
//!
//! That is what etcd's file does, whose pages are used again but not given back: a person who has
//! learnt "compact, defragment, disarm" there finds the same three steps here. The height is not
//! kept over a restart, where the size begins with what is in use.

use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::{InternalRaftRequest, PutRequest, RequestOp, TxnRequest};

/// etcd's default.
const DEFAULT_BYTES: i64 = 2 << 30;
const LEASE_COST: u64 = 64;
/// What a put costs besides its key and value.
const PUT_COST: u64 = 256;

/// How large the store may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    quota_bytes: i64,
}

impl Quota {
    /// As etcd's flag says it: 0 is the default, below is none.
    pub fn new(setting: i64) -> Quota {
        Quota { quota_bytes: if setting == 0 { DEFAULT_BYTES } else { setting } }
    }

    /// The bytes; below 0 if there is no limit.
    pub fn bytes(self) -> i64 {
        self.quota_bytes
    }

    /// Whether a store of this size may take a request of this cost.
    pub fn allows(self, size: u64, cost: u64) -> bool {
        u64::try_from(self.quota_bytes).map_or(true, |quota| size.saturating_add(cost) < quota)
    }
}

/// What a request adds to the store, about.
pub fn cost(request: &InternalRaftRequest) -> u64 {
    let put = request.put.as_ref().map_or(0, put_cost);
    let txn = request.txn.as_ref().map_or(0, txn_cost);
    let lease = if request.lease_grant.is_some() { LEASE_COST } else { 0 };
    put + txn + lease
}

fn put_cost(request: &PutRequest) -> u64 {
    PUT_COST + (request.key.len() + request.value.len()) as u64
}

/// How deep transactions lie in each other is checked before.
fn txn_cost(request: &TxnRequest) -> u64 {
    let all = |ops: &[RequestOp]| ops.iter().map(op_cost).sum::<u64>();
    all(&request.success).max(all(&request.failure))
}

fn op_cost(op: &RequestOp) -> u64 {
    match &op.request {
        Some(Request::RequestPut(request)) => put_cost(request),
        Some(Request::RequestTxn(request)) => txn_cost(request),
        Some(Request::RequestRange(_) | Request::RequestDeleteRange(_)) | None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put_of(bytes: usize) -> RequestOp {
        let put =
            PutRequest { key: "k".into(), value: vec![0; bytes].into(), ..Default::default() };
        RequestOp { request: Some(Request::RequestPut(put)) }
    }

    #[test]
    fn a_transaction_costs_what_its_dearer_list_does() {
        let inner = TxnRequest { success: vec![put_of(10)], ..TxnRequest::default() };
        let nested = RequestOp { request: Some(Request::RequestTxn(inner)) };
        let txn = TxnRequest {
            success: vec![put_of(1)],
            failure: vec![nested, put_of(3)],
            ..Default::default()
        };
        let request = InternalRaftRequest { txn: Some(txn), ..Default::default() };
        assert_eq!(cost(&request), (256 + 1 + 10) + (256 + 1 + 3));
        assert_eq!(cost(&InternalRaftRequest::default()), 0);
    }

    #[test]
    fn a_store_may_grow_up_to_its_quota() {
        assert!(Quota::new(100).allows(49, 50));
        assert!(!Quota::new(100).allows(50, 50));
        assert!(!Quota::new(100).allows(u64::MAX, 1), "no overflow");
        assert!(Quota::new(-1).allows(u64::MAX, u64::MAX));
        assert_eq!(Quota::new(0).bytes(), 2 << 30);
    }
}
