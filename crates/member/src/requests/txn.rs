//! A transaction: compare, then do one of two lists, all of it or nothing.
//!
//! # The problem
//!
//! What a write transaction of the store has changed cannot be taken back. So whatever may be
//! refused must be refused before the first change, although the operations run one after the
//! other, and each sees what those before it did.
//!
//! # The idea
//!
//! Three passes. The first two only read, and both look at the state before the transaction:
//!
//! ```text
//!   plan    ask the compares, of nested transactions, too     ─▶ which list runs, at each level
//!   permit  what runs, in its order: revisions that are read,
//!           leases, keys to keep something of                 ─▶ or refused, nothing has changed
//!   run     do it, in one write transaction                   ─▶ one answer per operation
//! ```
//!
//! A nested transaction's compares thus know nothing of what is put in front of them:
//!
//! ```text
//!   put w=1
//!   txn  if value of w is 1    w is not there yet: the else list runs
//! ```
//!
//! In the eras of etcd the first two passes hold the lock that etcd holds for them
//! ([`Store::read_for_writer`](clearlane_mvcc::Store::read_for_writer)), and let it go before the
//! write transaction is opened. Nobody else writes in between: there is one applier.
//!
//! # What holds
//!
//! * A range with a revision is measured by the revision before the transaction, and only on the
//!   list that runs. A negative revision counts as one, and is compacted; a plain range takes it for
//!   the current one.
//! * The answer of a nested transaction has an empty header, all others have the revision that they
//!   have seen or made.
//!
//! # What etcd does that is left out
//!
//! Its check for overlaps ([`overlap`](super::overlap)) does not see a delete "from `k` on", so a
//! put that keeps the old value of a key may come behind the delete of that key. etcd's members stop
//! there, all of them. Here the put is refused, like any that has nothing to keep.

use clearlane_mvcc::{ReadTxn, WriteTxn};
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::response_op::Response;
use clearlane_proto::etcdserverpb::{
    DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, ResponseHeader, ResponseOp,
    TxnRequest, TxnResponse,
};

use super::compare::all_hold;
use super::range::{evaluate, record};
use super::refused::{Refused, Stop, apart};
use super::{header, span, write};
use crate::error::Error;
use crate::progress::Progress;

/// Whether a transaction can be answered without the log: all its operations are ranges, in both
/// lists. As in etcd, one inside of it counts as a write.
pub fn is_read_only(request: &TxnRequest) -> bool {
    let mut ops = request.success.iter().chain(&request.failure);
    ops.all(|op| matches!(op.request, Some(Request::RequestRange(_))))
}

