//! The names of the loads and classes, and open-loop arrivals.

use std::time::{Duration, Instant};

use clearlane_server::trace::LaneKind;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// What goes on beside the measured operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// Nothing.
    Idle,
    /// A thread that keeps a core as busy as the expensive read does, without touching the store:
    /// what this costs is the price of the busy core.
    Spin,
    /// A thread that reads many records, again and again. Compared with `Spin`, this also has the
    /// cost of the era's locks, and of the memory bandwidth and allocations of the read.
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

/// What is measured.
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

    /// Whether it reads, for a timeline.
    pub(crate) fn kind(self) -> LaneKind {
        match self {
            Class::CheapRead => LaneKind::Read,
            Class::Put => LaneKind::Write,
        }
    }

    /// Mean arrivals per second at each client.
    fn rate(self) -> f64 {
        match self {
            Class::CheapRead => 25.0,
            Class::Put => 250.0,
        }
    }

    /// How many clients issue them. Reads come from several, so that one that waits does not hold
    /// back the next; puts from one, as a server has one applier.
    pub(crate) fn clients(self) -> u64 {
        match self {
            Class::CheapRead => 8,
            Class::Put => 1,
        }
    }
}

/// A client sleeps until this long before an arrival and spins then, because sleeping is inexact.
const SPIN_BEFORE: Duration = Duration::from_micros(80);

/// Open-loop arrivals: exponential gaps from a seed, independent of how long operations take.
pub(crate) struct Arrivals {
    gaps: SmallRng,
    /// Apart from the gaps, which must not depend on what is done in between.
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

    /// Waits for the next arrival, if it is not overdue already, and says when it was due. Once the
    /// window is over, arrivals that are still due come without a wait.
    pub(crate) fn next(&mut self) -> Option<Instant> {
        let uniform: f64 = self.gaps.random_range(f64::EPSILON..1.0);
        self.due += Duration::from_secs_f64(-uniform.ln() / self.rate);
        if self.due >= self.end {
            return None;
        }
        wait_until(self.due);
        Some(self.due)
    }

    /// Whether the window is over. What was due before and has not been served is not served any
    /// more: an era that falls behind would make the window as long as its queue.
    pub(crate) fn are_over(&self) -> bool {
        Instant::now() >= self.end
    }

    /// A number below `bound`.
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
