//! How long a record is, for callers that have not read it.
//!
//! The length of an answer comes before its first byte, so a server without this would read all
//! records twice, or keep them. The index knows it in three bytes for a version:
//!
//! ```text
//!   record   │ key │ created │ modified │ version │ value │ lease │
//!   length = payload (what key, value and lease take) + the three numbers, as they are encoded
//! ```
//!
//! Unknown are payloads of 16 MiB and more, and that of the first of two puts that
//! [share 24 bytes](super::inline_history): those records must be read.

/// Number of bytes that a record has beside its revisions; or unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodedLen([u8; 3]);

impl EncodedLen {
    pub const UNKNOWN: EncodedLen = EncodedLen([0; 3]);

    /// A key is not empty, so `bytes` is at least 1.
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
