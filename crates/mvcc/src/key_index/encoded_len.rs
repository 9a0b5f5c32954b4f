//! The length of a record, for callers that have not read the record.
//!
//! The length of a response is sent before its first byte. Without the lengths of the records, a
//! server would have to read all records twice, or keep them. The index stores the length of the
//! payload in three bytes per version:
//!
//! ```text
//!   record   │ key │ created │ modified │ version │ value │ lease │
//!   length = payload (the bytes of key, value and lease) + created, modified and version, encoded
//! ```
//!
//! The length is unknown for payloads of 16 MiB and more, and for the first of two puts that
//! [share 24 bytes](super::inline_history). Those records must be read.

/// The length of a record's payload, in bytes, or unknown. The payload does not include the three
/// numbers `created`, `modified` and `version`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodedLen([u8; 3]);

impl EncodedLen {
    pub const UNKNOWN: EncodedLen = EncodedLen([0; 3]);

    /// Creates the value from a payload of this many bytes. A key is never empty, so `bytes` is at
    /// least 1, and 0 means unknown.
    pub fn of(bytes: usize) -> EncodedLen {
        match u32::try_from(bytes).map(u32::to_le_bytes) {
            Ok([lowest, low, high, 0]) => EncodedLen([lowest, low, high]),
            _ => EncodedLen::UNKNOWN,
        }
    }

    pub(super) fn bytes(self) -> Option<usize> {
        let [lowest, low, high] = self.0;
        let bytes = u32::from_le_bytes([lowest, low, high, 0]);
        (bytes > 0).then_some(bytes as usize)
    }
}
