//! The maximum size of the store: etcd's `--quota-backend-bytes`.
//!
//! ```text
//!   cost    put: 256 + key + value   lease: 64   transaction: its most expensive list   others: 0
//!   size + cost < quota    proposed; a request with cost 0 is proposed at any size
//!   otherwise              rejected; the member raises NOSPACE (see `alarms`)
//! ```
//!
//! The check is made before a request is proposed, with the size as of the last commit, so
//! concurrent requests together may exceed the quota. After a commit that contains a request with a
//! cost, the member checks the size again, and raises the alarm if the store is over its quota.
//! After an operator has disarmed the alarm, only a later request with a cost can raise it again.
//!
//! The size is not the size of the files. It is the number of bytes of all keys and values,
//! including history. When records are deleted, the size does not fall until the store is opened,
//! rewritten or replaced (`docs/decisions/server-quota.md`, `docs/maintenance.md`).

use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::{InternalRaftRequest, PutRequest, RequestOp, TxnRequest};

/// etcd's default quota.
const DEFAULT_BYTES: i64 = 2 << 30;
const LEASE_COST: u64 = 64;
const PUT_COST: u64 = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    quota_bytes: i64,
}

impl Quota {
    /// Creates a quota from the value of etcd's flag: 0 means the default, a negative value means
    /// no limit.
    pub fn new(setting: i64) -> Quota {
        Quota { quota_bytes: if setting == 0 { DEFAULT_BYTES } else { setting } }
    }

    /// Returns the quota in bytes. It is negative if there is no limit.
    pub fn bytes(self) -> i64 {
        self.quota_bytes
    }

    pub fn allows(self, size: u64, cost: u64) -> bool {
        u64::try_from(self.quota_bytes).map_or(true, |quota| size.saturating_add(cost) < quota)
    }
}

/// Tracks applied entries with a cost until the store has committed them and the quota was checked
/// again.
#[derive(Debug, Default)]
pub struct UncheckedGrowth {
    /// `None` if the quota has been checked since the last applied entry with a cost. Otherwise the
    /// index of such an entry; the check is due once the store has committed this entry.
    first: Option<u64>,
    /// Index of the last applied entry with a cost.
    last: u64,
    /// Index of the last entry that the store has committed.
    durable: u64,
}

impl UncheckedGrowth {
    /// Records the index of the last applied entry with a cost, and of the last applied entry that
    /// has disarmed the alarm; 0 if there was none. Growth before a disarm is no reason to raise
    /// the alarm again.
    pub fn record_applied(&mut self, growth: u64, disarm: u64) {
        if growth > self.last {
            self.last = growth;
            self.first.get_or_insert(growth);
        }
        if self.first.is_some_and(|first| first < disarm) {
            self.first = (self.last > disarm).then_some(self.last);
        }
    }

    pub fn record_durable(&mut self, index: u64) {
        self.durable = index;
    }

    /// Returns whether the quota must be checked now, because an entry with a cost was committed.
    /// The caller must make the check: the next call returns false until another such entry is
    /// committed.
    pub fn take_due(&mut self) -> bool {
        let is_due = self.first.is_some_and(|first| first <= self.durable);
        if is_due {
            self.first = (self.last > self.durable).then_some(self.last);
        }
        is_due
    }
}

/// Estimates the bytes that a request adds to the store.
pub fn cost(request: &InternalRaftRequest) -> u64 {
    let put = request.put.as_ref().map_or(0, put_cost);
    let txn = request.txn.as_ref().map_or(0, txn_cost);
    let lease = if request.lease_grant.is_some() { LEASE_COST } else { 0 };
    put + txn + lease
}

fn put_cost(request: &PutRequest) -> u64 {
    PUT_COST + (request.key.len() + request.value.len()) as u64
}

/// Returns the cost of the more expensive of the two lists. Calls itself for nested transactions,
/// whose depth `check` limits.
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
    fn growth_is_checked_once_a_commit_contains_it() {
        let mut growth = UncheckedGrowth::default();
        growth.record_applied(0, 0);
        growth.record_durable(5);
        assert!(!growth.take_due(), "nothing has grown");
        growth.record_applied(7, 0);
        assert!(!growth.take_due(), "the commit of 7 is not there yet");
        growth.record_applied(9, 0);
        growth.record_durable(8);
        assert!(growth.take_due(), "a commit is checked while later entries are applied");
        assert!(!growth.take_due());
        growth.record_durable(9);
        assert!(growth.take_due() && !growth.take_due());
        growth.record_durable(12);
        assert!(!growth.take_due(), "what costs nothing is no cause");
        growth.record_applied(11, 0);
        assert!(growth.take_due(), "the commit was reported first");
        growth.record_applied(13, 0);
        growth.record_applied(14, 15);
        growth.record_durable(15);
        assert!(!growth.take_due(), "disarmed since");
        growth.record_applied(16, 15);
        growth.record_applied(18, 17);
        growth.record_durable(18);
        assert!(growth.take_due(), "18 came after the disarm");
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
