//! Virtual time, which jumps from one event to the next.
//!
//! ```text
//!   now 1.2 s   1.2003 message 1▶3   1.25 tick of 2   1.9 member 3 starts   4.0 client 1 gives up
//!               └── the next event: now becomes 1.2003 s
//! ```
//!
//! Events at the same time run in the order in which they were scheduled.

use std::collections::BTreeMap;
use std::time::Duration;

/// A point in time or a duration, in microseconds.
pub type Micros = u64;

pub const MILLISECOND: Micros = 1000;
pub const SECOND: Micros = 1_000_000;

#[derive(Debug)]
pub struct EventQueue<E> {
    now: Micros,
    scheduled_count: u64,
    /// The events by time, and then by the order in which they were scheduled.
    events: BTreeMap<(Micros, u64), E>,
}

impl<E> Default for EventQueue<E> {
    fn default() -> EventQueue<E> {
        EventQueue { now: 0, scheduled_count: 0, events: BTreeMap::new() }
    }
}

impl<E> EventQueue<E> {
    pub fn now(&self) -> Micros {
        self.now
    }

    pub fn schedule(&mut self, wait: Micros, event: E) {
        self.scheduled_count += 1;
        self.events.insert((self.now + wait, self.scheduled_count), event);
    }

    /// Removes the next event and advances the time to it.
    pub fn next_event(&mut self) -> Option<E> {
        let ((at, _), event) = self.events.pop_first()?;
        self.now = at;
        Some(event)
    }
}

/// A machine's clock. It has an arbitrary start value and a drift, never goes back, and survives
/// crashes.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The simulated time when the drift was last set, and the time that the clock showed then.
    rate_set_at: (Micros, Micros),
    /// The drift in parts per million. It is negative if the clock is slow.
    drift_ppm: i64,
}

impl Clock {
    /// Creates a clock without a drift. It shows `shown` at simulated time 0.
    pub fn new(shown: Micros) -> Clock {
        Clock { rate_set_at: (0, shown), drift_ppm: 0 }
    }

    pub fn set_drift(&mut self, now: Micros, drift_ppm: i64) {
        self.rate_set_at = (now, self.read(now));
        self.drift_ppm = drift_ppm;
    }

    pub fn read(&self, now: Micros) -> Micros {
        let (since, shown) = self.rate_set_at;
        shown + scaled(now - since, 1_000_000 + self.drift_ppm, 1_000_000)
    }

    pub fn elapsed(&self, now: Micros) -> Duration {
        Duration::from_micros(self.read(now))
    }

    /// Returns how much simulated time passes while the clock advances by `shown`, rounded down,
    /// plus 1 µs.
    pub fn to_sim_time(&self, shown: Micros) -> Micros {
        scaled(shown, 1_000_000, 1_000_000 + self.drift_ppm) + 1
    }
}

fn scaled(time: Micros, by: i64, of: i64) -> Micros {
    let scaled = u128::from(time) * by.unsigned_abs() as u128 / of.unsigned_abs() as u128;
    u64::try_from(scaled).expect("a simulation lasts minutes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_the_order_of_planning() {
        let mut queue = EventQueue::default();
        for (wait, event) in [(5, "c"), (2, "a"), (5, "d"), (2, "b")] {
            queue.schedule(wait, event);
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.next_event()).collect();
        assert_eq!(order, ["a", "b", "c", "d"]);
        assert_eq!(queue.now(), 5);
        queue.schedule(1, "e");
        assert_eq!((queue.next_event(), queue.now()), (Some("e"), 6));
    }

    #[test]
    fn a_clock_drifts_and_never_jumps() {
        let mut clock = Clock::new(7 * SECOND);
        assert_eq!(clock.read(SECOND), 8 * SECOND);
        clock.set_drift(SECOND, 100_000);
        assert_eq!(clock.read(SECOND), 8 * SECOND);
        assert_eq!(clock.read(2 * SECOND), 9_100_000);
        clock.set_drift(2 * SECOND, -100_000);
        assert_eq!(clock.read(3 * SECOND), 10 * SECOND);
        assert_eq!(clock.to_sim_time(900), 1001);
    }
}
