//! The rules of entry of a lock, as a state machine: who enters, who waits, and the order.
//!
//! A [`LockState`] receives arrivals, departures and the time. It returns which arrivals are inside
//! and which threads to wake. It has no thread, no clock and no data: the locks of this crate run
//! it on real threads, and the simulator runs it in virtual time.
//!
//! The rules are the same as for Go's `sync.RWMutex`, the lock on etcd's read paths. A plain mutex
//! is a lock that no thread enters to read.
//!
//! ```text
//!   writer ──▶ writer_queue ── turn is free ──▶ has the turn ── no reader inside ──▶ inside
//!   reader ── no writer has the turn ──────────────────────────────────────────────▶ inside
//!          └─ a writer has the turn ──▶ blocked_readers ── that writer leaves ─────▶ inside
//! ```
//!
//! * While a writer is inside, no other thread is inside.
//! * A reader waits only while a writer has the turn. When that writer leaves, all waiting readers
//!   enter first.
//! * If the first writer in the queue has waited for [`HANDOVER_AFTER_NS`] or longer when the turn
//!   becomes free, the turn is kept for it. Readers may still enter until that writer is awake. If
//!   the queued writer has waited less, another writer takes the turn if it arrives before the
//!   queued writer is awake.
//! * No [`BlockedInterval`] is recorded twice, and the intervals of one waiter do not overlap.
//!
//! `docs/locks.md` lists the rules and draws a convoy.

use std::collections::VecDeque;

use crate::TaskLabel;

#[cfg(test)]
mod tests;

/// If the first writer in the queue has waited for this time or longer when the turn becomes free,
/// the turn is kept for it.
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
    /// The blocker is a writer that has the turn. It is itself waiting for readers, and later
    /// arrivals wait for it.
    Waiting,
}

/// Identifies one arrival at a lock until that arrival has left the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// An arrival that holds the lock or waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquisition {
    pub ticket: Ticket,
    pub task: TaskLabel,
    pub mode: LockMode,
    /// The time of entry if the arrival is inside, or the time of arrival if it waits.
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
    /// The waiter. Its `since_ns` is the time of its arrival.
    pub waiter: Acquisition,
    /// The blocker. `None` if no writer has the turn: the waiter may take the turn but is not awake
    /// yet, or it queues behind a writer that is not awake yet.
    pub blocker: Option<Blocker>,
}

/// A part of a wait during which the blocker and its state were the same.
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
    /// If false, the thread must wait until this ticket is in a [`ReleaseResult::wake`], and then
    /// call [`LockState::poll`].
    pub is_acquired: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseResult {
    /// The arrival that has left. Its `since_ns` is the start of the hold.
    pub acquisition: Acquisition,
    /// The arrivals to wake, in this order. Each of them then calls [`LockState::poll`] to learn
    /// whether it is inside.
    pub wake: Vec<Ticket>,
}

/// The state of one lock. The module documentation describes its rules.
#[derive(Debug, Default)]
pub struct LockState {
    /// The readers inside, in the order of entry.
    readers: Vec<Acquisition>,
    /// The writer that has the turn. It is inside, or it waits until the readers inside have left.
    /// While there is such a writer, new readers must wait. `None` if no writer has the turn.
    writer: Option<(Waiter, BlockerState)>,
    /// Readers that wait because of the writer with the turn.
    blocked_readers: Vec<Waiter>,
    /// Writers that wait for the turn, in the order of arrival.
    writer_queue: VecDeque<Waiter>,
    /// The writer for which the free turn is kept, because it has waited for [`HANDOVER_AFTER_NS`]
    /// or longer. `None` if the turn is not kept for any writer.
    reserved_for: Option<Ticket>,
    last_ticket: u64,
    /// Intervals that have ended since the last [`LockState::take_blocked_intervals`].
    blocked_intervals: Vec<BlockedInterval>,
}

/// An arrival that waits. `blocked_since_ns` is the time at which `blocker` became its blocker.
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

    /// Returns true if the waiter with this ticket is inside. Call this after the waiter has been
    /// woken. If the waiter is a queued writer and the turn is free for it, it first takes the
    /// turn.
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

    /// Lets the holder of `ticket` leave.
    ///
    /// # Panics
    ///
    /// Panics if no arrival with this ticket and this mode is inside.
    #[inline]
    pub fn release(&mut self, ticket: Ticket, mode: LockMode, now_ns: u64) -> ReleaseResult {
        match mode {
            LockMode::Read => self.release_read(ticket, now_ns),
            LockMode::Write => self.release_write(ticket, now_ns),
        }
    }

    /// Returns the intervals that have ended since the last call, in the order of their ends.
    #[inline]
    pub fn take_blocked_intervals(&mut self) -> Vec<BlockedInterval> {
        std::mem::take(&mut self.blocked_intervals)
    }

    /// Returns the arrivals inside, in the order of entry.
    pub fn holders(&self) -> impl Iterator<Item = &Acquisition> {
        let inside = self.writer.iter().filter(|(_, state)| *state == BlockerState::Holding);
        self.readers.iter().chain(inside.map(|(writer, _)| &writer.acquisition))
    }

    /// Returns the waiters in this order: the writer with the turn if it waits, the readers that
    /// wait because of that writer, the writers in the queue.
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

    /// Gives the turn to this writer. Returns true if the writer is now inside.
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

    /// Lets the writer with the turn enter, after the last reader has left. Returns its ticket, or
    /// `None` if no writer has the turn.
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

    /// Lets all waiting readers enter together, before the next writer. Returns their tickets.
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

    /// Sets the blocker. If it has changed, the interval with the old blocker ends and is recorded.
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
