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

use super::error::{ReadIndexError, Result};
use super::ids::RequestIdGenerator;
use super::interface::{
    ReadIndexAction, ReadIndexConfig, ReadIndexEvent, ReadIndexMetrics, ReadIndexQueue, Reader,
};
use super::readers::{Group, QueuedReader, ReaderTable};
use super::waiters::Waiters;

#[derive(Debug)]
pub(crate) struct LogRead<T> {
    timeout: Duration,
    waiters: Waiters<T>,
    proposed: ProposedReads<T>,
}

impl<T: Reader> LogRead<T> {
    pub(crate) fn new(config: ReadIndexConfig) -> LogRead<T> {
        LogRead {
            timeout: config.request_timeout(),
            waiters: Waiters::new(&config),
            proposed: ProposedReads::default(),
        }
    }

    fn propose(
        &mut self,
        queued: QueuedReader<T>,
        deadline: Duration,
        ids: &mut RequestIdGenerator,
    ) {
        let (context, reader) = (ids.next(), queued.reader);
        self.proposed.push(ProposedRead { context, deadline, queued_reader: queued });
        self.waiters.metrics.proposed_entries += 1;
        self.waiters.push_action(ReadIndexAction::Propose { context, reader });
    }

    fn fail_expired(&mut self, now: Duration) {
        let mut late = Group::new();
        while let Some(entry) = self.proposed.pop_expired(now) {
            self.waiters.metrics.timed_out += 1;
            late.push(entry.queued_reader);
        }
        self.waiters.fail(ReadIndexError::TimedOut, late);
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

impl<T: Reader> ReadIndexQueue<T> for LogRead<T> {
    fn enqueue(&mut self, reader: T) -> Result<()> {
        self.waiters.enqueue(reader)
    }

    fn cancel(&mut self, reader: T) -> bool {
        let proposed = &mut self.proposed;
        self.waiters.cancel(reader, |readers| proposed.sweep(readers))
    }

    fn handle_event(&mut self, event: ReadIndexEvent) {
        match event {
            ReadIndexEvent::Answered { context, index } => match self.proposed.remove(context) {
                Some(entry) => self.waiters.wait_for_index(index, vec![entry.queued_reader]),
                None => self.waiters.metrics.late_answers += 1,
            },
            ReadIndexEvent::Applied { index } => self.waiters.set_applied_index(index),
            ReadIndexEvent::Leader { .. }
            | ReadIndexEvent::TransferStarted
            | ReadIndexEvent::FirstCommit
            | ReadIndexEvent::Committed { .. } => {}
        }
    }

    fn poll(&mut self, now: Duration, ids: &mut RequestIdGenerator) -> Vec<ReadIndexAction<T>> {
        let now = self.waiters.read_clock(now).now;
        self.fail_expired(now);
        let deadline = now.saturating_add(self.timeout);
        let (waiting, gone): (Group<T>, Group<T>) = self
            .waiters
            .take_queue()
            .into_iter()
            .partition(|queued| self.waiters.readers.is_waiting(queued));
        self.waiters.readers.subtract_stale(gone.len());
        for queued in waiting {
            self.propose(queued, deadline, ids);
        }
        self.waiters.take_actions()
    }

    fn next_poll(&self) -> Option<Duration> {
        let first = self.proposed.entries.values().next()?;
        Some(self.waiters.to_caller_time(first.deadline))
    }

    fn awaited_index(&self) -> Option<u64> {
        self.waiters.awaited_index()
    }

    fn metrics(&self) -> ReadIndexMetrics {
        self.waiters.metrics()
    }
}
