//! Locks in virtual time, with the rules of the real locks.
//!
//! Each lock has a [`LockState`], the state machine that the locks of [`clearlane_contention`] use
//! on threads. It decides which task to wake. Like a thread, a woken process then checks whether it
//! has the lock. A mutex is a lock without readers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use clearlane_contention::TaskLabel;
use clearlane_contention::rules::{
    AcquireResult, BlockerState, LockMode, LockState, ReleaseResult, Ticket,
};

use crate::account::TimeKind;
use crate::recorder::Lane;
use crate::timeline::Activity;
use crate::world::{ProcessId, World, suspend};

#[derive(Clone, Debug)]
pub struct Lock(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    world: World,
    name: &'static str,
    time_kind: TimeKind,
    state: RefCell<LockState>,
    waiting: RefCell<BTreeMap<Ticket, ProcessId>>,
    /// The timeline lane of each acquisition by a recorded task.
    lanes: RefCell<BTreeMap<Ticket, Lane>>,
    accounting: RefCell<LockAccounting>,
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
    /// The longest hold of a task that has released the lock.
    pub longest: Option<Hold>,
    pub blame: BTreeMap<BlameKey, Blame>,
}

/// The waiting task, its mode, the blocker, and whether the blocker holds the lock or also waits.
pub type BlameKey = (TaskLabel, LockMode, TaskLabel, BlockerState);

/// The waits with one [`BlameKey`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blame {
    /// Number of intervals. A wait has a new interval whenever its blocker or the blocker's state
    /// changes.
    pub intervals: u64,
    pub ns: u64,
}

impl Lock {
    pub fn new(world: &World, name: &'static str) -> Lock {
        Lock(Rc::new(Inner {
            world: world.clone(),
            name,
            time_kind: TimeKind::named(world, name),
            state: RefCell::default(),
            waiting: RefCell::default(),
            lanes: RefCell::default(),
            accounting: RefCell::default(),
        }))
    }

    /// Returns the lock's name in the real code.
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    pub(crate) fn time_kind(&self) -> TimeKind {
        self.0.time_kind
    }

    pub async fn acquire(&self, task: TaskLabel, mode: LockMode) -> LockGuard {
        self.acquire_as(task, mode, None).await
    }

    pub(crate) async fn acquire_as(
        &self,
        task: TaskLabel,
        mode: LockMode,
        lane: Option<Lane>,
    ) -> LockGuard {
        let inner = &self.0;
        let begin_ns = inner.world.now_ns();
        let AcquireResult { ticket, mut is_acquired } =
            inner.state.borrow_mut().acquire(task, mode, begin_ns);
        let blocker = lane.and_then(|lane| {
            inner.lanes.borrow_mut().insert(ticket, lane);
            self.lane_before(ticket)
        });
        while !is_acquired {
            inner.waiting.borrow_mut().insert(ticket, inner.world.going_on());
            suspend().await;
            is_acquired = inner.state.borrow_mut().poll(ticket, inner.world.now_ns());
        }
        let now_ns = inner.world.now_ns();
        let waited_ns = now_ns - begin_ns;
        let mut accounting = inner.accounting.borrow_mut();
        accounting.entries += 1;
        accounting.waited_ns += waited_ns;
        if let Some(lane) = lane {
            let recorder = inner.world.recorder();
            let blocker = blocker.map(|lane| recorder.name(lane));
            let what = || Activity::Wait { resource: inner.name.to_owned(), blocker };
            recorder.add(lane, what, begin_ns, now_ns);
        }
        LockGuard { lock: self.clone(), ticket, mode, waited_ns }
    }

    fn lane_before(&self, ticket: Ticket) -> Option<Lane> {
        let state = self.0.state.borrow();
        let waiting = state.waiters().find(|waiting| waiting.waiter.ticket == ticket)?;
        self.0.lanes.borrow().get(&waiting.blocker?.ticket).copied()
    }

    /// Returns the accounting. Waits in progress are counted only in `blame`, up to the last change
    /// of their blocker. Holds in progress are not counted.
    pub fn accounting(&self) -> LockAccounting {
        self.0.accounting.borrow().clone()
    }

    pub fn with_state<T>(&self, look: impl FnOnce(&LockState) -> T) -> T {
        look(&self.0.state.borrow())
    }
}

/// Releases the lock when it is dropped.
#[derive(Debug)]
#[must_use = "the lock is left when it is dropped"]
pub struct LockGuard {
    lock: Lock,
    ticket: Ticket,
    mode: LockMode,
    pub waited_ns: u64,
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        let inner = &self.lock.0;
        let now_ns = inner.world.now_ns();
        let mut state = inner.state.borrow_mut();
        let ReleaseResult { acquisition, wake } = state.release(self.ticket, self.mode, now_ns);
        let mut accounting = inner.accounting.borrow_mut();
        for interval in state.take_blocked_intervals() {
            let blocker = interval.blocker;
            let key = (interval.waiter, interval.mode, blocker.task, blocker.state);
            let blame = accounting.blame.entry(key).or_default();
            blame.intervals += 1;
            blame.ns += interval.end_ns - interval.start_ns;
        }
        if let Some(lane) = inner.lanes.borrow_mut().remove(&self.ticket) {
            let what = || Activity::Hold { resource: inner.name.to_owned() };
            inner.world.recorder().add(lane, what, acquisition.since_ns, now_ns);
        }
        let held_ns = now_ns - acquisition.since_ns;
        accounting.held_ns += held_ns;
        if accounting.longest.is_none_or(|longest| longest.ns < held_ns) {
            accounting.longest = Some(Hold { label: acquisition.task, ns: held_ns });
        }
        let mut waiting = inner.waiting.borrow_mut();
        for ticket in wake {
            // A process that was already woken is no longer in `waiting`.
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
        self.longest = self.longest.into_iter().chain(other.longest).max_by_key(|hold| hold.ns);
        for (key, blame) in other.blame {
            let sum = self.blame.entry(key).or_default();
            sum.intervals += blame.intervals;
            sum.ns += blame.ns;
        }
    }
}
