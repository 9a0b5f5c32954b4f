//! Mode `log`: each read is an entry of the log, and is released when the entry is applied. etcd
//! 3.0 works in this way.
//!
//! The log puts everything that happens in order, and a deposed leader cannot commit an entry. So a
//! read that is an entry of the log sees all earlier entries. Such a read costs as much as a write,
//! except that the store does not change; `docs/read-index.md` has the figures.
//!
//! As in etcd 3.0, an entry is proposed once. If raft loses the entry, its reader fails after the
//! time-out, which is 7 s by default. A change of leader fails no reader, because the entry may
//! still be committed.
//!
//! etcd 3.0 reads at the time when the entry is applied, on the apply thread. Here the reader is
//! released at that time and reads later, so its data is at least as fresh.

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
    /// The entries that are not applied yet, by the numbers of their readers. The order of the
    /// numbers is the order in which the entries were proposed, and also the order of their
    /// deadlines.
    proposed: BTreeMap<u64, ProposedRead<T>>,
    /// Maps an entry's id to its reader's number. (Ids cannot serve as the order, because they
    /// wrap.)
    number_of_context: HashMap<u64, u64>,
}

#[derive(Debug)]
struct ProposedRead<T> {
    context: u64,
    deadline: Duration,
    queued_reader: QueuedReader<T>,
}

impl<T: Reader> LogRead<T> {
    pub(super) fn new(config: ReadIndexConfig) -> LogRead<T> {
        let (proposed, number_of_context) = Default::default();
        LogRead { timeout: config.request_timeout(), proposed, number_of_context }
    }

    fn fail_expired(&mut self, waiters: &mut Waiters<T>, now: Duration) {
        let mut late = Group::new();
        while let Some(first) = self.proposed.first_entry()
            && first.get().deadline <= now
        {
            let entry = first.remove();
            self.number_of_context.remove(&entry.context);
            waiters.metrics.timed_out += 1;
            late.push(entry.queued_reader);
        }
        waiters.fail(ReadIndexError::TimedOut, late);
    }
}

impl<T: Reader> Mode<T> for LogRead<T> {
    fn on_answer(&mut self, waiters: &mut Waiters<T>, context: u64, index: u64) {
        let number = self.number_of_context.remove(&context);
        match number.and_then(|number| self.proposed.remove(&number)) {
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
            let (context, reader, number) =
                (ids.next(), queued_reader.reader, queued_reader.number);
            self.number_of_context.insert(context, number);
            self.proposed.insert(number, ProposedRead { context, deadline, queued_reader });
            waiters.metrics.proposed_entries += 1;
            waiters.actions.push(ReadIndexAction::Propose { context, reader });
        }
    }

    fn next_advance(&self, _: &Waiters<T>) -> Option<Duration> {
        Some(self.proposed.values().next()?.deadline)
    }

    fn sweep(&mut self, readers: &mut ReaderTable<T>) {
        let gone = |_: &u64, entry: &mut ProposedRead<T>| !readers.is_waiting(&entry.queued_reader);
        let gone: Vec<_> = self.proposed.extract_if(.., gone).collect();
        for (_, entry) in &gone {
            self.number_of_context.remove(&entry.context);
        }
        readers.subtract_stale(gone.len());
    }
}
