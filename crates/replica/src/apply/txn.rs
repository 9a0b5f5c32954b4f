//! A transaction evaluates its compares. Then it runs one of its two lists completely, or it is
//! rejected and changes nothing.
//!
//! Changes in a write transaction of the store cannot be rolled back. So there are three passes.
//! The first two passes read the state before the transaction. All rejections happen in these
//! passes:
//!
//! ```text
//!   plan    evaluates the compares, also of nested transactions   selects a list at each level
//!   check   checks the selected operations in their order         may reject: nothing has changed
//!   run     runs them in one write transaction                    one response per operation
//! ```
//!
//! In the default era long ranges are read after the transaction, on another thread (see
//! `TxnReads`).
//!
//! The response of a nested transaction has an empty header. Every other header has the revision
//! that the operation has read or created. `TxnPlan` documents the rules in detail.

use clearlane_mvcc::{ReadTxn, WriteTxn};
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::response_op::Response;
use clearlane_proto::etcdserverpb::{
    DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse, RequestOp, ResponseHeader,
    ResponseOp, TxnRequest, TxnResponse,
};

use super::compare::all_hold;
use super::evaluated_compares::EvaluatedCompares;
use super::range::{execute_range, get_record};
use super::rejection::{ApplyError, RequestRejection, split_error};
use super::txn_reads::TxnReads;
use super::{header, key_span, put_delete};
use crate::applied_position::AppliedPosition;
use crate::error::Error;

/// Maximum number of changes that an update of evaluated compares checks. If there are more
/// changes, a walk over the index may cost less.
const CHANGES_MAX: usize = 4096;

/// Returns whether a transaction can be answered without the log: both lists have only ranges. As
/// in etcd, a nested transaction is considered a write, even if it has only ranges.
pub fn is_read_only(request: &TxnRequest) -> bool {
    let mut ops = request.success.iter().chain(&request.failure);
    ops.all(|op| matches!(op.request, Some(Request::RequestRange(_))))
}

