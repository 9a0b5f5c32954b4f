//! Who goes in, who waits, and in what order? The rules of the lock, as a plain state machine.
//!
//! # The idea
//!
//! A [`Gate`] is told who arrives, who leaves and what time it is, and answers who is inside and
//! whom to wake. It has no thread, no clock and no data to protect: the locks of this crate run
//! it on real threads, a simulator can run the very same rules in virtual time.
//!
//! The rules are those of Go's `sync.RWMutex`, which all of etcd's read paths are built on:
//!
//! 1. Readers share the inside; a writer is alone there.
//! 2. Writers take *turns*: one at a time has the turn, the others queue for it.
//! 3. The writer with the turn waits until the readers inside have left. From the moment it has
//!    the turn, **readers that arrive are turned away**.
//! 4. When a writer leaves, all readers it turned away go in at once, **before** the next writer:
//!    that one gets the turn and now waits for them.
//!
//! So neither side starves, and the price is the convoy: one slow reader (r1), one writer that
//! waits for it (w1), and every later reader stands behind a writer that does nothing.
//!
//! ```text
//! time ─▶   1    2    3    4    5    6    7    8
//! r1        ████████████████████┤                 reads for long
//! w1             ░░░░░░░░░░░░░░░█████┤            has the turn, waits for r1
//! r2                  ░░░░░░░░░░░░░░░█████┤       could share with r1; w1 turns it away
//! w2                       ░░░░░░░░░░░░░░░█████┤  waits for the turn, then for r2
//! ```
//!
//! # Turns
//!
//! A writer that leaves does not hand the turn over: it wakes the first of the queue, and whoever
//! comes by first takes the turn. A thread that is running wins against one that must be woken,
//! which keeps a busy lock fast. So that nobody starves, a writer that has queued for
//! [`HANDOVER_AFTER_NS`] gets the turn kept for it. Go's mutex does the same with the same limit
//! (its "normal" and "starvation" modes); it enters the second mode only when a woken waiter has
//! lost once, and leaves it when the queue is short or its head is young. Here each handover is
//! decided by itself.
//!
//! A plain mutex is a gate that nobody enters to read.
//!
//! # Who stands in front
//!
//! At any moment one party stands in front of each waiter: before the writer with the turn the
//! reader that has been inside longest, before all others the writer with the turn, be it
//! [`Stance::Holding`] or itself [`Stance::Waiting`]. Whenever that changes, the gate writes down
//! the [`Stretch`] of waiting that ended. The stretches of the picture, which is how the chain
//! r2 → w1 → r1 can be told afterwards:
//!
//! ```text
//! w1  2-5 behind r1 (holding)
//! r2  3-5 behind w1 (waiting)   5-6 behind w1 (holding)
//! w2  4-5 behind w1 (waiting)   5-6 behind w1 (holding)   6-7 behind r2 (holding)
//! ```
//!
//! Between a writer's leaving and the next taking the turn nobody stands in front: that is the time
//! it takes to wake a thread, and nobody is blamed for it.
//!
//! # Invariants
//!
//! * A writer inside is alone inside.
//! * Readers are turned away only while a writer has the turn.
//! * No stretch is written down twice, and those of one waiter do not overlap.

use std::collections::VecDeque;

use crate::Actor;

#[cfg(test)]
mod tests;

/// After this long in the queue, a writer gets the next turn kept for it.
pub const HANDOVER_AFTER_NS: u64 = 1_000_000;

/// How a lock is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Shared with other readers.
    Read,
    /// Alone.
    Write,
}

/// What the one in front of a waiter does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stance {
    /// It is inside.
    Holding,
    /// It is a writer that waits itself, and turns others away.
    Waiting,
}

/// Names one arrival at a gate, until it has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// One who is inside or waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Party {
    /// Which arrival.
    pub ticket: Ticket,
    /// In whose name.
    pub actor: Actor,
    /// To do what.
    pub mode: Mode,
    /// Inside or waiting since then.
    pub since_ns: u64,
}

/// The one whom a waiter waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Front {
    /// Which arrival.
    pub ticket: Ticket,
    /// In whose name it came.
    pub actor: Actor,
    /// To do what.
    pub mode: Mode,
    /// Whether it is inside or waits itself.
    pub stance: Stance,
}

/// One who waits, and behind whom; for [`Gate::waiting`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Who waits; since its arrival.
    pub waiter: Party,
    /// Who stands in front. `None`: the way is free and the waiter is only not awake yet.
    pub front: Option<Front>,
}

/// A piece of a wait during which the same one stood in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Who waited.
    pub waiter: Actor,
    /// To do what.
    pub mode: Mode,
    /// Behind whom.
    pub front: Front,
    /// From when.
    pub start_ns: u64,
    /// Until when.
    pub end_ns: u64,
}

/// The answer to an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The name of this arrival from now on.
    pub ticket: Ticket,
    /// Whether it is inside already; if not, it waits to be woken.
    pub inside: bool,
}

