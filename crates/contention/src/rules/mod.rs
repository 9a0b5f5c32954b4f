//! The rules of entry of a lock, as a state machine: which thread enters, which waits, in what
//! order.
//!
//! A [`LockState`] is given arrivals, departures and the time, and answers which arrivals are
//! inside and which to wake. It has no thread, no clock and no data: the locks of this crate run it
//! on real threads, the simulator in virtual time. The rules are those of Go's `sync.RWMutex`,
//! which etcd's read paths are built on; a plain mutex is a lock that no thread enters to read.
//!
//! * A writer inside is alone inside.
//! * Readers are turned away only while a writer has the turn; when it leaves, they go in first.
//! * A writer that has queued for [`HANDOVER_AFTER_NS`] gets the turn kept for it.
//! * No [`BlockedInterval`] is written down twice, and those of one waiter do not overlap.
//!
//! `docs/locks.md` lists the rules and draws a convoy.

use std::collections::VecDeque;

use crate::TaskLabel;

#[cfg(test)]
mod tests;

/// After this long in the queue, a writer gets the next turn kept for it.
pub const HANDOVER_AFTER_NS: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockMode {
    /// Shared with other readers.
    Read,
    /// Exclusive.
    Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockerState {
    Holding,
    /// It is a writer that waits itself, and turns others away.
    Waiting,
}

/// Names one arrival at a lock, until it has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// An arrival that holds the lock or waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquisition {
    pub ticket: Ticket,
    pub task: TaskLabel,
    pub mode: LockMode,
    /// When it entered, or arrived if it waits.
    pub since_ns: u64,
}

/// The arrival that a waiter waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocker {
    pub ticket: Ticket,
    pub task: TaskLabel,
    pub mode: LockMode,
    pub state: BlockerState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockedAcquisition {
    /// `since_ns` is its arrival.
    pub waiter: Acquisition,
    /// `None`: the way is free and the waiter is only not awake yet.
    pub blocker: Option<Blocker>,
}

