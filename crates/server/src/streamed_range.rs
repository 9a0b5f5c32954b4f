//! An answer too long to be sent at once: measured first, then read in chunks while it is sent.
//!
//! The length of an answer is sent before its first byte. For a plain range the index knows the
//! encoded length of each record; where it [does not](clearlane_mvcc::key_index::EncodedLen), the
//! records are read to measure them, and again to be sent. What was sorted, filtered or stripped of
//! its values is in memory already, and is encoded and freed chunk by chunk.
//!
//! * All chunks are read from one view, so what was measured is what is read.
//! * A plain answer takes the memory of a chunk or two:
//!   [`response_memory`](crate::response_memory).
//! * A chunk is a job of its own in the [pool](crate::threads::ReadPool), with [`YieldPoints`]
//!   inside, at which it gives way to other jobs, and to threads with less to do on the same core.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::vec::IntoIter;

use bytes::Bytes;
use clearlane_mvcc::{RangeOptions, ReadTxn};
use clearlane_net::sched::YieldPoints;
use clearlane_proto::etcdserverpb::{RangeRequest, RangeResponse};
use clearlane_proto::mvccpb::KeyValue;
use prost::Message;

use crate::error::{Error, Result};
use crate::range::{RangeMeta, RangeResult, RangeRows, decode, key_span, options, range_meta};
use crate::read_executor::ReadResult;
use crate::walk_steps;

/// An answer up to this size is read at once.
pub(crate) const INLINE_BYTES_MAX: u64 = 256 << 10;
/// The cost of looking up a record's length in the index, in bytes read.
const MEASURE_COST_BYTES: usize = 64;

pub struct StreamedRange {
    pub meta: RangeMeta,
    records: UnreadRecords,
    records_left: u64,
    encoded_bytes_left: u64,
}

enum UnreadRecords {
    /// What remains to be read begins after the last key that was read.
    Stored {
        view: Arc<dyn ReadTxn + Send + Sync>,
        request: Box<RangeRequest>,
    },
    Found(IntoIter<KeyValue>),
}

impl StreamedRange {
    /// Measures a plain range, and reads it at once if it is short.
    pub(crate) fn measure(
        view: Arc<dyn ReadTxn + Send + Sync>,
        request: RangeRequest,
    ) -> ReadResult<RangeResult> {
        let mut found = StreamedRange::unread(view, request)?;
        if found.encoded_bytes_left > INLINE_BYTES_MAX {
            return Ok(RangeResult::Stream(found));
        }
        let records = found.next_records(usize::MAX)?.unwrap_or_default();
        Ok(RangeResult::Rows(RangeRows { meta: found.meta, records }))
    }

    /// Measures a plain range.
    pub(crate) fn unread(
        view: Arc<dyn ReadTxn + Send + Sync>,
        request: RangeRequest,
    ) -> ReadResult<StreamedRange> {
        let (records_left, encoded_bytes_left, count) = measure_range(&*view, &request)?;
        let meta = range_meta(&*view, &request, count);
        let records = UnreadRecords::Stored { view, request: Box::new(request) };
        Ok(StreamedRange { meta, records, records_left, encoded_bytes_left })
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
        let mut piece = Vec::new();
        let (mut left, mut encoded, mut steps) = (bytes, 0, YieldPoints::default());
        let mut add = |record: Bytes| {
            // A single record may exceed the chunk.
            if record.len() > left && !piece.is_empty() {
                return ControlFlow::Break(());
            }
            left = left.saturating_sub(record.len());
            steps.advance(record.len());
            encoded += field_len(record.len());
            piece.push(record);
            ControlFlow::Continue(())
        };
        match &mut self.records {
            UnreadRecords::Stored { view, request } => {
                let limit = self.records_left as i64;
                let options = RangeOptions { limit, skip_count: true, ..options(request) };
                walk_steps::visit_records(&**view, key_span(request).range(), options, &mut add)?;
            }
            UnreadRecords::Found(records) => {
                while let Some(record) = records.as_slice().first()
                    && add(record.encode_to_vec().into()).is_continue()
                {
                    records.next();
                }
            }
        }
        self.records_left = self.records_left.saturating_sub(piece.len() as u64);
        self.encoded_bytes_left =
            self.encoded_bytes_left.checked_sub(encoded).ok_or_else(length_mismatch)?;
        let last = piece.last().ok_or_else(length_mismatch)?;
        if self.records_left == 0 && self.encoded_bytes_left > 0 {
            return Err(length_mismatch());
        }
        if self.records_left > 0
            && let UnreadRecords::Stored { request, .. } = &mut self.records
        {
            request.key = [&decode(last.clone())?.key[..], &[0]].concat().into();
        }
        Ok(Some(piece))
    }
}

/// Returns the number of records, their bytes, and the number of keys in the range.
fn measure_range(view: &dyn ReadTxn, request: &RangeRequest) -> ReadResult<(u64, u64, u64)> {
    let (span, options) = (key_span(request), options(request));
    if !options.count_only
        && let Some(known) = measure_by_index(view, request)?
    {
        return Ok(known);
    }
    let (mut records, mut encoded, mut steps) = (0, 0, YieldPoints::default());
    let count = walk_steps::visit_records(view, span.range(), options, &mut |record| {
        steps.advance(record.len());
        records += 1;
        encoded += field_len(record.len());
        ControlFlow::Continue(())
    })?;
    Ok((records, encoded, count))
}

/// `None` if the index does not know the length of a record.
fn measure_by_index(
    view: &dyn ReadTxn,
    request: &RangeRequest,
) -> ReadResult<Option<(u64, u64, u64)>> {
    let (span, options) = (key_span(request), options(request));
    let limit = u64::try_from(options.limit).ok().filter(|limit| *limit > 0).unwrap_or(u64::MAX);
    let (mut records, mut encoded, mut steps) = (0, 0, YieldPoints::default());
    let mut known = Some(0);
    walk_steps::visit_parts(view, span.range(), options.revision, &mut |part| {
        let part_count = if records == limit {
            Some(view.visit_records(
                part,
                RangeOptions { count_only: true, ..options },
                &mut |_| ControlFlow::Break(()),
            )?)
        } else {
            let limit = i64::try_from(limit - records).unwrap_or(i64::MAX);
            let options = RangeOptions { limit, ..options };
            view.visit_record_lengths(part, options, &mut |record| {
                steps.advance(MEASURE_COST_BYTES);
                records += 1;
                encoded += field_len(record);
                ControlFlow::Continue(())
            })?
        };
        known = known.zip(part_count).map(|(count, more)| count + more);
        Ok(if known.is_some() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    Ok(known.map(|count| (records, encoded, count)))
}

fn length_mismatch() -> Error {
    Error::damaged("the store", "the records of a range are not as long as the index says")
}

/// Of records in memory, as they are in an answer.
pub(crate) fn encoded_len(records: &[KeyValue]) -> u64 {
    let (mut encoded, mut steps) = (0, YieldPoints::default());
    for record in records {
        steps.advance(MEASURE_COST_BYTES);
        encoded += field_len(record.encoded_len());
    }
    encoded
}

/// A record in an answer: tag, length, record.
fn field_len(record: usize) -> u64 {
    (1 + prost::length_delimiter_len(record) + record) as u64
}

impl std::fmt::Debug for StreamedRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamedRange").field("meta", &self.meta).finish_non_exhaustive()
    }
}
