//! Waiting readers: readers by name, and groups of them that go on together.
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
//! table of seats says which readers still wait. Giving up is taking one's seat out of the table; the entry in
//! the list has become *stale*, which the code that reads the list sees by the number.
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

use super::error::{ReadIndexError, Result};

/// Stale entries below this number are not worth a sweep.
const STALE_ENTRIES_MIN: usize = 64;

/// Readers that go on together, some of them perhaps gone.
pub(crate) type Group<T> = Vec<QueuedReader<T>>;

/// An entry of a group.
#[derive(Debug)]
pub(crate) struct QueuedReader<T> {
    number: u64,
    pub(crate) reader: T,
}

/// The table of seats.
#[derive(Debug)]
pub(crate) struct ReaderTable<T> {
    /// Looked up, never walked: its order is not to be relied on.
    numbers: HashMap<T, u64>,
    last_number: u64,
    stale_entries: usize,
    max: usize,
}

impl<T: Copy + Eq + Hash> ReaderTable<T> {
    pub(crate) fn new(max: usize) -> ReaderTable<T> {
        ReaderTable { numbers: HashMap::new(), last_number: 0, stale_entries: 0, max }
    }

    pub(crate) fn register(&mut self, reader: T) -> Result<QueuedReader<T>> {
        if self.numbers.len() >= self.max {
            return Err(ReadIndexError::TooManyReaders);
        }
        if self.numbers.contains_key(&reader) {
            return Err(ReadIndexError::ReaderIsWaiting);
        }
        self.last_number += 1;
        self.numbers.insert(reader, self.last_number);
        Ok(QueuedReader { number: self.last_number, reader })
    }

    /// The reader gives up. Says whether it was waiting.
    pub(crate) fn cancel(&mut self, reader: T) -> bool {
        let found = self.numbers.remove(&reader).is_some();
        self.stale_entries += usize::from(found);
        found
    }

    pub(crate) fn is_waiting(&self, seat: &QueuedReader<T>) -> bool {
        self.numbers.get(&seat.reader) == Some(&seat.number)
    }

    /// Those of the group that still wait. They wait no longer.
    pub(crate) fn release(&mut self, group: Group<T>) -> Vec<T> {
        let mut released = Vec::with_capacity(group.len());
        for seat in group {
            if self.is_waiting(&seat) {
                self.numbers.remove(&seat.reader);
                released.push(seat.reader);
            } else {
                self.stale_entries -= 1;
            }
        }
        released
    }

    /// Whether it is time to [`sweep`](ReaderTable::sweep) every group there is.
    pub(crate) fn is_sweep_due(&self) -> bool {
        self.stale_entries > self.numbers.len() + STALE_ENTRIES_MIN
    }

    pub(crate) fn sweep(&mut self, group: &mut Group<T>) {
        let before = group.len();
        group.retain(|seat| self.is_waiting(seat));
        self.subtract_stale(before - group.len());
    }

    /// So many stale entries were found and dropped.
    pub(crate) fn subtract_stale(&mut self, entries: usize) {
        self.stale_entries -= entries;
    }

    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Entries of all groups: readers that wait, and readers that are gone.
    pub(crate) fn entries(&self) -> usize {
        self.numbers.len() + self.stale_entries
    }
}
