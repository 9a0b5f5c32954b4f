//! A monotonic time, made of one that may go back.
//!
//! The caller's clock should be monotonic, but a virtual machine that was moved, or a caller's
//! mistake, can take it back. A round that is due at 10:00:07 would then wait for an hour. So a
//! step back is taken out: time stands still for one call and goes on from there. How long the step
//! took is not known. That does not matter to a time-out, but a lease must not count over it; so
//! the step is reported.
//! ```text
//!   told     5 s   6 s   2 s   3 s
//!   steady   5 s   6 s   6 s   7 s
//!                        └─ stepped back: no lease may count over this
//! ```

use std::time::Duration;

#[derive(Debug, Default)]
pub(crate) struct SteadyClock {
    last_reading: Duration,
    /// Steady time minus the caller's time: the sum of all steps back.
    correction: Duration,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct ClockReading {
    /// Not less than in any earlier reading.
    pub(crate) now: Duration,
    /// Whether the caller's clock went back since the last reading.
    pub(crate) has_stepped_back: bool,
}

impl SteadyClock {
    pub(crate) fn read(&mut self, told: Duration) -> ClockReading {
        let step = self.last_reading.saturating_sub(told);
        self.last_reading = told;
        self.correction = self.correction.saturating_add(step);
        ClockReading {
            now: told.saturating_add(self.correction),
            has_stepped_back: !step.is_zero(),
        }
    }

    /// When the caller's clock will show this steady time.
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
        for told in [5, 6, 2, 3, 3, 1, 9] {
            let moment = clock.read(Duration::from_secs(told));
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
