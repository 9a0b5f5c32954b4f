//! The five calls of KV, from the head of a request to the head of its answer.
//!
//! They come from connections, and from the JSON gateway, which has read the message another way.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use clearlane_proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, PutRequest, RangeRequest,
    TxnRequest, TxnResponse,
};
use clearlane_server::apply::describe::write_keys;
use clearlane_server::apply::txn::is_read_only;
use clearlane_server::range::RangeResult;
use clearlane_server::request_trace::{RequestTrace, SlowRequestFields, Stage};
use clearlane_server::{Proposal, Server, trace};
use http::{HeaderMap, Response};
use hyper::body::Incoming;
use tonic::{Code, Status};

use crate::context::RequestContext;
use crate::metrics::{CallMetrics, RpcMethod};
use crate::response_body::{ResponseBody, error_response};
use crate::unary::{
    EncodedResponse, decode, decode_txn, message_response, message_response_of_any_size,
    read_message,
};
use crate::{gzip, range_body, status};

/// etcd's `grpcOverheadBytes`: what a message may have beside the request itself.
const MESSAGE_OVERHEAD_BYTES: usize = 512 << 10;

/// A range with more records is a long one in a recording: as many as the network threads read by
/// themselves.
const SHORT_RANGE_RECORDS_MAX: usize = 128;

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
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct KvMethods([RpcMethod; KvMethod::ALL.len()]);

impl KvMethods {
    pub(crate) fn new() -> KvMethods {
        KvMethods(
            KvMethod::ALL.map(|kind| RpcMethod::find(kind.path()).expect("an rpc of the API")),
        )
    }

    pub(crate) fn find(&self, path: &str) -> Option<(KvMethod, RpcMethod)> {
        let kind = KvMethod::ALL.into_iter().find(|kind| kind.path() == path)?;
        Some((kind, self.0[kind as usize]))
    }
}

pub(crate) struct CallHead {
    pub(crate) server: Server,
    pub(crate) headers: HeaderMap,
    pub(crate) client: crate::client_info::ClientInfo,
    /// A call longer than the first is logged, and so is a read longer than the second.
    pub(crate) slow_thresholds: (Duration, Duration),
}

/// A call that is dropped counts as cancelled.
pub(crate) async fn handle_call(
    kind: KvMethod,
    head: CallHead,
    counted: CallMetrics,
    body: Incoming,
) -> Response<ResponseBody> {
    let is_packed = match gzip::is_gzip(&head.headers) {
        Ok(is_packed) => is_packed,
        Err(status) => return finish_call(Err(status), counted),
    };
    let limit = message_bytes_max(&head.server);
    let answer = match RequestContext::start(&head.server, &head.headers) {
        Err(status) => Err(status),
        Ok(context) => match context.within_deadline(read_message(body, limit, is_packed)).await {
            Err(status) | Ok(Err(status)) => Err(status),
            Ok(Ok(message)) => {
                counted.received(message.len());
                execute(kind, context, message, &head).await
            }
        },
    };
    let answer = finish_call(answer, counted);
    if is_packed { gzip::compress_response(answer) } else { answer }
}

pub(crate) fn message_bytes_max(member: &Server) -> usize {
    member.limits().request_bytes_max + MESSAGE_OVERHEAD_BYTES
}

/// For a message that was read already.
pub(crate) async fn handle_message(
    kind: KvMethod,
    head: CallHead,
    counted: CallMetrics,
    message: Bytes,
) -> Response<ResponseBody> {
    counted.received(message.len());
    let answer = match RequestContext::start(&head.server, &head.headers) {
        Err(status) => Err(status),
        Ok(context) => execute(kind, context, message, &head).await,
    };
    finish_call(answer, counted)
}

/// Ends the call for the counters.
fn finish_call(
    answer: Result<Response<ResponseBody>, Status>,
    counted: CallMetrics,
) -> Response<ResponseBody> {
    let answer = answer.unwrap_or_else(|status| error_response(&status));
    // An answer may be an error, too: what was found is too large for it.
    let status = Status::from_header_map(answer.headers());
    if status.is_none() {
        counted.sent(answer.body().message_len());
    }
    counted.end(status.map_or(Code::Ok, |status| status.code()));
    answer
}

