//! How does a thread wait? A gate with threads before it: what both kinds of lock are made of.
//!
//! The [`Gate`] decides; the door holds it behind a small inner lock, lets threads sleep and wakes
//! them, and writes down what happened. The inner lock is held for a few dozen instructions,
//! never while a thread sleeps or works with the data.
//!
//! ```text
//! enter   clock ─▶ [inner lock: gate.arrive] ─▶ inside?  ── yes ─▶ go
//!                                                  └─ no ─▶ park ─▶ [gate.poll] ─▶ inside? …
//! leave   clock ─▶ [inner lock: gate.leave] ─▶ wake who may go ─▶ figures, events
//! ```
//!
//! # Blocked at the inner lock
//!
//! Short as it is, a thread can lose its processor inside, and then everybody at this door is
//! blocked for milliseconds. That must not look like a long hold of the next to come or of the one
//! who leaves. So whoever finds the lock taken reads the clock again once it has it, and the gate
//! is told that time. What lies between is a wait behind nobody for one who comes, in the figures
//! but not in the blame, and no part of the hold of one who leaves.
//!
//! # Why there is a second lock around the data
//!
//! The gate only says who may touch the data; Rust wants that proved. Without `unsafe` the proof
//! is an ordinary lock around the data that is taken *after* the gate let the thread in and given
//! back *before* it leaves. So it is free whenever it is asked for, and `try_lock` that fails is a
//! bug of the gate: the locks assert it. It costs two uncontended atomic operations.

use std::{
    cell::Cell,
    collections::BTreeMap,
    sync::Arc,
    thread::{self, Thread},
};

use parking_lot::MutexGuard;

use crate::{
    Actor, Event, Mode, Stance,
    events::Studio,
    figures::Figures,
    gate::{Gate, Party, Stretch, Ticket, Waiting},
    now_ns,
};

#[cfg(test)]
mod tests;

thread_local! {
    static WAITED_NS: Cell<u64> = const { Cell::new(0) };
    static LONGEST_WAIT: Cell<Option<Wait>> = const { Cell::new(None) };
}

/// One wait of a thread for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The lock.
    pub lock: &'static str,
    /// How long.
    pub waited_ns: u64,
    /// Who stood in front when the wait began, and whether he held the lock or waited himself.
    /// `None`: the way was free, and the thread was only late to go it.
    pub front: Option<(Actor, Stance)>,
    /// The first of those that held the lock when the wait began: another than the one in front, if that waited
    /// itself.
    pub holder: Option<Actor>,
}

/// How long this thread has waited for locks of this crate so far. The difference around an
/// operation is what the operation waited.
pub fn waited_ns() -> u64 {
    WAITED_NS.get()
}

/// The longest wait of this thread since it was asked for this the last time. Together with
/// [`waited_ns`] it says why an operation took long.
pub fn take_longest_wait() -> Option<Wait> {
    LONGEST_WAIT.take()
}

/// A gate, the threads that sleep before it, and where its figures go.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) figures: Arc<Figures>,
    studio: Arc<Studio>,
    inner: parking_lot::Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    gate: Gate,
    /// Those who wait and how to wake them.
    sleepers: BTreeMap<Ticket, Thread>,
}

/// The inner lock, taken.
struct Taken<'a> {
    inner: MutexGuard<'a, Inner>,
    /// When it was asked for. The same as `taken_ns` if it was free.
    asked_ns: u64,
    /// Read under the lock unless it was free.
    taken_ns: u64,
}

impl Door {
    pub(crate) fn new(figures: Arc<Figures>, studio: Arc<Studio>) -> Door {
        Door { figures, studio, inner: parking_lot::Mutex::default() }
    }

