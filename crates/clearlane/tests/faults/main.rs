//! Tests with killed members, full disks and hostile clients. Acknowledged writes must not be lost,
//! and other clients must be served. Each member is a process, so a kill loses everything that the
//! member had in memory. For longer runs:
//!
//! ```text
//! CLEARLANE_KILLS=200 cargo test --release -p clearlane --test faults alone -- --nocapture
//! CLEARLANE_SECONDS=120 cargo test --release -p clearlane --test faults three -- --nocapture
//! CLEARLANE_ROUNDS=50 cargo test --release -p clearlane --test faults compacting -- --nocapture
//! CLEARLANE_ROUNDS=100 cargo test --release -p clearlane --test faults in_turn -- --nocapture
//! CLEARLANE_ROUNDS=50 cargo test --release -p clearlane --test faults stalled_disk -- --nocapture
//! CLEARLANE_KEYS=500000 CLEARLANE_TICK_MAX_MS=20 \
//!     cargo test --release -p clearlane --test faults heavy -- --nocapture --test-threads 1
//! ```
//!
//! `CLEARLANE_SEED` repeats the random choices of a run, and `CLEARLANE` names another program to
//! run.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and reports"
)]

#[path = "../tls/authority.rs"]
mod authority;
#[path = "../support/frames.rs"]
mod frames;
mod single_member;
mod lagging_follower;
mod compacting;
mod damaged_log;
mod full;
mod leaderless;
mod grpc_proxy;
mod heavy;
mod hostile;
mod in_turn;
mod links;
mod program;
mod sleeper;
mod stalled_disk;
#[path = "../support/mod.rs"]
mod support;
mod three;
mod wiped;
mod writers;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Returns a number from an environment variable, or `None` if it is not set.
fn env_number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a whole number"))
}

/// A random number generator that prints its seed.
struct SeededRng(StdRng);

impl SeededRng {
    fn new() -> SeededRng {
        let seed = env_number("CLEARLANE_SEED").unwrap_or_else(rand::random);
        println!("CLEARLANE_SEED={seed}");
        SeededRng(StdRng::seed_from_u64(seed))
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0.random_range(0..bound)
    }
}
