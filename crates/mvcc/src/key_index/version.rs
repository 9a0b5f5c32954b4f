//! One version of a key, and how long its record is.

use prost::encoding::{encoded_len_varint, key_len};

use super::encoded_len::EncodedLen;
use crate::revision::Revision;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    pub modified: Revision,
    /// The main revision of the put that created the key. Records do not have its sub revision.
    pub created: i64,
    /// How many puts there were since then, this one included.
    pub version: i64,
    /// The length of its record without the three numbers of this version.
    pub encoded_len: EncodedLen,
}

/// The numbers of the fields, each with a varint, that are not in the payload.
const CREATE_REVISION_FIELD: u32 = 2;
const MOD_REVISION_FIELD: u32 = 3;
const VERSION_FIELD: u32 = 4;

impl Version {
    /// Of a key that is created.
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
        // A record that cannot be: its reader will report it.
        assert_eq!(version.with_record_len(2), version);
    }
}
