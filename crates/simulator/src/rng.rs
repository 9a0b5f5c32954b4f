//! Chance, from a seed: the same seed draws the same numbers, on every machine.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A source of numbers. Each user of chance has one of its own, so that one that draws more often
/// does not change what another one draws.
#[derive(Debug)]
pub struct Rng(StdRng);

impl Rng {
    /// The source for one purpose of a run.
    pub fn new(seed: u64, purpose: u64) -> Rng {
        Rng(StdRng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(purpose)))
    }

    /// From 0 to 1, without 1.
    pub fn unit(&mut self) -> f64 {
        self.0.random()
    }

    /// From 0 to the bound, without that.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.random_range(0..bound)
    }
}
