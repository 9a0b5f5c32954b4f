//! One scenario in several eras, on as many processors as there are.
//!
//! A run has one thread, and nothing in common with another run. So eras are run side by side, and come out as if
//! they had been run one after the other.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::results::Results;
use crate::run::{Refused, run};
use crate::scenario::Scenario;
use crate::server::Build;

/// Runs it in each of these, and gives what came of it in their order.
pub fn run_all(scenario: &Scenario, builds: &[Build]) -> Vec<Result<Results, Refused>> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(builds.len());
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(build) = builds.get(at) else { break };
                    let results = run(scenario, build);
                    done.lock().expect("nobody panics with it").push((at, results));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("nobody panics with it");
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, results)| results).collect()
}
