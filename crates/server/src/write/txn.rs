//! Transactions, and other writes whose answers may be long: which of their reads the network
//! thread makes, which the read pool, and which are left to the time when they are sent.
//!
//! A transaction of single keys is read on the network thread, like a range of few records. One
//! with ranges is read in the pool, from one view, and so is what a write [has
//! left](crate::apply::DeferredRead) to its request.

use std::future::Future;

use clearlane_auth::checks::Checker;
use clearlane_mvcc::ReadTxn;
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::{RangeRequest, TxnRequest, TxnResponse};

use crate::apply::txn::{is_read_only, run_on_snapshot, run_read_only};
use crate::apply::{AppliedResponse, EvaluatedCompares, PartialResponse, View, check};
use crate::compares_ahead;
use crate::handle::Server;
use crate::proposal::Proposal;
use crate::read_executor::{PoolJob, ReadResult, ReadSize, ReadSpan};
use crate::request_error::RequestError;
use crate::request_trace::{RequestTrace, Stage};
use crate::streamed_range::INLINE_BYTES_MAX;
use crate::streamed_response::{DeferredReader, ResponseReader, StreamedResponse};
use crate::task_labels::READ_TXN;

impl Server {
    pub async fn txn(
        &self,
        request: TxnRequest,
        trace: &mut RequestTrace,
    ) -> Result<StreamedResponse<TxnResponse>, RequestError> {
        check::txn(&request, &self.limits())?;
        if is_read_only(&request) {
            let read = Box::pin(self.read_txn(request, trace)).await;
            if read.is_err() {
                trace.end_stage(Stage::Backend);
            }
            return read;
        }
        let mut compares = None;
        if compares_ahead::may_be_long(&request) {
            // Before they cost anything. Whether the user may is asked when the entry is applied.
            self.require(|user| user.user()).await?;
            compares = Box::pin(self.evaluate_compares(&request.compare, trace)).await?;
        }
        self.propose_evaluated(request, compares, trace).await
    }

    async fn read_txn(
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
        let view = match size {
            ReadSize::Ranges(_) => self.threads().store().begin_snapshot_read(),
            ReadSize::SingleKeys | ReadSize::AtMost(_) => None,
        };
        let mut response = if let Some(view) = view {
            let (kind, number) = (size.job_kind(&*view)?, trace.number);
            let work = move || {
                let _as = READ_TXN.enter_numbered(number);
                run_on_view(&view, &request)
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

    /// Like [`Server::propose`], with the stages of the request in its trace, and with what is long
    /// still to be read.
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

    /// Each read is a job of its own: behind it is another request's turn, and none is begun for a
    /// client that has given up. The jobs take what they read along, and drop it in the pool.
    async fn make_deferred_reads(
        &self,
        response: Box<PartialResponse>,
        trace: &mut RequestTrace,
    ) -> Result<StreamedResponse<AppliedResponse>, RequestError> {
        let number = trace.number;
        let mut reader = Box::new(DeferredReader::new(*response, INLINE_BYTES_MAX));
        while let Some(read) = reader.next() {
            let kind = ReadSize::of_range(&read.request).job_kind(&*read.view)?;
            let read = move || {
                let _as = READ_TXN.enter_numbered(number);
                reader.make_next().map(|()| reader)
            };
            reader = self.run_in_pool(PoolJob::Read(kind), trace, read).await?;
        }
        Ok(reader.finish()?)
    }

    /// All of a response, in memory.
    pub(crate) async fn read_whole(
        &self,
        response: Box<PartialResponse>,
    ) -> Result<AppliedResponse, RequestError> {
        let mut trace = RequestTrace::start();
        self.make_deferred_reads(response, &mut trace).await?.read_all(self).await
    }
}

/// What is long is left to be read while it is sent.
pub(crate) fn run_on_view(
    view: &View,
    request: &TxnRequest,
) -> ReadResult<StreamedResponse<TxnResponse>> {
    let mut reader = ResponseReader::new(INLINE_BYTES_MAX);
    let response = run_read_only(&**view, request, |operation, range| {
        reader.read_range(operation, view, range)
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
