//! Monotonic time, derived from a clock that may go back.
//!
//! The caller's clock should be monotonic, but it can go back if a virtual machine is moved, or
//! because of a mistake in the caller. If it went back by an hour, a retry that is due in 500 ms
//! would wait for an hour. So steps back are removed: the steady time stays the same for one call
//! and then continues. The time that really passed during a step is not known. This does not matter
//! for a time-out. But a lease must not extend over a step, so the step is reported.
//!
//! ```text
//!   given    5 s   6 s   2 s   3 s
//!   steady   5 s   6 s   6 s   7 s
//!                        └─ stepped back: no lease may extend over this
//! ```

use std::time::Duration;

#[derive(Debug, Default)]
pub(crate) struct SteadyClock {
    last_reading: Duration,
    /// The steady time minus the caller's time, which is the sum of all steps back.
    correction: Duration,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct ClockReading {
    /// The steady time. It is never less than in an earlier reading.
    pub(crate) now: Duration,
    /// If true, the caller's clock went back since the last reading.
    pub(crate) has_stepped_back: bool,
}

impl SteadyClock {
    pub(crate) fn read(&mut self, given: Duration) -> ClockReading {
        let step = self.last_reading.saturating_sub(given);
        self.last_reading = given;
        self.correction = self.correction.saturating_add(step);
        ClockReading {
            now: given.saturating_add(self.correction),
            has_stepped_back: !step.is_zero(),
        }
    }

    /// Converts a steady time to the caller's clock.
    pub(crate) fn to_caller_time(&self, steady: Duration) -> Duration {
        steady.saturating_sub(self.correction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_back_stands_still_and_is_told() {
        let mut clock = SteadyClock::default();
        let mut seen = Vec::new();
        for given in [5, 6, 2, 3, 3, 1, 9] {
            let moment = clock.read(Duration::from_secs(given));
            seen.push((moment.now.as_secs(), moment.has_stepped_back));
        }
        let expected =
            [(5, false), (6, false), (6, true), (7, false), (7, false), (7, true), (15, false)];
        assert_eq!(seen, expected);
        assert_eq!(clock.to_caller_time(Duration::from_secs(20)), Duration::from_secs(14));
    }

    #[test]
    fn the_end_of_time_is_no_overflow() {
        let mut clock = SteadyClock::default();
        clock.read(Duration::MAX);
        clock.read(Duration::ZERO);
        assert_eq!(clock.read(Duration::MAX).now, Duration::MAX);
    }
}
