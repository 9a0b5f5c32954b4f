//! Serves the five unary calls of KV, from the head of a request to its response.
//!
//! The calls arrive on connections, or from the JSON gateway, which has already read the message.

use std::sync::LazyLock;

use bytes::Bytes;
use clearlane_proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, PutRequest, RangeRequest,
    TxnRequest, TxnResponse,
};
use clearlane_replica::Proposal;
use clearlane_server::Server;
use clearlane_server::observe::request_trace::Stage;
use clearlane_server::read::range::RangeResult;
use clearlane_server::read::streamed_response::StreamedResponse;
use http::Response;
use hyper::body::Incoming;
use tonic::{Code, Status};

use crate::context::{CallHead, RequestContext};
use crate::metrics::{CallMetrics, RpcMethod};
use crate::response_body::{ResponseBody, error_response};
use crate::slow_request::{RequestSummary, report_if_slow};
use crate::txn_body::encode_response;
use crate::unary::{EncodedResponse, decode, decode_txn, read_message};
use crate::{gzip, range_body, status, unread_body};

/// Number of bytes by which a message may exceed the limit of requests: etcd's `grpcOverheadBytes`.
const MESSAGE_OVERHEAD_BYTES: usize = 512 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KvMethod {
    Range,
    Put,
    DeleteRange,
    Txn,
    Compact,
}

impl KvMethod {
    const ALL: [KvMethod; 5] =
        [KvMethod::Range, KvMethod::Put, KvMethod::DeleteRange, KvMethod::Txn, KvMethod::Compact];

    fn path(self) -> &'static str {
        match self {
            KvMethod::Range => "/etcdserverpb.KV/Range",
            KvMethod::Put => "/etcdserverpb.KV/Put",
            KvMethod::DeleteRange => "/etcdserverpb.KV/DeleteRange",
            KvMethod::Txn => "/etcdserverpb.KV/Txn",
            KvMethod::Compact => "/etcdserverpb.KV/Compact",
        }
    }

    pub(crate) fn find(path: &str) -> Option<(KvMethod, RpcMethod)> {
        let kind = KvMethod::ALL.into_iter().find(|kind| kind.path() == path)?;
        Some((kind, RPCS_OF_KV[kind as usize]))
    }
}

static RPCS_OF_KV: LazyLock<[RpcMethod; KvMethod::ALL.len()]> =
    LazyLock::new(|| KvMethod::ALL.map(|kind| RpcMethod::named(kind.path())));

/// Handles a call from a connection. If the future is dropped, the call is counted as canceled.
pub(crate) async fn handle_call(
    kind: KvMethod,
    head: CallHead,
    metrics: CallMetrics,
    body: Incoming,
) -> Response<ResponseBody> {
    let is_packed = match gzip::is_gzip(&head.headers) {
        Ok(is_packed) => is_packed,
        Err(status) => {
            unread_body::discard(body).await;
            return finish_call(Err(status), metrics);
        }
    };
    let limit = message_bytes_max(&head.server);
    let response = match RequestContext::start(&head.server, &head.headers, head.client.user_name())
    {
        Err(status) => {
            unread_body::discard(body).await;
            Err(status)
        }
        Ok(context) => match context.within_deadline(read_message(body, limit, is_packed)).await {
            Err(status) | Ok(Err(status)) => Err(status),
            Ok(Ok(message)) => {
                metrics.received(message.len());
                execute(kind, context, message, &head).await
            }
        },
    };
    let response = finish_call(response, metrics);
    if is_packed { gzip::compress_response(response) } else { response }
}

pub(crate) fn message_bytes_max(member: &Server) -> usize {
    member.limits().request_bytes_max + MESSAGE_OVERHEAD_BYTES
}

/// Handles a call whose message has already been read.
pub(crate) async fn handle_message(
    kind: KvMethod,
    head: CallHead,
    metrics: CallMetrics,
    message: Bytes,
) -> Response<ResponseBody> {
    metrics.received(message.len());
    let response = match RequestContext::start(&head.server, &head.headers, head.client.user_name())
    {
        Err(status) => Err(status),
        Ok(context) => execute(kind, context, message, &head).await,
    };
    finish_call(response, metrics)
}

/// Counts the end of the call, and returns the response. An error becomes an error response.
fn finish_call(
    response: Result<Response<ResponseBody>, Status>,
    metrics: CallMetrics,
) -> Response<ResponseBody> {
    let response = response.unwrap_or_else(|status| error_response(&status));
    // The head of an error response contains the status. A successful response has its status in
    // the trailers, so no status is found in its head.
    let status = Status::from_header_map(response.headers());
    if status.is_none() {
        metrics.sent(response.body().message_len());
    }
    metrics.end(status.map_or(Code::Ok, |status| status.code()));
    response
}

