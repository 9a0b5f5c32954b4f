//! The path of a read, up to what is handed over for encoding: `docs/read-path.md`.
//!
//! ```text
//!   client ── Range ──▶ check     is it a request at all?
//!                        ├─ wait  linearizable: until what was acknowledged is applied here
//!                        ├─ user  may it read these keys? compared again behind the read
//!                        ├─ view  one revision, its index and its records: one pointer
//!                        └─ read  keys → records → (sorted, filtered, cut off)
//! ```
//!
//! A read begins on the network thread, with a budget of records, bytes and (at a revision of the
//! past) keys of the index. Beyond it the read begins again in the read pool, and is [read while it
//! is sent](crate::streamed_range). Which thread a read runs on:
//! [`read_executor`](crate::read_executor).

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clearlane_auth::checks::Checker;
use clearlane_contention::TaskLabel;
use clearlane_mvcc::{RangeOptions, ReadTxn};
use clearlane_proto::etcdserverpb::{RangeRequest, RangeResponse, ResponseHeader};
use clearlane_proto::mvccpb::KeyValue;
use prost::Message;

use crate::apply::range::{execute_range, has_first_keys};
use crate::apply::{self, KeySpan, check};
use crate::error::{Error, Result};
use crate::handle::Server;
use crate::read_executor::{PoolJob, ReadResult, ReadSize};
use crate::request_error::RequestError;
use crate::request_trace::{RequestTrace, Stage};
use crate::streamed_range::StreamedRange;
use crate::streamed_range::range_size::keys_only_record;
use crate::task_labels::{GET, RANGE};
use crate::walk_steps;

/// What a range may read on the network thread.
const INLINE_RECORDS_MAX: usize = 128;
const INLINE_BYTES_MAX: usize = 256 << 10;

impl Server {
    pub async fn range(
        &self,
        request: RangeRequest,
        trace: &mut RequestTrace,
    ) -> std::result::Result<RangeResult, RequestError> {
        check::range(&request)?;
        if !request.serializable {
            trace.end_read_index(self.linearizable_read_notify().await?);
        }
        let label = task_label(&request);
        let may_read = |user: Checker<'_>| user.read(&request.key, &request.range_end);
        let admission = self.authorize(label, trace, may_read).await?;
        // An order or a filter for one key is rare.
        let is_common = has_first_keys(&request) || !request.range_end.is_empty();
        let mut result =
            if is_common && let Some(view) = self.threads().store().begin_snapshot_read() {
                self.range_rows(view, request, trace).await?
            } else {
                let size = ReadSize::of_range(&request);
                let work = move |read: &(dyn ReadTxn + '_)| {
                    Ok(StreamedRange::of_response(execute_range(read, &request)?))
                };
                self.read(trace, label, size, work).await?
            };
        self.check_admission(admission)?;
        trace.end_stage(Stage::Backend);
        self.fill_header(result.header_mut());
        Ok(result)
    }

    /// Waits until this member has applied all that was acknowledged before. Returns how long that
    /// took after the read index was known; `None` at a sole voter, which need not wait.
    pub async fn linearizable_read_notify(
        &self,
    ) -> std::result::Result<Option<Duration>, RequestError> {
        if self.threads().is_sole_voter_caught_up() {
            return Ok(None);
        }
        self.requests().read_index().await.map(Some)
    }

    async fn range_rows(
        &self,
        view: Arc<dyn ReadTxn + Send + Sync>,
        request: RangeRequest,
        trace: &mut RequestTrace,
    ) -> std::result::Result<RangeResult, RequestError> {
        let number = trace.number;
        if has_first_keys(&request) || request.count_only {
            let rows = match self.read_cached(|| collect_rows(&*view, &request, number)) {
                Some(rows) => rows?,
                None => {
                    let (view, request) = (Arc::clone(&view), request.clone());
                    let collect = move || collect_rows(&*view, &request, number);
                    Box::pin(self.run_in_pool(PoolJob::Uncached, trace, collect)).await?
                }
            };
            if let Some(rows) = rows {
                return Ok(RangeResult::Rows(rows));
            }
        }
        let kind = ReadSize::of_range(&request).job_kind(&*view)?;
        let measure = move || {
            let _as = RANGE.enter_numbered(number);
            StreamedRange::measure(view, request)
        };
        Box::pin(self.run_in_pool(PoolJob::Read(kind), trace, measure)).await
    }

    /// A later page of a [`RangeStream`](crate::range_stream::RangeStream), at a revision of the
    /// past: the keys behind it are not counted. Returns whether there are any.
    pub(crate) async fn range_page(
        &self,
        request: RangeRequest,
    ) -> std::result::Result<(Vec<KeyValue>, bool), RequestError> {
        let size = ReadSize::AtMost(u64::try_from(request.limit).unwrap_or(u64::MAX));
        let work = move |read: &(dyn ReadTxn + '_)| {
            let page = RangeRequest { limit: request.limit.saturating_add(1), ..request.clone() };
            let mut records = apply::range::first_records(read, &page)?;
            let more = records.len() as i64 > request.limit;
            if more {
                records.pop();
            }
            Ok((records, more))
        };
        self.read(&mut RequestTrace::start(), *RANGE, size, work).await
    }
}

