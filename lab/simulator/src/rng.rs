//! Random numbers: the same seed draws the same ones, on every machine.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Each user of randomness has a generator of its own, so that one that draws more often does not
/// change the numbers of another.
#[derive(Debug)]
pub struct Rng(StdRng);

impl Rng {
    /// The generator for one purpose of a run.
    pub fn new(seed: u64, purpose: u64) -> Rng {
        Rng(StdRng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(purpose)))
    }

    /// From 0 to 1, exclusive.
    pub fn unit(&mut self) -> f64 {
        self.0.random()
    }

    /// From 0 to `bound`, exclusive.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.random_range(0..bound)
    }
}
