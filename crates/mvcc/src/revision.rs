//! Revisions, and record keys that sort in the same order.
//!
//! A write transaction that changes keys has a *main* revision, or in the default era possibly
//! several main revisions in a row. The changes of a main revision have *sub* revisions from 0 up.
//! Each change is a separate record. Its key is the revision, in bytes that sort like revisions:
//!
//! ```text
//!   put of revision 5.1          00 00 00 00 00 00 00 05  5f  00 00 00 00 00 00 00 01
//!                                └────── main ─────────┘  '_' └─────── sub ─────────┘
//!   tombstone of revision 5.1    the same 17 bytes, and then 74, a 't'
//! ```
//!
//! Invariant: two record keys compare in the same way as their revisions. This holds only for
//! numbers that are not negative, so negative numbers are never encoded or decoded. A put and a
//! tombstone never have the same revision. The bytes are the same as in etcd's bucket `key`. See
//! `docs/mvcc.md`.

use std::fmt;
use std::ops::Deref;

use clearlane_backend::RecordKey;

use crate::error::{Error, Result};

/// A revision. Sorted by `main`, then by `sub`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision {
    /// The main revision. It is the store's revision after all changes with this main revision.
    pub main: i64,
    /// Number of the change within its main revision, counted from 0.
    pub sub: i64,
}

impl Revision {
    pub const fn new(main: i64, sub: i64) -> Revision {
        Revision { main, sub }
    }

    /// Returns the revision that is `changes` changes later, in the same main revision.
    #[inline]
    pub(crate) fn after(self, changes: u64) -> Revision {
        Revision { sub: self.sub + changes as i64, ..self }
    }

    pub fn put_key(self) -> RevisionKey {
        self.encode(PUT_LEN)
    }

    pub fn tombstone_key(self) -> RevisionKey {
        self.encode(TOMBSTONE_LEN)
    }

    pub(crate) fn key_of(self, kind: RecordKind) -> RevisionKey {
        match kind {
            RecordKind::Put => self.put_key(),
            RecordKind::Tombstone => self.tombstone_key(),
        }
    }

    fn encode(self, len: usize) -> RevisionKey {
        assert!(self.main >= 0 && self.sub >= 0, "revision {self} is negative");
        let mut bytes = [TOMBSTONE; TOMBSTONE_LEN];
        bytes[..8].copy_from_slice(&self.main.to_be_bytes());
        bytes[8] = SEPARATOR;
        bytes[9..PUT_LEN].copy_from_slice(&self.sub.to_be_bytes());
        RevisionKey { bytes, len: len as u8 }
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.main, self.sub)
    }
}

/// Length of a put's key: two numbers of eight bytes, and the separator.
const PUT_LEN: usize = 17;
/// Length of a tombstone's key: the bytes of a put's key, and the mark.
const TOMBSTONE_LEN: usize = 18;
const SEPARATOR: u8 = b'_';
const TOMBSTONE: u8 = b't';

/// A record key. Dereferences to its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RevisionKey {
    /// The bytes of a tombstone's key. For a put, `len` excludes the last byte, the mark.
    bytes: [u8; TOMBSTONE_LEN],
    len: u8,
}

impl RevisionKey {
    pub fn decode(bytes: &[u8]) -> Result<(Revision, RecordKind)> {
        let no_key = || Error::Damaged(format!("not a revision key: {bytes:02x?}"));
        let mark = match bytes.get(PUT_LEN..) {
            Some([]) => RecordKind::Put,
            Some([TOMBSTONE]) => RecordKind::Tombstone,
            _ => return Err(no_key()),
        };
        let revision = Revision { main: number(&bytes[..8]), sub: number(&bytes[9..PUT_LEN]) };
        if bytes[8] != SEPARATOR || revision.main < 0 || revision.sub < 0 {
            return Err(no_key());
        }
        Ok((revision, mark))
    }
}

impl Deref for RevisionKey {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl From<RevisionKey> for RecordKey {
    fn from(key: RevisionKey) -> RecordKey {
        RecordKey::from_prefix(key.bytes, key.len)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordKind {
    Put,
    Tombstone,
}

fn number(bytes: &[u8]) -> i64 {
    i64::from_be_bytes(bytes.try_into().expect("the caller cuts eight bytes"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn revision() -> impl Strategy<Value = Revision> {
        (0..=i64::MAX, 0..=i64::MAX).prop_map(|(main, sub)| Revision { main, sub })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn what_is_encoded_is_decoded(revision in revision()) {
            let (put, tombstone) = (revision.put_key(), revision.tombstone_key());
            prop_assert_eq!(RevisionKey::decode(&put).unwrap(), (revision, RecordKind::Put));
            let decoded = RevisionKey::decode(&tombstone).unwrap();
            prop_assert_eq!(decoded, (revision, RecordKind::Tombstone));
        }

        #[test]
        fn keys_sort_as_revisions_do(a in revision(), b in revision(), close in 0..2_i64) {
            for b in [b, Revision { main: a.main, ..b }, Revision { sub: a.sub ^ close, ..a }] {
                prop_assert_eq!(a.cmp(&b), a.put_key().cmp(&b.put_key()));
                if a != b {
                    prop_assert_eq!(a.cmp(&b), a.tombstone_key().cmp(&b.put_key()));
                }
            }
        }

        #[test]
        fn any_bytes_are_refused_or_come_back(bytes in prop::collection::vec(any::<u8>(), 0..20)) {
            match RevisionKey::decode(&bytes) {
                Ok((revision, mark)) => prop_assert_eq!(&*revision.key_of(mark), &bytes[..]),
                Err(refused) => prop_assert!(refused.to_string().contains(": not a revision key: [")),
            }
        }
    }

    #[test]
    fn the_bytes_are_those_of_etcd() {
        let key = Revision::new(5, 1).tombstone_key();
        assert_eq!(&*key, b"\0\0\0\0\0\0\0\x05_\0\0\0\0\0\0\0\x01t");
        assert_eq!(&*Revision::new(5, 1).put_key(), &key[..17]);
    }

    #[test]
    #[should_panic(expected = "revision -1.0 is negative")]
    fn negative_revisions_are_a_bug() {
        let _ = Revision::new(-1, 0).put_key();
    }
}
