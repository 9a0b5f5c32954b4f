//! The key of a record of bucket `key`: a revision, held in place.
//!
//! Its bytes are the revision key of etcd: main revision, `_`, sub revision, and a `t` behind a
//! tombstone. This crate only needs that they sort in revision order and are short.

use std::ops::Deref;

use bytes::Bytes;

use crate::error::{Error, Result};

/// Two numbers of eight bytes, a separator, and a tombstone's mark.
const RECORD_KEY_MAX: usize = 18;

#[derive(Clone, Copy, Debug)]
pub struct RecordKey {
    bytes: [u8; RECORD_KEY_MAX],
    len: u8,
}

impl RecordKey {
    /// The key that the first `len` of these bytes are.
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

    /// `key`, if it may follow `last`: records come in rising order.
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