async fn execute(
    kind: KvMethod,
    mut context: RequestContext,
    bytes: Bytes,
    head: &CallHead,
) -> Result<Response<ResponseBody>, Status> {
    let mut count = 0;
    let (answer, summary) = match kind {
        KvMethod::Range => {
            let request: RangeRequest = decode(bytes)?;
            let summary = RequestSummary::Range(
                request.key.clone(),
                request.range_end.clone(),
                request.limit,
            );
            let result = range(&mut context, request).await;
            count = result.as_ref().map_or(0, |result| result.record_count());
            let until_ns = context.server.deadline_ns();
            let answer = result.and_then(|result| range_response(head, until_ns, result));
            (answer, summary)
        }
        KvMethod::Put => {
            let request: PutRequest = decode(bytes)?;
            let summary = RequestSummary::Put(request.key.clone(), request.value.len());
            (
                propose(&mut context, request)
                    .await
                    .map(message_response)
                    .map(EncodedResponse::Ready),
                summary,
            )
        }
        KvMethod::DeleteRange => {
            let request: DeleteRangeRequest = decode(bytes)?;
            let summary = RequestSummary::Delete(request.key.clone(), request.range_end.clone());
            let deleted = propose(&mut context, request).await;
            let answer =
                deleted.and_then(|response| message_response_of_any_size(&head.server, response));
            (answer, summary)
        }
        KvMethod::Txn => {
            let request = decode_txn(bytes)?;
            let (success, failure) = (request.success.len(), request.failure.len());
            let is_read = is_read_only(&request);
            let summary = RequestSummary::Txn(request.compare.len(), success, failure, is_read);
            let done = txn(&mut context, request).await;
            let answer =
                done.and_then(|response| message_response_of_any_size(&head.server, response));
            (answer, summary)
        }
        KvMethod::Compact => {
            let request: CompactionRequest = decode(bytes)?;
            let summary = RequestSummary::Compact(request.revision);
            (
                compact(&mut context, request)
                    .await
                    .map(message_response)
                    .map(EncodedResponse::Ready),
                summary,
            )
        }
    };
    let trace_before_sending = context.trace;
    let answer = match answer {
        Ok(answer) => answer.resolve(&context).await,
        Err(status) => Err(status),
    };
    context.trace.end_stage(Stage::Sending);
    let (class, reads) = summary.trace_class(count);
    head.server.threads().trace().record_request(class, reads, context.trace);
    report_if_slow(kind, head, &summary, count, &answer, (&context.trace, &trace_before_sending));
    answer
}

async fn range(context: &mut RequestContext, request: RangeRequest) -> Result<RangeResult, Status> {
    if !request.serializable {
        context.check_not_learner()?;
    }
    let result = context.server.range(request, &mut context.trace).await;
    if result.is_err() {
        // What was refused has taken its time, too.
        context.trace.end_stage(Stage::Backend);
    }
    result.map_err(|error| status::from_error(&error))
}

async fn propose<P: Proposal>(
    context: &mut RequestContext,
    request: P,
) -> Result<P::Response, Status> {
    context.check_not_learner()?;
    let response = context.server.propose(request).await;
    context.trace.end_stage(Stage::Apply);
    response.map_err(|error| status::from_error(&error))
}

async fn txn(context: &mut RequestContext, request: TxnRequest) -> Result<TxnResponse, Status> {
    context.check_not_learner()?;
    let response = context.server.txn(request, &mut context.trace).await;
    response.map_err(|error| status::from_error(&error))
}

async fn compact(
    context: &mut RequestContext,
    request: CompactionRequest,
) -> Result<CompactionResponse, Status> {
    context.check_not_learner()?;
    let response = context.server.compact(request).await;
    context.trace.end_stage(Stage::Apply);
    response.map_err(|error| status::from_error(&error))
}

