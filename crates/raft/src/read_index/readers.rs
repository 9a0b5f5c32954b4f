//! Waiting readers by name, and groups of readers that are released together.
//!
//! Each reader gets a number that is not used again. A group is a list of (number, reader), and a
//! table maps each waiting reader to its number. A reader that gives up is removed from the table.
//! Its entry in the list is then *stale*, which the number shows:
//!
//! ```text
//!   table   a ─▶ 1   c ─▶ 3   b ─▶ 4           (b, number 2, gave up and returned)
//!   group   (1, a)   (2, b)   (3, c)   (4, b)
//!                      └─ stale: the table has 4
//! ```
//!
//! When a reader gives up, and there are over 64 more stale entries than waiting readers, all lists
//! are swept: their stale entries are removed. So the number of stale entries is at most the number
//! of readers that may wait, plus 64. A sweep visits less than two entries for each entry that it
//! removes, so giving up is cheap on average.

use std::collections::HashMap;
use std::hash::Hash;

use super::error::{ReadIndexError, Result};
use super::interface::ReadNeed;

/// A sweep is worth its cost only if the stale entries outnumber the waiting readers by more than
/// this.
const STALE_ENTRIES_MIN: usize = 64;

/// Readers that are released together. Some entries may be stale.
pub(crate) type Group<T> = Vec<QueuedReader<T>>;

#[derive(Debug)]
pub(crate) struct QueuedReader<T> {
    pub(crate) number: u64,
    pub(crate) reader: T,
    pub(crate) need: ReadNeed,
}

#[derive(Debug)]
pub(crate) struct ReaderTable<T> {
    /// The number of each waiting reader. Use it for look-ups only, because its order is not
    /// deterministic.
    numbers: HashMap<T, u64>,
    last_number: u64,
    stale_entries: usize,
    max: usize,
}

impl<T: Copy + Eq + Hash> ReaderTable<T> {
    pub(crate) fn new(max: usize) -> ReaderTable<T> {
        ReaderTable { numbers: HashMap::new(), last_number: 0, stale_entries: 0, max }
    }

    pub(crate) fn register(&mut self, reader: T, need: ReadNeed) -> Result<QueuedReader<T>> {
        if self.numbers.len() >= self.max {
            return Err(ReadIndexError::TooManyReaders);
        }
        if self.numbers.contains_key(&reader) {
            return Err(ReadIndexError::ReaderIsWaiting);
        }
        self.last_number += 1;
        self.numbers.insert(reader, self.last_number);
        Ok(QueuedReader { number: self.last_number, reader, need })
    }

    /// Removes a reader. Returns whether it was waiting.
    pub(crate) fn cancel(&mut self, reader: T) -> bool {
        let found = self.numbers.remove(&reader).is_some();
        self.stale_entries += usize::from(found);
        found
    }

    pub(crate) fn is_waiting(&self, queued: &QueuedReader<T>) -> bool {
        self.numbers.get(&queued.reader) == Some(&queued.number)
    }

    /// Returns the readers of the group that still wait, and removes them from the table.
    pub(crate) fn release(&mut self, group: Group<T>) -> Vec<T> {
        let mut released = Vec::with_capacity(group.len());
        for queued in group {
            if self.is_waiting(&queued) {
                self.numbers.remove(&queued.reader);
                released.push(queued.reader);
            } else {
                self.stale_entries -= 1;
            }
        }
        released
    }

    /// Returns whether there are so many stale entries that the caller must
    /// [`sweep`](ReaderTable::sweep) all groups.
    pub(crate) fn is_sweep_due(&self) -> bool {
        self.stale_entries > self.numbers.len() + STALE_ENTRIES_MIN
    }

    pub(crate) fn sweep(&mut self, group: &mut Group<T>) {
        let before = group.len();
        group.retain(|queued| self.is_waiting(queued));
        self.subtract_stale(before - group.len());
    }

    /// Records that this number of stale entries was found and dropped.
    pub(crate) fn subtract_stale(&mut self, entries: usize) {
        self.stale_entries -= entries;
    }

    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Returns the number of entries in all groups, including stale ones.
    pub(crate) fn entries(&self) -> usize {
        self.numbers.len() + self.stale_entries
    }
}
