//! When each request is due.
//!
//! ```text
//!   constant   ┄┄│┄┄┄┄│┄┄┄┄│┄┄┄┄│┄┄┄┄│    like a clock; the first time is random
//!   Poisson    ┄│┄││┄┄┄┄┄┄┄│┄┄│┄┄┄┄││┄    like users who do not know of each other
//! ```
//!
//! If arrivals are Poisson, requests of different classes meet in the server by chance, as with
//! real users. If arrivals are constant, two classes with the same rate always meet or never meet,
//! depending on their first times. So the first time of each class is random.
//!
//! All times depend only on the seed. A thread sleeps from one time to the next ([`pace`]). If it
//! wakes late, or has to wait because the channel of a class is full, the request is sent late. The
//! latency of the request is still measured from the time when it was *due*.

use std::io;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clearlane_net::sched::SchedClass;
use itertools::Itertools as _;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::stop::Stop;

/// Interval at which a sleeping thread checks whether it is stopped.
const STOP_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Spacing {
    Constant,
    /// The gaps have an exponential distribution: a Poisson process.
    Poisson,
}

/// The endless sequence of the due times of one class, since the start of the run.
#[derive(Clone, Debug)]
pub struct Schedule {
    spacing: Spacing,
    per_second: f64,
    gaps: SmallRng,
    /// The current time, as a multiple of the mean gap. A sum of gaps in seconds would accumulate
    /// rounding errors.
    passed_gaps: f64,
}

impl Schedule {
    pub fn new(spacing: Spacing, per_second: f64, seed: u64) -> Schedule {
        let mut gaps = SmallRng::seed_from_u64(seed);
        let passed = match spacing {
            Spacing::Constant => gaps.random_range(0.0..1.0) - 1.0,
            Spacing::Poisson => 0.0,
        };
        Schedule { spacing, per_second, gaps, passed_gaps: passed }
    }
}

impl Iterator for Schedule {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.passed_gaps += match self.spacing {
            Spacing::Constant => 1.0,
            Spacing::Poisson => -self.gaps.random_range(f64::MIN_POSITIVE..1.0).ln(),
        };
        // If the time does not fit into a `Duration`, the schedule ends.
        Duration::try_from_secs_f64(self.passed_gaps / self.per_second).ok()
    }
}

/// Merges the arrivals of several classes in order of time, up to the end of the window. Each item
/// is the time since the start of the run and the index of the class.
pub fn merge(
    schedules: impl IntoIterator<Item = Schedule>,
    window: Duration,
) -> impl Iterator<Item = (Duration, usize)> {
    let classes = schedules.into_iter().enumerate();
    let classes = classes.map(|(class, schedule)| schedule.map(move |due| (due, class)));
    classes.kmerge().take_while(move |(due, _)| *due < window)
}

/// Starts a thread that sends the time of each arrival to its class. The thread ends after the last
/// arrival, or when an arrival's class has dropped its receiver. In both cases the result of the
/// thread is `None`. If the thread is stopped early, its result is the time from the start of the
/// run to the stop.
///
/// On Linux, sleeping is exact to about 60 µs. The channels are bounded. If a class cannot keep up,
/// its arrivals wait in the channel, but they keep their due times.
pub fn pace(
    arrivals: impl Iterator<Item = (Duration, usize)> + Send + 'static,
    start: Instant,
    senders: Vec<mpsc::Sender<Duration>>,
    stop: Stop,
) -> io::Result<JoinHandle<Option<Duration>>> {
    thread::Builder::new().name("pace".to_owned()).spawn(move || {
        SchedClass::Latency.apply_to_thread();
        for (due, class) in arrivals {
            loop {
                let left = (start + due).saturating_duration_since(Instant::now());
                if stop.is_set() {
                    return Some(start.elapsed());
                }
                if left.is_zero() {
                    break;
                }
                thread::sleep(left.min(STOP_INTERVAL));
            }
            if senders[class].blocking_send(due).is_err() {
                break;
            }
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [Spacing; 2] = [Spacing::Constant, Spacing::Poisson];

    #[test]
    fn rates_hold_over_hours() {
        const ARRIVALS: usize = 300_000;
        for (seed, rate) in [(0, 0.2), (1, 20.0), (2, 100.0), (3, 5000.0)] {
            for spacing in BOTH {
                let last = Schedule::new(spacing, rate, seed).nth(ARRIVALS - 1);
                let last = last.expect("it has no end").as_secs_f64();
                // For Poisson arrivals, 1 % is five times the standard deviation.
                let off = (ARRIVALS as f64 / last / rate - 1.0).abs();
                assert!(off < 0.01, "{spacing:?}, {rate} a second, seed {seed}: {off}");
            }
        }
    }

    #[test]
    fn constant_gaps_are_equal_and_poisson_gaps_are_exponential() {
        let [constant, poisson] = BOTH.map(|spacing| {
            let due: Vec<Duration> = Schedule::new(spacing, 10.0, 3).take(20_000).collect();
            due.windows(2).map(|two| (two[1] - two[0]).as_secs_f64()).collect::<Vec<_>>()
        });
        assert!(constant.iter().all(|gap| (gap - 0.1).abs() < 1e-6));
        // If gaps are exponential, a share of e^-1 is longer than the mean, and a share of e^-2 is
        // longer than twice the mean.
        for times in [1.0, 2.0_f64] {
            let longer = poisson.iter().filter(|gap| **gap > 0.1 * times).count();
            let share = longer as f64 / poisson.len() as f64;
            assert!((share - (-times).exp()).abs() < 0.01, "{share}");
        }
    }

    #[test]
    fn a_seed_repeats_and_another_differs() {
        for spacing in BOTH {
            let some = |seed| Schedule::new(spacing, 7.0, seed).take(50).collect::<Vec<_>>();
            assert!(some(1) == some(1) && some(1) != some(2), "{spacing:?}");
        }
    }

    #[test]
    fn merged_arrivals_ascend_end_with_the_window_and_lose_nothing() {
        let window = Duration::from_secs(30);
        let schedules = [(BOTH[0], 1.0), (BOTH[1], 100.0), (BOTH[1], 20.0)];
        let schedules = schedules.map(|(spacing, rate)| Schedule::new(spacing, rate, 9));
        let merged: Vec<_> = merge(schedules.clone(), window).collect();
        assert!(merged.is_sorted());
        for (class, schedule) in schedules.into_iter().enumerate() {
            let of_class = merged.iter().filter(|(_, of)| *of == class).map(|(due, _)| *due);
            assert!(of_class.eq(schedule.take_while(|due| *due < window)), "{class}");
        }
        assert_eq!(merged.iter().filter(|(_, class)| *class == 0).count(), 30);
    }
}
