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
    Actor, Event, Mode,
    events::Studio,
    figures::Figures,
    gate::{Gate, Party, Stretch, Ticket, Waiting},
    now_ns,
};

thread_local! {
    static WAITED_NS: Cell<u64> = const { Cell::new(0) };
}

/// How long this thread has waited for locks of this crate so far. The difference around an
/// operation is what the operation waited.
pub fn waited_ns() -> u64 {
    WAITED_NS.get()
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

impl Door {
    pub(crate) fn new(figures: Arc<Figures>, studio: Arc<Studio>) -> Door {
        Door { figures, studio, inner: parking_lot::Mutex::default() }
    }

    /// Goes in, after waiting if need be.
    #[inline]
    pub(crate) fn enter(&self, mode: Mode) -> Stay<'_> {
        let arrived_ns = now_ns();
        let mut inner = self.inner.lock();
        let arrival = inner.gate.arrive(Actor::current(), mode, arrived_ns);
        if !arrival.inside {
            self.wait(inner, arrival.ticket, mode, arrived_ns);
        }
        Stay { door: self, ticket: arrival.ticket, mode }
    }

    /// Goes in if that takes no waiting.
    pub(crate) fn try_enter(&self, mode: Mode) -> Option<Stay<'_>> {
        let ticket = self.inner.lock().gate.try_arrive(Actor::current(), mode, now_ns())?;
        Some(Stay { door: self, ticket, mode })
    }

    /// Who is inside.
    pub(crate) fn inside(&self) -> Vec<Party> {
        self.inner.lock().gate.inside().copied().collect()
    }

    /// Who waits.
    pub(crate) fn waiting(&self) -> Vec<Waiting> {
        self.inner.lock().gate.waiting().collect()
    }

    /// Sleeps until the gate has let this arrival in. Somebody else may wake the thread early: the
    /// gate is asked each time.
    #[cold]
    fn wait(&self, mut inner: MutexGuard<'_, Inner>, ticket: Ticket, mode: Mode, arrived_ns: u64) {
        inner.sleepers.insert(ticket, thread::current());
        let mut inside = false;
        while !inside {
            MutexGuard::unlocked(&mut inner, thread::park);
            inside = inner.gate.poll(ticket, now_ns());
        }
        inner.sleepers.remove(&ticket);
        drop(inner);

        let waited_ns = now_ns().saturating_sub(arrived_ns);
        WAITED_NS.set(WAITED_NS.get() + waited_ns);
        self.figures.waited(mode, waited_ns);
    }

    #[inline]
    fn leave(&self, ticket: Ticket, mode: Mode) {
        let left_ns = now_ns();
        let mut inner = self.inner.lock();
        let left = inner.gate.leave(ticket, mode, left_ns);
        if left.wake.is_empty() {
            drop(inner);
        } else {
            self.wake(inner, &left.wake);
        }
        self.figures.held(left.party.actor, mode, left_ns.saturating_sub(left.party.since_ns));
        if self.studio.is_on() {
            self.studio.write(self.held_event(&left.party, left_ns));
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

    fn held_event(&self, party: &Party, end_ns: u64) -> Event {
        Event::Held {
            lock: self.figures.name,
            mode: party.mode,
            actor: party.actor,
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
}

impl Drop for Stay<'_> {
    #[inline]
    fn drop(&mut self) {
        self.door.leave(self.ticket, self.mode);
    }
}
