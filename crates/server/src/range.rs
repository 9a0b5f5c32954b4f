//! The whole path of a read, up to what is handed over for encoding: `docs/read-path.md`.
//!
//! ```text
//!   client ── Range ──▶ check     is it a request at all?
//!                        ├─ wait  linearizable: until what was acknowledged is applied here
//!                        ├─ view  one revision, its index and its records: one pointer
//!                        └─ read  keys → records → (sorted, filtered, cut off)
//! ```
//!
//! A read begins on the network thread, with a budget. What goes beyond it begins again in the
//! [read pool](crate::threads::ReadPool), and is [read while it is sent](crate::streamed_range).
//! What is small and not [cached](try_read_cached) is read by [other
//! threads](crate::threads::ServerThreads::uncached_pool), which may wait for the disk. In the old
//! eras a range of more than one key goes to the pool at once, and is read in one go.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use clearlane_contention::TaskLabel;
use clearlane_engine::try_read_cached;
use clearlane_mvcc::{RangeOptions, ReadTxn};
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::{
    RangeRequest, RangeResponse, ResponseHeader, TxnRequest, TxnResponse,
};
use clearlane_proto::mvccpb::KeyValue;
use prost::Message;

use crate::apply::{self, ApplyError, KeySpan, RequestRejection, check, split_error, txn};
use crate::error::{Error, Result};
use crate::handle::Server;
use crate::request_error::RequestError;
use crate::request_trace::{LockWaitMark, RequestTrace, Stage};
use crate::streamed_range::StreamedRange;
use crate::task_labels::{GET, RANGE, READ_TXN};
use crate::threads::ReadPool;

/// What a range may find on the network thread.
const INLINE_BUDGET: Budget = Budget { records: 128, bytes: 256 << 10 };

/// Reads a range.
pub async fn range(
    member: &Server,
    request: RangeRequest,
    card: &mut RequestTrace,
) -> std::result::Result<RangeResult, RequestError> {
    check::range(&request)?;
    if !request.serializable {
        member.linearizable_read_notify(card).await?;
    }
    let store = member.store();
    let mut found = match store.begin_snapshot_read() {
        Some(view) if apply::range::is_plain(&request) => {
            range_rows(member, view, request, card).await?
        }
        view => {
            let (has_locks, is_one_key) = (view.is_none(), request.range_end.is_empty());
            let number = card.number();
            let work = move || {
                let _as = task_label(&request).enter_numbered(number);
                match &view {
                    Some(view) => apply::range(&**view, &request),
                    None => apply::range(&*store.begin_read(), &request),
                }
            };
            RangeResult::Message(match is_one_key {
                true => run_small(member, card, has_locks, work).await?,
                false => {
                    Box::pin(run_in_pool(member, member.threads().read_pool(), card, work)).await?
                }
            })
        }
    };
    card.end_stage(Stage::Backend);
    member.fill_header(found.header_mut());
    Ok(found)
}

/// A range whose records go as they are stored.
async fn range_rows(
    member: &Server,
    view: Arc<dyn ReadTxn + Send + Sync>,
    request: RangeRequest,
    card: &mut RequestTrace,
) -> std::result::Result<RangeResult, RequestError> {
    let number = card.number();
    let gathered = {
        let _as = task_label(&request).enter_numbered(number);
        read_cached(member, || collect_rows(&*view, &request, INLINE_BUDGET))
    };
    // What is rare has a place of its own, or every range would make room for it.
    let records = match gathered {
        Some(gathered) => gathered??,
        None => {
            let (view, request) = (Arc::clone(&view), request.clone());
            let gather = move || {
                let _as = task_label(&request).enter_numbered(number);
                collect_rows(&*view, &request, INLINE_BUDGET)
            };
            Box::pin(run_in_pool(member, member.threads().uncached_pool(), card, gather)).await?
        }
    };
    if let Some(records) = records {
        return Ok(RangeResult::Rows(records));
    }
    let measure = move || {
        let _as = RANGE.enter_numbered(number);
        StreamedRange::measure(view, request)
    };
    Box::pin(run_in_pool(member, member.threads().read_pool(), card, measure)).await
}

/// Runs a transaction that only reads.
pub async fn read_txn(
    member: &Server,
    request: TxnRequest,
    card: &mut RequestTrace,
) -> std::result::Result<TxnResponse, RequestError> {
    if !is_serializable(&request) {
        member.linearizable_read_notify(card).await?;
    }
    let store = member.store();
    let is_small = range_ops(&request).all(|range| range.range_end.is_empty());
    let number = card.number();
    let view = store.begin_snapshot_read();
    let has_locks = view.is_none();
    let work = move || {
        let _as = READ_TXN.enter_numbered(number);
        match &view {
            Some(view) => txn::read_txn(&**view, &request),
            None => txn::read_txn(&*store.begin_read(), &request),
        }
    };
    let mut response = match is_small {
        true => run_small(member, card, has_locks, work).await?,
        false => Box::pin(run_in_pool(member, member.threads().read_pool(), card, work)).await?,
    };
    card.end_stage(Stage::Backend);
    member.fill_header(&mut response.header);
    Ok(response)
}

/// Reads something small: on the network thread, unless it would have to wait for the disk there.
/// The old eras read with their locks in hand, as etcd did, and wait for the disk with them.
async fn run_small<T: Send + 'static>(
    member: &Server,
    card: &mut RequestTrace,
    has_locks: bool,
    work: impl Fn() -> Result<std::result::Result<T, RequestRejection>> + Send + 'static,
) -> std::result::Result<T, RequestError> {
    if has_locks {
        let before = LockWaitMark::now();
        let done = work();
        card.end_stage_with_locks(Stage::Backend, before);
        return Ok(done??);
    }
    match read_cached(member, &work) {
        Some(done) => Ok(done??),
        None => Box::pin(run_in_pool(member, member.threads().uncached_pool(), card, work)).await,
    }
}

