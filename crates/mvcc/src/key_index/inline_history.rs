//! A history of one or two changes in 24 bytes. The four most frequent shapes of such a history are
//! stored directly in the tree's slot.
//!
//! ```text
//!                main (6)  created (6)  other (4)         sub (3)  payload (3)  shape (1)
//!   {4.0}        4         2            2: its version    0        of 4.0       put
//!   {2.1 4.0}    4         2            1: the first sub  0        of 4.0       put, put
//!   {2.1 4.0t}   4         2            1: the first sub  0        of 2.1       put, tombstone
//!   {4.0t}       4         0            0                 0        none         tombstone
//! ```
//!
//! The numbers in parentheses are lengths in bytes. The column `payload` names the put whose
//! payload length is stored.
//!
//! If there are two changes, the first has created the key: `created` is its main revision, and its
//! version is 1. A single put stores its version, because a compaction may have removed the earlier
//! puts. The byte `shape` has unused values, so the enum `Representation` needs no extra byte. A
//! history is chunked instead if its newest change has a sub revision of 2^24 or more, if a version
//! is 2^32 or more, if a revision is 2^48 or more, or if it has another shape.

use arrayvec::ArrayVec;

use super::encoded_len::EncodedLen;
use super::key_change::{ChangeContext, KeyChange};
use super::version::Version;
use crate::revision::{RecordKind, Revision};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Put,
    Tombstone,
    PutPut,
    PutTombstone,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct InlineHistory {
    /// The main revision of the newest change.
    main: SixBytes,
    created: SixBytes,
    /// The version of the only put, or the sub revision of the first of two changes. 0 for a single
    /// tombstone.
    version_or_first_sub: u32,
    /// The lower 24 bits of the newest change's sub revision. The other bits are zero.
    sub: [u8; 3],
    encoded_len: EncodedLen,
    shape: Shape,
}

#[derive(Clone, Copy, Debug)]
struct SixBytes([u8; 6]);

impl SixBytes {
    fn of(number: i64) -> Option<SixBytes> {
        let [bytes @ .., 0, 0] = number.to_le_bytes() else { return None };
        Some(SixBytes(bytes))
    }

    #[inline]
    fn get(self) -> i64 {
        let [a, b, c, d, e, f] = self.0;
        i64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }
}

impl InlineHistory {
    /// Packs the changes. Returns `None` if they have another shape, or if a number is too large.
    pub(super) fn of(origin: ChangeContext, changes: &[KeyChange]) -> Option<InlineHistory> {
        let (shape, version_or_first_sub) = match changes {
            [only] if only.kind == RecordKind::Tombstone => (Shape::Tombstone, 0),
            [_] => (Shape::Put, u32::try_from(origin.version).ok()?),
            [first, second] if origin == ChangeContext { created: first.main, version: 1 } => {
                let both_put = second.kind == RecordKind::Put;
                (if both_put { Shape::PutPut } else { Shape::PutTombstone }, first.sub)
            }
            _ => return None,
        };
        let newest = changes.last()?;
        let [sub @ .., 0] = newest.sub.to_le_bytes() else { return None };
        let encoded_len = match shape {
            Shape::PutTombstone => changes[0].encoded_len,
            Shape::Put | Shape::PutPut | Shape::Tombstone => newest.encoded_len,
        };
        let (main, created) = (SixBytes::of(newest.main)?, SixBytes::of(origin.created)?);
        Some(InlineHistory { main, created, version_or_first_sub, sub, encoded_len, shape })
    }

    /// Returns the context of the first change, and all changes in a vector that has capacity for
    /// one more.
    pub(super) fn unpack(&self) -> (ChangeContext, ArrayVec<KeyChange, 3>) {
        let mut changes = ArrayVec::new();
        let version = match self.shape {
            Shape::Put => i64::from(self.version_or_first_sub),
            Shape::Tombstone => 0,
            Shape::PutPut | Shape::PutTombstone => {
                let (main, sub) = (self.created.get(), self.version_or_first_sub);
                let encoded_len = self.first_encoded_len();
                changes.push(KeyChange { main, sub, kind: RecordKind::Put, encoded_len });
                1
            }
        };
        changes.push(self.newest());
        (ChangeContext { created: self.created.get(), version }, changes)
    }

    pub(super) fn newest(&self) -> KeyChange {
        let (kind, encoded_len) = match self.shape {
            Shape::Put | Shape::PutPut => (RecordKind::Put, self.encoded_len),
            Shape::Tombstone | Shape::PutTombstone => (RecordKind::Tombstone, EncodedLen::UNKNOWN),
        };
        KeyChange { main: self.main.get(), sub: self.newest_sub(), kind, encoded_len }
    }

    fn first_encoded_len(&self) -> EncodedLen {
        let is_known = matches!(self.shape, Shape::PutTombstone);
        if is_known { self.encoded_len } else { EncodedLen::UNKNOWN }
    }

    fn newest_sub(&self) -> u32 {
        let [lowest, low, high] = self.sub;
        u32::from_le_bytes([lowest, low, high, 0])
    }

    /// Returns the version at the main revision `at`, or `None` if the key has no value there. It
    /// does not unpack the changes, because walks over the index call this for every key.
    #[inline]
    pub(super) fn at(&self, at: i64) -> Option<Version> {
        let (main, created) = (self.main.get(), self.created.get());
        let made = |main, sub, version, encoded_len| {
            let modified = Revision::new(main, i64::from(sub));
            Version { modified, created, version, encoded_len }
        };
        let two = matches!(self.shape, Shape::PutPut | Shape::PutTombstone);
        if main > at {
            let first = || made(created, self.version_or_first_sub, 1, self.first_encoded_len());
            return (two && created <= at).then(first);
        }
        let newest = |version| made(main, self.newest_sub(), version, self.encoded_len);
        match self.shape {
            Shape::Put => Some(newest(i64::from(self.version_or_first_sub))),
            Shape::PutPut => Some(newest(2)),
            Shape::Tombstone | Shape::PutTombstone => None,
        }
    }

    /// Compacts the history. The compaction must drop at least one change. Returns `None` if
    /// nothing is left.
    pub(super) fn compacted(&self, at: i64) -> Option<InlineHistory> {
        let (first, changes) = self.unpack();
        let last = changes.len() - 1;
        let is_kept = changes[last].is_kept_at(at);
        is_kept.then(|| InlineHistory::of(first.at(&changes, last), &changes[last..])).flatten()
    }
}
