//! Signals, and queues of work.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::world::{ProcessId, World};

/// An event that happens once, for which tasks wait. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Signal(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    world: World,
    is_set: Cell<bool>,
    waiting: RefCell<Vec<ProcessId>>,
}

impl Signal {
    pub fn new(world: &World) -> Signal {
        let (is_given, waiting) = Default::default();
        Signal(Rc::new(Inner { world: world.clone(), is_set: is_given, waiting }))
    }

    pub fn set(&self) {
        self.0.is_set.set(true);
        for id in self.0.waiting.take() {
            self.0.world.wake(id);
        }
    }

    pub fn wait(&self) -> SignalWait<'_> {
        SignalWait(&self.0)
    }
}

#[derive(Debug)]
#[must_use = "it waits only if it is awaited"]
pub struct SignalWait<'s>(&'s Inner);

impl Future for SignalWait<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<()> {
        if self.0.is_set.get() {
            return Poll::Ready(());
        }
        self.0.waiting.borrow_mut().push(self.0.world.going_on());
        Poll::Pending
    }
}

/// Work for one process, which takes all entries at once.
#[derive(Debug)]
pub struct Queue<T> {
    world: World,
    work: RefCell<Vec<T>>,
    worker: Cell<Option<ProcessId>>,
}

impl<T> Queue<T> {
    pub fn new(world: &World) -> Queue<T> {
        let (work, worker) = (RefCell::new(Vec::new()), Cell::new(None));
        Queue { world: world.clone(), work, worker }
    }

    pub fn push(&self, work: T) {
        self.work.borrow_mut().push(work);
        if let Some(id) = self.worker.take() {
            self.world.wake(id);
        }
    }

    /// All entries; waits while there are none.
    pub fn drain(&self) -> Drain<'_, T> {
        Drain(self)
    }
}

#[derive(Debug)]
#[must_use = "work is taken only if it is awaited"]
pub struct Drain<'q, T>(&'q Queue<T>);

impl<T> Future for Drain<'_, T> {
    type Output = Vec<T>;

    fn poll(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Vec<T>> {
        let work = self.0.work.take();
        if !work.is_empty() {
            return Poll::Ready(work);
        }
        debug_assert!(self.0.worker.get().is_none(), "there is one worker");
        self.0.worker.set(Some(self.0.world.going_on()));
        Poll::Pending
    }
}
