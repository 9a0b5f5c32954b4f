//! The data of a record of the write-ahead log, or a whole record. The target reads it and writes
//! it again. Data is then read a second time, and the result must be the same. A record must be
//! written as the same bytes.
//!
//! ```text
//!   kind of data, or 5 for a record (1) │ bytes
//! ```

use clearlane_wal::wire::{DecodeError, Record};
use clearlane_wal::{ConfState, Entry, HardState, Metadata, WalSnapshot};

use crate::input::Input;

pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    match (input.choice(6), input.rest()) {
        (0, bytes) => round_trip(bytes, Entry::decode, Entry::encode),
        (1, bytes) => round_trip(bytes, HardState::decode, HardState::encode),
        (2, bytes) => round_trip(bytes, Metadata::decode, Metadata::encode),
        (3, bytes) => round_trip(bytes, WalSnapshot::decode, WalSnapshot::encode),
        (4, bytes) => round_trip(bytes, ConfState::decode, ConfState::encode),
        (_, bytes) => {
            if let Ok(record) = Record::decode(bytes) {
                let mut encoded = Vec::new();
                record.encode_to(&mut encoded);
                assert_eq!(encoded, bytes, "a record has one spelling");
            }
        }
    }
}

fn round_trip<T: PartialEq + std::fmt::Debug>(
    bytes: &[u8],
    decode: fn(&[u8]) -> Result<T, DecodeError>,
    encode: fn(&T) -> Vec<u8>,
) {
    if let Ok(read) = decode(bytes) {
        assert_eq!(decode(&encode(&read)).as_ref(), Ok(&read));
    }
}