/// Reads what is in memory. Nothing comes back if the disk would have to be waited for.
fn read_cached<T>(member: &Server, read: impl FnOnce() -> T) -> Option<T> {
    let found = try_read_cached(read).ok();
    if found.is_none() {
        member.threads().metrics().uncached_reads.fetch_add(1, Ordering::Relaxed);
    }
    found
}

/// Has something read by a pool, and writes down which locks it waited for there.
async fn run_in_pool<T: Send + 'static>(
    member: &Server,
    pool: &ReadPool,
    card: &mut RequestTrace,
    work: impl FnOnce() -> Result<std::result::Result<T, RequestRejection>> + Send + 'static,
) -> std::result::Result<T, RequestError> {
    let mut stamped = *card;
    let done = pool.run(move || {
        stamped.end_stage(Stage::Pool);
        let before = LockWaitMark::now();
        let done = work();
        stamped.end_stage_with_locks(Stage::Backend, before);
        (done, stamped)
    });
    let (done, stamped) = member.within_deadline(done).await?.ok_or(RequestError::Stopped)?;
    *card = stamped;
    Ok(done??)
}

/// The name under which a range takes its locks.
fn task_label(request: &RangeRequest) -> TaskLabel {
    match request.range_end.is_empty() {
        true => *GET,
        false => *RANGE,
    }
}

/// Whether each of a transaction's ranges may be answered from what this member has.
fn is_serializable(request: &TxnRequest) -> bool {
    range_ops(request).all(|range| range.serializable)
}

/// The ranges of a transaction that has nothing else.
fn range_ops(request: &TxnRequest) -> impl Iterator<Item = &RangeRequest> {
    let ops = request.success.iter().chain(&request.failure);
    ops.filter_map(|op| match &op.request {
        Some(Request::RequestRange(range)) => Some(range),
        _ => None,
    })
}

/// What a range has found.
#[derive(Debug)]
pub enum RangeResult {
    /// So little that it is here.
    Rows(RangeRows),
    /// So much that it is read when it is sent.
    Stream(StreamedRange),
    /// Sorted, filtered, or without values.
    Message(RangeResponse),
}

/// What an answer says beside its records.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RangeMeta {
    /// The member that answers, and as of which revision.
    pub header: Option<ResponseHeader>,
    /// Whether the limit has cut off something.
    pub more: bool,
    /// How many keys there are in the range, whatever the limit.
    pub count: i64,
}

/// Records as they are stored, which is as they go on the wire.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RangeRows {
    /// The rest of the answer.
    pub meta: RangeMeta,
    /// Encoded, in the order of their keys.
    pub records: Vec<Bytes>,
}

impl RangeResult {
    /// The member that answers.
    pub fn header_mut(&mut self) -> &mut Option<ResponseHeader> {
        match self {
            RangeResult::Rows(found) => &mut found.meta.header,
            RangeResult::Stream(found) => &mut found.meta.header,
            RangeResult::Message(response) => &mut response.header,
        }
    }

    /// How many records there are in the answer.
    pub fn record_count(&self) -> usize {
        match self {
            RangeResult::Rows(found) => found.records.len(),
            RangeResult::Stream(found) => found.records_left(),
            RangeResult::Message(response) => response.kvs.len(),
        }
    }

    /// All of it in memory, for a caller that cannot take it piece by piece.
    pub async fn read_all(
        self,
        member: &Server,
    ) -> std::result::Result<RangeResponse, RequestError> {
        match self {
            RangeResult::Stream(_) => {
                member.run_in_read_pool(move || self.into_response().map(Ok)).await
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

/// How much may be gathered.
#[derive(Clone, Copy, Debug)]
struct Budget {
    records: usize,
    bytes: usize,
}

/// The records of a plain range, or none if they are beyond the budget.
fn collect_rows(
    view: &dyn ReadTxn,
    request: &RangeRequest,
    budget: Budget,
) -> Result<std::result::Result<Option<RangeRows>, RequestRejection>> {
    let mut records = Vec::new();
    let mut left = budget;
    let mut is_beyond = false;
    let count = view.visit_records(key_span(request).range(), options(request), &mut |record| {
        is_beyond = left.records == 0 || left.bytes < record.len();
        if is_beyond {
            return ControlFlow::Break(());
        }
        left.records -= 1;
        left.bytes -= record.len();
        records.push(record);
        ControlFlow::Continue(())
    });
    Ok(split_error(count.map_err(ApplyError::from))?.map(|count| {
        let about = range_meta(view, request, count);
        (!is_beyond).then_some(RangeRows { meta: about, records })
    }))
}

pub(crate) fn key_span(request: &RangeRequest) -> KeySpan<'_> {
    KeySpan::new(&request.key, &request.range_end)
}

pub(crate) fn options(request: &RangeRequest) -> RangeOptions {
    let RangeRequest { revision, limit, count_only, .. } = *request;
    RangeOptions { revision, limit, count_only, skip_count: false }
}

pub(crate) fn range_meta(view: &dyn ReadTxn, request: &RangeRequest, count: u64) -> RangeMeta {
    let header = ResponseHeader { revision: view.revision(), ..ResponseHeader::default() };
    let limit = u64::try_from(request.limit).unwrap_or(0);
    let more = !request.count_only && limit > 0 && count > limit;
    RangeMeta { header: Some(header), more, count: count as i64 }
}

pub(crate) fn decode(record: Bytes) -> Result<KeyValue> {
    KeyValue::decode(record).map_err(|error| Error::damaged("a record", error.to_string()))
}
