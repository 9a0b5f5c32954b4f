//! An answer too long to be in memory at once: measured first, then read in chunks while it is
//! sent.
//!
//! The length of an answer is sent before its first byte. The index knows the encoded length of
//! each record; where it [does not](clearlane_mvcc::key_index::EncodedLen), the records are read to
//! measure them, and again to be sent.
//!
//! * All chunks are read from one view, so what was measured is what is read.
//! * An answer takes the memory of a chunk or two: [`response_memory`](crate::response_memory).
//! * Between two chunks it is another answer's turn in the [pool](crate::threads::ReadPool), whose
//!   threads have the class [`Batch`](clearlane_net::sched::SchedClass::Batch) and read in
//!   [`YieldPoints`], so that a thread with less to do on the same core goes first.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use clearlane_mvcc::{RangeOptions, ReadTxn};
use clearlane_net::sched::YieldPoints;
use clearlane_proto::etcdserverpb::RangeRequest;

use crate::error::{Error, Result};
use crate::range::{RangeMeta, RangeResult, RangeRows, decode, key_span, options, range_meta};
use crate::read_executor::ReadResult;

/// An answer up to this size is read at once.
const INLINE_BYTES_MAX: u64 = 256 << 10;
/// The cost of looking up a record's length in the index, in bytes read.
const MEASURE_COST_BYTES: usize = 64;

pub struct StreamedRange {
    pub meta: RangeMeta,
    txn: Arc<dyn ReadTxn + Send + Sync>,
    /// What remains to be read: it begins after the last key that was read.
    request: RangeRequest,
    records_left: u64,
    encoded_bytes_left: u64,
}

impl StreamedRange {
    /// Measures a plain range, and reads it at once if it is short.
    pub(crate) fn measure(
        view: Arc<dyn ReadTxn + Send + Sync>,
        request: RangeRequest,
    ) -> ReadResult<RangeResult> {
        let (records_left, encoded_bytes_left, count) = measure_range(&*view, &request)?;
        let mut found = StreamedRange {
            meta: range_meta(&*view, &request, count),
            txn: view,
            request,
            records_left,
            encoded_bytes_left,
        };
        if encoded_bytes_left > INLINE_BYTES_MAX {
            return Ok(RangeResult::Stream(found));
        }
        let records = found.next_records(usize::MAX)?.unwrap_or_default();
        Ok(RangeResult::Rows(RangeRows { meta: found.meta, records }))
    }

    pub fn records_left(&self) -> usize {
        self.records_left as usize
    }

    /// With the tags and lengths of the records on the wire.
    pub fn encoded_len(&self) -> u64 {
        self.encoded_bytes_left
    }

    /// About so many bytes, and at least one record; `None` at the end.
    pub fn next_records(&mut self, bytes: usize) -> Result<Option<Vec<Bytes>>> {
        if self.records_left == 0 {
            return Ok(None);
        }
        let mut piece = Vec::new();
        let (mut left, mut encoded, mut steps) = (bytes, 0, YieldPoints::default());
        let limit = self.records_left as i64;
        let options = RangeOptions { limit, skip_count: true, ..options(&self.request) };
        self.txn.visit_records(key_span(&self.request).range(), options, &mut |record| {
            // A single record may exceed the chunk.
            if record.len() > left && !piece.is_empty() {
                return ControlFlow::Break(());
            }
            left = left.saturating_sub(record.len());
            steps.advance(record.len());
            encoded += field_len(record.len());
            piece.push(record);
            ControlFlow::Continue(())
        })?;
        self.records_left = self.records_left.saturating_sub(piece.len() as u64);
        self.encoded_bytes_left =
            self.encoded_bytes_left.checked_sub(encoded).ok_or_else(length_mismatch)?;
        let last = piece.last().ok_or_else(length_mismatch)?;
        if self.records_left > 0 {
            self.request.key = [&decode(last.clone())?.key[..], &[0]].concat().into();
        } else if self.encoded_bytes_left > 0 {
            return Err(length_mismatch());
        }
        Ok(Some(piece))
    }
}

/// Returns the number of records, their bytes, and the number of keys in the range.
fn measure_range(view: &dyn ReadTxn, request: &RangeRequest) -> ReadResult<(u64, u64, u64)> {
    let (span, options) = (key_span(request), options(request));
    let (mut records, mut encoded, mut steps) = (0, 0, YieldPoints::default());
    let known = view.visit_record_lengths(span.range(), options, &mut |record| {
        steps.advance(MEASURE_COST_BYTES);
        records += 1;
        encoded += field_len(record);
        ControlFlow::Continue(())
    })?;
    if let Some(count) = known {
        return Ok((records, encoded, count));
    }
    (records, encoded) = (0, 0);
    let count = view.visit_records(span.range(), options, &mut |record| {
        steps.advance(record.len());
        records += 1;
        encoded += field_len(record.len());
        ControlFlow::Continue(())
    })?;
    Ok((records, encoded, count))
}

fn length_mismatch() -> Error {
    Error::damaged("the store", "the records of a range are not as long as the index says")
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