fn task_label(request: &RangeRequest) -> TaskLabel {
    if request.range_end.is_empty() { *GET } else { *RANGE }
}

#[derive(Debug)]
pub enum RangeResult {
    Rows(RangeRows),
    /// Read in chunks while it is sent.
    Stream(StreamedRange),
    /// In an old era any short range; else a single key with filters or an order, or a short range
    /// that is sorted by value.
    Message(RangeResponse),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RangeMeta {
    pub header: Option<ResponseHeader>,
    pub more: bool,
    pub count: i64,
}

/// Records as they are stored, which is their encoding on the wire.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RangeRows {
    pub meta: RangeMeta,
    pub records: Vec<Bytes>,
}

impl RangeResult {
    pub fn header_mut(&mut self) -> &mut Option<ResponseHeader> {
        match self {
            RangeResult::Rows(found) => &mut found.meta.header,
            RangeResult::Stream(found) => &mut found.meta.header,
            RangeResult::Message(response) => &mut response.header,
        }
    }

    pub fn record_count(&self) -> usize {
        match self {
            RangeResult::Rows(found) => found.records.len(),
            RangeResult::Stream(found) => found.records_left(),
            RangeResult::Message(response) => response.kvs.len(),
        }
    }

    pub async fn read_all(
        self,
        member: &Server,
    ) -> std::result::Result<RangeResponse, RequestError> {
        match self {
            RangeResult::Stream(_) => {
                let kind = ReadSize::AtMost(self.record_count() as u64).kind();
                let read = move || Ok(self.into_response()?);
                member.run_in_pool(PoolJob::Read(kind), &mut RequestTrace::start(), read).await
            }
            here => Ok(here.into_response()?),
        }
    }

    fn into_response(self) -> Result<RangeResponse> {
        let (about, records) = match self {
            RangeResult::Message(response) => return Ok(response),
            RangeResult::Rows(found) => (found.meta, found.records),
            RangeResult::Stream(mut found) => {
                let mut records = Vec::new();
                while let Some(piece) = found.next_records(usize::MAX)? {
                    records.extend(piece);
                }
                (found.meta, records)
            }
        };
        let kvs = records.into_iter().map(decode).collect::<Result<_>>()?;
        let RangeMeta { header, more, count } = about;
        Ok(RangeResponse { header, kvs, more, count })
    }
}

/// The first keys of a range; `None` if that exceeds what the network thread may read.
fn collect_rows(
    view: &dyn ReadTxn,
    request: &RangeRequest,
    number: u32,
) -> ReadResult<Option<RangeRows>> {
    let _as = task_label(request).enter_numbered(number);
    if walk_steps::is_long(view, key_span(request).range(), request.revision) {
        return Ok(None);
    }
    let mut records = Vec::new();
    let mut bytes_left = INLINE_BYTES_MAX;
    let mut is_beyond = false;
    let mut add = |record: Bytes| {
        is_beyond = records.len() == INLINE_RECORDS_MAX || bytes_left < record.len();
        if is_beyond {
            return ControlFlow::Break(());
        }
        bytes_left -= record.len();
        records.push(record);
        ControlFlow::Continue(())
    };
    let (span, options) = (key_span(request), options(request));
    let count = if request.keys_only {
        walk_steps::visit_versions(view, span.range(), options, &mut |key, version| {
            Ok(add(keys_only_record(key, version).encode_to_vec().into()))
        })?
    } else {
        view.visit_records(span.range(), options, &mut add)?
    };
    let meta = range_meta(view, request, count, count);
    Ok((!is_beyond).then_some(RangeRows { meta, records }))
}

pub(crate) fn key_span(request: &RangeRequest) -> KeySpan<'_> {
    KeySpan::new(&request.key, &request.range_end)
}

pub(crate) fn options(request: &RangeRequest) -> RangeOptions {
    let RangeRequest { revision, limit, count_only, .. } = *request;
    RangeOptions { revision, limit, count_only, skip_count: false }
}

/// `matched` is the number of keys that pass the filters.
pub(crate) fn range_meta(
    view: &dyn ReadTxn,
    request: &RangeRequest,
    count: u64,
    matched: u64,
) -> RangeMeta {
    let header = ResponseHeader { revision: view.revision(), ..ResponseHeader::default() };
    let limit = u64::try_from(request.limit).unwrap_or(0);
    let more = !request.count_only && limit > 0 && matched > limit;
    RangeMeta { header: Some(header), more, count: count as i64 }
}

pub(crate) fn decode(record: Bytes) -> Result<KeyValue> {
    KeyValue::decode(record).map_err(|error| Error::damaged("a record", error.to_string()))
}