/// Answers a transaction that [is read-only](is_read_only). Another one is a bug.
pub fn read_txn(
    read: &(dyn ReadTxn + '_),
    request: &TxnRequest,
) -> crate::Result<Result<TxnResponse, Refused>> {
    assert!(is_read_only(request), "a transaction that writes goes through the log");
    apart(run_on_view(read, request))
}

fn run_on_view(read: &(dyn ReadTxn + '_), request: &TxnRequest) -> Result<TxnResponse, Stop> {
    let plan = Plan::of(read, request)?;
    plan.permit(read, &|_| false)?;
    let mut responses = Vec::with_capacity(plan.ops.len());
    for op in plan.ops {
        let Some(Request::RequestRange(range)) = &op.request else { continue };
        let response = Some(Response::ResponseRange(evaluate(read, range)?));
        responses.push(ResponseOp { response });
    }
    Ok(TxnResponse { header: Some(header(read.revision())), succeeded: plan.succeeded, responses })
}

/// What of a transaction runs.
#[derive(Debug)]
pub(crate) struct Plan<'r> {
    succeeded: bool,
    ops: &'r [RequestOp],
    /// Of the transactions among the operations, in their order.
    nested: Vec<Plan<'r>>,
}

impl<'r> Plan<'r> {
    /// Asks the compares.
    pub(crate) fn of(read: &(dyn ReadTxn + '_), request: &'r TxnRequest) -> Result<Plan<'r>, Stop> {
        let succeeded = all_hold(read, &request.compare)?;
        let ops = if succeeded { &request.success } else { &request.failure };
        let txns = ops.iter().filter_map(|op| match &op.request {
            Some(Request::RequestTxn(txn)) => Some(txn),
            _ => None,
        });
        let nested = txns.map(|txn| Plan::of(read, txn)).collect::<Result<_, Stop>>()?;
        Ok(Plan { succeeded, ops, nested })
    }

    /// Whether nothing of it will be refused.
    pub(crate) fn permit(
        &self,
        read: &(dyn ReadTxn + '_),
        has_lease: &dyn Fn(i64) -> bool,
    ) -> Result<(), Stop> {
        Permit { read, has_lease, gone_from: None }.all(self)
    }

    /// Does it. [`Plan::permit`] was there, so a refusal in the middle is a request that has not
    /// passed [`check`](super::check()), and the member stops.
    pub(crate) fn run(
        &self,
        txn: &mut (dyn WriteTxn<Progress> + '_),
    ) -> crate::Result<TxnResponse> {
        let mut response = self.run_ops(txn)?;
        response.header = Some(header(txn.revision()));
        Ok(response)
    }

    fn run_ops(&self, txn: &mut (dyn WriteTxn<Progress> + '_)) -> crate::Result<TxnResponse> {
        let mut responses = Vec::with_capacity(self.ops.len());
        let mut nested = self.nested.iter();
        for op in self.ops {
            let response = match &op.request {
                Some(Request::RequestTxn(_)) => {
                    let plan = nested.next().expect("there is a plan for each transaction");
                    Some(Response::ResponseTxn(plan.run_ops(txn)?))
                }
                Some(request) => Some(run_op(txn, request).map_err(half_way)?),
                None => None,
            };
            responses.push(ResponseOp { response });
        }
        let header = Some(ResponseHeader::default());
        Ok(TxnResponse { header, succeeded: self.succeeded, responses })
    }
}

fn run_op(txn: &mut (dyn WriteTxn<Progress> + '_), request: &Request) -> Result<Response, Stop> {
    Ok(match request {
        Request::RequestRange(range) => Response::ResponseRange(evaluate(txn, range)?),
        Request::RequestPut(put) => Response::ResponsePut(write::put(txn, put)?),
        Request::RequestDeleteRange(delete) => {
            Response::ResponseDeleteRange(write::delete_range(txn, delete)?)
        }
        Request::RequestTxn(_) => unreachable!("a transaction has a plan of its own"),
    })
}

fn half_way(stop: Stop) -> Error {
    match stop {
        Stop::Failed(error) => error,
        Stop::Refused(refused) => Error::damaged(
            "a transaction in the log",
            format!("it was not checked before it was proposed: {refused}"),
        ),
    }
}

/// The walk that permits.
struct Permit<'t, 'r> {
    /// The state before the transaction.
    read: &'t (dyn ReadTxn + 't),
    has_lease: &'t dyn Fn(i64) -> bool,
    /// From this key on all were deleted by an operation that came before.
    gone_from: Option<&'r [u8]>,
}

impl<'r> Permit<'_, 'r> {
    fn all(&mut self, plan: &Plan<'r>) -> Result<(), Stop> {
        let mut nested = plan.nested.iter();
        for op in plan.ops {
            match &op.request {
                Some(Request::RequestRange(range)) => self.range(range)?,
                Some(Request::RequestPut(put)) => self.put(put)?,
                Some(Request::RequestDeleteRange(delete)) => self.delete(delete),
                Some(Request::RequestTxn(_)) => nested.next().map_or(Ok(()), |it| self.all(it))?,
                None => {}
            }
        }
        Ok(())
    }

    fn range(&self, request: &RangeRequest) -> Result<(), Stop> {
        match request.revision {
            0 => Ok(()),
            revision if revision > self.read.revision() => Err(Refused::FutureRevision.into()),
            revision if revision < self.read.compact_revision() => Err(Refused::Compacted.into()),
            _ => Ok(()),
        }
    }

    fn put(&self, request: &PutRequest) -> Result<(), Stop> {
        write::permit_lease(request, self.has_lease)?;
        if write::keeps(request) {
            let is_gone = self.gone_from.is_some_and(|from| &request.key[..] >= from);
            if is_gone || record(self.read, &request.key)?.is_none() {
                return Err(Refused::KeyNotFound.into());
            }
        }
        Ok(())
    }

    /// Only deletes that are open at their end matter: over any other one no put gets by the check.
    fn delete(&mut self, request: &'r DeleteRangeRequest) {
        if span::is_open(&request.range_end) {
            let from = &request.key[..];
            self.gone_from = Some(self.gone_from.map_or(from, |before| before.min(from)));
        }
    }
}
