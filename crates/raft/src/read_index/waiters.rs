//! The waiting readers, and what each of them waits for. All modes share this module.
//!
//! ```text
//!   read ──▶ queue ──▶ (the mode: a ReadIndex request, entries, a lease) ──▶ by index ──▶ Release
//!             │                        │                                       │
//!             until the mode           until the mode has found                until this member
//!             takes the queue          which index is fresh enough             has applied it
//! ```
//!
//! A mode takes the queue when it is ready, and finds an index. Readers that need only the
//! confirmation of an index are released immediately. The others wait, in all modes alike, until
//! this member has applied the index. They are in a map by index. When the applied index rises, all
//! readers with an index up to it are released together.
//!
//! This module does not limit the wait for the applied index, because an index stays valid. The
//! limit is in the `RequestQueue` of the network thread: a read fails there after 15 rounds of
//! 500 ms, or at the client's deadline (`check_deadlines` in
//! `crates/replica/src/state_machines/request_queue.rs`).

use std::collections::BTreeMap;
use std::hash::Hash;

use super::clock::SteadyClock;
use super::error::{ReadIndexError, Result};
use super::interface::{ReadIndexAction, ReadIndexMetrics, ReadNeed};
use super::readers::{Group, QueuedReader, ReaderTable};

#[derive(Debug)]
pub(crate) struct Waiters<T> {
    pub(crate) readers: ReaderTable<T>,
    pub(super) queue: Group<T>,
    /// The groups, by the index that they wait for.
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

    pub(crate) fn enqueue(&mut self, reader: T, need: ReadNeed) -> Result<()> {
        let queued = self.readers.register(reader, need)?;
        self.queue.push(queued);
        Ok(())
    }

    /// Removes a reader. Returns whether it was waiting. If many readers have given up, this call
    /// also sweeps their entries out of the queue and the groups, and calls `sweep_mode` to sweep
    /// the lists of the mode.
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

    /// Releases the readers of the group once `index` is applied, or now if they need only a
    /// confirmation of the index.
    pub(crate) fn wait_for_index(&mut self, index: u64, group: Group<T>) {
        let confirmed = |queued: &QueuedReader<T>| queued.need == ReadNeed::Confirmed;
        let (confirmed, waiting): (Group<T>, Group<T>) = match group.iter().any(confirmed) {
            true => group.into_iter().partition(confirmed),
            false => (Group::new(), group),
        };
        self.release(index, confirmed);
        if waiting.is_empty() {
            return;
        }
        self.waiting_by_index.entry(index).or_default().extend(waiting);
        self.release_applied();
    }

    pub(crate) fn set_applied_index(&mut self, index: u64) {
        self.applied_index = self.applied_index.max(index);
        self.release_applied();
    }

    /// Returns the lowest index that a group waits for, or `None` if no group waits.
    pub(crate) fn awaited_index(&self) -> Option<u64> {
        self.waiting_by_index.keys().next().copied()
    }

    fn release_applied(&mut self) {
        while let Some(entry) = self.waiting_by_index.first_entry()
            && *entry.key() <= self.applied_index
        {
            let (index, group) = entry.remove_entry();
            self.release(index, group);
        }
    }

    fn release(&mut self, index: u64, group: Group<T>) {
        let readers = self.readers.release(group);
        if !readers.is_empty() {
            self.metrics.released += readers.len() as u64;
            self.actions.push(ReadIndexAction::Release { index, readers });
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