async fn execute(
    kind: KvMethod,
    mut context: RequestContext,
    bytes: Bytes,
    head: &CallHead,
) -> Result<Response<ResponseBody>, Status> {
    let mut record_count = 0;
    let until_ns = context.server.deadline_ns();
    let (response, summary) = match kind {
        KvMethod::Range => {
            let request: RangeRequest = decode(bytes)?;
            let summary = RequestSummary::of_range(&request);
            let result = range(&mut context, request).await;
            record_count = result.as_ref().map_or(0, |result| result.record_count());
            (result.and_then(|result| range_response(head, until_ns, result)), summary)
        }
        KvMethod::Put => {
            let request: PutRequest = decode(bytes)?;
            let summary = RequestSummary::of_put(&request);
            let response = propose(&mut context, request).await;
            (response.map(|response| EncodedResponse::message(response.message)), summary)
        }
        KvMethod::DeleteRange => {
            let request: DeleteRangeRequest = decode(bytes)?;
            let summary = RequestSummary::of_delete(&request);
            let response = propose(&mut context, request).await;
            (response.map(|response| encode_response(head, until_ns, response)), summary)
        }
        KvMethod::Txn => {
            let request = decode_txn(bytes)?;
            let summary = RequestSummary::of_txn(&request);
            let response = txn(&mut context, request).await;
            (response.map(|response| encode_response(head, until_ns, response)), summary)
        }
        KvMethod::Compact => {
            let request: CompactionRequest = decode(bytes)?;
            let summary = RequestSummary::Compact { revision: request.revision };
            (compact(&mut context, request).await.map(EncodedResponse::message), summary)
        }
    };
    let trace_before_encoding = context.trace;
    let response = match response {
        Ok(response) => response.resolve(&context).await,
        Err(status) => Err(status),
    };
    context.trace.end_stage(Stage::Sending);
    let (class, lane) = summary.trace_class(record_count);
    head.server.threads().trace().record_request(class, lane, context.trace);
    let traces = (&context.trace, &trace_before_encoding);
    report_if_slow(kind.path(), head, &summary, record_count, &response, traces);
    response
}

async fn range(context: &mut RequestContext, request: RangeRequest) -> Result<RangeResult, Status> {
    if !request.serializable {
        context.check_not_learner()?;
    }
    let result = context.server.range(request, &mut context.trace).await;
    if result.is_err() {
        // Record the time that a failed request has taken.
        context.trace.end_stage(Stage::Backend);
    }
    result.map_err(status::from_error)
}

async fn propose<P: Proposal>(
    context: &mut RequestContext,
    request: P,
) -> Result<StreamedResponse<P::Response>, Status> {
    context.check_not_learner()?;
    let response = context.server.propose_traced(request, &mut context.trace).await;
    response.map_err(status::from_error)
}

async fn txn(
    context: &mut RequestContext,
    request: TxnRequest,
) -> Result<StreamedResponse<TxnResponse>, Status> {
    context.check_not_learner()?;
    let response = context.server.txn(request, &mut context.trace).await;
    response.map_err(status::from_error)
}

async fn compact(
    context: &mut RequestContext,
    request: CompactionRequest,
) -> Result<CompactionResponse, Status> {
    context.check_not_learner()?;
    let response = async {
        context.server.require(|user| user.admin()).await?;
        context.server.compact(request).await
    };
    let response = response.await;
    context.trace.end_stage(Stage::Apply);
    response.map_err(status::from_error)
}

fn range_response(
    head: &CallHead,
    until_ns: Option<u64>,
    result: RangeResult,
) -> Result<EncodedResponse<'_>, Status> {
    let (server, client) = (&head.server, &head.client);
    match result {
        RangeResult::Message(response) => Ok(EncodedResponse::message(response)),
        RangeResult::Rows(rows) => {
            range_body::rows_response(rows, until_ns).map(EncodedResponse::Ready)
        }
        RangeResult::Stream(rows) => {
            range_body::stream_response(server.threads(), &client.large_responses, rows, until_ns)
                .map(EncodedResponse::Ready)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_future<F, A, B, C, D>(_: impl FnOnce(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    /// Limits the size of the future, because it is allocated for each call, and moved before it
    /// runs.
    #[test]
    fn a_call_under_way_is_small() {
        let size = size_of_future(handle_call);
        assert!(size <= 3072, "{size} bytes");
    }
}