fn range_response(
    head: &CallHead,
    until_ns: Option<u64>,
    result: RangeResult,
) -> Result<EncodedResponse<'_>, Status> {
    let (server, client) = (&head.server, &head.client);
    match result {
        RangeResult::Message(response) => message_response_of_any_size(server, response),
        RangeResult::Rows(rows) => {
            range_body::rows_response(rows, until_ns).map(EncodedResponse::Ready)
        }
        RangeResult::Stream(rows) => {
            range_body::stream_response(server.threads(), &client.large_responses, rows, until_ns)
                .map(EncodedResponse::Ready)
        }
    }
}

fn report_if_slow(
    kind: KvMethod,
    head: &CallHead,
    summary: &RequestSummary,
    count: usize,
    answer: &Result<Response<ResponseBody>, Status>,
    (whole, read): (&RequestTrace, &RequestTrace),
) {
    let whole = whole.report_if_slow(head.slow_thresholds.0);
    let read = read.report_if_slow(head.slow_thresholds.1);
    if whole.is_none() && read.is_none() {
        return;
    }
    let about = SlowRequestFields {
        call: kind.path(),
        remote: &head.client.to_string(),
        request: summary,
        response_count: count as i64,
        response_size: answer.as_ref().map_or(0, |answer| answer.body().message_len()),
    };
    if let (Some(prefix), Some(story)) = (summary.slow_read_prefix(), read) {
        let error = answer.as_ref().err().map_or("", Status::message);
        story.log_slow_read(prefix, &about, head.slow_thresholds.1, error);
        head.server.threads().metrics().slow_applies.fetch_add(1, Relaxed);
    }
    if let Some(story) = whole {
        story.log_slow_request(&about);
    }
}

/// What the log shows of a request: no values.
enum RequestSummary {
    Range(Bytes, Bytes, i64),
    Delete(Bytes, Bytes),
    Put(Bytes, usize),
    /// Compares, successes, failures, and whether it only reads.
    Txn(usize, usize, usize, bool),
    Compact(i64),
}

impl RequestSummary {
    /// The name and the lane in a recording; `count` is the length of the answer.
    fn trace_class(&self, count: usize) -> (&'static str, trace::LaneKind) {
        use trace::LaneKind::{Read, Write};
        match self {
            RequestSummary::Range(_, end, _) if end.is_empty() => ("get", Read),
            RequestSummary::Range(..) if count <= SHORT_RANGE_RECORDS_MAX => ("range", Read),
            RequestSummary::Range(..) => ("long range", Read),
            RequestSummary::Txn(_, _, _, true) => ("read txn", Read),
            RequestSummary::Txn(..) => ("txn", Write),
            RequestSummary::Put(..) => ("put", Write),
            RequestSummary::Delete(..) => ("delete", Write),
            RequestSummary::Compact(_) => ("compact", Write),
        }
    }

    /// The beginning of etcd's line about a slow read; `None` for a write.
    fn slow_read_prefix(&self) -> Option<&'static str> {
        match self {
            RequestSummary::Range(..) => Some("read-only range "),
            RequestSummary::Txn(_, _, _, true) => Some("read-only txn "),
            _ => None,
        }
    }
}

impl fmt::Display for RequestSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestSummary::Range(key, end, limit) => {
                write_keys(key, end, f)?;
                if *limit == 0 { Ok(()) } else { write!(f, " limit:{limit}") }
            }
            RequestSummary::Delete(key, end) => write_keys(key, end, f),
            RequestSummary::Put(key, size) => {
                write!(f, "key:\"{}\" value_size:{size}", key.escape_ascii())
            }
            RequestSummary::Txn(compares, success, failure, _) => {
                write!(f, "compare:{compares} success:{success} failure:{failure}")
            }
            RequestSummary::Compact(revision) => write!(f, "revision:{revision}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_future<F, A, B, C, D>(_: impl FnOnce(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    /// It is allocated for each call, and moved about before it runs.
    #[test]
    fn a_call_under_way_is_small() {
        let size = size_of_future(handle_call);
        assert!(size <= 3072, "{size} bytes");
    }
}
