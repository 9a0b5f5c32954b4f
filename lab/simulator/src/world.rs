//! Virtual time, and processes: `async` functions that await time, a core or a lock.
//!
//! ```text
//!   calendar   (time, order) → process     which process continues when          a heap
//!   ready      processes                   which continue now, in this order     a queue
//!   processes  suspended functions         where each of them is                 a table
//! ```
//!
//! [`World::run`] polls the ready processes in turn. When none is ready, the time jumps to the next
//! entry of the calendar. A step of a process is not interrupted and takes no time. Entries with
//! the same time run in the order in which they were added, so the same start gives the same run. A
//! process waits for one thing at a time, so there is nothing to cancel.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;
use std::future::{Future, poll_fn};
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::recorder::Recorder;

/// The number of a process. It is reused after the process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProcessId(u32);

type Process = Pin<Box<dyn Future<Output = ()>>>;

#[derive(Clone, Default)]
pub struct World(Rc<Inner>);

#[derive(Default)]
struct Inner {
    now_ns: Cell<u64>,
    /// Number of entries that have ever been added to the calendar.
    entries: Cell<u64>,
    calendar: RefCell<BinaryHeap<Reverse<(u64, u64, ProcessId)>>>,
    ready: RefCell<VecDeque<ProcessId>>,
    /// The processes by number. The place of a process is empty while it is polled and after it has
    /// ended.
    processes: RefCell<Vec<Option<Process>>>,
    free: RefCell<Vec<ProcessId>>,
    going_on: Cell<Option<ProcessId>>,
    /// Names of time kinds, by number.
    names: RefCell<Vec<&'static str>>,
    steps: Cell<u64>,
    recorder: Recorder,
}

impl World {
    pub fn new() -> World {
        World::default()
    }

    /// Returns the nanoseconds since time 0.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.0.now_ns.get()
    }

    /// Returns how often processes were polled, in total.
    pub fn steps(&self) -> u64 {
        self.0.steps.get()
    }

    /// Returns the number of a name. A new name gets a new number.
    pub(crate) fn number_of(&self, name: &'static str) -> usize {
        let mut names = self.0.names.borrow_mut();
        names.iter().position(|known| *known == name).unwrap_or_else(|| {
            names.push(name);
            names.len() - 1
        })
    }

    /// Returns the names of time kinds, by number.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.0.names.borrow().clone()
    }

    pub(crate) fn recorder(&self) -> &Recorder {
        &self.0.recorder
    }

    /// Starts a process. It is first polled after all processes that are ready now.
    pub fn spawn(&self, process: impl Future<Output = ()> + 'static) {
        let mut processes = self.0.processes.borrow_mut();
        let id = self.0.free.borrow_mut().pop().unwrap_or_else(|| {
            processes.push(None);
            ProcessId(processes.len() as u32 - 1)
        });
        processes[id.0 as usize] = Some(Box::pin(process));
        drop(processes);
        self.wake(id);
    }

    pub async fn sleep(&self, ns: u64) {
        self.sleep_until(self.now_ns().saturating_add(ns)).await;
    }

    /// Waits until this time. Returns immediately if the time has passed.
    pub async fn sleep_until(&self, ns: u64) {
        if self.now_ns() < ns {
            self.wake_at(ns, self.going_on());
            suspend().await;
            debug_assert!(self.now_ns() >= ns, "woken by something else");
        }
    }

    /// Runs until this time, or until no process can continue. In both cases the time then becomes
    /// `until_ns`, unless it is already later.
    pub fn run(&self, until_ns: u64) {
        loop {
            while let Some(id) = self.next_ready() {
                self.go_on(id);
            }
            let Some(id) = self.next_in_time(until_ns) else { break };
            self.go_on(id);
        }
        self.0.now_ns.set(self.now_ns().max(until_ns));
    }

    /// Drops every process, even if it has not ended. A world and its processes own each other, so
    /// without this call they leak.
    pub fn end(&self) {
        let processes = self.0.processes.take();
        drop(processes);
        self.0.ready.take();
        self.0.calendar.take();
    }

    fn next_ready(&self) -> Option<ProcessId> {
        self.0.ready.borrow_mut().pop_front()
    }

    fn next_in_time(&self, until_ns: u64) -> Option<ProcessId> {
        let mut calendar = self.0.calendar.borrow_mut();
        let Reverse((at_ns, _, id)) = *calendar.peek()?;
        if at_ns > until_ns {
            return None;
        }
        calendar.pop();
        self.0.now_ns.set(at_ns);
        Some(id)
    }

    fn go_on(&self, id: ProcessId) {
        let process = self.0.processes.borrow_mut()[id.0 as usize].take();
        let mut process = process.expect("only an existing process is woken, and by one thing");
        self.0.steps.set(self.0.steps.get() + 1);
        self.0.going_on.set(Some(id));
        let step = process.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        self.0.going_on.set(None);
        match step {
            Poll::Pending => self.0.processes.borrow_mut()[id.0 as usize] = Some(process),
            Poll::Ready(()) => self.0.free.borrow_mut().push(id),
        }
    }

    /// Returns the process that is being polled.
    pub(crate) fn going_on(&self) -> ProcessId {
        self.0.going_on.get().expect("only a process waits")
    }

    pub(crate) fn wake(&self, id: ProcessId) {
        self.0.ready.borrow_mut().push_back(id);
    }

    pub(crate) fn wake_at(&self, ns: u64, id: ProcessId) {
        let entry = self.0.entries.get();
        self.0.entries.set(entry + 1);
        self.0.calendar.borrow_mut().push(Reverse((ns, entry, id)));
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("now_ns", &self.now_ns()).finish_non_exhaustive()
    }
}

/// Ends a step of the process. The process continues when it is woken.
pub(crate) async fn suspend() {
    let mut is_woken = false;
    let step = |_: &mut Context<'_>| match mem::replace(&mut is_woken, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    };
    poll_fn(step).await;
}
