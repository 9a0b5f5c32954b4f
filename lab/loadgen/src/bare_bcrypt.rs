//! Measures how many passwords the cores can check if they do nothing else. The rates of servers in
//! the stall row `authenticate` are compared with this rate.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{Error, Result};

const PASSWORD: &str = "load-password";

#[derive(Clone, Copy, Debug)]
pub struct BareReport {
    pub cost: u32,
    pub threads: u64,
    pub checked: u64,
    /// The mean running time of the threads.
    pub elapsed: Duration,
}

/// Checks passwords on `threads` threads for the time `window`. Each thread completes its last
/// check, so it checks at least one password.
pub fn check_passwords(cost: u32, threads: u64, window: Duration) -> Result<BareReport> {
    let failed = |error| Error::Local(format!("--cost {cost}: {error}"));
    let hash = bcrypt::hash(PASSWORD, cost).map_err(failed)?;
    let (mut checked, mut elapsed) = (0, Duration::ZERO);
    thread::scope(|scope| {
        let loops: Vec<_> = (0..threads).map(|_| scope.spawn(|| check(&hash, window))).collect();
        for each in loops {
            let (own, took) = each.join().expect("bcrypt does not panic").map_err(failed)?;
            checked += own;
            elapsed += took;
        }
        Ok(BareReport { cost, threads, checked, elapsed: elapsed.div_f64(threads as f64) })
    })
}

fn check(
    hash: &str,
    window: Duration,
) -> std::result::Result<(u64, Duration), bcrypt::BcryptError> {
    let (start, mut checked) = (Instant::now(), 0);
    while start.elapsed() < window {
        bcrypt::verify(PASSWORD, hash)?;
        checked += 1;
    }
    Ok((checked, start.elapsed()))
}

impl BareReport {
    pub fn per_second(&self) -> f64 {
        self.checked as f64 / self.elapsed.as_secs_f64()
    }

    /// Returns the result as one line.
    pub fn line(&self) -> String {
        let BareReport { cost, threads, checked, elapsed } = self;
        let (seconds, rate) = (elapsed.as_secs_f64(), self.per_second());
        format!(
            "bcrypt of cost {cost}, {threads} threads: {checked} in {seconds:.1} s ({rate:.1}/s)"
        )
    }

    pub fn json(&self) -> Value {
        let BareReport { cost, threads, checked, elapsed } = self;
        json!({
            "cost": cost,
            "threads": threads,
            "checked": checked,
            "seconds": elapsed.as_secs_f64(),
            "per_second": self.per_second(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_checks_at_least_one() {
        let report = check_passwords(4, 3, Duration::from_millis(1)).expect("bcrypt takes 4");
        assert!(report.checked >= 3 && report.per_second() > 0.0, "{}", report.line());
        let told = check_passwords(99, 1, Duration::ZERO).map(drop).unwrap_err().to_string();
        assert!(told.starts_with("--cost 99: "), "{told}");
    }
}
