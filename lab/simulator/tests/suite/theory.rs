//! Compares results of the model with the formulas of queueing theory.

use std::cell::RefCell;
use std::rc::Rc;

use clearlane_simulator::{Cores, Rng, World};

const SECOND: f64 = 1e9;

#[derive(Debug, Default)]
struct Found {
    arrived: u64,
    waited_ns: f64,
    stayed_ns: f64,
    /// The integral over time of the number of computations that are present.
    there_ns: f64,
    there: u64,
    changed_ns: u64,
}

impl Found {
    fn changes(&mut self, now_ns: u64, by: i64) {
        self.there_ns += self.there as f64 * (now_ns - self.changed_ns) as f64;
        self.there = self.there.checked_add_signed(by).expect("only a request that came leaves");
        self.changed_ns = now_ns;
    }
}

fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    // `unit` may return 0, whose logarithm is infinite, but never 1. So `1.0 - unit` is used.
    -(1.0 - rng.unit()).ln() * mean
}

/// Runs Poisson arrivals at a machine with one core. `rate` is per second, and `work` draws the
/// service time of each computation in nanoseconds.
fn run(rate: f64, quantum_ns: u64, mut work: impl FnMut() -> f64 + 'static) -> Found {
    let world = World::new();
    let cores = Cores::new(&world, 1, quantum_ns);
    let found = Rc::new(RefCell::new(Found::default()));
    let (outer, its) = (world.clone(), Rc::clone(&found));
    world.spawn(async move {
        let mut gaps = Rng::new(7, 0);
        loop {
            outer.sleep(exponential(&mut gaps, SECOND / rate) as u64).await;
            let (world, cores, found) = (outer.clone(), cores.clone(), Rc::clone(&its));
            let work_ns = work() as u64;
            outer.spawn(async move {
                let begin_ns = world.now_ns();
                found.borrow_mut().changes(begin_ns, 1);
                let waited_ns = cores.run(work_ns).await;
                let mut found = found.borrow_mut();
                found.changes(world.now_ns(), -1);
                found.arrived += 1;
                found.waited_ns += waited_ns as f64;
                found.stayed_ns += (world.now_ns() - begin_ns) as f64;
            });
        }
    });
    world.run((1000.0 * SECOND) as u64);
    found.take()
}

fn assert_near(what: &str, found: f64, expected: f64) {
    let off = found / expected - 1.0;
    assert!(off.abs() < 0.02, "{what}: {found} instead of {expected}, {:.1} %", 100.0 * off);
}

/// With a load of 0.7 and a service time of 1 ms, the mean wait is 0.7 / 0.3 ms.
#[test]
fn exponential_services_wait_as_m_m_1() {
    let mut works = Rng::new(7, 1);
    let found = run(700.0, u64::MAX, move || exponential(&mut works, 1e6));
    assert_near("mean wait", found.waited_ns / found.arrived as f64, 1e6 * 0.7 / 0.3);
    little(&found);
}

/// If all services take the same time, the mean wait is half of the mean wait with exponential
/// times.
#[test]
fn equal_services_wait_as_m_d_1() {
    let found = run(700.0, u64::MAX, || 1e6);
    assert_near("mean wait", found.waited_ns / found.arrived as f64, 1e6 * 0.7 / 0.3 / 2.0);
    little(&found);
}

/// If the quantum is short, each computation gets a share of the processor. With exponential
/// service times, a computation then stays as long on average as in a first-in, first-out queue.
#[test]
fn turns_share_a_processor() {
    let mut works = Rng::new(7, 1);
    let found = run(700.0, 100_000, move || exponential(&mut works, 1e6));
    assert_near("mean stay", found.stayed_ns / found.arrived as f64, 1e6 / 0.3);
    little(&found);
}

/// Checks Little's law: the average number of computations that are present is the arrival rate
/// times the mean stay. A computation that is still present at the end is missing in the mean stay,
/// so the two figures may differ slightly.
fn little(found: &Found) {
    let time_ns = found.changed_ns as f64;
    let (there, rate) = (found.there_ns / time_ns, found.arrived as f64 / time_ns);
    let expected = rate * found.stayed_ns / found.arrived as f64;
    assert!((there / expected - 1.0).abs() < 0.001, "{there} are there, expected {expected}");
}