/// A part of a wait with one blocker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockedInterval {
    pub waiter: TaskLabel,
    pub mode: LockMode,
    pub blocker: Blocker,
    pub start_ns: u64,
    pub end_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcquireResult {
    pub ticket: Ticket,
    /// If not, the thread must wait until this ticket is in a [`ReleaseResult::wake`].
    pub is_acquired: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseResult {
    /// As it entered: `since_ns` is the beginning of the hold.
    pub acquisition: Acquisition,
    /// The arrivals to wake, in order. Each then asks [`LockState::poll`] whether it is inside.
    pub wake: Vec<Ticket>,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub struct LockState {
    /// The readers inside, in the order of entry.
    readers: Vec<Acquisition>,
    /// The writer that has the turn, inside or waiting for the readers inside to leave. While there
    /// is one, readers are turned away.
    writer: Option<(Waiter, BlockerState)>,
    /// Readers that the writer with the turn has turned away.
    blocked_readers: Vec<Waiter>,
    /// Writers that wait for the turn, in the order of arrival.
    writer_queue: VecDeque<Waiter>,
    /// The turn is free but kept for this one, which waited too long for it.
    reserved_for: Option<Ticket>,
    last_ticket: u64,
    /// Those that have ended and were not taken yet.
    blocked_intervals: Vec<BlockedInterval>,
}

/// Since when it waits, and since when behind which blocker.
#[derive(Debug)]
struct Waiter {
    acquisition: Acquisition,
    blocker: Option<Blocker>,
    blocked_since_ns: u64,
}

impl LockState {
    #[inline]
    pub fn acquire(&mut self, task: TaskLabel, mode: LockMode, now_ns: u64) -> AcquireResult {
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        let acquisition = Acquisition { ticket, task, mode, since_ns: now_ns };
        let inside = match mode {
            LockMode::Read => self.acquire_read(acquisition),
            LockMode::Write => self.acquire_write(acquisition),
        };
        AcquireResult { ticket, is_acquired: inside }
    }

    /// Whether a waiter that was woken is inside by now. A writer that the turn is free for takes
    /// it here.
    pub fn poll(&mut self, ticket: Ticket, now_ns: u64) -> bool {
        if self.writer.is_none() && self.reserved_for.is_none_or(|reserved| reserved == ticket) {
            let place = self.writer_queue.iter().position(|it| it.acquisition.ticket == ticket);
            if let Some(writer) = place.and_then(|place| self.writer_queue.remove(place)) {
                self.reserved_for = None;
                self.activate_writer(writer, now_ns);
            }
        }
        self.holders().any(|holder| holder.ticket == ticket)
    }

    /// The holder of `ticket` has left.
    ///
    /// # Panics
    ///
    /// If it was not inside.
    #[inline]
    pub fn release(&mut self, ticket: Ticket, mode: LockMode, now_ns: u64) -> ReleaseResult {
        match mode {
            LockMode::Read => self.release_read(ticket, now_ns),
            LockMode::Write => self.release_write(ticket, now_ns),
        }
    }

    /// The intervals that have ended since the last call, in the order of their ends.
    #[inline]
    pub fn take_blocked_intervals(&mut self) -> Vec<BlockedInterval> {
        std::mem::take(&mut self.blocked_intervals)
    }

    /// In the order of entry.
    pub fn holders(&self) -> impl Iterator<Item = &Acquisition> {
        let inside = self.writer.iter().filter(|(_, state)| *state == BlockerState::Holding);
        self.readers.iter().chain(inside.map(|(writer, _)| &writer.acquisition))
    }

    /// In this order: the writer with the turn, the readers it turned away, the writers in the
    /// queue.
    pub fn waiters(&self) -> impl Iterator<Item = BlockedAcquisition> {
        let announced = self.writer.iter().filter(|(_, state)| *state == BlockerState::Waiting);
        let announced = announced.map(|(writer, _)| writer);
        let waiters = announced.chain(&self.blocked_readers).chain(&self.writer_queue);
        waiters.map(|it| BlockedAcquisition { waiter: it.acquisition, blocker: it.blocker })
    }

    #[inline]
    fn acquire_read(&mut self, acquisition: Acquisition) -> bool {
        let blocker = self.turn();
        match blocker {
            None => self.readers.push(acquisition),
            Some(_) => self.blocked_readers.push(Waiter::new(acquisition, blocker)),
        }
        blocker.is_none()
    }

    #[inline]
    fn acquire_write(&mut self, acquisition: Acquisition) -> bool {
        if self.writer.is_none() && self.reserved_for.is_none() {
            return self.activate_writer(Waiter::new(acquisition, None), acquisition.since_ns);
        }
        self.writer_queue.push_back(Waiter::new(acquisition, self.turn()));
        false
    }

    #[inline]
    fn turn(&self) -> Option<Blocker> {
        self.writer.as_ref().map(|(writer, state)| writer.acquisition.as_blocker(*state))
    }

    /// Gives the turn to this writer; `true` if it went inside with it.
    #[inline]
    fn activate_writer(&mut self, mut writer: Waiter, now_ns: u64) -> bool {
        let inside = self.readers.is_empty();
        if inside {
            writer.acquisition.since_ns = now_ns;
        }
        let state = if inside { BlockerState::Holding } else { BlockerState::Waiting };
        self.writer = Some((writer, state));
        self.update_blockers(now_ns);
        inside
    }

    #[inline]
    fn release_read(&mut self, ticket: Ticket, now_ns: u64) -> ReleaseResult {
        let place = self.readers.iter().position(|acquisition| acquisition.ticket == ticket);
        let acquisition = self.readers.remove(place.expect("only a reader inside can leave"));
        let wake = if self.readers.is_empty() { self.admit_writer(now_ns) } else { None };
        self.update_blockers(now_ns);
        ReleaseResult { acquisition, wake: wake.into_iter().collect() }
    }

    /// After the last reader has left: the writer with the turn goes in.
    fn admit_writer(&mut self, now_ns: u64) -> Option<Ticket> {
        let (writer, state) = self.writer.as_mut()?;
        writer.set_blocker(None, now_ns, &mut self.blocked_intervals);
        writer.acquisition.since_ns = now_ns;
        *state = BlockerState::Holding;
        Some(writer.acquisition.ticket)
    }

    #[inline]
    fn release_write(&mut self, ticket: Ticket, now_ns: u64) -> ReleaseResult {
        let is_own = |(writer, state): &mut (Waiter, BlockerState)| {
            writer.acquisition.ticket == ticket && *state == BlockerState::Holding
        };
        let left = self.writer.take_if(is_own).expect("only the writer inside can leave");
        let mut wake = self.admit_blocked_readers(now_ns);
        self.update_blockers(now_ns);
        if let Some(next) = self.writer_queue.front() {
            let waited_ns = now_ns.saturating_sub(next.acquisition.since_ns);
            self.reserved_for = (waited_ns >= HANDOVER_AFTER_NS).then_some(next.acquisition.ticket);
            wake.push(next.acquisition.ticket);
        }
        ReleaseResult { acquisition: left.0.acquisition, wake }
    }

    /// All readers that were turned away go in, at once and before the next writer.
    fn admit_blocked_readers(&mut self, now_ns: u64) -> Vec<Ticket> {
        for mut reader in self.blocked_readers.drain(..) {
            reader.set_blocker(None, now_ns, &mut self.blocked_intervals);
            self.readers.push(Acquisition { since_ns: now_ns, ..reader.acquisition });
        }
        self.readers.iter().map(|acquisition| acquisition.ticket).collect()
    }

    #[inline]
    fn update_blockers(&mut self, now_ns: u64) {
        let writer = self.turn();
        for waiter in self.blocked_readers.iter_mut().chain(&mut self.writer_queue) {
            waiter.set_blocker(writer, now_ns, &mut self.blocked_intervals);
        }
        if let Some((waiter, BlockerState::Waiting)) = &mut self.writer {
            let oldest = self.readers.first().map(|it| it.as_blocker(BlockerState::Holding));
            waiter.set_blocker(oldest, now_ns, &mut self.blocked_intervals);
        }
    }
}

impl Acquisition {
    fn as_blocker(&self, state: BlockerState) -> Blocker {
        Blocker { ticket: self.ticket, task: self.task, mode: self.mode, state }
    }
}

impl Waiter {
    fn new(acquisition: Acquisition, blocker: Option<Blocker>) -> Waiter {
        Waiter { acquisition, blocker, blocked_since_ns: acquisition.since_ns }
    }

    /// Records the interval of the old blocker, if the blocker is another one.
    fn set_blocker(
        &mut self,
        blocker: Option<Blocker>,
        now_ns: u64,
        ended: &mut Vec<BlockedInterval>,
    ) {
        if self.blocker == blocker {
            return;
        }
        if let Some(blocker) = self.blocker {
            ended.push(BlockedInterval {
                waiter: self.acquisition.task,
                mode: self.acquisition.mode,
                blocker,
                start_ns: self.blocked_since_ns,
                end_ns: now_ns.max(self.blocked_since_ns),
            });
        }
        self.blocker = blocker;
        self.blocked_since_ns = now_ns;
    }
}
