//! The readers that wait, and what they wait for: the common part of all modes.
//!
//! ```text
//!   read ──▶ queue ──▶ (the mode: a round, entries, a lease) ──▶ behind ──▶ Go
//!             │                        │                           │
//!             until it is this         until the mode has found      until this member has
//!             group's turn             which index is fresh enough   applied up to there
//! ```
//!
//! A mode takes the queue when it is its turn, and finds an index. From there on all
//! modes are the same: the group waits until this member has applied that index. Groups are in a
//! map ordered by index, and everything up to the applied index goes at once. There is no time-out
//! here, as in etcd: an index does not become stale, and how long to wait for it is the client's
//! decision.

use std::collections::BTreeMap;
use std::hash::Hash;

use super::clock::SteadyClock;
use super::error::{ReadIndexError, Result};
use super::interface::{ReadIndexAction, ReadIndexMetrics};
use super::readers::{Group, ReaderTable};

#[derive(Debug)]
pub(crate) struct Waiters<T> {
    pub(crate) readers: ReaderTable<T>,
    pub(super) queue: Group<T>,
    /// Groups by the index that they wait for.
    waiting_by_index: BTreeMap<u64, Group<T>>,
    pub(super) applied_index: u64,
    pub(super) clock: SteadyClock,
    pub(super) actions: Vec<ReadIndexAction<T>>,
    pub(crate) metrics: ReadIndexMetrics,
}

impl<T: Copy + Eq + Hash> Waiters<T> {
    pub(crate) fn new(readers_max: usize) -> Waiters<T> {
        Waiters {
            readers: ReaderTable::new(readers_max),
            queue: Group::new(),
            waiting_by_index: BTreeMap::new(),
            applied_index: 0,
            clock: SteadyClock::default(),
            actions: Vec::new(),
            metrics: ReadIndexMetrics::default(),
        }
    }

    pub(crate) fn enqueue(&mut self, reader: T) -> Result<()> {
        let queued = self.readers.register(reader)?;
        self.queue.push(queued);
        Ok(())
    }

    /// Where many readers have given up, their entries are swept out of the queue,
    /// and by `sweep_mode` out of what the mode holds.
    pub(crate) fn cancel(
        &mut self,
        reader: T,
        sweep_mode: impl FnOnce(&mut ReaderTable<T>),
    ) -> bool {
        let found = self.readers.cancel(reader);
        if found && self.readers.is_sweep_due() {
            self.readers.sweep(&mut self.queue);
            for group in self.waiting_by_index.values_mut() {
                self.readers.sweep(group);
            }
            self.waiting_by_index.retain(|_, group| !group.is_empty());
            sweep_mode(&mut self.readers);
        }
        found
    }

    pub(crate) fn take_queue(&mut self) -> Group<T> {
        std::mem::take(&mut self.queue)
    }

    /// The readers of the group may go on once `index` is applied.
    pub(crate) fn wait_for_index(&mut self, index: u64, group: Group<T>) {
        if group.is_empty() {
            return;
        }
        self.waiting_by_index.entry(index).or_default().extend(group);
        self.release_applied();
    }

    pub(crate) fn set_applied_index(&mut self, index: u64) {
        self.applied_index = self.applied_index.max(index);
        self.release_applied();
    }

    /// The least index that a group waits for.
    pub(crate) fn awaited_index(&self) -> Option<u64> {
        self.waiting_by_index.keys().next().copied()
    }

    fn release_applied(&mut self) {
        while let Some(entry) = self.waiting_by_index.first_entry()
            && *entry.key() <= self.applied_index
        {
            let (index, group) = entry.remove_entry();
            let readers = self.readers.release(group);
            if !readers.is_empty() {
                self.metrics.released += readers.len() as u64;
                self.actions.push(ReadIndexAction::Release { index, readers });
            }
        }
    }

    pub(crate) fn fail(&mut self, error: ReadIndexError, group: Group<T>) {
        let readers = self.readers.release(group);
        if !readers.is_empty() {
            self.metrics.failed += readers.len() as u64;
            self.actions.push(ReadIndexAction::Fail { error, readers });
        }
    }

    pub(crate) fn metrics(&self) -> ReadIndexMetrics {
        let (waiting, entries) = (self.readers.len(), self.readers.entries());
        ReadIndexMetrics { waiting, queue_entries: entries, ..self.metrics }
    }
}
