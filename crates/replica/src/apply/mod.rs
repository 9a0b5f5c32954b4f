//! Applies requests: an entry of the log becomes changes of the store and a response. In etcd:
//! `etcdserver/apply`. `docs/raft-and-apply.md` lists the effect of each request.
//!
//! ```text
//!   request ─▶ check ─▶ proposal, log ─▶ apply ─┬─▶ changes of the store, applied position
//!              └ wrong in every state: rejected └─▶ response, without the deferred reads
//! ```
//!
//! [`check`](mod@check) rejects a request before it is proposed, if it is wrong in every state of
//! the store. [`apply`] applies an entry. [`range`](mod@range) also serves reads that have no
//! entry.
//!
//! * [`apply`] ends exactly one write transaction, with the entry's [`AppliedPosition`], unless it
//!   fails. After a failure the member stops, and applies the entry after its next start.
//! * A rejected request changes only the applied position.
//! * The response depends only on the entry and on state that all members share: the store, the
//!   leases, the tokens. It depends neither on a clock nor on a random number. The response may
//!   leave [reads](DeferredRead) to the waiting request.
//! * A header has only its revision; the server adds the member, the cluster and the term.
//! * An entry that neither this module nor `state_machines` knows stops the member.

pub mod check;
pub mod auth;
mod compare;
mod deferred_reads;
pub mod describe;
mod evaluated_compares;
pub mod lease;
mod operation_responses;
mod slow_requests;
mod check_overlap;
pub mod range;
mod rejection;
mod key_span;
pub mod txn;
mod txn_reads;
mod put_delete;

use clearlane_mvcc::{CompactionJob, Store, TxnResult, WriteTxn};
use clearlane_proto::etcdserverpb::{
    AlarmResponse, AuthenticateResponse, CompactionRequest, CompactionResponse,
    DeleteRangeResponse, DowngradeResponse, InternalRaftRequest, LeaseCheckpointResponse,
    LeaseGrantResponse, LeaseRevokeResponse, PutRequest, PutResponse, RangeRequest, RangeResponse,
    ResponseHeader, TxnRequest, TxnResponse,
};

pub use self::evaluated_compares::count_compared_keys;
pub use self::key_span::KeySpan;
pub(crate) use self::rejection::split_error;
use self::txn::TxnPlan;
use self::txn_reads::TxnReads;
use crate::applied_position::AppliedPosition;
use crate::downgrade;
use crate::error::{Error, Result};

pub use check::{Limits, check};
pub use deferred_reads::SharedReadTxn;
pub use deferred_reads::{DeferredRead, PartialResponse};
pub use evaluated_compares::EvaluatedCompares;
pub use operation_responses::{OperationResponse, OperationResponses};
pub use range::range;
pub use rejection::{ApplyError, RequestRejection};
pub(crate) use slow_requests::may_take_long;
pub use txn_reads::{ReadBudget, TxnReadMode};

#[derive(Clone, Debug, PartialEq)]
pub enum AppliedResponse {
    Put(PutResponse),
    DeleteRange(DeleteRangeResponse),
    /// The response of a range in the log. For a log read (a range without a key), it has no
    /// records.
    Range(RangeResponse),
    Txn(TxnResponse),
    /// The compaction is scheduled, but not done.
    Compact(CompactionResponse),
    Alarm(AlarmResponse),
    Downgrade(DowngradeResponse),
    Auth(Option<ResponseHeader>),
    Authenticate(AuthenticateResponse),
    LeaseGrant(LeaseGrantResponse),
    LeaseRevoke(LeaseRevokeResponse),
    LeaseCheckpoint(LeaseCheckpointResponse),
}

/// The methods that every response needs. They form a separate trait, because a response cannot be
/// encoded through `dyn prost::Message`.
trait EncodedResponse {
    fn length(&self) -> usize;
    fn to_bytes(&self) -> Vec<u8>;
}

impl<M: prost::Message> EncodedResponse for M {
    fn length(&self) -> usize {
        self.encoded_len()
    }

    fn to_bytes(&self) -> Vec<u8> {
        self.encode_to_vec()
    }
}

impl AppliedResponse {
    pub fn encoded_len(&self) -> usize {
        self.message().map_or(0, EncodedResponse::length)
    }

    pub fn encode_to_vec(&self) -> Vec<u8> {
        self.message().map(EncodedResponse::to_bytes).unwrap_or_default()
    }

    fn message(&self) -> Option<&dyn EncodedResponse> {
        Some(match self {
            AppliedResponse::Put(response) => response,
            AppliedResponse::DeleteRange(response) => response,
            AppliedResponse::Range(response) => response,
            AppliedResponse::Txn(response) => response,
            AppliedResponse::Compact(response) => response,
            AppliedResponse::Alarm(response) => response,
            AppliedResponse::Downgrade(response) => response,
            AppliedResponse::Auth(header) => header.as_ref()?,
            AppliedResponse::Authenticate(response) => response,
            AppliedResponse::LeaseGrant(response) => response,
            AppliedResponse::LeaseRevoke(response) => response,
            AppliedResponse::LeaseCheckpoint(response) => response,
        })
    }
}

pub type ApplyResult = std::result::Result<AppliedResponse, RequestRejection>;

#[derive(Debug)]
pub struct AppliedEntry {
    pub result: ApplyResult,
    pub txn_result: TxnResult,
    /// The compaction that the caller must run, or `None` if there is none.
    pub compaction: Option<CompactionJob>,
    /// Reads whose results are still missing in the response.
    pub deferred_reads: Vec<DeferredRead>,
}

