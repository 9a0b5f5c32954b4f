//! The records of deleted keys, several in one buffer.
//!
//! A tombstone's record contains only its key: field 1 of a [`KeyValue`], encoded. So the key that
//! watchers and leases receive is a slice of the record. Neither record nor key needs a separate
//! allocation:
//!
//! ```text
//!   buffer    0a 03 'f' 'o' 'o' 0a 04 'q' 'u' 'u' 'x'
//!   records   └───── foo ─────┘ └─────── quux ──────┘
//!   keys            └── foo ──┘       └──── quux ───┘
//! ```
//!
//! The buffers are small, because a single key that is still in use, for example in a queued event,
//! keeps its whole buffer in memory.
//!
//! [`KeyValue`]: clearlane_proto::mvccpb::KeyValue

use bytes::Bytes;
use prost::encoding::{WireType, decode_varint, encode_key, encode_varint};

const RECORDS_MAX: usize = 16;
/// Maximum length of a buffer, unless a single record is longer.
const BUFFER_BYTES_MAX: usize = 1 << 10;

/// The number of the field `key`.
const KEY_FIELD: u32 = 1;
/// Maximum number of bytes that the field number and the length add to the key.
const PREFIX_MAX: usize = 6;

/// Records that are being collected.
#[derive(Debug, Default)]
pub(crate) struct TombstoneRecords {
    bytes: Vec<u8>,
    count: usize,
}

/// Several records, one after the other in one buffer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TombstoneBuffer {
    bytes: Bytes,
    count: usize,
}

/// A record and its key.
#[derive(Debug)]
pub(crate) struct TombstoneRecord {
    pub(crate) record: Bytes,
    pub(crate) key: Bytes,
}

impl TombstoneRecords {
    /// Returns true if the caller must take the records before it adds this key.
    pub(crate) fn is_full_for(&self, key: &[u8]) -> bool {
        let len = self.bytes.len() + PREFIX_MAX + key.len();
        self.count == RECORDS_MAX || (len > BUFFER_BYTES_MAX && self.count > 0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn add(&mut self, key: &[u8]) {
        encode_key(KEY_FIELD, WireType::LengthDelimited, &mut self.bytes);
        encode_varint(key.len() as u64, &mut self.bytes);
        self.bytes.extend_from_slice(key);
        self.count += 1;
    }

    /// Takes all collected records. Afterwards the collection is empty.
    pub(crate) fn take(&mut self) -> TombstoneBuffer {
        let bytes = Bytes::copy_from_slice(&self.bytes);
        self.bytes.clear();
        TombstoneBuffer { bytes, count: std::mem::take(&mut self.count) }
    }
}

impl TombstoneBuffer {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn bytes_len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn into_records(self) -> impl Iterator<Item = TombstoneRecord> {
        let mut begin = 0;
        (0..self.count).map(move |_| {
            // The bytes after the field number, which is one byte.
            let mut rest = &self.bytes[begin + 1..];
            let len = decode_varint(&mut rest).expect("it was encoded here") as usize;
            let key_begin = self.bytes.len() - rest.len();
            let end = key_begin + len;
            let record = self.bytes.slice(begin..end);
            begin = end;
            TombstoneRecord { record, key: self.bytes.slice(key_begin..end) }
        })
    }
}

#[cfg(test)]
mod tests {
    use clearlane_proto::mvccpb::KeyValue;
    use prost::Message;

    use super::*;

    #[test]
    fn the_records_are_those_that_prost_makes() {
        let keys = [1, 2, 127, 128, 300, 5_000, 3, 70_000, 4, 5].map(|len| vec![b'k'; len]);
        let (mut records, mut taken) = (TombstoneRecords::default(), Vec::new());
        for key in &keys {
            if records.is_full_for(key) {
                taken.push(records.take());
            }
            records.add(key);
        }
        taken.push(records.take());
        assert_eq!(records.take().len(), 0);
        let buffers: Vec<usize> = taken.iter().map(TombstoneBuffer::len).collect();
        assert_eq!(buffers, [5, 1, 1, 1, 2], "a long record has its buffer alone");
        for (found, key) in taken.into_iter().flat_map(TombstoneBuffer::into_records).zip(&keys) {
            assert_eq!(found.key, key);
            let expected = KeyValue { key: key.clone().into(), ..KeyValue::default() };
            assert_eq!(found.record, expected.encode_to_vec());
        }
    }

    #[test]
    fn a_buffer_has_a_limit_of_records() {
        let mut records = TombstoneRecords::default();
        let count = (0..100).take_while(|_| {
            let is_full = records.is_full_for(b"k");
            if !is_full {
                records.add(b"k");
            }
            !is_full
        });
        assert_eq!((count.count(), records.take().len()), (RECORDS_MAX, RECORDS_MAX));
    }
}
