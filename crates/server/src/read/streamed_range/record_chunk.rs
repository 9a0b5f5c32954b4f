//! A chunk of a response: some encoded records.

use std::ops::ControlFlow;

use bytes::Bytes;
use clearlane_contention::YieldPoints;

use super::range_size::field_len;

#[derive(Debug, Default)]
pub(super) struct RecordChunk {
    pub(super) records: Vec<Bytes>,
    /// Bytes on the wire, including the tags and lengths of the records.
    pub(super) encoded_bytes: u64,
    records_max: u64,
    bytes_left: usize,
    steps: YieldPoints,
}

impl RecordChunk {
    pub(super) fn new(records_max: u64, bytes: usize) -> RecordChunk {
        RecordChunk { records_max, bytes_left: bytes, ..RecordChunk::default() }
    }

    pub(super) fn bytes_left(&self) -> usize {
        self.bytes_left
    }

    /// Adds a record. Returns `Break` after the last wanted record. If the record does not fit,
    /// returns it as an error. The first record always fits.
    pub(super) fn add(&mut self, record: Bytes) -> Result<ControlFlow<()>, Bytes> {
        if record.len() > self.bytes_left && !self.records.is_empty() {
            return Err(record);
        }
        self.bytes_left = self.bytes_left.saturating_sub(record.len());
        self.steps.advance(record.len());
        self.encoded_bytes += field_len(record.len());
        self.records.push(record);
        let is_last = self.records.len() as u64 == self.records_max;
        Ok(if is_last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }
}
