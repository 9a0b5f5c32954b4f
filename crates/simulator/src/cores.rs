//! Processors: who runs, and who waits until one is free.
//!
//! Each core does one thing at a time. Who finds all of them busy stands in line; who has run for a *quantum*
//! while others stand there goes to its end. So a long computation does not keep short ones out, and three
//! threads on two cores each take half as long again. With an endless quantum it is the counter of a shop.
//!
//! ```text
//!   2 cores, quantum 3        a and b need 6, c needs 3; they arrive together
//!   core 1   aaa ccc bbb      a makes way for c, and finds the other core free:
//!   core 2   bbb aaa          b made way for it
//! ```
//!
//! # Left out
//!
//! Caches, two threads of one core that slow each other down, priorities, and what it costs to switch.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::world::{Id, World};

/// The cores of one machine. Clones are the same ones.
#[derive(Clone, Debug)]
pub struct Cores(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    world: World,
    quantum_ns: u64,
    /// Those that do nothing, by since when; who is next takes the one that was busy last.
    free: RefCell<Vec<u64>>,
    line: RefCell<VecDeque<Id>>,
    used_ns: Cell<u64>,
}

impl Cores {
    /// So many. A quantum of `u64::MAX` lets everybody run to its end.
    pub fn new(world: &World, count: usize, quantum_ns: u64) -> Cores {
        assert!(count > 0 && quantum_ns > 0, "somebody must be able to run");
        let world = world.clone();
        let (line, used_ns) = Default::default();
        let free = RefCell::new(vec![world.now_ns(); count]);
        Cores(Rc::new(Inner { world, quantum_ns, free, line, used_ns }))
    }

    /// Runs for so long, and waits for a core first if it must. Says how long it waited.
    pub fn run(&self, ns: u64) -> Run<'_> {
        Run { cores: &self.0, left_ns: ns, begin_ns: 0, work_ns: ns, at: At::Outside }
    }

    /// How long all cores together were busy.
    pub fn used_ns(&self) -> u64 {
        self.0.used_ns.get()
    }

    /// For how long the core has done nothing that would be taken next; not at all if all are busy.
    pub fn idle_ns(&self) -> Option<u64> {
        self.0.free.borrow().last().map(|since_ns| self.0.world.now_ns() - since_ns)
    }

    /// How many stand in line.
    pub fn waiting(&self) -> usize {
        self.0.line.borrow().len()
    }
}

/// A computation.
#[derive(Debug)]
#[must_use = "nothing is computed for who does not await it"]
pub struct Run<'c> {
    cores: &'c Inner,
    left_ns: u64,
    begin_ns: u64,
    work_ns: u64,
    at: At,
}

#[derive(Debug, PartialEq, Eq)]
enum At {
    Outside,
    Line,
    /// On a core, for this long.
    Core(u64),
}

impl Run<'_> {
    /// On a core, until the quantum is over or there is nothing left to do.
    fn runs(&mut self) {
        let slice_ns = self.left_ns.min(self.cores.quantum_ns);
        self.at = At::Core(slice_ns);
        self.cores.used_ns.set(self.cores.used_ns.get() + slice_ns);
        let world = &self.cores.world;
        world.wake_at(world.now_ns() + slice_ns, world.going_on());
    }

    /// Whoever is first in line gets this core; if nobody is, it is free.
    fn hands_over(&self) {
        match self.cores.line.borrow_mut().pop_front() {
            Some(next) => self.cores.world.wake(next),
            None => self.cores.free.borrow_mut().push(self.cores.world.now_ns()),
        }
    }

    fn stands_in_line(&mut self) {
        self.at = At::Line;
        self.cores.line.borrow_mut().push_back(self.cores.world.going_on());
    }
}

impl Future for Run<'_> {
    /// How long it waited.
    type Output = u64;

    fn poll(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<u64> {
        match self.at {
            At::Outside if self.left_ns == 0 => return Poll::Ready(0),
            At::Outside => {
                self.begin_ns = self.cores.world.now_ns();
                let free = self.cores.free.borrow_mut().pop();
                match free {
                    Some(_) => self.runs(),
                    None => self.stands_in_line(),
                }
            }
            At::Line => self.runs(),
            At::Core(slice_ns) => {
                self.left_ns -= slice_ns;
                if self.left_ns == 0 {
                    self.hands_over();
                    let took_ns = self.cores.world.now_ns() - self.begin_ns;
                    return Poll::Ready(took_ns - self.work_ns);
                }
                if self.cores.line.borrow().is_empty() {
                    self.runs();
                } else {
                    self.hands_over();
                    self.stands_in_line();
                }
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When each of these ends that arrive together, and how long it waited.
    fn ends(count: usize, quantum_ns: u64, works: &[u64]) -> Vec<(u64, u64)> {
        let world = World::new();
        let cores = Cores::new(&world, count, quantum_ns);
        let ends = Rc::new(RefCell::new(vec![(0, 0); works.len()]));
        for (place, work) in works.iter().copied().enumerate() {
            let (world_, cores, ends) = (world.clone(), cores.clone(), Rc::clone(&ends));
            world.spawn(async move {
                let waited = cores.run(work).await;
                ends.borrow_mut()[place] = (world_.now_ns(), waited);
            });
        }
        world.run(u64::MAX);
        assert_eq!(cores.used_ns(), works.iter().sum::<u64>());
        assert_eq!((cores.waiting(), cores.0.free.borrow().len()), (0, count));
        ends.take()
    }

    #[test]
    fn with_an_endless_quantum_it_is_a_line() {
        assert_eq!(ends(1, u64::MAX, &[10, 1, 5]), [(10, 0), (11, 10), (16, 11)]);
        assert_eq!(ends(2, u64::MAX, &[10, 1, 5]), [(10, 0), (1, 0), (6, 1)]);
    }

    #[test]
    fn with_a_quantum_they_take_turns() {
        // a 0-3, b 3-4, c 4-7, a 7-10, c 10-12, a 12-16
        assert_eq!(ends(1, 3, &[10, 1, 5]), [(16, 6), (4, 3), (12, 7)]);
        // The picture above.
        assert_eq!(ends(2, 3, &[6, 6, 3]), [(6, 0), (9, 3), (6, 3)]);
    }

    #[test]
    fn nothing_to_do_takes_no_core() {
        assert_eq!(ends(1, 3, &[5, 0]), [(5, 0), (0, 0)]);
    }
}
