//! The key of a record of bucket `key`: a revision, stored inline without an allocation.
//!
//! The bytes of a record key are etcd's revision key: the main revision, `_`, the sub revision, and
//! a final `t` if the record is a tombstone. This crate only relies on two properties: the keys
//! sort in revision order, and they are short.

use std::ops::Deref;

use bytes::Bytes;

use crate::error::{Error, Result};

/// Maximum length of a record key: two numbers of eight bytes, a separator, and the mark of a
/// tombstone.
const RECORD_KEY_MAX: usize = 18;

#[derive(Clone, Copy, Debug)]
pub struct RecordKey {
    bytes: [u8; RECORD_KEY_MAX],
    len: u8,
}

impl RecordKey {
    /// Returns the key that consists of the first `len` bytes. Panics if `len` is more than 18.
    pub fn from_prefix(bytes: [u8; RECORD_KEY_MAX], len: u8) -> RecordKey {
        assert!(usize::from(len) <= RECORD_KEY_MAX, "a record key of {len} bytes");
        RecordKey { bytes, len }
    }

    pub(crate) fn new(key: &[u8]) -> Result<RecordKey> {
        let mut bytes = [0; RECORD_KEY_MAX];
        let part = bytes.get_mut(..key.len()).ok_or(Error::RecordKeyTooLong { len: key.len() })?;
        part.copy_from_slice(key);
        Ok(RecordKey { bytes, len: key.len() as u8 })
    }

    /// Returns `key` as a record key. Fails if `key` is not above `last`, because records must be
    /// in ascending order, or if `key` is too long.
    pub(crate) fn checked_after(key: &[u8], last: Option<&RecordKey>) -> Result<RecordKey> {
        match last {
            Some(last) if *key <= **last => Err(Error::OutOfOrder {
                key: Bytes::copy_from_slice(key),
                last: Bytes::copy_from_slice(last),
            }),
            _ => RecordKey::new(key),
        }
    }
}

impl Deref for RecordKey {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_keys_have_a_limit() {
        assert!(RecordKey::new(&[0; 18]).is_ok());
        assert!(matches!(RecordKey::new(&[0; 19]), Err(Error::RecordKeyTooLong { len: 19 })));
    }
}
