//! The path of a range, from the request to the result, which the crate `rpc` encodes:
//! `docs/read-path.md`.
//!
//! ```text
//!   client ── Range ──▶ check      is the request valid?
//!                       wait       linearizable: until acknowledged writes are applied here
//!                       authorise  may the user read these keys? checked again after the read
//!                       open       take one pointer to a revision, its index and its records
//!                       read       keys → records → (sorted, filtered, cut off)
//!                       header     cluster, member, term
//! ```
//!
//! [`ReadPlan`] decides where a range is read. Most ranges start on the network thread, with a
//! budget of records, bytes and (at a past revision) keys of the index. A range over the budget
//! restarts in the read pool. If its response has more than 256 KiB, it is [read while it is being
//! sent](crate::read::streamed_range). The module [`executor`](crate::read::executor) describes the
//! pools.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clearlane_auth::checks::Checker;
use clearlane_contention::TaskLabel;
use clearlane_mvcc::{RangeOptions, ReadTxn, Store};
use clearlane_proto::etcdserverpb::{RangeRequest, RangeResponse, ResponseHeader};
use clearlane_proto::mvccpb::KeyValue;
use clearlane_raft::read_index::ReadNeed;
use clearlane_replica::apply::range::{execute_range, has_first_keys};
use clearlane_replica::apply::{self, KeySpan, check};
use clearlane_replica::{AppliedPosition, Error, RequestError, Result, walk_steps};
use prost::Message;

use crate::handle::Server;
use crate::observe::request_trace::{RequestTrace, Stage};
use crate::observe::task_labels::{GET, RANGE};
use crate::read::executor::{PoolJob, ReadResult, ReadSize};
use crate::read::streamed_range::StreamedRange;
use crate::read::streamed_range::range_size::keys_only_record;

/// Maximum number of records of a range that a network thread reads itself.
const INLINE_RECORDS_MAX: usize = 128;
const INLINE_BYTES_MAX: usize = 256 << 10;

impl Server {
    /// Serves a range in these steps: check, wait, authorise, open, read, header.
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
        let plan = ReadPlan::open(&request, &*self.threads().store());
        let mut result = match plan {
            ReadPlan::Inline(read_txn) => self.read_inline(read_txn, request, trace).await?,
            ReadPlan::Streamed(read_txn) => {
                Box::pin(self.read_streamed(read_txn, request, trace)).await?
            }
            ReadPlan::Message => Box::pin(self.read_message(request, label, trace)).await?,
        };
        self.check_admission(admission)?;
        trace.end_stage(Stage::Backend);
        self.fill_header(result.header_mut());
        Ok(result)
    }

    /// Waits until this member has applied all writes that were acknowledged before the call.
    /// Returns the part of the wait after the read index was known. Returns `None` if this member
    /// is the sole voter and has already applied these writes, so that it need not wait.
    pub async fn linearizable_read_notify(
        &self,
    ) -> std::result::Result<Option<Duration>, RequestError> {
        if self.threads().is_sole_voter_caught_up() {
            return Ok(None);
        }
        self.requests().read_index(ReadNeed::Applied).await.map(Some)
    }

    async fn read_inline(
        &self,
        read_txn: Arc<dyn ReadTxn + Send + Sync>,
        request: RangeRequest,
        trace: &mut RequestTrace,
    ) -> std::result::Result<RangeResult, RequestError> {
        let number = trace.number;
        let rows = match self.read_cached(|| collect_rows(&*read_txn, &request, number)) {
            Some(rows) => rows?,
            None => {
                let (read_txn, request) = (Arc::clone(&read_txn), request.clone());
                let collect = move || collect_rows(&*read_txn, &request, number);
                Box::pin(self.run_in_pool(PoolJob::Uncached, trace, collect)).await?
            }
        };
        match rows {
            Some(rows) => Ok(RangeResult::Rows(rows)),
            None => Box::pin(self.read_streamed(read_txn, request, trace)).await,
        }
    }

    async fn read_streamed(
        &self,
        read_txn: Arc<dyn ReadTxn + Send + Sync>,
        request: RangeRequest,
        trace: &mut RequestTrace,
    ) -> std::result::Result<RangeResult, RequestError> {
        let number = trace.number;
        let kind = ReadSize::of_range(&request).job_kind(&*read_txn)?;
        let measure = move || {
            let _as = RANGE.enter_numbered(number);
            StreamedRange::measure(read_txn, request)
        };
        self.run_in_pool(PoolJob::Read(kind), trace, measure).await
    }

    async fn read_message(
        &self,
        request: RangeRequest,
        label: TaskLabel,
        trace: &mut RequestTrace,
    ) -> std::result::Result<RangeResult, RequestError> {
        let size = ReadSize::of_range(&request);
        let work = move |read: &(dyn ReadTxn + '_)| {
            Ok(StreamedRange::of_response(execute_range(read, &request)?))
        };
        self.read(trace, label, size, work).await
    }

    /// Reads a later page of a [`RangeStream`](super::range_stream::RangeStream), at the revision
    /// of the first page. Returns the records of the page, and true if there are keys after the
    /// page. These keys are not counted.
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

