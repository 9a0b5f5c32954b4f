//! Locks in virtual time, with the rules of the real ones.
//!
//! Each lock has a [`LockState`], the state machine by which the locks of [`clearlane_contention`]
//! run on threads. It decides which task to wake; like a thread, a woken process checks itself
//! whether it has the lock. A mutex is a lock without readers.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use clearlane_contention::TaskLabel;
use clearlane_contention::rules::{BlockedInterval, BlockerState, LockMode, LockState, Ticket};

use crate::account::TimeKind;
use crate::recorder::Lane;
use crate::timeline::Activity;
use crate::world::{ProcessId, World};

#[derive(Clone, Debug)]
pub struct Lock(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    world: World,
    name: &'static str,
    spent: TimeKind,
    state: RefCell<LockState>,
    waiting: RefCell<BTreeMap<Ticket, ProcessId>>,
    /// Of recorded tasks only.
    lanes: RefCell<BTreeMap<Ticket, Lane>>,
    accounting: RefCell<LockAccounting>,
    longest_hold: Cell<Option<Hold>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    pub label: TaskLabel,
    pub ns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockAccounting {
    /// Number of acquisitions.
    pub entries: u64,
    /// Total waiting time.
    pub waited_ns: u64,
    /// Total holding time.
    pub held_ns: u64,
    pub blame: BTreeMap<BlameKey, Blame>,
}

/// The waiting task, its mode, and the blocker, which holds the lock or waits for it, too.
pub type BlameKey = (TaskLabel, LockMode, TaskLabel, BlockerState);

/// The waits with one [`BlameKey`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blame {
    /// Number of intervals; a new one begins when the blocker or its state changes.
    pub intervals: u64,
    pub ns: u64,
}

impl Lock {
    pub fn new(world: &World, name: &'static str) -> Lock {
        let (world, spent) = (world.clone(), TimeKind::named(world, name));
        let (state, waiting, lanes, figures, longest_hold) = Default::default();
        Lock(Rc::new(Inner {
            world,
            name,
            spent,
            state,
            waiting,
            lanes,
            accounting: figures,
            longest_hold,
        }))
    }

    /// As in the real code.
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    pub(crate) fn time_kind(&self) -> TimeKind {
        self.0.spent
    }

    pub fn acquire(&self, actor: TaskLabel, mode: LockMode) -> Acquire {
        self.acquire_as(actor, mode, None)
    }

    pub(crate) fn acquire_as(
        &self,
        actor: TaskLabel,
        mode: LockMode,
        lane: Option<Lane>,
    ) -> Acquire {
        Acquire {
            lock: self.clone(),
            actor,
            mode,
            lane,
            blocked_by: None,
            begin_ns: 0,
            ticket: None,
        }
    }

    fn lane_before(&self, ticket: Ticket) -> Option<Lane> {
        let state = self.0.state.borrow();
        let waiting = state.waiters().find(|waiting| waiting.waiter.ticket == ticket)?;
        self.0.lanes.borrow().get(&waiting.blocker?.ticket).copied()
    }

    /// Waits in progress are counted up to their last change.
    pub fn accounting(&self) -> LockAccounting {
        self.0.accounting.borrow().clone()
    }

    /// Of the tasks that have released the lock.
    pub fn longest_hold(&self) -> Option<Hold> {
        self.0.longest_hold.get()
    }

    pub fn with_state<T>(&self, look: impl FnOnce(&LockState) -> T) -> T {
        look(&self.0.state.borrow())
    }
}

#[derive(Debug)]
#[must_use = "the lock is taken only if it is awaited"]
pub struct Acquire {
    lock: Lock,
    actor: TaskLabel,
    mode: LockMode,
    lane: Option<Lane>,
    blocked_by: Option<Lane>,
    begin_ns: u64,
    ticket: Option<Ticket>,
}

impl Future for Acquire {
    type Output = LockGuard;

    fn poll(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<LockGuard> {
        let inner = Rc::clone(&self.lock.0);
        let now_ns = inner.world.now_ns();
        let (ticket, is_inside) = match self.ticket {
            Some(ticket) => (ticket, inner.state.borrow_mut().poll(ticket, now_ns)),
            None => {
                self.begin_ns = now_ns;
                let arrival = inner.state.borrow_mut().acquire(self.actor, self.mode, now_ns);
                if let Some(lane) = self.lane {
                    inner.lanes.borrow_mut().insert(arrival.ticket, lane);
                    self.blocked_by = self.lock.lane_before(arrival.ticket);
                }
                (arrival.ticket, arrival.is_acquired)
            }
        };
        self.ticket = Some(ticket);
        if !is_inside {
            inner.waiting.borrow_mut().insert(ticket, inner.world.going_on());
            return Poll::Pending;
        }
        let waited_ns = now_ns - self.begin_ns;
        let mut figures = inner.accounting.borrow_mut();
        figures.entries += 1;
        figures.waited_ns += waited_ns;
        if let Some(lane) = self.lane {
            let recorder = inner.world.recorder();
            let behind = self.blocked_by.map(|lane| recorder.name(lane));
            let what = || Activity::Wait { resource: inner.name.to_owned(), blocker: behind };
            recorder.add(lane, what, self.begin_ns, now_ns);
        }
        Poll::Ready(LockGuard { lock: self.lock.clone(), ticket, mode: self.mode, waited_ns })
    }
}

/// Releases the lock when dropped.
#[derive(Debug)]
#[must_use = "the lock is left when it is dropped"]
pub struct LockGuard {
    lock: Lock,
    ticket: Ticket,
    mode: LockMode,
    waited_ns: u64,
}

impl LockGuard {
    pub fn waited_ns(&self) -> u64 {
        self.waited_ns
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        let inner = &self.lock.0;
        let now_ns = inner.world.now_ns();
        let mut state = inner.state.borrow_mut();
        let left = state.release(self.ticket, self.mode, now_ns);
        let mut figures = inner.accounting.borrow_mut();
        for stretch in state.take_blocked_intervals() {
            figures.add(stretch);
        }
        if let Some(lane) = inner.lanes.borrow_mut().remove(&self.ticket) {
            let what = || Activity::Hold { resource: inner.name.to_owned() };
            inner.world.recorder().add(lane, what, left.acquisition.since_ns, now_ns);
        }
        let held_ns = now_ns - left.acquisition.since_ns;
        figures.held_ns += held_ns;
        if inner.longest_hold.get().is_none_or(|longest| longest.ns < held_ns) {
            let label = left.acquisition.task;
            inner.longest_hold.set(Some(Hold { label, ns: held_ns }));
        }
        let mut waiting = inner.waiting.borrow_mut();
        for ticket in left.wake {
            // Readers that have been inside for long are blamed, too.
            if let Some(id) = waiting.remove(&ticket) {
                inner.world.wake(id);
            }
        }
    }
}

impl LockAccounting {
    /// Adds the accounting of another lock.
    pub(crate) fn add_all(&mut self, other: LockAccounting) {
        self.entries += other.entries;
        self.waited_ns += other.waited_ns;
        self.held_ns += other.held_ns;
        for (behind, blame) in other.blame {
            let sum = self.blame.entry(behind).or_default();
            sum.intervals += blame.intervals;
            sum.ns += blame.ns;
        }
    }

    fn add(&mut self, stretch: BlockedInterval) {
        let BlockedInterval { waiter, mode, blocker: front, start_ns, end_ns } = stretch;
        let blame = self.blame.entry((waiter, mode, front.task, front.state)).or_default();
        blame.intervals += 1;
        blame.ns += end_ns - start_ns;
    }
}
