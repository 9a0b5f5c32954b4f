//! Distributions of time: syncs of a disk, messages on a network.
//!
//! Such times have a lower limit and a long tail, so the model uses a lognormal distribution. It is
//! defined by two figures that every monitoring system has: the mean and the 99th percentile.
//!
//! ```text
//!   ln p99  = mu + 2.326 sigma             so   ln (p99 / mean) = 2.326 sigma - sigma² / 2
//!   ln mean = mu + sigma² / 2
//! ```
//!
//! These equations have a solution up to a 99th percentile of 14.97 times the mean.

use std::cell::RefCell;
use std::f64::consts::TAU;

use crate::Rng;

/// The 99th percentile of the normal distribution, in standard deviations.
const NORMAL_P99: f64 = 2.326_347_874;

/// Upper limit of the ratio of 99th percentile and mean.
pub const P99_MAX: f64 = 14.9;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    pub mean_ns: f64,
    /// The 99th percentile. If `None`, all times are equal.
    pub p99_ns: Option<f64>,
}

impl Spread {
    pub const fn constant(ns: u64) -> Spread {
        Spread { mean_ns: ns as f64, p99_ns: None }
    }

    #[must_use]
    pub fn times(self, times: f64) -> Spread {
        Spread { mean_ns: self.mean_ns * times, p99_ns: self.p99_ns.map(|ns| ns * times) }
    }

    /// Returns whether a lognormal distribution with these figures exists.
    pub fn is_possible(&self) -> bool {
        let within = |p99_ns| p99_ns >= self.mean_ns && p99_ns <= P99_MAX * self.mean_ns;
        self.p99_ns.is_none_or(within)
    }

    /// Returns the sigma of the lognormal distribution.
    fn sigma(&self) -> f64 {
        if self.mean_ns <= 0.0 {
            return 0.0;
        }
        let ratio = self.p99_ns.map_or(1.0, |p99_ns| p99_ns / self.mean_ns);
        let ratio = ratio.clamp(1.0, P99_MAX);
        NORMAL_P99 - (NORMAL_P99 * NORMAL_P99 - 2.0 * ratio.ln()).max(0.0).sqrt()
    }
}

#[derive(Debug)]
pub struct Times {
    mu: f64,
    sigma: f64,
    always_ns: Option<u64>,
    rng: RefCell<Rng>,
}

impl Times {
    pub fn new(spread: Spread, rng: Rng) -> Times {
        let sigma = spread.sigma();
        let is_constant = sigma == 0.0 || spread.mean_ns <= 0.0;
        let always_ns = is_constant.then_some(spread.mean_ns as u64);
        let mu = spread.mean_ns.max(1.0).ln() - sigma * sigma / 2.0;
        Times { mu, sigma, always_ns, rng: RefCell::new(rng) }
    }

    pub fn next_ns(&self) -> u64 {
        if let Some(ns) = self.always_ns {
            return ns;
        }
        // A normally distributed number from two draws (Box and Muller).
        let mut rng = self.rng.borrow_mut();
        let distance = (-2.0 * (1.0 - rng.unit()).ln()).sqrt();
        let normal = distance * (TAU * rng.unit()).cos();
        (self.mu + self.sigma * normal).exp() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(spread: Spread) -> Vec<u64> {
        let times = Times::new(spread, Rng::new(3, 0));
        let mut drawn: Vec<u64> = (0..200_000).map(|_| times.next_ns()).collect();
        drawn.sort_unstable();
        drawn
    }

    #[test]
    fn what_is_drawn_has_the_mean_and_the_percentile() {
        for p99 in [1.1e6, 3e6, 8e6, 14e6] {
            let drawn = drawn(Spread { mean_ns: 1e6, p99_ns: Some(p99) });
            let mean = drawn.iter().sum::<u64>() as f64 / drawn.len() as f64;
            // The tolerance is 3 %, because with a long tail the average approaches the mean
            // slowly.
            assert!((mean / 1e6 - 1.0).abs() < 0.03, "mean {mean} for {p99}");
            let found = drawn[drawn.len() * 99 / 100] as f64;
            assert!((found / p99 - 1.0).abs() < 0.06, "p99 {found} instead of {p99}");
        }
        assert!(drawn(Spread::constant(700)).iter().all(|ns| *ns == 700));
    }
}
