//! Log lines about slow calls of KV and Authenticate, with etcd's text.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use clearlane_proto::etcdserverpb::{
    AuthenticateRequest, DeleteRangeRequest, PutRequest, RangeRequest, TxnRequest,
};
use clearlane_replica::apply::describe::write_keys;
use clearlane_replica::apply::txn::is_read_only;
use clearlane_server::observe::request_trace::{RequestTrace, SlowRequestFields};
use clearlane_server::observe::trace;
use http::Response;
use tonic::Status;

use crate::context::CallHead;
use crate::response_body::ResponseBody;

/// Maximum number of records in the response to a short range. The timeline shows longer ranges
/// under another name. Network threads read up to this number of records themselves.
const SHORT_RANGE_RECORDS_MAX: usize = 128;

/// The details of a request that the log shows. They contain no values and no password.
pub(crate) enum RequestSummary {
    Range { key: Bytes, range_end: Bytes, limit: i64 },
    Delete { key: Bytes, range_end: Bytes },
    Put { key: Bytes, value_size: usize },
    Txn { compares: usize, successes: usize, failures: usize, is_read_only: bool },
    Compact { revision: i64 },
    Authenticate { name: String },
}

impl RequestSummary {
    pub(crate) fn of_range(request: &RangeRequest) -> RequestSummary {
        let (key, range_end) = (request.key.clone(), request.range_end.clone());
        RequestSummary::Range { key, range_end, limit: request.limit }
    }

    pub(crate) fn of_put(request: &PutRequest) -> RequestSummary {
        RequestSummary::Put { key: request.key.clone(), value_size: request.value.len() }
    }

    pub(crate) fn of_delete(request: &DeleteRangeRequest) -> RequestSummary {
        let (key, range_end) = (request.key.clone(), request.range_end.clone());
        RequestSummary::Delete { key, range_end }
    }

    pub(crate) fn of_txn(request: &TxnRequest) -> RequestSummary {
        RequestSummary::Txn {
            compares: request.compare.len(),
            successes: request.success.len(),
            failures: request.failure.len(),
            is_read_only: is_read_only(request),
        }
    }

    pub(crate) fn of_authenticate(request: &AuthenticateRequest) -> RequestSummary {
        RequestSummary::Authenticate { name: request.name.clone() }
    }

    /// Returns the name and the lane under which the timeline shows the request. `count` is the
    /// number of records in the response.
    pub(crate) fn trace_class(&self, count: usize) -> (&'static str, trace::LaneKind) {
        use trace::LaneKind::{Read, Write};
        match self {
            RequestSummary::Range { range_end, .. } if range_end.is_empty() => ("get", Read),
            RequestSummary::Range { .. } if count <= SHORT_RANGE_RECORDS_MAX => ("range", Read),
            RequestSummary::Range { .. } => ("long range", Read),
            RequestSummary::Txn { is_read_only: true, .. } => ("read txn", Read),
            RequestSummary::Txn { .. } => ("txn", Write),
            RequestSummary::Put { .. } => ("put", Write),
            RequestSummary::Delete { .. } => ("delete", Write),
            RequestSummary::Compact { .. } => ("compact", Write),
            RequestSummary::Authenticate { .. } => ("authenticate", Read),
        }
    }

    /// Returns the start of etcd's line about a slow read, or `None` for a request that is neither
    /// a range nor a read-only transaction.
    fn slow_read_prefix(&self) -> Option<&'static str> {
        match self {
            RequestSummary::Range { .. } => Some("read-only range "),
            RequestSummary::Txn { is_read_only: true, .. } => Some("read-only txn "),
            _ => None,
        }
    }
}

impl fmt::Display for RequestSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestSummary::Range { key, range_end, limit } => {
                write_keys(key, range_end, f)?;
                if *limit == 0 { Ok(()) } else { write!(f, " limit:{limit}") }
            }
            RequestSummary::Delete { key, range_end } => write_keys(key, range_end, f),
            RequestSummary::Put { key, value_size } => {
                write!(f, "key:\"{}\" value_size:{value_size}", key.escape_ascii())
            }
            RequestSummary::Txn { compares, successes, failures, .. } => {
                write!(f, "compare:{compares} success:{successes} failure:{failures}")
            }
            RequestSummary::Compact { revision } => write!(f, "revision:{revision}"),
            RequestSummary::Authenticate { name } => {
                write!(f, "name:\"{}\"", name.escape_default())
            }
        }
    }
}

pub(crate) fn report_if_slow(
    call: &'static str,
    head: &CallHead,
    summary: &RequestSummary,
    count: usize,
    response: &Result<Response<ResponseBody>, Status>,
    (whole, read): (&RequestTrace, &RequestTrace),
) {
    let (call_limit, read_limit) = head.slow_thresholds;
    let (is_slow, is_read_slow) = (whole.elapsed() > call_limit, read.elapsed() > read_limit);
    if !is_slow && !is_read_slow {
        return;
    }
    let about = SlowRequestFields {
        call,
        remote: &head.client.to_string(),
        request: summary,
        response_count: count as i64,
        response_size: response.as_ref().map_or(0, |response| response.body().message_len()),
    };
    if let Some(prefix) = summary.slow_read_prefix().filter(|_| is_read_slow) {
        let error = response.as_ref().err().map_or("", Status::message);
        read.log_slow_read(prefix, &about, read_limit, error);
        head.server.threads().metrics().slow_applies.fetch_add(1, Relaxed);
    }
    if is_slow {
        whole.log_slow_request(&about);
    }
}
