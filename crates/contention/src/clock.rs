//! One monotonic clock for every lock, in nanoseconds.
//!
//! A lock reads the clock twice per acquisition, so a reading must be cheap: the processor's cycle
//! counter where it runs at a constant rate (`quanta` finds out), the system's monotonic clock
//! elsewhere. Spans of other sources share the timeline of the locks if they take their times from
//! [`now_ns`].
//!
//! Counters of two processors may differ by a few nanoseconds. Code that subtracts readings of
//! two threads subtracts with saturation.

use std::sync::LazyLock;

use quanta::Clock;

/// A clock, and its reading at the beginning.
static ORIGIN: LazyLock<(Clock, u64)> = LazyLock::new(|| {
    let clock = Clock::new();
    let zero = clock.raw();
    (clock, zero)
});

/// Nanoseconds since the clock was first read in this process. All times of this crate are on this
/// clock.
#[inline]
pub fn now_ns() -> u64 {
    let (clock, zero) = &*ORIGIN;
    clock.delta_as_nanos(*zero, clock.raw())
}
