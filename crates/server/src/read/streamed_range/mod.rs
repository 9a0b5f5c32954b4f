//! A response that is too long to be read completely before it is sent. It is measured first, and
//! then read in chunks while it is being sent.
//!
//! The length of a response is sent before its first record. [The index knows the
//! length](range_size) of most records. Records whose length it does not know are read twice: to
//! measure them, and to send them.
//!
//! * If the range is in key order, only the next key and the snapshot are kept between two chunks.
//!   Responses with only keys are read from the index. Filters are also decided by the index, so
//!   only records of the response are read.
//! * In [another order](sorted), four bytes are kept for each key of the response, and 16 bytes
//!   while the range is being sorted.
//! * All chunks are read from one snapshot, so the measured records equal the records that are
//!   sent. A response in an old era is already in memory, and is encoded and freed chunk by chunk.
//! * Each chunk is a separate job in the [pool](crate::threads::ReadPool). At its [`YieldPoints`]
//!   the job yields to other jobs, and to threads with less work on the same core.
//!   [`response_memory`](crate::read::response_memory) decides the size of a chunk.

pub(crate) mod range_size;
mod record_chunk;
mod sorted;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::vec::IntoIter;

use bytes::Bytes;
use clearlane_contention::YieldPoints;
use clearlane_mvcc::{RangeOptions, ReadTxn, RecordVisitor, Revision};
use clearlane_proto::etcdserverpb::range_request::SortTarget;
use clearlane_proto::etcdserverpb::{RangeRequest, RangeResponse};
use clearlane_proto::mvccpb::KeyValue;
use clearlane_replica::apply::range::{RecordOrder, execute_range, is_plain};
use clearlane_replica::{Error, Result, walk_steps};
use prost::Message;

use self::range_size::{
    NAMES_MAX, RangeSize, VERSION_COST_BYTES, field_len, is_wanted, keys_only_record,
};
use self::record_chunk::RecordChunk;
use self::sorted::{RUN_KEYS_MAX, SortedRange};
use crate::read::executor::ReadResult;
use crate::read::range::{
    RangeMeta, RangeResult, RangeRows, decode, key_span, options, range_meta,
};

/// Maximum number of bytes of a response that is read completely before it is sent.
pub(crate) const INLINE_BYTES_MAX: u64 = 256 << 10;

pub struct StreamedRange {
    pub meta: RangeMeta,
    records: UnreadRecords,
    records_left: u64,
    encoded_bytes_left: u64,
}

enum UnreadRecords {
    /// Records in key order. `request.key` is the next key to be read.
    Unsorted {
        read_txn: Arc<dyn ReadTxn + Send + Sync>,
        request: Box<RangeRequest>,
    },
    Sorted(Box<SortedRange>),
    Found(IntoIter<KeyValue>),
}

impl StreamedRange {
    /// Measures a range, and sorts it if requested. Reads it completely if it is short.
    pub(crate) fn measure(
        read_txn: Arc<dyn ReadTxn + Send + Sync>,
        request: RangeRequest,
    ) -> ReadResult<RangeResult> {
        let sorts_by_value =
            RecordOrder::of(&request).is_some_and(|order| order.target == SortTarget::Value);
        if sorts_by_value && !request.count_only && is_short(&*read_txn, &request)? {
            let read: &dyn ReadTxn = &*read_txn;
            return Ok(RangeResult::Message(execute_range(read, &request)?));
        }
        let mut found = StreamedRange::unread(read_txn, request)?;
        if found.encoded_bytes_left > INLINE_BYTES_MAX {
            return Ok(RangeResult::Stream(found));
        }
        let records = found.next_records(usize::MAX)?.unwrap_or_default();
        Ok(RangeResult::Rows(RangeRows { meta: found.meta, records }))
    }

    /// Measures a range without keeping any record.
    pub(crate) fn unread(
        read_txn: Arc<dyn ReadTxn + Send + Sync>,
        request: RangeRequest,
    ) -> ReadResult<StreamedRange> {
        StreamedRange::open(read_txn, request, RUN_KEYS_MAX)
    }

