//! One or two changes, in 24 bytes.
//!
//! Four shapes of history are so common that they lie in the tree's slot itself: a put; a put and
//! another; a put and its tombstone; and a tombstone that a compaction left alone. What they need
//! overlaps. The newest change has a revision in each. If there are two, the first is the one that
//! created the key, so `created` is its main revision and its version is 1. If there is only one
//! put, its version must be kept, for a compaction may have taken the puts before it:
//!
//! ```text
//!                   main (8)   created (8)   other (4)         sub (3)   shape (1)
//!   {4.0}           4          2             2: its version    0         put
//!   {2.1 4.0}       4          2             1: the first sub  0         put, put
//!   {2.1 4.0t}      4          2             1: the first sub  0         put, tombstone
//!   {4.0t}          4          0             0                 0         tombstone
//! ```
//!
//! The shape's byte has values to spare, so that the `enum` of short and long histories needs no
//! byte of its own. What does not fit (a sub revision above 16 million, a version above four
//! thousand million, any other shape) is a long history.

use arrayvec::ArrayVec;

use super::change::{Change, Origin};
use crate::key_history::Version;
use crate::revision::{Mark, Revision};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Put,
    Tombstone,
    PutPut,
    PutTombstone,
}

/// A history of one or two changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Short {
    /// Of the newest change.
    main: i64,
    created: i64,
    /// The version of the only put, or the sub revision of the first of two changes.
    other: u32,
    /// Of the newest change: the lower 24 bits, as the others are zero.
    sub: [u8; 3],
    shape: Shape,
}

impl Short {
    /// The short form of this row of changes, if it has one.
    pub(super) fn of(origin: Origin, changes: &[Change]) -> Option<Short> {
        let (shape, other) = match changes {
            [only] if only.mark == Mark::Tombstone => (Shape::Tombstone, 0),
            [_] => (Shape::Put, u32::try_from(origin.version).ok()?),
            [first, second] if origin == Origin { created: first.main, version: 1 } => {
                let both_put = second.mark == Mark::Put;
                (if both_put { Shape::PutPut } else { Shape::PutTombstone }, first.sub)
            }
            _ => return None,
        };
        let newest = changes.last()?;
        let [lowest, low, high, 0] = newest.sub.to_le_bytes() else { return None };
        let sub = [lowest, low, high];
        Some(Short { main: newest.main, created: origin.created, other, sub, shape })
    }

    /// The changes, and what the first of them says.
    pub(super) fn unpack(&self) -> (Origin, ArrayVec<Change, 2>) {
        let mut changes = ArrayVec::new();
        let version = match self.shape {
            Shape::Put => i64::from(self.other),
            Shape::Tombstone => 0,
            Shape::PutPut | Shape::PutTombstone => {
                changes.push(Change { main: self.created, sub: self.other, mark: Mark::Put });
                1
            }
        };
        changes.push(self.newest());
        (Origin { created: self.created, version }, changes)
    }

    pub(super) fn newest(&self) -> Change {
        let mark = match self.shape {
            Shape::Put | Shape::PutPut => Mark::Put,
            Shape::Tombstone | Shape::PutTombstone => Mark::Tombstone,
        };
        Change { main: self.main, sub: self.newest_sub(), mark }
    }

    fn newest_sub(&self) -> u32 {
        let [lowest, low, high] = self.sub;
        u32::from_le_bytes([lowest, low, high, 0])
    }

    /// The version at `at`, without unpacking: walks over the index come here for every key.
    #[inline]
    pub(super) fn at(&self, at: i64) -> Option<Version> {
        let made = |main, sub, version| Version {
            modified: Revision::new(main, i64::from(sub)),
            created: self.created,
            version,
        };
        let two = matches!(self.shape, Shape::PutPut | Shape::PutTombstone);
        if self.main > at {
            return (two && self.created <= at).then(|| made(self.created, self.other, 1));
        }
        match self.shape {
            Shape::Put => Some(made(self.main, self.newest_sub(), i64::from(self.other))),
            Shape::PutPut => Some(made(self.main, self.newest_sub(), 2)),
            Shape::Tombstone | Shape::PutTombstone => None,
        }
    }

    /// What a compaction at `at` leaves, which is known to drop something.
    pub(super) fn compacted(&self, at: i64) -> Option<Short> {
        let newest = self.newest();
        if !newest.stays_at(at) {
            return None;
        }
        let (first, changes) = self.unpack();
        let last = changes.len() - 1;
        Short::of(first.of(&changes, last), &changes[last..])
    }
}
