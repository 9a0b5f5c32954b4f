//! A thread that runs at the same time as the members, and measures how much the machine delays
//! threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clearlane_net::sched::SchedClass;

/// A thread that only sleeps and wakes, with the same scheduling class as the raft loop. It
/// measures how much the machine delays such a thread.
pub(crate) struct Sleeper {
    latest_us: Arc<AtomicU64>,
}

impl Sleeper {
    /// The time between two wake-ups. The thread wakes ten times as often as raft ticks, so every
    /// delay that affects a tick also affects this thread.
    const PAUSE: Duration = Duration::from_millis(10);

    /// Starts the thread. It runs until the sleeper is dropped.
    pub(crate) fn start() -> Sleeper {
        let latest_us = Arc::new(AtomicU64::new(0));
        let weak = Arc::downgrade(&latest_us);
        std::thread::spawn(move || {
            SchedClass::Latency.apply_to_thread();
            let mut due = Instant::now() + Self::PAUSE;
            while let Some(latest_us) = weak.upgrade() {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                let woken = Instant::now();
                latest_us.fetch_max((woken - due).as_micros() as u64, Ordering::Relaxed);
                due = woken.max(due) + Self::PAUSE;
            }
        });
        Sleeper { latest_us }
    }

    pub(crate) fn latest_ms(&self) -> f64 {
        self.latest_us.load(Ordering::Relaxed) as f64 / 1000.0
    }

    pub(crate) fn begin_anew(&self) {
        self.latest_us.store(0, Ordering::Relaxed);
    }
}
