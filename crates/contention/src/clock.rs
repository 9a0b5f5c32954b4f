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

struct Origin {
    clock: Clock,
    zero: u64,
}

static ORIGIN: LazyLock<Origin> = LazyLock::new(|| {
    let clock = Clock::new();
    let zero = clock.raw();
    Origin { clock, zero }
});

/// Nanoseconds since the clock was first read in this process. All times of this crate are on this
/// clock.
#[inline]
pub fn now_ns() -> u64 {
    let origin = &*ORIGIN;
    origin.clock.delta_as_nanos(origin.zero, origin.clock.raw())
}
