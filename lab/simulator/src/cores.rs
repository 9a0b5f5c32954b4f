//! The cores of a machine, and the computations that run on them or wait in the queue.
//!
//! A computation that has run for a *quantum* goes to the end of the queue if others are queued.
//! With an unlimited quantum, the queue is first in, first out.
//!
//! ```text
//!   2 cores, quantum 3        a and b need 6, c needs 3; they arrive together
//!   core 1   aaa ccc bbb      after 3, a makes way for c, and b makes way for a
//!   core 2   bbb aaa          after 6, c ends, and b runs again
//! ```
//!
//! [`Cores::with_impatience`] models preemption by waking threads. A [late](Cores::compute)
//! computation has low priority: it gives its core to the first computation of normal priority. The
//! model has no caches, no hyper-threads, and no cost of a context switch.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use crate::Rng;
use crate::world::{ProcessId, World, suspend};

#[derive(Clone, Debug)]
pub struct Cores(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    world: World,
    count: usize,
    quantum_ns: u64,
    /// The time when each idle core became idle. The core that became idle last is at the end, and
    /// the next computation gets it.
    free: RefCell<Vec<u64>>,
    busy: RefCell<Vec<Slice>>,
    run_queue: RefCell<VecDeque<QueuedComputation>>,
    /// Computations that have been taken from the queue, but have not been polled yet.
    woken: RefCell<Vec<QueuedComputation>>,
    computations: Cell<u64>,
    used_ns: Cell<u64>,
    impatience: f64,
    rng: RefCell<Rng>,
}

#[derive(Clone, Copy, Debug)]
struct QueuedComputation {
    process: ProcessId,
    number: u64,
    is_late: bool,
    /// Work done in the interrupted slice, in nanoseconds.
    done_ns: u64,
}

/// The present slice of a computation that runs on a core.
#[derive(Clone, Copy, Debug)]
struct Slice {
    process: ProcessId,
    number: u64,
    is_late: bool,
    begin_ns: u64,
    length_ns: u64,
}

impl Cores {
    /// Creates idle cores. With a quantum of `u64::MAX`, each computation runs to its end.
    pub fn new(world: &World, count: usize, quantum_ns: u64) -> Cores {
        Cores::with_impatience(world, count, quantum_ns, 0.0, Rng::new(0, 0))
    }

    /// Creates idle cores. `impatience` is the share of new computations that preempt a running
    /// one, as a waking thread may do on a real scheduler. The other computations may be queued at
    /// a busy core. They wait for the end of a slice, even if another core is idle.
    pub fn with_impatience(
        world: &World,
        count: usize,
        quantum_ns: u64,
        impatience: f64,
        rng: Rng,
    ) -> Cores {
        assert!(count > 0 && quantum_ns > 0, "there must be a core, and a quantum");
        Cores(Rc::new(Inner {
            world: world.clone(),
            count,
            quantum_ns,
            free: RefCell::new(vec![world.now_ns(); count]),
            busy: RefCell::default(),
            run_queue: RefCell::default(),
            woken: RefCell::default(),
            computations: Cell::default(),
            used_ns: Cell::default(),
            impatience,
            rng: RefCell::new(rng),
        }))
    }

    /// Runs a computation. Returns how long it waited for a core.
    pub async fn run(&self, ns: u64) -> u64 {
        self.compute(ns, false).await
    }

    /// Like [`run`](Cores::run), but at low priority if `is_late` is true.
    pub async fn compute(&self, ns: u64, is_late: bool) -> u64 {
        if ns == 0 {
            return 0;
        }
        let cores = &self.0;
        let begin_ns = cores.world.now_ns();
        let number = cores.computations.get();
        cores.computations.set(number + 1);
        let (left_ns, noted_ns, cut_short) = (ns, 0, Vec::new());
        let mut own = Computation { cores, number, is_late, left_ns, noted_ns, cut_short };
        own.begin();
        while own.left_ns > 0 {
            suspend().await;
            if own.is_called() {
                own.start_slice();
            } else if own.is_slice_over() {
                own.go_on();
            }
        }
        cores.world.now_ns() - begin_ns - ns
    }

    /// Returns the used CPU time of all cores together.
    pub fn used_ns(&self) -> u64 {
        self.0.used_ns.get()
    }