/// The place where a range is read, together with the read transaction to use.
enum ReadPlan {
    /// A range in key order and without filters, a single key, or a count. It is read on this
    /// network thread from memory, up to [`INLINE_RECORDS_MAX`] records and [`INLINE_BYTES_MAX`]
    /// bytes. If a page is on the disk, the uncached pool reads the range, up to the same limits. A
    /// range above a limit is read as [`ReadPlan::Streamed`].
    Inline(Arc<dyn ReadTxn + Send + Sync>),
    /// A sorted or filtered range. All its keys must be visited before its first record is sent. A
    /// thread of the read pool measures the range. It reads a short range immediately. A long range
    /// is read in chunks while its response is being sent.
    Streamed(Arc<dyn ReadTxn + Send + Sync>),
    /// The range is read as one message. It is either one key with an order or a filter, which is
    /// rare, or any range in an old era. A range in an old era waits for locks on a separate
    /// thread.
    Message,
}

impl ReadPlan {
    fn open(request: &RangeRequest, store: &dyn Store<AppliedPosition>) -> ReadPlan {
        let has_first_keys = has_first_keys(request);
        if !has_first_keys && request.range_end.is_empty() {
            return ReadPlan::Message;
        }
        match store.begin_snapshot_read() {
            Some(read_txn) if has_first_keys || request.count_only => ReadPlan::Inline(read_txn),
            Some(read_txn) => ReadPlan::Streamed(read_txn),
            None => ReadPlan::Message,
        }
    }
}

fn task_label(request: &RangeRequest) -> TaskLabel {
    if request.range_end.is_empty() { *GET } else { *RANGE }
}

#[derive(Debug)]
pub enum RangeResult {
    Rows(RangeRows),
    /// A long range that is read in chunks while it is being sent. In an old era, and for a large
    /// single key with filters or an order, the records are already in memory, and are encoded in
    /// chunks.
    Stream(StreamedRange),
    /// A short response as one message: in an old era for any short range; in the default era for a
    /// single key with filters or an order, and for a short range sorted by value.
    Message(RangeResponse),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RangeMeta {
    pub header: Option<ResponseHeader>,
    pub more: bool,
    pub count: i64,
}

/// Encoded records. If the response contains only keys, the records are encoded again, without
/// their values. Otherwise they have the encoding of the store, which is also their encoding on the
/// wire.
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

/// Reads or counts all keys that the request selects, up to its limit. Returns `None` if they
/// exceed the network thread's budget: if there are more than [`INLINE_RECORDS_MAX`] records or
/// [`INLINE_BYTES_MAX`] bytes, or if the walk over the index at a past revision would be too long.
fn collect_rows(
    read_txn: &dyn ReadTxn,
    request: &RangeRequest,
    number: u32,
) -> ReadResult<Option<RangeRows>> {
    let _as = task_label(request).enter_numbered(number);
    if walk_steps::is_long(read_txn, key_span(request).range(), request.revision) {
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
        walk_steps::visit_versions(read_txn, span.range(), options, &mut |key, version| {
            Ok(add(keys_only_record(key, version).encode_to_vec().into()))
        })?
    } else {
        read_txn.visit_records(span.range(), options, &mut add)?
    };
    let meta = range_meta(read_txn, request, count, count);
    Ok((!is_beyond).then_some(RangeRows { meta, records }))
}

pub(crate) fn key_span(request: &RangeRequest) -> KeySpan<'_> {
    KeySpan::new(&request.key, &request.range_end)
}

pub(crate) fn options(request: &RangeRequest) -> RangeOptions {
    let RangeRequest { revision, limit, count_only, .. } = *request;
    RangeOptions { revision, limit, count_only, skip_count: false }
}

/// Returns the fields of a response other than its records. `matched` is the number of keys that
/// pass the filters.
pub(crate) fn range_meta(
    read_txn: &dyn ReadTxn,
    request: &RangeRequest,
    count: u64,
    matched: u64,
) -> RangeMeta {
    let header = ResponseHeader { revision: read_txn.revision(), ..ResponseHeader::default() };
    let limit = u64::try_from(request.limit).unwrap_or(0);
    let more = !request.count_only && limit > 0 && matched > limit;
    RangeMeta { header: Some(header), more, count: count as i64 }
}

pub(crate) fn decode(record: Bytes) -> Result<KeyValue> {
    KeyValue::decode(record).map_err(|error| Error::damaged("a record", error.to_string()))
}
