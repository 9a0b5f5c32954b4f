//! Mode `log`: each read is an entry of the log, and goes on when that is applied. etcd 3.0.
//!
//! # The story
//!
//! The log is an order of everything that happens. A read that stands in it sees what stands before it,
//! and no deposed leader can commit it. That is the simplest linearizable read there is, and needs no
//! thought about terms, quorums or clocks.
//!
//! ```text
//!   reader 1  propose ── append, sync ──▶ quorum ──▶ committed ──▶ applied ▶ go
//!   reader 2   propose ─ append, sync ──▶ quorum ──▶ committed ───▶ applied ▶ go
//!   log        ... put │ read 1 │ read 2 │ put │ read 3 ...
//! ```
//!
//! # What it costs
//!
//! A read costs what a write costs, less the change of the store: an entry of some hundred bytes in
//! the log of every member, a share in a sync of a quorum, and a place in the line in which all writes
//! are applied. An expensive read behind a thousand puts waits for them, and they for it. Bytes
//! written to serve reads bring snapshots nearer, too. All of that went with ReadIndex.
//!
//! # As in etcd 3.0
//!
//! An entry is proposed once. If raft loses it, as it may when the leader changes, its reader fails
//! after 7 s. A change of leader fails nobody, for the entry may be committed all the same.
//!
//! # What etcd does that is left out
//!
//! etcd 3.0 reads at the moment when the entry is applied, on the apply thread. Here the reader is let
//! go then, and reads when it comes to it: at least as fresh. etcd has two more texts for a time-out, for
//! when it suspects a lost leader or a lost connection; those are the member's, as for writes.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::ids::RequestIds;
use crate::interface::{Action, Config, Event, Figures, ReadBarrier, Reader};
use crate::readers::{Group, Readers, Seat};
use crate::room::Room;

/// Entries, one per read.
#[derive(Debug)]
pub(crate) struct LogRead<T> {
    timeout: Duration,
    room: Room<T>,
    proposed: Proposed<T>,
}

impl<T: Reader> LogRead<T> {
    pub(crate) fn new(config: Config) -> LogRead<T> {
        LogRead {
            timeout: config.request_timeout(),
            room: Room::new(&config),
            proposed: Proposed::default(),
        }
    }

    fn propose(&mut self, seat: Seat<T>, deadline: Duration, ids: &mut RequestIds) {
        let (context, reader) = (ids.next(), seat.reader);
        self.proposed.push(Entry { context, deadline, seat });
        self.room.figures.proposed += 1;
        self.room.act(Action::Propose { context, reader });
    }

    fn time_out(&mut self, now: Duration) {
        let mut late = Group::new();
        while let Some(entry) = self.proposed.pop_due(now) {
            self.room.figures.timed_out += 1;
            late.push(entry.seat);
        }
        self.room.fail(Error::TimedOut, late);
    }
}

/// The entries that are not applied yet.
#[derive(Debug)]
struct Proposed<T> {
    /// In the order in which they were proposed, which is that of their deadlines.
    entries: BTreeMap<u64, Entry<T>>,
    /// Where an entry is, by its id. (Ids are not in order: they wrap.)
    places: HashMap<u64, u64>,
    count: u64,
}

#[derive(Debug)]
struct Entry<T> {
    context: u64,
    deadline: Duration,
    seat: Seat<T>,
}

impl<T> Default for Proposed<T> {
    fn default() -> Self {
        Proposed { entries: BTreeMap::new(), places: HashMap::new(), count: 0 }
    }
}

impl<T: Reader> Proposed<T> {
    fn push(&mut self, entry: Entry<T>) {
        self.count += 1;
        let before = self.places.insert(entry.context, self.count);
        assert_eq!(before, None, "an id is used once");
        self.entries.insert(self.count, entry);
        self.check();
    }

    fn take(&mut self, context: u64) -> Option<Entry<T>> {
        let place = self.places.remove(&context)?;
        let entry = self.entries.remove(&place);
        self.check();
        entry
    }

    fn pop_due(&mut self, now: Duration) -> Option<Entry<T>> {
        let first = self.entries.first_entry().filter(|first| first.get().deadline <= now)?;
        let entry = first.remove();
        self.places.remove(&entry.context);
        self.check();
        Some(entry)
    }

    fn sweep(&mut self, readers: &mut Readers<T>) {
        let before = self.entries.len();
        self.entries.retain(|_, entry| {
            let waits = readers.waits(&entry.seat);
            if !waits {
                self.places.remove(&entry.context);
            }
            waits
        });
        readers.swept(before - self.entries.len());
        self.check();
    }

    fn check(&self) {
        assert_eq!(self.entries.len(), self.places.len(), "each entry has one place");
    }
}

impl<T: Reader> ReadBarrier<T> for LogRead<T> {
    fn read(&mut self, reader: T) -> Result<()> {
        self.room.enter(reader)
    }

    fn cancel(&mut self, reader: T) -> bool {
        let proposed = &mut self.proposed;
        self.room.cancel(reader, |readers| proposed.sweep(readers))
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Answered { context, index } => match self.proposed.take(context) {
                Some(entry) => self.room.wait_behind(index, vec![entry.seat]),
                None => self.room.figures.late_answers += 1,
            },
            Event::Applied { index } => self.room.applied(index),
            Event::Stopped => {
                let proposed = std::mem::take(&mut self.proposed);
                let seats = proposed.entries.into_values().map(|entry| entry.seat);
                self.room.stop(seats.collect());
            }
            Event::Leader { .. }
            | Event::TransferBegan
            | Event::FirstCommit
            | Event::Committed { .. } => {}
        }
    }

    fn poll(&mut self, now: Duration, ids: &mut RequestIds) -> Vec<Action<T>> {
        let now = self.room.told(now).now;
        self.time_out(now);
        let deadline = now.saturating_add(self.timeout);
        let (waiting, gone): (Group<T>, Group<T>) =
            self.room.take_queue().into_iter().partition(|seat| self.room.readers.waits(seat));
        self.room.readers.swept(gone.len());
        for seat in waiting {
            self.propose(seat, deadline, ids);
        }
        self.room.take_actions()
    }

    fn next_poll(&self) -> Option<Duration> {
        let first = self.proposed.entries.values().next()?;
        Some(self.room.untold(first.deadline))
    }

    fn awaited(&self) -> Option<u64> {
        self.room.awaited()
    }

    fn figures(&self) -> Figures {
        self.room.figures()
    }
}
