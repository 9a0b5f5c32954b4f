//! One monotonic clock for every lock, in nanoseconds.
//!
//! A lock reads the clock at least twice per acquisition, so a reading must be cheap. `quanta` uses
//! the processor's cycle counter if the counter runs at a constant rate, and otherwise the system's
//! monotonic clock.
//!
//! Spans from other sources can share a timeline with the locks if they take their times from
//! [`now_ns`].
//!
//! The counters of two processors may differ by a few nanoseconds. Code that subtracts the readings
//! of two threads must use saturating subtraction.

use std::sync::LazyLock;

use quanta::Clock;

/// The clock, and its raw reading at the first use, which is time 0.
static ORIGIN: LazyLock<(Clock, u64)> = LazyLock::new(|| {
    let clock = Clock::new();
    let zero = clock.raw();
    (clock, zero)
});

/// Returns the nanoseconds since this clock was first read in this process. All times of this crate
/// are on this clock.
#[inline]
pub fn now_ns() -> u64 {
    let (clock, zero) = &*ORIGIN;
    clock.delta_as_nanos(*zero, clock.raw())
}