/// Runs a read-only transaction. Panics unless the transaction [is read-only](is_read_only).
pub fn read_only_txn(
    read: &(dyn ReadTxn + '_),
    request: &TxnRequest,
) -> crate::Result<Result<TxnResponse, RequestRejection>> {
    assert!(is_read_only(request), "a transaction that writes goes through the log");
    split_error(run_on_snapshot(read, request))
}

pub fn run_on_snapshot(
    read: &(dyn ReadTxn + '_),
    request: &TxnRequest,
) -> Result<TxnResponse, ApplyError> {
    run_read_only(read, request, |_, range| execute_range(read, range))
}

/// Runs a read-only transaction. `read_range` gets the number of the operation and its range.
pub fn run_read_only(
    read: &(dyn ReadTxn + '_),
    request: &TxnRequest,
    mut read_range: impl FnMut(usize, &RangeRequest) -> Result<RangeResponse, ApplyError>,
) -> Result<TxnResponse, ApplyError> {
    let plan = TxnPlan::new(read, request, None)?;
    plan.check(read, &|_| false)?;
    let mut responses = Vec::with_capacity(plan.ops.len());
    for op in plan.ops {
        let Some(Request::RequestRange(range)) = &op.request else { continue };
        let response = Some(Response::ResponseRange(read_range(responses.len(), range)?));
        responses.push(ResponseOp { response });
    }
    Ok(TxnResponse { header: Some(header(read.revision())), succeeded: plan.succeeded, responses })
}

/// The operations that a transaction runs.
///
/// The compares of a nested transaction see the state before the whole transaction, without its
/// earlier puts and deletes. The revision of a range is also checked against that state, and only
/// in the list that runs. As in etcd, a revision below the compacted revision is rejected, even if
/// it is negative. In a plain range a negative revision means the current revision.
///
/// In etcd's eras planning and checking hold the lock that etcd holds for them
/// ([`Store::begin_read_for_writer`](clearlane_mvcc::Store::begin_read_for_writer)), and release it
/// before the write transaction starts. Only one thread applies entries, so no other write can
/// happen in between.
#[derive(Debug)]
pub(crate) struct TxnPlan<'r> {
    succeeded: bool,
    ops: &'r [RequestOp],
    /// The plans of the nested transactions, in order.
    nested: Vec<TxnPlan<'r>>,
}

impl<'r> TxnPlan<'r> {
    /// Makes the plan: evaluates the compares of the transaction, and of each nested transaction
    /// that would run. `compares` is an earlier result for the transaction's own compares, or
    /// `None` if there is none.
    pub(crate) fn new(
        read: &(dyn ReadTxn + '_),
        request: &'r TxnRequest,
        compares: Option<&EvaluatedCompares>,
    ) -> Result<TxnPlan<'r>, ApplyError> {
        let succeeded = match compares.and_then(|known| known_now(read, request, known)) {
            Some(hold) => hold,
            None => all_hold(read, &request.compare)?,
        };
        let ops = if succeeded { &request.success } else { &request.failure };
        let txns = ops.iter().filter_map(|op| match &op.request {
            Some(Request::RequestTxn(txn)) => Some(txn),
            _ => None,
        });
        let nested = txns.map(|txn| TxnPlan::new(read, txn, None));
        let nested = nested.collect::<Result<_, ApplyError>>()?;
        Ok(TxnPlan { succeeded, ops, nested })
    }

    #[cfg(test)]
    pub(super) fn succeeded(&self) -> bool {
        self.succeeded
    }

    /// Rejects operations that would fail in [`TxnPlan::run`].
    pub(crate) fn check(
        &self,
        read: &(dyn ReadTxn + '_),
        has_lease: &dyn Fn(i64) -> bool,
    ) -> Result<(), ApplyError> {
        PlanChecker { read, has_lease, deleted_from: None }.check_plan(self)
    }

    /// Runs the plan. The caller must have called [`TxnPlan::check`]. If a step fails, the member
    /// stops: the store has failed, or the request has not passed [`check`](super::check()).
    pub(crate) fn run(
        &self,
        txn: &mut (dyn WriteTxn<AppliedPosition> + '_),
        reads: &mut TxnReads,
    ) -> crate::Result<TxnResponse> {
        let mut response = self.run_ops(txn, reads)?;
        response.header = Some(header(txn.revision()));
        Ok(response)
    }

    fn run_ops(
        &self,
        txn: &mut (dyn WriteTxn<AppliedPosition> + '_),
        reads: &mut TxnReads,
    ) -> crate::Result<TxnResponse> {
        let mut responses = Vec::with_capacity(self.ops.len());
        let mut nested = self.nested.iter();
        for op in self.ops {
            let response = match &op.request {
                Some(Request::RequestTxn(_)) => {
                    let plan = nested.next().expect("there is a plan for each transaction");
                    Some(Response::ResponseTxn(plan.run_ops(txn, reads)?))
                }
                Some(request) => {
                    let response = run_op(txn, request, reads).map_err(fatal_error)?;
                    reads.end_operation(!matches!(request, Request::RequestRange(_)));
                    Some(response)
                }
                None => None,
            };
            responses.push(ResponseOp { response });
        }
        let header = Some(ResponseHeader::default());
        Ok(TxnResponse { header, succeeded: self.succeeded, responses })
    }
}

/// Returns whether the compares hold in this state, by updating an earlier result. Returns `None`
/// if only a full evaluation can decide, or if the update fails.
fn known_now(
    read: &(dyn ReadTxn + '_),
    request: &TxnRequest,
    known: &EvaluatedCompares,
) -> Option<bool> {
    // An unreadable record stops the member only if a full evaluation needs it.
    let now = known.update(read, &request.compare, CHANGES_MAX).ok().flatten();
    now.map(|now| now.hold())
}

fn run_op(
    txn: &mut (dyn WriteTxn<AppliedPosition> + '_),
    request: &Request,
    reads: &mut TxnReads,
) -> Result<Response, ApplyError> {
    Ok(match request {
        Request::RequestRange(range) => Response::ResponseRange(reads.range(txn, range)?),
        Request::RequestPut(put) => Response::ResponsePut(put_delete::put(txn, put)?),
        Request::RequestDeleteRange(delete) => {
            Response::ResponseDeleteRange(put_delete::delete_range(txn, delete, reads)?)
        }
        Request::RequestTxn(_) => unreachable!("a transaction has a plan of its own"),
    })
}

fn fatal_error(stop: ApplyError) -> Error {
    match stop {
        ApplyError::Fatal(error) => error,
        ApplyError::Rejected(refused) => Error::damaged(
            "a transaction in the log",
            format!("it was not checked before it was proposed: {refused}"),
        ),
    }
}

/// Checks the operations in the order in which they run. The first operation that cannot be carried
/// out determines the rejection.
///
/// The check for [overlaps](super::check_overlap) does not see an open-ended delete (of all keys
/// from `k` on). So a put with `ignore_value` or `ignore_lease` may follow the delete of its key.
/// etcd's members all stop at such an entry. Here the transaction is rejected, as with any put with
/// these options for a missing key.
struct PlanChecker<'t, 'r> {
    read: &'t (dyn ReadTxn + 't),
    has_lease: &'t dyn Fn(i64) -> bool,
    /// If not `None`, earlier operations have deleted this key and all larger keys.
    deleted_from: Option<&'r [u8]>,
}

impl<'r> PlanChecker<'_, 'r> {
    fn check_plan(&mut self, plan: &TxnPlan<'r>) -> Result<(), ApplyError> {
        let mut nested = plan.nested.iter();
        for op in plan.ops {
            match &op.request {
                Some(Request::RequestRange(range)) => self.check_range(range)?,
                Some(Request::RequestPut(put)) => self.check_put(put)?,
                Some(Request::RequestDeleteRange(delete)) => self.record_delete(delete),
                Some(Request::RequestTxn(_)) => {
                    nested.next().map_or(Ok(()), |it| self.check_plan(it))?
                }
                None => {}
            }
        }
        Ok(())
    }

    fn check_range(&self, request: &RangeRequest) -> Result<(), ApplyError> {
        match request.revision {
            0 => Ok(()),
            revision if revision > self.read.revision() => {
                Err(RequestRejection::FutureRevision.into())
            }
            revision if revision < self.read.compact_revision() => {
                Err(RequestRejection::Compacted.into())
            }
            _ => Ok(()),
        }
    }

    fn check_put(&self, request: &PutRequest) -> Result<(), ApplyError> {
        put_delete::check_lease(request, self.has_lease)?;
        if put_delete::keeps_previous(request) {
            let is_gone = self.deleted_from.is_some_and(|from| &request.key[..] >= from);
            if is_gone || get_record(self.read, &request.key)?.is_none() {
                return Err(RequestRejection::KeyNotFound.into());
            }
        }
        Ok(())
    }

    /// Records an open-ended delete. Other deletes do not matter, because a later put of a deleted
    /// key is rejected as an overlap before the transaction is proposed.
    fn record_delete(&mut self, request: &'r DeleteRangeRequest) {
        if key_span::is_open_end(&request.range_end) {
            let from = &request.key[..];
            self.deleted_from = Some(self.deleted_from.map_or(from, |before| before.min(from)));
        }
    }
}
