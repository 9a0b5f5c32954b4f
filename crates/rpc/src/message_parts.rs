//! A message whose records are encoded when they are sent, and of which the rest is encoded
//! already.
//!
//! ```text
//!   bytes │ records │ tail │ records │ tail │ ...
//!         └──── part ──────┴──── part ──────┘
//! ```
//!
//! A record lies in the store, and in an answer, as an encoded `KeyValue`; it needs its tag and its
//! length in front.

use std::collections::VecDeque;
use std::mem;
use std::vec::IntoIter;

use bytes::{BufMut, Bytes, BytesMut};
use clearlane_net::sched::YieldPoints;
use clearlane_server::streamed_range::StreamedRange;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

/// The size of the pieces in which a message is sent.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;
/// At most so much is in memory twice: read, and encoded.
const READ_BYTES: usize = 256 << 10;

#[derive(Debug, Default)]
pub(crate) struct MessageParts {
    /// What comes next, before the records of the first part.
    pub(crate) bytes: BytesMut,
    pub(crate) parts: VecDeque<RecordsPart>,
}

#[derive(Debug)]
pub(crate) struct RecordsPart {
    pub(crate) records: StreamedRange,
    /// The number of the field that the records are.
    pub(crate) field: u32,
    pub(crate) tail: Bytes,
}

impl MessageParts {
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.bytes.is_empty()
    }

    /// Of all that is left.
    pub(crate) fn encoded_len(&self) -> u64 {
        let parts = self.parts.iter();
        let lengths = parts.map(|part| part.records.encoded_len() + part.tail.len() as u64);
        lengths.fold(self.bytes.len() as u64, u64::saturating_add)
    }

    /// Reads about so many bytes of records, and at least one record, and encodes them. What is
    /// encoded already counts, too, and is handed on without a copy if it is long.
    pub(crate) fn read(&mut self, bytes: usize) -> clearlane_server::Result<VecDeque<Bytes>> {
        let (mut chunks, mut left, mut steps) = (VecDeque::new(), bytes, YieldPoints::default());
        while left > 0 {
            if self.bytes.len() >= CHUNK_BYTES {
                left = left.saturating_sub(CHUNK_BYTES);
                chunks.push_back(take_chunk(&mut self.bytes));
                continue;
            }
            let Some(part) = self.parts.front_mut() else { break };
            let records = part.records.next_records(left.min(READ_BYTES))?;
            let mut records = records.unwrap_or_default().into_iter();
            while !records.as_slice().is_empty() {
                let before = self.bytes.len();
                encode_chunk(part.field, &mut records, &mut self.bytes);
                left = left.saturating_sub(self.bytes.len() - before);
                steps.advance(self.bytes.len());
                if self.bytes.len() >= CHUNK_BYTES {
                    chunks.push_back(mem::take(&mut self.bytes).freeze());
                }
            }
            if part.records.records_left() > 0 {
                continue;
            }
            if part.tail.len() < CHUNK_BYTES {
                left = left.saturating_sub(part.tail.len());
                steps.advance(part.tail.len());
                self.bytes.put_slice(&part.tail);
                self.parts.pop_front();
            } else if self.bytes.is_empty() {
                left = left.saturating_sub(CHUNK_BYTES);
                chunks.push_back(part.tail.split_to(CHUNK_BYTES));
            } else {
                chunks.push_back(mem::take(&mut self.bytes).freeze());
            }
        }
        if !self.bytes.is_empty() {
            chunks.push_back(take_chunk(&mut self.bytes));
        }
        Ok(chunks)
    }
}

/// At most [`CHUNK_BYTES`].
fn take_chunk(bytes: &mut BytesMut) -> Bytes {
    if bytes.len() > CHUNK_BYTES {
        bytes.split_to(CHUNK_BYTES).freeze()
    } else {
        mem::take(bytes).freeze()
    }
}

/// About [`CHUNK_BYTES`] in all.
pub(crate) fn encode_chunk(field: u32, records: &mut IntoIter<Bytes>, bytes: &mut BytesMut) {
    let (mut count, mut length) = (0, bytes.len());
    for record in records.as_slice() {
        if length >= CHUNK_BYTES {
            break;
        }
        count += 1;
        length += field_len(record.len());
    }
    // With space for the tail.
    bytes.reserve(length - bytes.len() + 32);
    records.take(count).for_each(|record| encode_record(field, &record, bytes));
}

pub(crate) fn encode_record(field: u32, record: &[u8], bytes: &mut BytesMut) {
    encode_key(field, WireType::LengthDelimited, bytes);
    encode_varint(record.len() as u64, bytes);
    bytes.put_slice(record);
}

/// Of bytes in a field, the tag of which has one byte.
pub(crate) fn field_len(length: usize) -> usize {
    key_len(1) + encoded_len_varint(length as u64) + length
}