/// The answer to a leaving.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Who left, and since when it had been inside.
    pub party: Party,
    /// Whom to wake, in order. Each then asks [`Gate::poll`] whether it is inside.
    pub wake: Vec<Ticket>,
}

/// The rules of one lock. See the module documentation.
#[derive(Debug, Default)]
pub struct Gate {
    /// The readers inside, the one who entered first in front.
    readers: Vec<Party>,
    /// The writer that has the turn. While it is there, readers are turned away.
    turn: Option<Turn>,
    /// Readers that the writer with the turn has turned away.
    turned_away: Vec<Waiter>,
    /// Writers that wait for the turn, in the order of their arrival.
    queue: VecDeque<Waiter>,
    /// The turn is free but kept for this one, who waited too long for it.
    kept_for: Option<Ticket>,
    last_ticket: u64,
    /// Stretches of waiting that have ended and were not taken yet.
    stretches: Vec<Stretch>,
}

/// The writer that has the turn.
#[derive(Debug)]
enum Turn {
    /// It waits for the readers inside to leave.
    Waiting(Waiter),
    /// It is inside.
    Holding(Party),
}

/// One who waits: since when, and since when behind whom.
#[derive(Debug)]
struct Waiter {
    party: Party,
    front: Option<Front>,
    front_since_ns: u64,
}

impl Gate {
    /// A gate with nobody there.
    pub fn new() -> Gate {
        Gate::default()
    }

    /// Somebody wants to go in.
    #[inline]
    pub fn arrive(&mut self, actor: Actor, mode: Mode, now_ns: u64) -> Arrival {
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        let party = Party { ticket, actor, mode, since_ns: now_ns };
        let inside = match mode {
            Mode::Read => self.arrive_to_read(party),
            Mode::Write => self.arrive_to_write(party),
        };
        Arrival { ticket, inside }
    }

    /// Somebody wants to go in, but not to wait.
    pub fn try_arrive(&mut self, actor: Actor, mode: Mode, now_ns: u64) -> Option<Ticket> {
        let free = match mode {
            Mode::Read => self.turn.is_none(),
            Mode::Write => self.turn_is_free() && self.readers.is_empty(),
        };
        free.then(|| self.arrive(actor, mode, now_ns).ticket)
    }

    /// One who waited is awake and asks whether it is inside by now. A writer that the turn is
    /// free for takes it here.
    pub fn poll(&mut self, ticket: Ticket, now_ns: u64) -> bool {
        if self.turn.is_none() && self.kept_for.is_none_or(|kept| kept == ticket) {
            self.take_turn_from_queue(ticket, now_ns);
        }
        self.is_inside(ticket)
    }

    /// One who was inside has left.
    ///
    /// # Panics
    ///
    /// If it was not inside.
    #[inline]
    pub fn leave(&mut self, ticket: Ticket, mode: Mode, now_ns: u64) -> Left {
        match mode {
            Mode::Read => self.reader_leaves(ticket, now_ns),
            Mode::Write => self.writer_leaves(ticket, now_ns),
        }
    }

    /// The stretches of waiting that have ended since this was last asked, in the order of their
    /// ends.
    #[inline]
    pub fn take_stretches(&mut self) -> Vec<Stretch> {
        std::mem::take(&mut self.stretches)
    }

    /// Who is inside, the first to enter first.
    pub fn inside(&self) -> impl Iterator<Item = &Party> {
        let writer = match &self.turn {
            Some(Turn::Holding(party)) => Some(party),
            _ => None,
        };
        self.readers.iter().chain(writer)
    }

    /// Who waits and behind whom: the writer with the turn, then the readers it turned away, then
    /// the writers in the queue.
    pub fn waiting(&self) -> impl Iterator<Item = Waiting> {
        let announced = match &self.turn {
            Some(Turn::Waiting(waiter)) => Some(waiter),
            _ => None,
        };
        let waiters = announced.into_iter().chain(&self.turned_away).chain(&self.queue);
        waiters.map(|waiter| Waiting { waiter: waiter.party, front: waiter.front })
    }

    #[inline]
    fn arrive_to_read(&mut self, party: Party) -> bool {
        let Some(turn) = &self.turn else {
            self.readers.push(party);
            return true;
        };
        self.turned_away.push(Waiter::behind(party, Some(turn.as_front())));
        false
    }

    #[inline]
    fn arrive_to_write(&mut self, party: Party) -> bool {
        if self.turn_is_free() {
            return self.take_turn(Waiter::behind(party, None), party.since_ns);
        }
        let front = self.turn.as_ref().map(Turn::as_front);
        self.queue.push_back(Waiter::behind(party, front));
        false
    }

    fn turn_is_free(&self) -> bool {
        self.turn.is_none() && self.kept_for.is_none()
    }

