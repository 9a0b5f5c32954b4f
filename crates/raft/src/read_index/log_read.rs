//! Mode `log`: each read is an entry of the log, and is released when that is applied. etcd 3.0.
//!
//! The log is an order of everything that happens, and a deposed leader cannot commit an entry, so
//! a read that stands in it sees what stands before it. It costs what a write costs, less the
//! change of the store; `docs/read-index.md` has the figures.
//!
//! As in etcd 3.0, an entry is proposed once. If raft loses it, its reader fails after 7 s. A
//! change of leader fails no reader, because the entry may be committed all the same.
//!
//! etcd 3.0 reads at the moment when the entry is applied, on the apply thread. Here the reader is
//! released then, and reads later: at least as fresh.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::clock::ClockReading;
use super::error::ReadIndexError;
use super::ids::RequestIdGenerator;
use super::interface::{ReadIndexAction, ReadIndexConfig, Reader};
use super::mode::Mode;
use super::readers::{Group, QueuedReader, ReaderTable};
use super::waiters::Waiters;

#[derive(Debug)]
pub(super) struct LogRead<T> {
    timeout: Duration,
    proposed: ProposedReads<T>,
}

impl<T: Reader> LogRead<T> {
    pub(super) fn new(config: ReadIndexConfig) -> LogRead<T> {
        LogRead { timeout: config.request_timeout(), proposed: ProposedReads::default() }
    }

    fn fail_expired(&mut self, waiters: &mut Waiters<T>, now: Duration) {
        let mut late = Group::new();
        while let Some(entry) = self.proposed.pop_expired(now) {
            waiters.metrics.timed_out += 1;
            late.push(entry.queued_reader);
        }
        waiters.fail(ReadIndexError::TimedOut, late);
    }
}

/// The entries that are not applied yet.
#[derive(Debug)]
struct ProposedReads<T> {
    /// In the order in which they were proposed, which is that of their deadlines.
    entries: BTreeMap<u64, ProposedRead<T>>,
    /// From id to number in `entries`. (Ids are not in order: they wrap.)
    number_of_context: HashMap<u64, u64>,
    count: u64,
}

#[derive(Debug)]
struct ProposedRead<T> {
    context: u64,
    deadline: Duration,
    queued_reader: QueuedReader<T>,
}

impl<T> Default for ProposedReads<T> {
    fn default() -> Self {
        ProposedReads { entries: BTreeMap::new(), number_of_context: HashMap::new(), count: 0 }
    }
}

impl<T: Reader> ProposedReads<T> {
    fn push(&mut self, entry: ProposedRead<T>) {
        self.count += 1;
        let before = self.number_of_context.insert(entry.context, self.count);
        assert_eq!(before, None, "an id is used once");
        self.entries.insert(self.count, entry);
        self.check();
    }

    fn remove(&mut self, context: u64) -> Option<ProposedRead<T>> {
        let place = self.number_of_context.remove(&context)?;
        let entry = self.entries.remove(&place);
        self.check();
        entry
    }

    fn pop_expired(&mut self, now: Duration) -> Option<ProposedRead<T>> {
        let first = self.entries.first_entry().filter(|first| first.get().deadline <= now)?;
        let entry = first.remove();
        self.number_of_context.remove(&entry.context);
        self.check();
        Some(entry)
    }

    fn sweep(&mut self, readers: &mut ReaderTable<T>) {
        let before = self.entries.len();
        self.entries.retain(|_, entry| {
            let waits = readers.is_waiting(&entry.queued_reader);
            if !waits {
                self.number_of_context.remove(&entry.context);
            }
            waits
        });
        readers.subtract_stale(before - self.entries.len());
        self.check();
    }

    fn check(&self) {
        assert_eq!(self.entries.len(), self.number_of_context.len(), "each entry has one place");
    }
}

impl<T: Reader> Mode<T> for LogRead<T> {
    fn on_answer(&mut self, waiters: &mut Waiters<T>, context: u64, index: u64) {
        match self.proposed.remove(context) {
            Some(entry) => waiters.wait_for_index(index, vec![entry.queued_reader]),
            None => waiters.metrics.late_answers += 1,
        }
    }

    fn advance(
        &mut self,
        waiters: &mut Waiters<T>,
        ClockReading { now, .. }: ClockReading,
        ids: &mut RequestIdGenerator,
    ) {
        self.fail_expired(waiters, now);
        let deadline = now.saturating_add(self.timeout);
        let mut queue = waiters.take_queue();
        waiters.readers.sweep(&mut queue);
        for queued_reader in queue {
            let (context, reader) = (ids.next(), queued_reader.reader);
            self.proposed.push(ProposedRead { context, deadline, queued_reader });
            waiters.metrics.proposed_entries += 1;
            waiters.actions.push(ReadIndexAction::Propose { context, reader });
        }
    }

    fn next_advance(&self, _: &Waiters<T>) -> Option<Duration> {
        Some(self.proposed.entries.values().next()?.deadline)
    }

    fn sweep(&mut self, readers: &mut ReaderTable<T>) {
        self.proposed.sweep(readers);
    }
}
