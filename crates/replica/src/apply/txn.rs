//! A transaction: compare, then run one of two lists, all of it or nothing.
//!
//! Changes of a write transaction of the store cannot be rolled back. So there are three passes,
//! and the first two, which read the state before the transaction, refuse whatever may be refused:
//!
//! ```text
//!   plan    asks the compares, of nested transactions, too    ─▶ which list runs, at each level
//!   check   looks at what runs, in its order                  ─▶ or refused, nothing has changed
//!   run     does it, in one write transaction                 ─▶ one answer per operation
//! ```
//!
//! Long ranges are read behind the transaction, on another thread: `TxnReads`.
//!
//! The response of a nested transaction has an empty header; all others have the revision that they
//! have seen or made. The rules in detail: `TxnPlan`.

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

/// Number of changes since the compares were evaluated. At more, a walk over the index may cost
/// less.
const CHANGES_MAX: usize = 4096;

/// Whether a transaction can be answered without the log: both lists have ranges only. As in etcd,
/// a nested transaction counts as a write.
pub fn is_read_only(request: &TxnRequest) -> bool {
    let mut ops = request.success.iter().chain(&request.failure);
    ops.all(|op| matches!(op.request, Some(Request::RequestRange(_))))
}

/// Panics unless the transaction [is read-only](is_read_only).
pub fn read_txn(
    read: &(dyn ReadTxn + '_),
    request: &TxnRequest,
) -> crate::Result<Result<TxnResponse, RequestRejection>> {
    assert!(is_read_only(request), "a transaction that writes goes through the log");
    split_error(run_on_snapshot(read, request))
}

pub(crate) fn run_on_snapshot(
    read: &(dyn ReadTxn + '_),
    request: &TxnRequest,
) -> Result<TxnResponse, ApplyError> {
    run_read_only(read, request, |_, range| execute_range(read, range))
}

/// `read_range` gets the number of the operation, too.
pub(crate) fn run_read_only(
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
/// The compares of a nested transaction see the state before the whole transaction, not the puts in
/// front of it; so does the revision of a range, which is checked only on the list that runs. A
/// negative revision counts as compacted there; in a plain range it is the current one.
///
/// In etcd's eras planning and checking hold the lock that etcd holds for them
/// ([`Store::begin_read_for_writer`](clearlane_mvcc::Store::begin_read_for_writer)), and release it
/// before the write transaction begins. There is one applier, so no other write comes in between.
#[derive(Debug)]
pub(crate) struct TxnPlan<'r> {
    succeeded: bool,
    ops: &'r [RequestOp],
    /// Plans of the nested transactions, in order.
    nested: Vec<TxnPlan<'r>>,
}

impl<'r> TxnPlan<'r> {
    /// Evaluates the compares; those of the transaction itself with what is known of them.
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

    /// Refuses what would fail in [`TxnPlan::run`].
    pub(crate) fn check(
        &self,
        read: &(dyn ReadTxn + '_),
        has_lease: &dyn Fn(i64) -> bool,
    ) -> Result<(), ApplyError> {
        PlanChecker { read, has_lease, deleted_from: None }.check_plan(self)
    }

    /// Runs the plan after [`TxnPlan::check`]. A failure here is a request that has not passed
    /// [`check`](super::check()), and the member stops.
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

/// Whether the compares hold in this state, if few changes tell.
fn known_now(
    read: &(dyn ReadTxn + '_),
    request: &TxnRequest,
    known: &EvaluatedCompares,
) -> Option<bool> {
    // A record that cannot be read stops the member only if a whole evaluation needs it.
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

/// Refuses operations that cannot be carried out, in the order in which they run.
///
/// The check for [overlaps](super::check_overlap) does not see an open-ended delete (from `k` on),
/// so a put with `ignore_value` may follow the delete of its key. etcd's members all stop there.
/// Here the put is refused, like any with `ignore_value` for a missing key.
struct PlanChecker<'t, 'r> {
    read: &'t (dyn ReadTxn + 't),
    has_lease: &'t dyn Fn(i64) -> bool,
    /// All keys from here on were deleted by an earlier operation.
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

    /// Only open-ended deletes matter: a put after any other delete is refused as an overlap.
    fn record_delete(&mut self, request: &'r DeleteRangeRequest) {
        if key_span::is_open_end(&request.range_end) {
            let from = &request.key[..];
            self.deleted_from = Some(self.deleted_from.map_or(from, |before| before.min(from)));
        }
    }
}
