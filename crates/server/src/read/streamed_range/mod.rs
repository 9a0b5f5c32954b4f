//! An answer too long to be sent at once: measured first, then read in chunks while it is sent.
//!
//! The length of an answer is sent before its first byte. [The index knows it](range_size); records
//! whose length it does not know are read to measure them, and again to be sent.
//!
//! * In the order of the keys nothing is kept between two chunks but the next key. Keys alone come
//!   from the index; filters are decided by it, and only records of the answer are read.
//! * In [another order](sorted) four bytes for each key are kept, and 16 while it is sorted.
//! * All chunks are read from one view, so what was measured is what is read. An answer in an old
//!   era is in memory already, and is encoded and freed chunk by chunk.
//! * A chunk is a job of its own in the [pool](crate::threads::ReadPool), with [`YieldPoints`]
//!   inside, at which it gives way to other jobs, and to threads with less to do on the same core.
//!   Its size: [`response_memory`](crate::response_memory).

pub(crate) mod range_size;
mod record_chunk;
mod sorted;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::vec::IntoIter;

use bytes::Bytes;
use clearlane_mvcc::{RangeOptions, ReadTxn, RecordVisitor, Revision};
use clearlane_net::sched::YieldPoints;
use clearlane_proto::etcdserverpb::range_request::SortTarget;
use clearlane_proto::etcdserverpb::{RangeRequest, RangeResponse};
use clearlane_proto::mvccpb::KeyValue;
use prost::Message;

use self::range_size::{
    NAMES_MAX, RangeSize, VERSION_COST_BYTES, field_len, is_wanted, keys_only_record,
};
use self::record_chunk::RecordChunk;
use self::sorted::{RUN_KEYS_MAX, SortedRange};
use crate::apply::range::{RecordOrder, execute_range, is_plain};
use crate::error::{Error, Result};
use crate::range::{RangeMeta, RangeResult, RangeRows, decode, key_span, options, range_meta};
use crate::read_executor::ReadResult;
use crate::walk_steps;

/// An answer up to this size is read at once.
pub(crate) const INLINE_BYTES_MAX: u64 = 256 << 10;

pub struct StreamedRange {
    pub meta: RangeMeta,
    records: UnreadRecords,
    records_left: u64,
    encoded_bytes_left: u64,
}

enum UnreadRecords {
    /// In the order of their keys; the next one is that of the request.
    Unsorted {
        view: Arc<dyn ReadTxn + Send + Sync>,
        request: Box<RangeRequest>,
    },
    Sorted(Box<SortedRange>),
    Found(IntoIter<KeyValue>),
}

impl StreamedRange {
    /// Measures a range, sorts it if it is to be sorted, and reads it at once if it is short.
    pub(crate) fn measure(
        view: Arc<dyn ReadTxn + Send + Sync>,
        request: RangeRequest,
    ) -> ReadResult<RangeResult> {
        let sorts_by_value =
            RecordOrder::of(&request).is_some_and(|order| order.target == SortTarget::Value);
        if sorts_by_value && !request.count_only && is_short(&*view, &request)? {
            let read: &dyn ReadTxn = &*view;
            return Ok(RangeResult::Message(execute_range(read, &request)?));
        }
        let mut found = StreamedRange::unread(view, request)?;
        if found.encoded_bytes_left > INLINE_BYTES_MAX {
            return Ok(RangeResult::Stream(found));
        }
        let records = found.next_records(usize::MAX)?.unwrap_or_default();
        Ok(RangeResult::Rows(RangeRows { meta: found.meta, records }))
    }

    /// Measures a range, of which no record is kept.
    pub(crate) fn unread(
        view: Arc<dyn ReadTxn + Send + Sync>,
        request: RangeRequest,
    ) -> ReadResult<StreamedRange> {
        StreamedRange::open(view, request, RUN_KEYS_MAX)
    }