impl AppliedEntry {
    fn new(result: ApplyResult, txn_result: TxnResult) -> AppliedEntry {
        AppliedEntry { result, txn_result, compaction: None, deferred_reads: Vec::new() }
    }
}

/// Applies a request about keys, a compaction, or the announcement of a downgrade. Fails with
/// [`Error::UnknownRequest`] for any other request: the caller passes requests about users and
/// leases to [`auth::apply`] and [`lease::apply`], and handles the rest. `has_lease` returns
/// whether a lease exists. `compares` is the result of an earlier evaluation of a transaction's
/// compares, if the member has one.
pub fn apply(
    store: &dyn Store<AppliedPosition>,
    has_lease: &dyn Fn(i64) -> bool,
    request: &InternalRaftRequest,
    progress: AppliedPosition,
    read_mode: TxnReadMode,
    compares: Option<&EvaluatedCompares>,
) -> Result<AppliedEntry> {
    if let Some(request) = &request.range {
        in_transaction(store, progress, |txn| {
            Ok(AppliedResponse::Range(range_through_log(txn, request)?))
        })
    } else if let Some(request) = &request.put {
        in_transaction(store, progress, |txn| {
            Ok(AppliedResponse::Put(put(txn, has_lease, request)?))
        })
    } else if let Some(request) = &request.delete_range {
        let mut reads = TxnReads::new(read_mode);
        let applied = in_transaction(store, progress, |txn| {
            let response = put_delete::delete_range(txn, request, &mut reads)?;
            Ok(AppliedResponse::DeleteRange(response))
        })?;
        Ok(AppliedEntry { deferred_reads: reads.into_deferred(), ..applied })
    } else if let Some(request) = &request.txn {
        apply_txn(store, has_lease, (request, compares), progress, TxnReads::new(read_mode))
    } else if let Some(request) = &request.compaction {
        compact(store, request, progress)
    } else if let Some(request) = &request.downgrade_info_set {
        in_transaction(store, progress, |txn| {
            Ok(AppliedResponse::Downgrade(downgrade::apply_downgrade_info(txn, request)?))
        })
    } else {
        Err(Error::UnknownRequest { index: progress.index })
    }
}

/// Runs one operation in a write transaction. If `work` rejects the operation, it must not have
/// changed anything, because the transaction ends normally and is not rolled back.
fn in_transaction(
    store: &dyn Store<AppliedPosition>,
    progress: AppliedPosition,
    work: impl FnOnce(
        &mut (dyn WriteTxn<AppliedPosition> + '_),
    ) -> std::result::Result<AppliedResponse, ApplyError>,
) -> Result<AppliedEntry> {
    let mut txn = store.begin_write()?;
    let answer = split_error(work(&mut *txn))?;
    Ok(AppliedEntry::new(answer, txn.end(progress)?))
}

fn range_through_log(
    txn: &mut (dyn WriteTxn<AppliedPosition> + '_),
    request: &RangeRequest,
) -> std::result::Result<RangeResponse, ApplyError> {
    if request.key.is_empty() {
        let header = Some(header(txn.revision()));
        return Ok(RangeResponse { header, ..RangeResponse::default() });
    }
    range::execute_range(txn, request)
}

/// Applies a put in a transaction that the caller ends.
pub(crate) fn put(
    txn: &mut (dyn WriteTxn<AppliedPosition> + '_),
    has_lease: &dyn Fn(i64) -> bool,
    request: &PutRequest,
) -> std::result::Result<PutResponse, ApplyError> {
    put_delete::check_lease(request, has_lease)?;
    put_delete::put(txn, request)
}

fn apply_txn(
    store: &dyn Store<AppliedPosition>,
    has_lease: &dyn Fn(i64) -> bool,
    (request, compares): (&TxnRequest, Option<&EvaluatedCompares>),
    progress: AppliedPosition,
    mut reads: TxnReads,
) -> Result<AppliedEntry> {
    let plan = {
        let read = store.begin_read_for_writer();
        let plan = TxnPlan::new(&*read, request, compares);
        split_error(plan.and_then(|plan| plan.check(&*read, has_lease).map(|()| plan)))?
    };
    let mut txn = store.begin_write()?;
    let answer = match plan {
        Ok(plan) => Ok(AppliedResponse::Txn(plan.run(&mut *txn, &mut reads)?)),
        Err(refused) => Err(refused),
    };
    let applied = AppliedEntry::new(answer, txn.end(progress)?);
    Ok(AppliedEntry { deferred_reads: reads.into_deferred(), ..applied })
}

fn compact(
    store: &dyn Store<AppliedPosition>,
    request: &CompactionRequest,
    progress: AppliedPosition,
) -> Result<AppliedEntry> {
    match split_error(store.compact(request.revision, progress.clone()).map_err(ApplyError::from))?
    {
        Ok((job, ended)) => {
            let response = CompactionResponse { header: Some(header(ended.revision)) };
            let applied = AppliedEntry::new(Ok(AppliedResponse::Compact(response)), ended);
            Ok(AppliedEntry { compaction: Some(job), ..applied })
        }
        Err(refused) => in_transaction(store, progress, |_| Err(refused.into())),
    }
}

/// Returns a header with the revision. The server adds the member, the cluster and the term.
pub(crate) fn header(revision: i64) -> ResponseHeader {
    ResponseHeader { revision, ..ResponseHeader::default() }
}