    fn open(
        read_txn: Arc<dyn ReadTxn + Send + Sync>,
        request: RangeRequest,
        run_keys_max: usize,
    ) -> ReadResult<StreamedRange> {
        let order = RecordOrder::of(&request).filter(|_| !request.count_only);
        let (sorted, size) = match order {
            Some(order) => {
                let (sorted, size) =
                    SortedRange::collect(&read_txn, &request, order, run_keys_max)?;
                (Some(sorted), size)
            }
            None => (None, RangeSize::measure(&*read_txn, &request)?),
        };
        Ok(StreamedRange {
            meta: range_meta(&*read_txn, &request, size.count, size.matched),
            records: match sorted {
                Some(sorted) => UnreadRecords::Sorted(Box::new(sorted)),
                None => UnreadRecords::Unsorted { read_txn, request: Box::new(request) },
            },
            records_left: size.records,
            encoded_bytes_left: size.encoded_bytes,
        })
    }

    /// Converts a response that is in memory. A long response becomes a stream, so that only chunks
    /// of it, and not the whole response, are in memory a second time in encoded form.
    pub(crate) fn of_response(response: RangeResponse) -> RangeResult {
        let encoded = encoded_len(&response.kvs);
        if encoded <= INLINE_BYTES_MAX {
            return RangeResult::Message(response);
        }
        let RangeResponse { header, kvs, more, count } = response;
        let meta = RangeMeta { header, more, count };
        RangeResult::Stream(StreamedRange { meta, ..StreamedRange::of_records(kvs, encoded) })
    }

    /// Creates a stream of records that are in memory. `encoded` is their [`encoded_len`].
    pub(crate) fn of_records(records: Vec<KeyValue>, encoded: u64) -> StreamedRange {
        StreamedRange {
            meta: RangeMeta::default(),
            records_left: records.len() as u64,
            records: UnreadRecords::Found(records.into_iter()),
            encoded_bytes_left: encoded,
        }
    }

    pub fn records_left(&self) -> usize {
        self.records_left as usize
    }

    /// Returns the length of the remaining records on the wire, including their tags and lengths.
    pub fn encoded_len(&self) -> u64 {
        self.encoded_bytes_left
    }

    /// Reads all remaining records.
    pub(crate) fn into_records(mut self) -> Result<Vec<KeyValue>> {
        if let UnreadRecords::Found(records) = self.records {
            return Ok(records.collect());
        }
        let mut records = Vec::new();
        while let Some(piece) = self.next_records(usize::MAX)? {
            for record in piece {
                records.push(decode(record)?);
            }
        }
        Ok(records)
    }

    /// Reads about `bytes` bytes, and at least one record. Returns `None` at the end.
    pub fn next_records(&mut self, bytes: usize) -> Result<Option<Vec<Bytes>>> {
        if self.records_left == 0 {
            return Ok(None);
        }
        let mut chunk = RecordChunk::new(self.records_left, bytes);
        match &mut self.records {
            UnreadRecords::Unsorted { read_txn, request } => {
                let limit = self.records_left as i64;
                if let Some(next) = read_unsorted(&**read_txn, request, limit, &mut chunk)? {
                    request.key = Bytes::copy_from_slice(&decode(next)?.key);
                }
            }
            UnreadRecords::Sorted(sorted) => sorted.read(&mut chunk)?,
            UnreadRecords::Found(records) => {
                while let Some(record) = records.as_slice().first()
                    && chunk.add(record.encode_to_vec().into()).is_ok()
                {
                    records.next();
                }
            }
        }
        let RecordChunk { records, encoded_bytes, .. } = chunk;
        self.records_left = self.records_left.saturating_sub(records.len() as u64);
        self.encoded_bytes_left =
            self.encoded_bytes_left.checked_sub(encoded_bytes).ok_or_else(length_mismatch)?;
        if records.is_empty() || (self.records_left == 0 && self.encoded_bytes_left > 0) {
            return Err(length_mismatch());
        }
        Ok(Some(records))
    }
}

