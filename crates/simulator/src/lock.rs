//! Locks in virtual time, with the rules of the real ones.
//!
//! The rules are not written down a second time: behind each lock here is a [`Gate`], the same state machine
//! that the locks of [`clearlane_locks`] run on threads. It is told who arrives and leaves at which time, and
//! says whom to wake; a thread that is woken looks for itself whether it is inside, and so does a process.
//!
//! A mutex is a lock that nobody takes to read.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use clearlane_locks::Actor;
use clearlane_locks::gate::{Gate, Mode, Stance, Stretch, Ticket};

use crate::account::Spent;
use crate::recorder::Lane;
use crate::timeline::What;
use crate::world::{Id, World};

/// A lock. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Lock(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    world: World,
    name: &'static str,
    spent: Spent,
    gate: RefCell<Gate>,
    waiting: RefCell<BTreeMap<Ticket, Id>>,
    /// Of those who are recorded.
    lanes: RefCell<BTreeMap<Ticket, Lane>>,
    figures: RefCell<Figures>,
    longest_hold: Cell<Option<Hold>>,
}

/// The longest time that somebody was inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Who.
    pub actor: Actor,
    /// To do what.
    pub mode: Mode,
    /// How long.
    pub ns: u64,
}

/// What a lock has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Times that somebody went in.
    pub entries: u64,
    /// How long all who went in had waited, together.
    pub waited_ns: u64,
    /// How long all were inside, together.
    pub held_ns: u64,
    /// Who waited behind whom.
    pub blame: BTreeMap<Behind, Blame>,
}

/// Who waited, to do what, and behind whom: behind one who held the lock, or who waited for it, too.
pub type Behind = (Actor, Mode, Actor, Stance);

/// Waits of one kind, together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blame {
    /// How often somebody began to stand behind somebody else, or that one's stance changed.
    pub stretches: u64,
    /// How long all of them took.
    pub ns: u64,
}

impl Lock {
    /// A lock that nobody has.
    pub fn new(world: &World, name: &'static str) -> Lock {
        let (world, spent) = (world.clone(), Spent::named(world, name));
        let (gate, waiting, lanes, figures, longest_hold) = Default::default();
        Lock(Rc::new(Inner { world, name, spent, gate, waiting, lanes, figures, longest_hold }))
    }

    /// What it is called in the code that it stands for.
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    pub(crate) fn spent(&self) -> Spent {
        self.0.spent
    }

    /// Goes in together with other readers.
    pub fn read(&self, actor: Actor) -> Entering {
        self.enter(actor, Mode::Read)
    }

    /// Goes in alone.
    pub fn write(&self, actor: Actor) -> Entering {
        self.enter(actor, Mode::Write)
    }

    /// Goes in.
    pub fn enter(&self, actor: Actor, mode: Mode) -> Entering {
        self.enter_as(actor, mode, None)
    }

    pub(crate) fn enter_as(&self, actor: Actor, mode: Mode, lane: Option<Lane>) -> Entering {
        Entering { lock: self.clone(), actor, mode, lane, behind: None, begin_ns: 0, ticket: None }
    }

    /// Who stands in front of one who waits, if that one is recorded.
    fn lane_before(&self, ticket: Ticket) -> Option<Lane> {
        let gate = self.0.gate.borrow();
        let waiting = gate.waiting().find(|waiting| waiting.waiter.ticket == ticket)?;
        self.0.lanes.borrow().get(&waiting.front?.ticket).copied()
    }

    /// What it has seen so far. Of those who wait now only what is certain is in it.
    pub fn figures(&self) -> Figures {
        self.0.figures.borrow().clone()
    }

    /// The longest time that somebody was inside who has left.
    pub fn longest_hold(&self) -> Option<Hold> {
        self.0.longest_hold.get()
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.0.waiting.borrow().len()
    }

    /// Looks at its rules: who is inside, and who waits behind whom.
    pub fn look<T>(&self, look: impl FnOnce(&Gate) -> T) -> T {
        look(&self.0.gate.borrow())
    }

    /// Goes in, if that takes no waiting.
    pub fn try_enter(&self, actor: Actor, mode: Mode) -> Option<Inside> {
        let ticket = self.0.gate.borrow_mut().try_arrive(actor, mode, self.0.world.now_ns())?;
        self.0.figures.borrow_mut().entries += 1;
        Some(Inside { lock: self.clone(), ticket, mode, waited_ns: 0 })
    }
}