    fn take_turn_from_queue(&mut self, ticket: Ticket, now_ns: u64) {
        let place = self.queue.iter().position(|waiter| waiter.party.ticket == ticket);
        if let Some(writer) = place.and_then(|place| self.queue.remove(place)) {
            self.kept_for = None;
            self.take_turn(writer, now_ns);
        }
    }

    /// Gives the turn to this writer; says whether it went inside with it.
    #[inline]
    fn take_turn(&mut self, writer: Waiter, now_ns: u64) -> bool {
        let inside = self.readers.is_empty();
        self.turn = Some(if inside {
            Turn::Holding(Party { since_ns: now_ns, ..writer.party })
        } else {
            Turn::Waiting(writer)
        });
        self.look_ahead(now_ns);
        inside
    }

    fn is_inside(&self, ticket: Ticket) -> bool {
        self.inside().any(|party| party.ticket == ticket)
    }

    #[inline]
    fn reader_leaves(&mut self, ticket: Ticket, now_ns: u64) -> Left {
        let place = self.readers.iter().position(|party| party.ticket == ticket);
        let party = self.readers.remove(place.expect("only a reader inside can leave"));
        let wake = if self.readers.is_empty() { self.admit_writer(now_ns) } else { None };
        self.look_ahead(now_ns);
        Left { party, wake: wake.into_iter().collect() }
    }

    /// The last reader has left: the writer that waited for that goes in.
    fn admit_writer(&mut self, now_ns: u64) -> Option<Ticket> {
        let Some(Turn::Waiting(mut writer)) = self.turn.take_if(|turn| turn.is_waiting()) else {
            return None;
        };
        writer.stand_behind(None, now_ns, &mut self.stretches);
        self.turn = Some(Turn::Holding(Party { since_ns: now_ns, ..writer.party }));
        Some(writer.party.ticket)
    }

    #[inline]
    fn writer_leaves(&mut self, ticket: Ticket, now_ns: u64) -> Left {
        let Some(Turn::Holding(party)) = self.turn.take_if(|turn| turn.is_held_by(ticket)) else {
            panic!("only the writer inside can leave");
        };
        let mut wake = self.admit_turned_away(now_ns);
        self.look_ahead(now_ns);
        if let Some(next) = self.queue.front() {
            let waited_ns = now_ns.saturating_sub(next.party.since_ns);
            self.kept_for = (waited_ns >= HANDOVER_AFTER_NS).then_some(next.party.ticket);
            wake.push(next.party.ticket);
        }
        Left { party, wake }
    }

    /// All readers that were turned away go in, at once and before the next writer.
    fn admit_turned_away(&mut self, now_ns: u64) -> Vec<Ticket> {
        for mut reader in self.turned_away.drain(..) {
            reader.stand_behind(None, now_ns, &mut self.stretches);
            self.readers.push(Party { since_ns: now_ns, ..reader.party });
        }
        self.readers.iter().map(|party| party.ticket).collect()
    }

    /// Lets every waiter see who stands in front of it now.
    #[inline]
    fn look_ahead(&mut self, now_ns: u64) {
        let writer = self.turn.as_ref().map(Turn::as_front);
        for waiter in self.turned_away.iter_mut().chain(&mut self.queue) {
            waiter.stand_behind(writer, now_ns, &mut self.stretches);
        }
        if let Some(Turn::Waiting(waiter)) = &mut self.turn {
            let oldest = self.readers.first().map(|party| party.as_front(Stance::Holding));
            waiter.stand_behind(oldest, now_ns, &mut self.stretches);
        }
    }
}

impl Turn {
    fn as_front(&self) -> Front {
        match self {
            Turn::Waiting(waiter) => waiter.party.as_front(Stance::Waiting),
            Turn::Holding(party) => party.as_front(Stance::Holding),
        }
    }

    fn is_waiting(&self) -> bool {
        matches!(self, Turn::Waiting(_))
    }

    fn is_held_by(&self, ticket: Ticket) -> bool {
        matches!(self, Turn::Holding(party) if party.ticket == ticket)
    }
}

impl Party {
    fn as_front(&self, stance: Stance) -> Front {
        Front { ticket: self.ticket, actor: self.actor, mode: self.mode, stance }
    }
}

impl Waiter {
    fn behind(party: Party, front: Option<Front>) -> Waiter {
        Waiter { party, front, front_since_ns: party.since_ns }
    }

    /// Somebody else stands in front from now on: writes down the stretch that ended.
    fn stand_behind(&mut self, front: Option<Front>, now_ns: u64, ended: &mut Vec<Stretch>) {
        if self.front == front {
            return;
        }
        if let Some(front) = self.front {
            ended.push(Stretch {
                waiter: self.party.actor,
                mode: self.party.mode,
                front,
                start_ns: self.front_since_ns,
                end_ns: now_ns.max(self.front_since_ns),
            });
        }
        self.front = front;
        self.front_since_ns = now_ns;
    }
}