    fn open(
        view: Arc<dyn ReadTxn + Send + Sync>,
        request: RangeRequest,
        run_keys_max: usize,
    ) -> ReadResult<StreamedRange> {
        let order = RecordOrder::of(&request).filter(|_| !request.count_only);
        let (sorted, size) = match order {
            Some(order) => {
                let (sorted, size) = SortedRange::collect(&view, &request, order, run_keys_max)?;
                (Some(sorted), size)
            }
            None => (None, RangeSize::measure(&*view, &request)?),
        };
        Ok(StreamedRange {
            meta: range_meta(&*view, &request, size.count, size.matched),
            records: match sorted {
                Some(sorted) => UnreadRecords::Sorted(Box::new(sorted)),
                None => UnreadRecords::Unsorted { view, request: Box::new(request) },
            },
            records_left: size.records,
            encoded_bytes_left: size.encoded_bytes,
        })
    }

    /// For an answer that is in memory, and is not to be there a second time when it is encoded.
    pub(crate) fn of_response(response: RangeResponse) -> RangeResult {
        let encoded = encoded_len(&response.kvs);
        if encoded <= INLINE_BYTES_MAX {
            return RangeResult::Message(response);
        }
        let RangeResponse { header, kvs, more, count } = response;
        let meta = RangeMeta { header, more, count };
        RangeResult::Stream(StreamedRange { meta, ..StreamedRange::of_records(kvs, encoded) })
    }

    /// `encoded` is their [`encoded_len`].
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

    /// With the tags and lengths of the records on the wire.
    pub fn encoded_len(&self) -> u64 {
        self.encoded_bytes_left
    }

    /// All that is left.
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

    /// About so many bytes, and at least one record; `None` at the end.
    pub fn next_records(&mut self, bytes: usize) -> Result<Option<Vec<Bytes>>> {
        if self.records_left == 0 {
            return Ok(None);
        }
        let mut chunk = RecordChunk::new(self.records_left, bytes);
        match &mut self.records {
            UnreadRecords::Unsorted { view, request } => {
                let limit = self.records_left as i64;
                if let Some(next) = read_unsorted(&**view, request, limit, &mut chunk)? {
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

/// Whether the records of all keys of a range may be collected at once.
fn is_short(view: &dyn ReadTxn, request: &RangeRequest) -> clearlane_mvcc::Result<bool> {
    let RangeRequest { revision, .. } = *request;
    let options = RangeOptions { revision, skip_count: true, ..RangeOptions::default() };
    let (mut left, mut is_short) = (INLINE_BYTES_MAX as usize, true);
    walk_steps::visit_versions(view, key_span(request).range(), options, &mut |_, version| {
        let rest = version.record_len().and_then(|length| left.checked_sub(length));
        (left, is_short) = (rest.unwrap_or(0), rest.is_some());
        Ok(if is_short { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    Ok(is_short)
}

/// Returns the record that did not fit, if it was not the end of the answer.
fn read_unsorted(
    view: &dyn ReadTxn,
    request: &RangeRequest,
    limit: i64,
    chunk: &mut RecordChunk,
) -> clearlane_mvcc::Result<Option<Bytes>> {
    // What is named and not fetched counts, too.
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
        walk_steps::visit_records(view, span.range(), options, &mut add)?;
        return Ok(next);
    }
    // What the filters leave out does not count for the limit.
    let options = RangeOptions { limit: 0, ..options };
    let (mut names, mut flow) = (Vec::new(), ControlFlow::Continue(()));
    walk_steps::visit_versions(view, span.range(), options, &mut |key, version| {
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
            flow = read_named(view, &mut names, &mut add)?;
        }
        Ok(flow)
    })?;
    if flow.is_continue() {
        let _ = read_named(view, &mut names, &mut add)?;
    }
    Ok(next)
}

fn read_named(
    view: &dyn ReadTxn,
    names: &mut Vec<Revision>,
    add: &mut RecordVisitor<'_>,
) -> clearlane_mvcc::Result<ControlFlow<()>> {
    let mut flow = ControlFlow::Continue(());
    view.visit_named_records(names, &mut |record| {
        flow = add(record);
        flow
    })?;
    names.clear();
    Ok(flow)
}

fn length_mismatch() -> Error {
    Error::damaged("the store", "the records of a range are not as long as the index says")
}

/// Of records in memory, as they are in an answer.
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
