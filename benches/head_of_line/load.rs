//! The names of the loads and classes, and open-loop arrivals.

use std::time::{Duration, Instant};

use clearlane_server::observe::trace::LaneKind;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// The load that runs in addition to the measured operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// No additional load.
    Idle,
    /// A thread that keeps a core as busy as the expensive read does, without using the store. It
    /// shows the cost of a busy core.
    Spin,
    /// A thread that repeatedly reads many records. In addition to the cost of `Spin`, it has the
    /// cost of the era's locks, and of the read's memory bandwidth and allocations.
    Expensive,
}

impl Load {
    pub(crate) const ALL: [Load; 3] = [Load::Idle, Load::Spin, Load::Expensive];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Load::Idle => "calm",
            Load::Spin => "spin",
            Load::Expensive => "expensive",
        }
    }
}

/// The measured classes of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    CheapRead,
    Put,
}

impl Class {
    pub(crate) const ALL: [Class; 2] = [Class::CheapRead, Class::Put];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Class::CheapRead => "cheap_read",
            Class::Put => "put",
        }
    }

    /// Returns whether the class reads or writes, for a timeline.
    pub(crate) fn kind(self) -> LaneKind {
        match self {
            Class::CheapRead => LaneKind::Read,
            Class::Put => LaneKind::Write,
        }
    }

    /// Returns the mean number of arrivals per second at each client.
    fn rate(self) -> f64 {
        match self {
            Class::CheapRead => 25.0,
            Class::Put => 250.0,
        }
    }

    /// Returns the number of clients. Reads have several clients, so that a waiting read does not
    /// delay the next read. Puts have one client, because a server has one apply loop.
    pub(crate) fn clients(self) -> u64 {
        match self {
            Class::CheapRead => 8,
            Class::Put => 1,
        }
    }
}

/// A client stops sleeping and spins this long before an arrival, because sleeping is inexact.
const SPIN_BEFORE: Duration = Duration::from_micros(80);

/// Open-loop arrivals: exponential gaps from a seed, independent of how long operations take.
pub(crate) struct Arrivals {
    gaps: SmallRng,
    /// Random choices. They have a separate generator, so that the gaps do not depend on the
    /// operations.
    choices: SmallRng,
    rate: f64,
    due: Instant,
    end: Instant,
}

impl Arrivals {
    pub(crate) fn new(
        class: Class,
        client: u64,
        start: Instant,
        window: Duration,
        seed: u64,
    ) -> Arrivals {
        let seed = (seed * 2 + class as u64) * 100 + client;
        Arrivals {
            gaps: SmallRng::seed_from_u64(seed),
            choices: SmallRng::seed_from_u64(!seed),
            rate: class.rate(),
            due: start,
            end: start + window,
        }
    }

    /// Waits for the next arrival, unless it is already overdue, and returns its due time. After
    /// the end of the window, the remaining arrivals are returned without a wait. Returns `None` if
    /// no further arrival is due in the window.
    pub(crate) fn next(&mut self) -> Option<Instant> {
        let uniform: f64 = self.gaps.random_range(f64::EPSILON..1.0);
        self.due += Duration::from_secs_f64(-uniform.ln() / self.rate);
        if self.due >= self.end {
            return None;
        }
        wait_until(self.due);
        Some(self.due)
    }

    /// Returns whether the window is over. Operations that are still queued then are not executed:
    /// if an era falls behind, the window would otherwise become as long as its queue.
    pub(crate) fn are_over(&self) -> bool {
        Instant::now() >= self.end
    }

    /// Returns a number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.choices.random_range(0..bound)
    }
}

fn wait_until(due: Instant) {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        match left.checked_sub(SPIN_BEFORE) {
            Some(time) if !time.is_zero() => std::thread::sleep(time),
            _ => std::hint::spin_loop(),
        }
    }
}