    /// Returns how long all cores have been idle, or `None` if one is busy.
    pub fn idle_ns(&self) -> Option<u64> {
        let free = self.0.free.borrow();
        let since_ns = free.iter().copied().max().filter(|_| free.len() == self.0.count)?;
        Some(self.0.world.now_ns() - since_ns)
    }
}

#[derive(Debug)]
struct Computation<'c> {
    cores: &'c Inner,
    number: u64,
    is_late: bool,
    left_ns: u64,
    /// The end of the newest slice that has an entry in the calendar. `cut_short` has the ends of
    /// interrupted slices, whose entries are still in the calendar.
    noted_ns: u64,
    cut_short: Vec<u64>,
}

impl Inner {
    /// Draws whether an arriving computation preempts another one.
    fn is_impatient(&self) -> bool {
        self.impatience > 0.0 && self.rng.borrow_mut().unit() < self.impatience
    }

    /// Returns whether a queued computation goes before a computation of this priority.
    fn has_queued_before(&self, is_late: bool) -> bool {
        self.run_queue.borrow().iter().any(|queued| is_late || !queued.is_late)
    }

    /// Gives the core to the next computation, or marks it idle.
    fn pass_core_on(&self) {
        let mut queue = self.run_queue.borrow_mut();
        // The first computation at normal priority. If there is none, the first of all.
        let first = queue.iter().position(|queued| !queued.is_late).unwrap_or(0);
        match queue.remove(first) {
            Some(next) => {
                self.woken.borrow_mut().push(next);
                self.world.wake(next.process);
            }
            None => self.free.borrow_mut().push(self.world.now_ns()),
        }
    }

    /// Preempts a late computation. If there is none and `only_late` is false, preempts the
    /// computation with the oldest slice. The preempted computation goes to the front of the queue
    /// with its remaining work. A computation whose slice ends now is not preempted. Returns
    /// whether a computation was preempted.
    fn preempt(&self, only_late: bool) -> bool {
        let mut busy = self.busy.borrow_mut();
        let now_ns = self.world.now_ns();
        let may_be = |slice: &Slice| {
            slice.begin_ns + slice.length_ns > now_ns && (slice.is_late || !only_late)
        };
        let running = busy.iter().enumerate().filter(|(_, slice)| may_be(slice));
        let found = running.min_by_key(|(_, slice)| (!slice.is_late, slice.begin_ns));
        let Some((at, _)) = found else { return false };
        let Slice { process, number, is_late, begin_ns, length_ns } = busy.remove(at);
        let done_ns = now_ns - begin_ns;
        self.used_ns.set(self.used_ns.get() - (length_ns - done_ns));
        let queued = QueuedComputation { process, number, is_late, done_ns };
        self.run_queue.borrow_mut().push_front(queued);
        true
    }
}

