//! How long is a record that has not been read yet?
//!
//! On the wire the length of an answer comes before its first byte. A server that has to read all records to
//! know it reads them twice, or keeps them; so the index knows it, in three bytes for a version.
//!
//! ```text
//!   record   │ key │ created │ modified │ version │ value │ lease │
//!              └───────────── the index knows these ──┐
//!              payload: what key, value and lease take │
//!              length = payload + three numbers, as they are encoded
//! ```
//!
//! The three numbers are in the [`Version`](super::Version) anyway, and are decided where the payload is put into the index:
//! so the caller of a put need not know them.
//!
//! # What it does not do
//!
//! Of a payload of 16 MiB and more nothing is known, and of the first of two puts that [share 24
//! bytes](super::inline_history). A caller that needs to know reads them.

/// So many bytes a record has beside its revisions; or unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodedLen([u8; 3]);

impl EncodedLen {
    /// Unknown.
    pub const UNKNOWN: EncodedLen = EncodedLen([0; 3]);

    /// Of so many bytes. A key is never empty, so there is at least one.
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
