//! An answer that is too long to be in memory at once: measured first, then read in chunks while it
//! is sent.
//!
//! How long an answer is must be said before its first byte. The index knows the encoded length of
//! each record, so no record is read to measure a range; where it [does not
//! know](clearlane_mvcc::key_index::EncodedLen) one, the records are read to measure them, and read
//! again to be sent.
//!
//! * All chunks are read from one view, which does not change: what was measured is what is read.
//! * An answer takes the memory of a chunk or two. [`response_memory`](crate::response_memory) says
//!   how large one may be.
//! * Between two chunks it is another answer's turn in the [pool](crate::threads::ReadPool), whose
//!   threads have the class [`Batch`](clearlane_net::sched::SchedClass::Batch) and read in
//!   [`YieldPoints`], so that a thread with less to do on the same core goes first.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use clearlane_mvcc::{RangeOptions, ReadTxn};
use clearlane_net::sched::YieldPoints;
use clearlane_proto::etcdserverpb::RangeRequest;

use crate::apply::{ApplyError, RequestRejection, split_error};
use crate::error::{Error, Result};
use crate::range::{RangeMeta, RangeResult, RangeRows, decode, key_span, options, range_meta};

/// An answer up to this size is read at once.
const INLINE_BYTES_MAX: u64 = 256 << 10;
/// To find out how long a record is takes as long as to read so many bytes, if the index knows it.
const MEASURE_COST_BYTES: usize = 64;

/// A range whose records are read when they are sent.
pub struct StreamedRange {
    /// The rest of the answer.
    pub meta: RangeMeta,
    txn: Arc<dyn ReadTxn + Send + Sync>,
    /// What is left of it: it begins behind what was read last.
    request: RangeRequest,
    records_left: u64,
    encoded_bytes_left: u64,
}

impl StreamedRange {
    /// Finds out how long a plain range will be, and reads it if it is short.
    pub(crate) fn measure(
        view: Arc<dyn ReadTxn + Send + Sync>,
        request: RangeRequest,
    ) -> Result<std::result::Result<RangeResult, RequestRejection>> {
        let (records, encoded, count) = match measure_range(&*view, &request)? {
            Ok(measured) => measured,
            Err(refused) => return Ok(Err(refused)),
        };
        let about = range_meta(&*view, &request, count);
        let mut found = StreamedRange {
            meta: about,
            txn: view,
            request,
            records_left: records,
            encoded_bytes_left: encoded,
        };
        Ok(Ok(if encoded > INLINE_BYTES_MAX {
            RangeResult::Stream(found)
        } else {
            let records = found.next_records(usize::MAX)?.unwrap_or_default();
            RangeResult::Rows(RangeRows { meta: found.meta, records })
        }))
    }

    /// How many records are left.
    pub fn records_left(&self) -> usize {
        self.records_left as usize
    }

    /// How many bytes the records that are left take, with what lies between them on the wire.
    pub fn encoded_len(&self) -> u64 {
        self.encoded_bytes_left
    }

    /// The next records, about so many bytes; nothing if there are no more.
    pub fn next_records(&mut self, bytes: usize) -> Result<Option<Vec<Bytes>>> {
        if self.records_left == 0 {
            return Ok(None);
        }
        let mut piece = Vec::new();
        let (mut left, mut encoded, mut steps) = (bytes, 0, YieldPoints::default());
        let options = options(&self.request);
        let options = RangeOptions { limit: self.records_left as i64, skip_count: true, ..options };
        self.txn.visit_records(key_span(&self.request).range(), options, &mut |record| {
            // One record may be larger than all of a piece.
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
        if self.records_left == 0 {
            return if self.encoded_bytes_left == 0 {
                Ok(Some(piece))
            } else {
                Err(length_mismatch())
            };
        }
        self.request.key = key_after(&decode(last.clone())?.key);
        Ok(Some(piece))
    }
}

/// How many records a range finds, what they take, and how many keys there are.
fn measure_range(
    view: &dyn ReadTxn,
    request: &RangeRequest,
) -> Result<std::result::Result<(u64, u64, u64), RequestRejection>> {
    let (mut records, mut encoded, mut steps) = (0, 0, YieldPoints::default());
    let mut measure = |record| {
        steps.advance(MEASURE_COST_BYTES);
        records += 1;
        encoded += field_len(record);
        ControlFlow::Continue(())
    };
    let known =
        view.visit_record_lengths(key_span(request).range(), options(request), &mut measure);
    let known = match split_error(known.map_err(ApplyError::from))? {
        Ok(known) => known,
        Err(refused) => return Ok(Err(refused)),
    };
    if let Some(count) = known {
        return Ok(Ok((records, encoded, count)));
    }
    (records, encoded) = (0, 0);
    let count = view.visit_records(key_span(request).range(), options(request), &mut |record| {
        steps.advance(record.len());
        records += 1;
        encoded += field_len(record.len());
        ControlFlow::Continue(())
    });
    Ok(split_error(count.map_err(ApplyError::from))?.map(|count| (records, encoded, count)))
}

fn length_mismatch() -> Error {
    Error::damaged("the store", "the records of a range are not as long as the index says")
}

/// The first key behind this one.
fn key_after(key: &[u8]) -> Bytes {
    [key, &[0]].concat().into()
}

/// What a record takes in an answer: its tag, its length, and itself.
fn field_len(record: usize) -> u64 {
    (1 + prost::length_delimiter_len(record) + record) as u64
}

impl std::fmt::Debug for StreamedRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let StreamedRange {
            meta: about, records_left: records, encoded_bytes_left: encoded, ..
        } = self;
        f.debug_struct("StreamedRange")
            .field("meta", about)
            .field("records_left", records)
            .field("encoded_bytes_left", encoded)
            .finish_non_exhaustive()
    }
}
