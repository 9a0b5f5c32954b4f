//! What time is it? One monotonic clock for every lock, in nanoseconds.
//!
//! A lock reads the clock twice per acquisition, so the reading must cost little: the processor's
//! cycle counter where it runs at a constant rate (`quanta` finds out), the system's monotonic
//! clock elsewhere. Readings are nanoseconds since the first reading of the process, so that they
//! can stand on one timeline with spans from other sources: take those from [`now_ns`] too.
//!
//! Counters of two processors may differ by a few nanoseconds. Code that subtracts readings of
//! two threads subtracts with saturation.

use std::sync::LazyLock;

use quanta::Clock;

/// The calibrated clock and the reading that counts as zero.
struct Origin {
    clock: Clock,
    zero: u64,
}

static ORIGIN: LazyLock<Origin> = LazyLock::new(|| {
    let clock = Clock::new();
    let zero = clock.raw();
    Origin { clock, zero }
});

/// Nanoseconds since the clock was first read in this process. All times of this crate (reports,
/// events, waiting lists) are on this clock.
#[inline]
pub fn now_ns() -> u64 {
    let origin = &*ORIGIN;
    origin.clock.delta_as_nanos(origin.zero, origin.clock.raw())
}
