//! Who waits: readers by name, and groups of them that go on together.
//!
//! # The problem
//!
//! A thousand readers wait for one round, and are woken as one. Meanwhile any of them may give up,
//! and must leave nothing behind: a client that asks and hangs up in a loop would fill the memory of
//! a member whose round takes long. But to look for one reader in a list of a thousand, for each of a
//! thousand that hang up, is a million steps.
//!
//! # The idea
//!
//! Each reader gets a *seat number*, and no two the same. A group is a plain list of (seat, reader). The
//! table of seats says who still waits. Giving up is taking one's seat out of the table; the entry in
//! the list has become *stale*, which whoever reads the list sees by the number.
//!
//! ```text
//!   seats   a ─▶ 1   c ─▶ 3   b ─▶ 4           (b, seat 2, gave up and came again)
//!   group   (1, a)   (2, b)   (3, c)   (4, b)
//!                      └─ stale: the table says 4
//! ```
//!
//! If more entries are stale than not when a reader gives up, all lists are swept. So there are never more
//! stale entries than readers may wait, and a few, and a reader that gives up pays for two steps on
//! average.

use std::collections::HashMap;
use std::hash::Hash;

use crate::error::{Error, Result};

/// Stale entries below this number are not worth a sweep.
const STALE_MIN: usize = 64;

/// Readers that go on together, some of them perhaps gone.
pub(crate) type Group<T> = Vec<Seat<T>>;

/// An entry of a group.
#[derive(Debug)]
pub(crate) struct Seat<T> {
    number: u64,
    pub(crate) reader: T,
}

/// The table of seats.
#[derive(Debug)]
pub(crate) struct Readers<T> {
    /// Looked up, never walked: its order is not to be relied on.
    seats: HashMap<T, u64>,
    taken: u64,
    stale: usize,
    max: usize,
}

impl<T: Copy + Eq + Hash> Readers<T> {
    pub(crate) fn new(max: usize) -> Readers<T> {
        Readers { seats: HashMap::new(), taken: 0, stale: 0, max }
    }

    pub(crate) fn seat(&mut self, reader: T) -> Result<Seat<T>> {
        if self.seats.len() >= self.max {
            return Err(Error::TooManyReaders);
        }
        if self.seats.contains_key(&reader) {
            return Err(Error::ReaderIsWaiting);
        }
        self.taken += 1;
        self.seats.insert(reader, self.taken);
        Ok(Seat { number: self.taken, reader })
    }

    /// The reader gives up. Says whether it was waiting.
    pub(crate) fn cancel(&mut self, reader: T) -> bool {
        let found = self.seats.remove(&reader).is_some();
        self.stale += usize::from(found);
        found
    }

    pub(crate) fn waits(&self, seat: &Seat<T>) -> bool {
        self.seats.get(&seat.reader) == Some(&seat.number)
    }

    /// Those of the group that still wait. They wait no longer.
    pub(crate) fn release(&mut self, group: Group<T>) -> Vec<T> {
        let mut released = Vec::with_capacity(group.len());
        for seat in group {
            if self.waits(&seat) {
                self.seats.remove(&seat.reader);
                released.push(seat.reader);
            } else {
                self.stale -= 1;
            }
        }
        released
    }

    /// Whether it is time to [`sweep`](Readers::sweep) every group there is.
    pub(crate) fn sweep_is_due(&self) -> bool {
        self.stale > self.seats.len() + STALE_MIN
    }

    pub(crate) fn sweep(&mut self, group: &mut Group<T>) {
        let before = group.len();
        group.retain(|seat| self.waits(seat));
        self.swept(before - group.len());
    }

    /// So many stale entries were found and dropped.
    pub(crate) fn swept(&mut self, entries: usize) {
        self.stale -= entries;
    }

    pub(crate) fn len(&self) -> usize {
        self.seats.len()
    }

    /// Entries of all groups: those who wait, and those who are gone.
    pub(crate) fn entries(&self) -> usize {
        self.seats.len() + self.stale
    }
}
