//! Several runs, on as many processors as there are.
//!
//! A run has one thread, and nothing in common with another run. So eras are run side by side, and
//! come out as if they had been run one after the other.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::results::Results;
use crate::run::{RunError, run_with_progress};
use crate::scenario::Scenario;
use crate::server::Build;

/// Makes each of these runs, gives what came of each in their order, and tells meanwhile how much
/// of all is done, up to 1.
pub fn run_each(
    runs: &[(&Scenario, &Build)],
    tell: impl Fn(f64) + Sync,
) -> Vec<Result<Results, RunError>> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(runs.len());
    let next = AtomicUsize::new(0);
    let shares = Mutex::new(vec![0.0; runs.len()]);
    let tell_of = |at: usize, share: f64| {
        let mut shares = shares.lock().expect("no thread panics with it");
        shares[at] = share;
        tell(shares.iter().sum::<f64>() / runs.len() as f64);
    };
    let done = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some((scenario, build)) = runs.get(at) else { break };
                    let outcome = run_with_progress(scenario, build, |share| tell_of(at, share));
                    // One that was refused is done, too.
                    tell_of(at, 1.0);
                    done.lock().expect("no thread panics with it").push((at, outcome));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no thread panics with it");
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::Costs;
    use crate::era::Era;
    use crate::shipped::Shipped;

    #[test]
    fn how_far_they_are_never_goes_back_and_ends_at_all_of_it() {
        let text = Shipped::find("slow-disk").expect("it ships").text;
        let mut scenario = Scenario::parse(text).expect("a test reads it");
        scenario.workload.seconds = 1;
        let builds =
            [Era::V3_2, Era::V3_4, Era::Clearlane].map(|era| Build::new(era, Costs::BY_HAND));
        let runs: Vec<_> = builds.iter().map(|build| (&scenario, build)).collect();
        let told = Mutex::new(Vec::new());
        let tell = |share| told.lock().unwrap().push(share);
        let outcomes = run_each(&runs, tell);
        let eras: Vec<Era> = outcomes.into_iter().map(|outcome| outcome.unwrap().era).collect();
        assert_eq!(eras, builds.map(|build| build.era));
        let told = told.into_inner().unwrap();
        assert!(told.is_sorted() && told.last() == Some(&1.0), "{told:?}");
    }
}
