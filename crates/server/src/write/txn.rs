//! Executes transactions, and other writes whose responses may be long. Decides which reads run on
//! the network thread, which in the read pool, and which while the response is being sent.
//!
//! A read-only transaction of single keys is read on the network thread, like a range of few
//! records. A read-only transaction with ranges is read in the pool, from one snapshot. The reads
//! that a write has [deferred](clearlane_replica::apply::DeferredRead) also run in the pool, after
//! the write has been applied. In an old era a read-only transaction runs on a separate thread, and
//! a write defers no reads.

use std::future::Future;

use clearlane_auth::checks::Checker;
use clearlane_mvcc::ReadTxn;
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::{RangeRequest, TxnRequest, TxnResponse};
use clearlane_replica::apply::txn::{is_read_only, run_on_snapshot, run_read_only};
use clearlane_replica::apply::{
    AppliedResponse, EvaluatedCompares, PartialResponse, SharedReadTxn, check,
};
use clearlane_replica::{Proposal, RequestError};

use crate::handle::Server;
use crate::observe::request_trace::{RequestTrace, Stage};
use crate::observe::task_labels::READ_TXN;
use crate::read::executor::{PoolJob, ReadResult, ReadSize, ReadSpan};
use crate::read::streamed_range::INLINE_BYTES_MAX;
use crate::read::streamed_response::{DeferredReader, ResponseReader, StreamedResponse};
use crate::write::compares_ahead;

impl Server {
    pub async fn txn(
        &self,
        request: TxnRequest,
        trace: &mut RequestTrace,
    ) -> Result<StreamedResponse<TxnResponse>, RequestError> {
        check::txn(&request, &self.limits())?;
        if is_read_only(&request) {
            let read = Box::pin(self.read_only_txn(request, trace)).await;
            if read.is_err() {
                trace.end_stage(Stage::Backend);
            }
            return read;
        }
        let mut compares = None;
        if compares_ahead::may_be_long(&request) {
            // The user is identified before time is spent on the compares. The user's permission is
            // checked when the entry is applied.
            self.require(|user| user.user()).await?;
            compares = Box::pin(self.evaluate_compares(&request.compare, trace)).await?;
        }
        self.propose_evaluated(request, compares, trace).await
    }

    async fn read_only_txn(
        &self,
        request: TxnRequest,
        trace: &mut RequestTrace,
    ) -> Result<StreamedResponse<TxnResponse>, RequestError> {
        if !range_ops(&request).all(|range| range.serializable) {
            trace.end_read_index(self.linearizable_read_notify().await?);
        }
        let lease_keys = |_, _: &[u8]| None;
        let may_read = |user: Checker<'_>| user.txn(&request, &lease_keys);
        let admission = self.authorize(*READ_TXN, trace, may_read).await?;
        let ranges = range_ops(&request).map(ReadSpan::from);
        let compares = request.compare.iter().map(ReadSpan::from);
        let size = ReadSize::of_spans(ranges.chain(compares));
        let read_txn = match size {
            ReadSize::Ranges(_) => self.threads().store().begin_snapshot_read(),
            ReadSize::SingleKeys | ReadSize::AtMost(_) => None,
        };
        let mut response = if let Some(read_txn) = read_txn {
            let (kind, number) = (size.job_kind(&*read_txn)?, trace.number);
            let work = move || {
                let _as = READ_TXN.enter_numbered(number);
                run_on_view(&read_txn, &request)
            };
            Box::pin(self.run_in_pool(PoolJob::Read(kind), trace, work)).await?
        } else {
            let work = move |read: &(dyn ReadTxn + '_)| run_on_snapshot(read, &request);
            self.read(trace, *READ_TXN, size, work).await?.into()
        };
        self.check_admission(admission)?;
        trace.end_stage(Stage::Backend);
        self.fill_header(&mut response.message.header);
        Ok(response)
    }

    /// Like [`Server::propose`], but records the stages of the request in its trace. Long parts of
    /// the response are returned as streams, which are read while the response is being sent.
    pub fn propose_traced<P: Proposal>(
        &self,
        request: P,
        trace: &mut RequestTrace,
    ) -> impl Future<Output = Result<StreamedResponse<P::Response>, RequestError>> + Send {
        self.propose_evaluated(request, None, trace)
    }

    fn propose_evaluated<P: Proposal>(
        &self,
        request: P,
        compares: Option<Box<EvaluatedCompares>>,
        trace: &mut RequestTrace,
    ) -> impl Future<Output = Result<StreamedResponse<P::Response>, RequestError>> + Send {
        let request = Box::new(request.into_request());
        async move {
            let response = self.propose_boxed(request, compares).await;
            trace.end_stage(Stage::Apply);
            let response = match response?.into_whole() {
                Ok(response) => response.into(),
                Err(response) => Box::pin(self.make_deferred_reads(response, trace)).await?,
            };
            response.try_map(P::response_of)
        }
    }

    /// Performs the deferred reads. Each read is a separate job, so other requests get their turn
    /// after each read, and no read is started for a client that has given up. A running job owns
    /// all records that were read so far. If the client gives up during the job, the pool drops
    /// these records.
    async fn make_deferred_reads(
        &self,
        response: Box<PartialResponse>,
        trace: &mut RequestTrace,
    ) -> Result<StreamedResponse<AppliedResponse>, RequestError> {
        let number = trace.number;
        let mut reader = Box::new(DeferredReader::new(*response, INLINE_BYTES_MAX));
        while let Some(read) = reader.next() {
            let kind = ReadSize::of_range(&read.request).job_kind(&*read.read_txn)?;
            let read = move || {
                let _as = READ_TXN.enter_numbered(number);
                reader.make_next().map(|()| reader)
            };
            reader = self.run_in_pool(PoolJob::Read(kind), trace, read).await?;
        }
        Ok(reader.finish()?)
    }

    /// Performs the deferred reads, and returns the complete response in memory.
    pub(crate) async fn read_whole(
        &self,
        response: Box<PartialResponse>,
    ) -> Result<AppliedResponse, RequestError> {
        let mut trace = RequestTrace::start();
        self.make_deferred_reads(response, &mut trace).await?.read_all(self).await
    }
}

/// Runs a read-only transaction on a snapshot. A range that would make the response longer than
/// [`INLINE_BYTES_MAX`] is read only while the response is being sent.
pub(crate) fn run_on_view(
    read_txn: &SharedReadTxn,
    request: &TxnRequest,
) -> ReadResult<StreamedResponse<TxnResponse>> {
    let mut reader = ResponseReader::new(INLINE_BYTES_MAX);
    let response = run_read_only(&**read_txn, request, |operation, range| {
        reader.read_range(operation, read_txn, range)
    })?;
    Ok(reader.finish(response))
}

fn range_ops(request: &TxnRequest) -> impl Iterator<Item = &RangeRequest> {
    let ops = request.success.iter().chain(&request.failure);
    ops.filter_map(|op| match &op.request {
        Some(Request::RequestRange(range)) => Some(range),
        _ => None,
    })
}