    /// Goes in, after waiting if need be.
    #[inline]
    pub(crate) fn enter(&self, mode: Mode) -> Stay<'_> {
        let Taken { mut inner, asked_ns, taken_ns } = self.take_inner();
        let (actor, number) = Actor::acting();
        let arrival = inner.gate.arrive(actor, mode, taken_ns);
        if !arrival.inside {
            self.wait(inner, arrival.ticket, mode, asked_ns);
        } else if asked_ns < taken_ns {
            drop(inner);
            self.waited(mode, (asked_ns, taken_ns), None, None);
        }
        Stay { door: self, ticket: arrival.ticket, mode, number }
    }

    /// Goes in if that takes no waiting.
    pub(crate) fn try_enter(&self, mode: Mode) -> Option<Stay<'_>> {
        let (actor, number) = Actor::acting();
        let ticket = self.inner.lock().gate.try_arrive(actor, mode, now_ns())?;
        Some(Stay { door: self, ticket, mode, number })
    }

    /// Who is inside.
    pub(crate) fn inside(&self) -> Vec<Party> {
        self.inner.lock().gate.inside().copied().collect()
    }

    /// Who waits.
    pub(crate) fn waiting(&self) -> Vec<Waiting> {
        self.inner.lock().gate.waiting().collect()
    }

    /// Takes the inner lock and tells the time, with one reading of the clock if the lock is free.
    /// It is read first: behind the atomic operation of the lock it costs 9 ns more.
    #[inline]
    fn take_inner(&self) -> Taken<'_> {
        let asked_ns = now_ns();
        match self.inner.try_lock() {
            Some(inner) => Taken { inner, asked_ns, taken_ns: asked_ns },
            None => self.take_inner_blocked(asked_ns),
        }
    }

    #[cold]
    fn take_inner_blocked(&self, asked_ns: u64) -> Taken<'_> {
        let inner = self.inner.lock();
        Taken { inner, asked_ns, taken_ns: now_ns() }
    }

    /// Sleeps until the gate has let this arrival in. Somebody else may wake the thread early: the
    /// gate is asked each time.
    #[cold]
    fn wait(&self, mut inner: MutexGuard<'_, Inner>, ticket: Ticket, mode: Mode, asked_ns: u64) {
        inner.sleepers.insert(ticket, thread::current());
        let own = inner.gate.waiting().find(|waiting| waiting.waiter.ticket == ticket);
        let front = own.and_then(|own| own.front).map(|front| (front.actor, front.stance));
        let holder = inner.gate.inside().next().map(|party| party.actor);
        let mut inside = false;
        while !inside {
            MutexGuard::unlocked(&mut inner, thread::park);
            inside = inner.gate.poll(ticket, now_ns());
        }
        inner.sleepers.remove(&ticket);
        drop(inner);

        self.waited(mode, (asked_ns, now_ns()), front, holder);
    }

    #[cold]
    fn waited(
        &self,
        mode: Mode,
        (start_ns, end_ns): (u64, u64),
        front: Option<(Actor, Stance)>,
        holder: Option<Actor>,
    ) {
        let waited_ns = end_ns.saturating_sub(start_ns);
        WAITED_NS.set(WAITED_NS.get() + waited_ns);
        if LONGEST_WAIT.get().is_none_or(|longest| longest.waited_ns < waited_ns) {
            let lock = self.figures.name;
            LONGEST_WAIT.set(Some(Wait { lock, waited_ns, front, holder }));
        }
        self.figures.waited(mode, waited_ns);
        if self.studio.is_on() {
            let (lock, (actor, number)) = (self.figures.name, Actor::acting());
            self.studio.write(Event::Came { lock, mode, actor, number, front, start_ns, end_ns });
        }
    }

    #[inline]
    fn leave(&self, ticket: Ticket, mode: Mode, number: u32) {
        let Taken { mut inner, asked_ns: left_ns, taken_ns } = self.take_inner();
        let left = inner.gate.leave(ticket, mode, taken_ns);
        if left.wake.is_empty() {
            drop(inner);
        } else {
            self.wake(inner, &left.wake);
        }
        self.figures.held(left.party.actor, mode, left_ns.saturating_sub(left.party.since_ns));
        if self.studio.is_on() {
            self.studio.write(self.held_event(&left.party, number, left_ns));
        }
    }

    /// Wakes sleepers whose way is free, and writes down whom they waited for. Both after the inner
    /// lock is released, so that they do not run into it.
    #[cold]
    fn wake(&self, mut inner: MutexGuard<'_, Inner>, tickets: &[Ticket]) {
        let sleepers = &inner.sleepers;
        let threads = tickets.iter().filter_map(|ticket| sleepers.get(ticket).cloned());
        let threads: Vec<Thread> = threads.collect();
        let stretches = inner.gate.take_stretches();
        drop(inner);

        threads.iter().for_each(Thread::unpark);
        self.figures.blame(&stretches);
        if self.studio.is_on() {
            stretches.iter().for_each(|stretch| self.studio.write(self.waited_event(stretch)));
        }
    }

    fn held_event(&self, party: &Party, number: u32, end_ns: u64) -> Event {
        Event::Held {
            lock: self.figures.name,
            mode: party.mode,
            actor: party.actor,
            number,
            start_ns: party.since_ns,
            end_ns,
        }
    }

    fn waited_event(&self, stretch: &Stretch) -> Event {
        Event::Waited {
            lock: self.figures.name,
            mode: stretch.mode,
            actor: stretch.waiter,
            holder: stretch.front.actor,
            holder_mode: stretch.front.mode,
            stance: stretch.front.stance,
            start_ns: stretch.start_ns,
            end_ns: stretch.end_ns,
        }
    }
}

/// A thread inside; it leaves when this is dropped, also when it panics.
#[derive(Debug)]
pub(crate) struct Stay<'a> {
    door: &'a Door,
    ticket: Ticket,
    mode: Mode,
    /// Of who came, who may act as another when he leaves.
    number: u32,
}

impl Drop for Stay<'_> {
    #[inline]
    fn drop(&mut self) {
        self.door.leave(self.ticket, self.mode, self.number);
    }
}