/// On the way in.
#[derive(Debug)]
#[must_use = "only who awaits it goes in"]
pub struct Entering {
    lock: Lock,
    actor: Actor,
    mode: Mode,
    lane: Option<Lane>,
    behind: Option<Lane>,
    begin_ns: u64,
    ticket: Option<Ticket>,
}

impl Future for Entering {
    type Output = Inside;

    fn poll(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Inside> {
        let inner = Rc::clone(&self.lock.0);
        let now_ns = inner.world.now_ns();
        let (ticket, is_inside) = match self.ticket {
            Some(ticket) => (ticket, inner.gate.borrow_mut().poll(ticket, now_ns)),
            None => {
                self.begin_ns = now_ns;
                let arrival = inner.gate.borrow_mut().arrive(self.actor, self.mode, now_ns);
                if let Some(lane) = self.lane {
                    inner.lanes.borrow_mut().insert(arrival.ticket, lane);
                    self.behind = self.lock.lane_before(arrival.ticket);
                }
                (arrival.ticket, arrival.inside)
            }
        };
        self.ticket = Some(ticket);
        if !is_inside {
            inner.waiting.borrow_mut().insert(ticket, inner.world.going_on());
            return Poll::Pending;
        }
        let waited_ns = now_ns - self.begin_ns;
        let mut figures = inner.figures.borrow_mut();
        figures.entries += 1;
        figures.waited_ns += waited_ns;
        if let Some(lane) = self.lane {
            let recorder = inner.world.recorder();
            let behind = self.behind.map(|lane| recorder.name(lane));
            let what = || What::Wait { of: inner.name.to_owned(), behind };
            recorder.add(lane, what, self.begin_ns, now_ns);
        }
        Poll::Ready(Inside { lock: self.lock.clone(), ticket, mode: self.mode, waited_ns })
    }
}

/// Inside. Who drops it leaves.
#[derive(Debug)]
#[must_use = "who drops it has left"]
pub struct Inside {
    lock: Lock,
    ticket: Ticket,
    mode: Mode,
    waited_ns: u64,
}

impl Inside {
    /// How long it took to get in.
    pub fn waited_ns(&self) -> u64 {
        self.waited_ns
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let inner = &self.lock.0;
        let now_ns = inner.world.now_ns();
        let mut gate = inner.gate.borrow_mut();
        let left = gate.leave(self.ticket, self.mode, now_ns);
        let mut figures = inner.figures.borrow_mut();
        for stretch in gate.take_stretches() {
            figures.add(stretch);
        }
        if let Some(lane) = inner.lanes.borrow_mut().remove(&self.ticket) {
            let what = || What::Hold { of: inner.name.to_owned() };
            inner.world.recorder().add(lane, what, left.party.since_ns, now_ns);
        }
        let held_ns = now_ns - left.party.since_ns;
        figures.held_ns += held_ns;
        if inner.longest_hold.get().is_none_or(|longest| longest.ns < held_ns) {
            let (actor, mode) = (left.party.actor, self.mode);
            inner.longest_hold.set(Some(Hold { actor, mode, ns: held_ns }));
        }
        let mut waiting = inner.waiting.borrow_mut();
        for ticket in left.wake {
            // Readers who have been inside for long are named, too.
            if let Some(id) = waiting.remove(&ticket) {
                inner.world.wake(id);
            }
        }
    }
}

impl Figures {
    /// What another lock has seen.
    pub(crate) fn add_all(&mut self, other: Figures) {
        self.entries += other.entries;
        self.waited_ns += other.waited_ns;
        self.held_ns += other.held_ns;
        for (behind, blame) in other.blame {
            let sum = self.blame.entry(behind).or_default();
            sum.stretches += blame.stretches;
            sum.ns += blame.ns;
        }
    }

    fn add(&mut self, stretch: Stretch) {
        let Stretch { waiter, mode, front, start_ns, end_ns } = stretch;
        let blame = self.blame.entry((waiter, mode, front.actor, front.stance)).or_default();
        blame.stretches += 1;
        blame.ns += end_ns - start_ns;
    }
}
