//! Signals, queues of work, and places in a pool.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use crate::world::{ProcessId, World, suspend};

/// An event that happens once. Tasks can wait for it. Clones refer to the same signal.
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
        let (is_set, waiting) = Default::default();
        Signal(Rc::new(Inner { world: world.clone(), is_set, waiting }))
    }

    pub fn set(&self) {
        self.0.is_set.set(true);
        for id in self.0.waiting.take() {
            self.0.world.wake(id);
        }
    }

    pub async fn wait(&self) {
        if !self.0.is_set.get() {
            self.0.waiting.borrow_mut().push(self.0.world.going_on());
            suspend().await;
        }
    }
}

/// A queue of work for one process, which takes all entries together.
#[derive(Debug)]
pub struct Queue<T> {
    world: World,
    work: RefCell<Vec<T>>,
    worker: Cell<Option<ProcessId>>,
}

impl<T> Queue<T> {
    pub fn new(world: &World) -> Queue<T> {
        Queue { world: world.clone(), work: RefCell::default(), worker: Cell::new(None) }
    }

    pub fn push(&self, work: T) {
        self.work.borrow_mut().push(work);
        if let Some(id) = self.worker.take() {
            self.world.wake(id);
        }
    }

    /// Removes and returns all entries. Waits while there are none.
    pub async fn drain(&self) -> Vec<T> {
        if self.work.borrow().is_empty() {
            debug_assert!(self.worker.get().is_none(), "there is one worker");
            self.worker.set(Some(self.world.going_on()));
            suspend().await;
        }
        self.work.take()
    }
}

/// The threads of a pool. Jobs get a thread in the order of their arrival.
#[derive(Debug)]
pub(crate) struct Places {
    world: World,
    free: Cell<usize>,
    waiting: RefCell<VecDeque<Signal>>,
}

impl Places {
    pub(crate) fn new(world: &World, count: usize) -> Places {
        Places { world: world.clone(), free: Cell::new(count), waiting: RefCell::default() }
    }

    pub(crate) async fn take(&self) {
        match self.free.get() {
            0 => {
                let turn = Signal::new(&self.world);
                self.waiting.borrow_mut().push_back(turn.clone());
                turn.wait().await;
            }
            free => self.free.set(free - 1),
        }
    }

    pub(crate) fn give_back(&self) {
        match self.waiting.borrow_mut().pop_front() {
            Some(next) => next.set(),
            None => self.free.set(self.free.get() + 1),
        }
    }
}
