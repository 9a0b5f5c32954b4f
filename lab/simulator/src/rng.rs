//! Random numbers. The same seed gives the same numbers, on every machine.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A random generator. Each user of random numbers has its own, so that a user that draws more
/// often does not change the numbers of another.
#[derive(Debug)]
pub struct Rng(StdRng);

impl Rng {
    /// Creates the generator for one purpose of a run.
    pub fn new(seed: u64, purpose: u64) -> Rng {
        Rng(StdRng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(purpose)))
    }

    /// Returns a number that is at least 0 and less than 1.
    pub fn unit(&mut self) -> f64 {
        self.0.random()
    }

    /// Returns a number that is at least 0 and less than `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.random_range(0..bound)
    }
}
