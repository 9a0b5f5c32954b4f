//! A message whose records are encoded when they are sent. The rest of the message is already
//! encoded.
//!
//! ```text
//!   bytes │ records │ tail │ records │ tail │ ...
//!         └──── part ──────┴──── part ──────┘
//! ```
//!
//! A record has the same form in the store and in a response: an encoded `KeyValue`. In a response,
//! a tag and the length precede each record.

use std::collections::VecDeque;
use std::mem;
use std::vec::IntoIter;

use bytes::{BufMut, Bytes, BytesMut};
use clearlane_contention::YieldPoints;
use clearlane_server::read::streamed_range::StreamedRange;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

/// Size of the chunks in which a message is sent.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;
/// Maximum number of bytes of records that are read in one step. These bytes are in memory twice:
/// as read, and as encoded.
const READ_BYTES: usize = 256 << 10;

#[derive(Debug, Default)]
pub(crate) struct MessageParts {
    /// The encoded bytes that are sent before the records of the first part.
    pub(crate) bytes: BytesMut,
    pub(crate) parts: VecDeque<RecordsPart>,
}

#[derive(Debug)]
pub(crate) struct RecordsPart {
    pub(crate) records: StreamedRange,
    /// The field number of the records in the message.
    pub(crate) field: u32,
    pub(crate) tail: Bytes,
}

impl MessageParts {
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.bytes.is_empty()
    }

    /// Returns the encoded length of everything that is left.
    pub(crate) fn encoded_len(&self) -> u64 {
        let parts = self.parts.iter();
        let lengths = parts.map(|part| part.records.encoded_len() + part.tail.len() as u64);
        lengths.fold(self.bytes.len() as u64, u64::saturating_add)
    }

    /// Returns the next chunks of the message, with about `bytes` bytes in total. First takes bytes
    /// that are already encoded, without copying them if they fill a chunk. Then reads and encodes
    /// whole records, so a large record may exceed `bytes`.
    pub(crate) fn read(&mut self, bytes: usize) -> clearlane_replica::Result<VecDeque<Bytes>> {
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

/// Takes the first [`CHUNK_BYTES`] bytes, or all bytes if there are fewer.
fn take_chunk(bytes: &mut BytesMut) -> Bytes {
    if bytes.len() > CHUNK_BYTES {
        bytes.split_to(CHUNK_BYTES).freeze()
    } else {
        mem::take(bytes).freeze()
    }
}

/// Encodes records until `bytes` has about [`CHUNK_BYTES`].
pub(crate) fn encode_chunk(field: u32, records: &mut IntoIter<Bytes>, bytes: &mut BytesMut) {
    let (mut count, mut length) = (0, bytes.len());
    for record in records.as_slice() {
        if length >= CHUNK_BYTES {
            break;
        }
        count += 1;
        length += field_len(record.len());
    }
    // Reserve space for the tail as well.
    bytes.reserve(length - bytes.len() + 32);
    records.take(count).for_each(|record| encode_record(field, &record, bytes));
}

pub(crate) fn encode_record(field: u32, record: &[u8], bytes: &mut BytesMut) {
    encode_key(field, WireType::LengthDelimited, bytes);
    encode_varint(record.len() as u64, bytes);
    bytes.put_slice(record);
}

/// Returns the encoded length of a field that has `length` bytes and a tag of one byte.
pub(crate) fn field_len(length: usize) -> usize {
    key_len(1) + encoded_len_varint(length as u64) + length
}
