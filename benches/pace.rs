//! Open-loop arrivals, and the processor time during them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clearlane_contention::waited_ns;
use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Times longer than a minute are recorded as a minute.
const LATENCY_MAX_NS: u64 = 60_000_000_000;
/// How often a thread of [`burn`] checks whether it has used its share.
const BURN_SLICE: Duration = Duration::from_micros(250);

/// Creates a histogram of times in nanoseconds, with three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).expect("the bounds are sound")
}

/// The due times of operations, counted from the start of a window. The gaps are random, from a
/// seed.
#[derive(Debug)]
pub struct Schedule {
    /// The due times, in ascending order.
    pub due: Vec<Duration>,
    /// The length of the window.
    pub window: Duration,
}

impl Schedule {
    /// Creates a schedule with `per_second` arrivals per second on average.
    pub fn new(per_second: f64, window: Duration, seed: u64) -> Schedule {
        let mut gaps = SmallRng::seed_from_u64(seed);
        let arrivals = std::iter::successors(Some(Duration::ZERO), |before| {
            let uniform: f64 = gaps.random_range(f64::EPSILON..1.0);
            Some(*before + Duration::from_secs_f64(-uniform.ln() / per_second))
        });
        Schedule { due: arrivals.take_while(|due| *due < window).collect(), window }
    }
}

/// The times of the operations of a window.
#[derive(Debug)]
pub struct OpenLoopTimes {
    /// The time from an operation's due time to its response.
    pub latency: Histogram<u64>,
    /// The time from an operation's start to its response.
    pub service: Histogram<u64>,
    /// The time that an operation waited for locks.
    pub lock_wait: Histogram<u64>,
}

impl OpenLoopTimes {
    /// Returns the share of the operations that were started before the end of the window.
    pub fn served(&self) -> f64 {
        self.service.len() as f64 / self.latency.len().max(1) as f64
    }
}

/// Runs an operation at each arrival. The operation returns the time at which its client could get
/// the response. An operation that could only start after the window is not run; its wait is
/// recorded. The thread spins between arrivals, so that it does not have to be woken.
pub fn open_loop(
    schedule: &Schedule,
    start: Instant,
    mut operation: impl FnMut(usize) -> Instant,
) -> OpenLoopTimes {
    let mut met =
        OpenLoopTimes { latency: histogram(), service: histogram(), lock_wait: histogram() };
    let mut over = false;
    for (number, due) in schedule.due.iter().enumerate() {
        let due = start + *due;
        while Instant::now() < due {
            std::hint::spin_loop();
        }
        let begun = Instant::now();
        over |= begun >= start + schedule.window;
        if !over {
            let waited_before = waited_ns();
            let answered = operation(number);
            met.lock_wait.saturating_record(waited_ns() - waited_before);
            met.service.saturating_record(ns(answered - begun));
            met.latency.saturating_record(ns(answered - due));
        } else {
            met.latency.saturating_record(ns(due.elapsed()));
        }
    }
    met
}

fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// Returns the processor time of this thread, or 0 if the system does not report it.
pub fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = text.split_whitespace().next().and_then(|word| word.parse().ok());
    Duration::from_nanos(ns.unwrap_or(0))
}

/// Keeps a processor busy for this share of the time, until `over` is true.
pub fn burn(share: f64, over: &AtomicBool) {
    let (begin, mut burnt) = (Instant::now(), Duration::ZERO);
    while !over.load(Ordering::Relaxed) {
        if burnt < begin.elapsed().mul_f64(share) {
            let start = Instant::now();
            while start.elapsed() < BURN_SLICE {
                std::hint::spin_loop();
            }
            burnt += BURN_SLICE;
        } else {
            std::thread::sleep(BURN_SLICE);
        }
    }
}
