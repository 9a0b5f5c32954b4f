//! One version of a key, and the length of its record.

use prost::encoding::{encoded_len_varint, key_len};

use super::encoded_len::EncodedLen;
use crate::revision::Revision;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    pub modified: Revision,
    /// The main revision of the put that created the key. Records do not store its sub revision.
    pub created: i64,
    /// The number of puts of the key since its creation, including the put of this version.
    pub version: i64,
    /// The length of the record without the three numbers of this version.
    pub encoded_len: EncodedLen,
}

/// The protobuf field numbers of the three fields that are not part of the payload. Each of these
/// fields is encoded as a varint.
const CREATE_REVISION_FIELD: u32 = 2;
const MOD_REVISION_FIELD: u32 = 3;
const VERSION_FIELD: u32 = 4;

impl Version {
    /// Returns the first version of a key, which the put at `modified` creates.
    pub(crate) fn first(modified: Revision, encoded_len: EncodedLen) -> Version {
        Version { modified, created: modified.main, version: 1, encoded_len }
    }

    #[inline]
    pub fn record_len(&self) -> Option<usize> {
        Some(self.encoded_len.bytes()? + self.revision_fields_len())
    }

    pub fn with_record_len(self, record: usize) -> Version {
        let payload = record.checked_sub(self.revision_fields_len());
        Version { encoded_len: payload.map_or(EncodedLen::UNKNOWN, EncodedLen::of), ..self }
    }

    fn revision_fields_len(&self) -> usize {
        let number = |field, number: i64| key_len(field) + encoded_len_varint(number as u64);
        number(CREATE_REVISION_FIELD, self.created)
            + number(MOD_REVISION_FIELD, self.modified.main)
            + number(VERSION_FIELD, self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_unknown() {
        assert_eq!(EncodedLen::of((1 << 24) - 1).bytes(), Some((1 << 24) - 1));
        assert_eq!(EncodedLen::of(1 << 24), EncodedLen::UNKNOWN);
        assert_eq!(EncodedLen::of(1 << 33), EncodedLen::UNKNOWN);
        let (modified, encoded_len) = (Revision::new(9, 0), EncodedLen::UNKNOWN);
        let version = Version { modified, created: 9, version: 1, encoded_len };
        // A record this short is impossible; its reader will report it.
        assert_eq!(version.with_record_len(2), version);
    }
}