/// Returns whether a range is short enough for all its records to be collected in memory: the index
/// must know all their lengths, and the sum must be at most [`INLINE_BYTES_MAX`].
fn is_short(read_txn: &dyn ReadTxn, request: &RangeRequest) -> clearlane_mvcc::Result<bool> {
    let RangeRequest { revision, .. } = *request;
    let options = RangeOptions { revision, skip_count: true, ..RangeOptions::default() };
    let (mut left, mut is_short) = (INLINE_BYTES_MAX as usize, true);
    walk_steps::visit_versions(read_txn, key_span(request).range(), options, &mut |_, version| {
        let rest = version.record_len().and_then(|length| left.checked_sub(length));
        (left, is_short) = (rest.unwrap_or(0), rest.is_some());
        Ok(if is_short { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    Ok(is_short)
}

/// Reads a chunk. Returns the first record that did not fit, or `None` at the end of the response.
fn read_unsorted(
    read_txn: &dyn ReadTxn,
    request: &RangeRequest,
    limit: i64,
    chunk: &mut RecordChunk,
) -> clearlane_mvcc::Result<Option<Bytes>> {
    // A record is subtracted from these numbers when its name (its revision) is collected, before
    // the record itself is read.
    let (mut records_left, mut bytes_left) = (limit, chunk.bytes_left());
    let mut next = None;
    let mut add = |record: Bytes| {
        chunk.add(record).unwrap_or_else(|record| {
            next = Some(record);
            ControlFlow::Break(())
        })
    };
    let (span, mut steps) = (key_span(request), YieldPoints::default());
    let options = RangeOptions { limit, skip_count: true, ..options(request) };
    if is_plain(request) {
        walk_steps::visit_records(read_txn, span.range(), options, &mut add)?;
        return Ok(next);
    }
    // Keys that the filters exclude do not count towards the limit.
    let options = RangeOptions { limit: 0, ..options };
    let (mut names, mut flow) = (Vec::new(), ControlFlow::Continue(()));
    walk_steps::visit_versions(read_txn, span.range(), options, &mut |key, version| {
        steps.advance(VERSION_COST_BYTES);
        if !is_wanted(request, version) {
            return Ok(ControlFlow::Continue(()));
        }
        if request.keys_only {
            return Ok(add(keys_only_record(key, version).encode_to_vec().into()));
        }
        names.push(version.modified);
        records_left -= 1;
        bytes_left = bytes_left.saturating_sub(version.record_len().unwrap_or(0));
        if names.len() == NAMES_MAX || records_left == 0 || bytes_left == 0 {
            flow = read_named(read_txn, &mut names, &mut add)?;
        }
        Ok(flow)
    })?;
    if flow.is_continue() {
        let _ = read_named(read_txn, &mut names, &mut add)?;
    }
    Ok(next)
}

fn read_named(
    read_txn: &dyn ReadTxn,
    names: &mut Vec<Revision>,
    add: &mut RecordVisitor<'_>,
) -> clearlane_mvcc::Result<ControlFlow<()>> {
    let mut flow = ControlFlow::Continue(());
    read_txn.visit_named_records(names, &mut |record| {
        flow = add(record);
        flow
    })?;
    names.clear();
    Ok(flow)
}

fn length_mismatch() -> Error {
    Error::damaged("the store", "the records of a range are not as long as the index says")
}

/// Returns the number of bytes that these records take when they are encoded in a response.
pub(crate) fn encoded_len(records: &[KeyValue]) -> u64 {
    let (mut encoded, mut steps) = (0, YieldPoints::default());
    for record in records {
        steps.advance(VERSION_COST_BYTES);
        encoded += field_len(record.encoded_len());
    }
    encoded
}

impl std::fmt::Debug for StreamedRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamedRange").field("meta", &self.meta).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