impl Computation<'_> {
    fn start_slice(&mut self) {
        let length_ns = self.left_ns.min(self.cores.quantum_ns);
        self.cores.used_ns.set(self.cores.used_ns.get() + length_ns);
        let world = &self.cores.world;
        let (begin_ns, process, number) = (world.now_ns(), world.going_on(), self.number);
        let slice = Slice { process, number, is_late: self.is_late, begin_ns, length_ns };
        self.cores.busy.borrow_mut().push(slice);
        // Ends of interrupted slices are still in the calendar, and none of them is later than this
        // end. The calendar must not have the same end twice, because the second entry might wake a
        // later process that has the same number as this process.
        let end_ns = begin_ns + length_ns;
        if self.noted_ns != end_ns && !self.cut_short.contains(&end_ns) {
            if self.noted_ns > begin_ns {
                self.cut_short.push(self.noted_ns);
            }
            self.noted_ns = end_ns;
            world.wake_at(end_ns, process);
        }
    }

    fn queue_up(&self) {
        let process = self.cores.world.going_on();
        let (number, is_late) = (self.number, self.is_late);
        let queued = QueuedComputation { process, number, is_late, done_ns: 0 };
        self.cores.run_queue.borrow_mut().push_back(queued);
    }

    fn begin(&mut self) {
        let cores = self.cores;
        let (free, is_impatient) = (cores.free.borrow().len(), cores.is_impatient());
        // With impatience, a computation that does not preempt is queued while a computation of
        // normal priority runs, even if a core is idle. Otherwise it takes the idle core.
        let is_one_busy = || cores.busy.borrow().iter().any(|slice| !slice.is_late);
        let waits_beside_idle = cores.impatience > 0.0 && !is_impatient && is_one_busy();
        match free {
            0 if !self.is_late && cores.preempt(!is_impatient) => self.start_slice(),
            0 => self.queue_up(),
            _ if waits_beside_idle => self.queue_up(),
            _ => {
                cores.free.borrow_mut().pop();
                self.start_slice();
            }
        }
    }

    /// Returns whether the computation was taken from the queue. Otherwise the end of a slice has
    /// woken it. That slice may have been interrupted earlier.
    fn is_called(&mut self) -> bool {
        let mut woken = self.cores.woken.borrow_mut();
        let Some(at) = woken.iter().position(|queued| queued.number == self.number) else {
            return false;
        };
        self.left_ns -= woken.remove(at).done_ns;
        true
    }

    /// Returns whether the computation's slice is over. If it is, the computation leaves the core.
    fn is_slice_over(&mut self) -> bool {
        let mut busy = self.cores.busy.borrow_mut();
        let now_ns = self.cores.world.now_ns();
        let is_own = |slice: &Slice| {
            slice.number == self.number && slice.begin_ns + slice.length_ns == now_ns
        };
        let Some(at) = busy.iter().position(is_own) else { return false };
        self.left_ns -= busy.remove(at).length_ns;
        true
    }

    /// Continues after a slice. Gives the core to another computation, unless this one has work
    /// left and goes before the others.
    fn go_on(&mut self) {
        let has_work = self.left_ns > 0;
        if has_work && !self.cores.has_queued_before(self.is_late) {
            return self.start_slice();
        }
        self.cores.pass_core_on();
        if has_work {
            let free = self.cores.free.borrow_mut().pop();
            match free {
                Some(_) => self.start_slice(),
                None => self.queue_up(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the end and the waiting time of each computation. A computation is given by its
    /// start, its work, and whether it is late.
    fn run_all(cores: &Cores, computations: &[(u64, u64, bool)]) -> Vec<(u64, u64)> {
        let world = &cores.0.world;
        let ends = Rc::new(RefCell::new(vec![(0, 0); computations.len()]));
        for (place, (begin_ns, work, is_late)) in computations.iter().copied().enumerate() {
            let (own, cores, ends) = (world.clone(), cores.clone(), Rc::clone(&ends));
            world.spawn(async move {
                own.sleep(begin_ns).await;
                let waited = cores.compute(work, is_late).await;
                ends.borrow_mut()[place] = (own.now_ns(), waited);
            });
        }
        world.run(u64::MAX);
        // No work is lost or done twice.
        assert_eq!(cores.used_ns(), computations.iter().map(|(_, work, _)| work).sum::<u64>());
        assert_eq!(cores.0.free.borrow().len(), cores.0.count);
        let (busy, queue, woken) = (&cores.0.busy, &cores.0.run_queue, &cores.0.woken);
        let left = (busy.borrow().len(), queue.borrow().len(), woken.borrow().len());
        assert_eq!(left, (0, 0, 0));
        ends.take()
    }

    /// Returns the ends and waits of computations that arrive together.
    fn ends(count: usize, quantum_ns: u64, works: &[u64]) -> Vec<(u64, u64)> {
        let works: Vec<_> = works.iter().map(|work| (0, *work, false)).collect();
        run_all(&Cores::new(&World::new(), count, quantum_ns), &works)
    }

    #[test]
    fn with_an_endless_quantum_it_is_a_line() {
        assert_eq!(ends(1, u64::MAX, &[10, 1, 5]), [(10, 0), (11, 10), (16, 11)]);
        assert_eq!(ends(2, u64::MAX, &[10, 1, 5]), [(10, 0), (1, 0), (6, 1)]);
        assert_eq!(ends(1, 3, &[5, 0]), [(5, 0), (0, 0)], "no work takes no core");
    }

    #[test]
    fn with_a_quantum_they_take_turns() {
        // The core runs a 0-3, b 3-4, c 4-7, a 7-10, c 10-12 and a 12-16.
        assert_eq!(ends(1, 3, &[10, 1, 5]), [(16, 6), (4, 3), (12, 7)]);
        // The example in the head of this file.
        assert_eq!(ends(2, 3, &[6, 6, 3]), [(6, 0), (9, 3), (6, 3)]);
    }

    #[test]
    fn one_that_is_busy_keeps_the_others_awake() {
        let world = World::new();
        let cores = Cores::new(&world, 2, u64::MAX);
        assert_eq!(cores.idle_ns(), Some(0));
        for work in [10, 30] {
            let cores = cores.clone();
            world.spawn(async move { _ = cores.run(work).await });
        }
        let idle_at = |ns| {
            world.run(ns);
            cores.idle_ns()
        };
        // At 5 both cores are busy, at 20 one of them. At 40 both have been idle since 30.
        assert_eq!([5, 20, 40].map(idle_at), [None, None, Some(10)]);
    }

    /// Runs three long computations and 300 short ones. Returns how long each short one waits.
    fn waits_of_short_ones(impatience: f64, seed: u64) -> Vec<u64> {
        let long = [90_001, 90_000, 30_000].map(|work| (0, work, false));
        let short = (0..300).map(|number| (number / 3 * 1_000 + number % 3 * 107, 100, false));
        let cores = Cores::with_impatience(&World::new(), 2, 4_000, impatience, Rng::new(seed, 0));
        let all: Vec<_> = long.into_iter().chain(short).collect();
        run_all(&cores, &all).into_iter().skip(long.len()).map(|(_, waited)| waited).collect()
    }

    #[test]
    fn an_impatient_computation_preempts_another() {
        let count_at_once = |waits: &[u64]| waits.iter().filter(|ns| **ns == 0).count();
        let (patient, impatient) = (waits_of_short_ones(0.0, 1), waits_of_short_ones(1.0, 1));
        let at_once = (count_at_once(&patient), count_at_once(&impatient));
        assert!(at_once.0 < 60 && at_once.1 > 280, "{at_once:?} of 300");
        assert!(impatient.iter().all(|ns| *ns <= 100), "for one as short at most: {impatient:?}");
        for seed in 0..200 {
            // Most of the short computations start immediately, but not all.
            let waits = waits_of_short_ones(0.85, seed);
            assert!((200..295).contains(&count_at_once(&waits)), "{waits:?}");
            assert!(waits.iter().any(|ns| *ns > 100), "{waits:?}");
            assert_eq!(waits, waits_of_short_ones(0.85, seed));
        }
    }

    #[test]
    fn a_late_computation_yields_to_all() {
        for (count, quantum) in [(1, 3), (1, u64::MAX), (2, 3)] {
            let cores = Cores::new(&World::new(), count, quantum);
            let works = [(0, 50, true), (0, 50, true), (10, 20, false), (12, 4, false)];
            let ends = run_all(&cores, &works);
            // A normal computation waits only for the other normal one. If there are two cores,
            // each has its own, and neither waits.
            let waits_max = if count == 1 { (4, 20) } else { (0, 0) };
            assert!(ends[2].1 <= waits_max.0 && ends[3].1 <= waits_max.1, "{ends:?}");
            let first_late = ends[0].0.min(ends[1].0);
            assert!(ends[2].0.max(ends[3].0) < first_late, "the late ones end last: {ends:?}");
        }
    }

    #[test]
    fn no_computation_waits_for_a_late_one() {
        // Returns how many of the short computations wait while another one computes all the time.
        let waits_beside = |is_late| {
            let cores = Cores::with_impatience(&World::new(), 2, 4_000, 0.5, Rng::new(1, 0));
            let short = (1..=100).map(|number| (number * 9_000, 10, false));
            let all: Vec<_> = std::iter::once((0, 1_000_000, is_late)).chain(short).collect();
            run_all(&cores, &all)[1..].iter().filter(|(_, waited)| *waited > 0).count()
        };
        assert_eq!(waits_beside(true), 0);
        // Computations that do not preempt are queued at a busy core, although another core is
        // idle.
        let waits = waits_beside(false);
        assert!((30..=70).contains(&waits), "{waits} of 100");
    }
}
