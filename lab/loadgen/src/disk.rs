//! Measures how fast a disk syncs. Run this check before you run etcd on a machine.
//!
//! The check writes 22 MiB in blocks of 2,300 bytes and calls `fdatasync` after each block. etcd's
//! documentation describes the same check with another program. A server syncs its log in the same
//! way before it acknowledges a put. If the 99th percentile is above 10 ms, heartbeats are late and
//! may cause elections.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::report::QUANTILES;
use crate::stop::Stop;
use crate::{Error, Result};

pub const WRITE_BYTES: usize = 2300;
pub const TOTAL_BYTES: usize = 22 << 20;
pub const P99_MS_MAX: f64 = 10.0;
const FILE_NAME: &str = "clearlane-load-disk.tmp";

#[derive(Clone, Debug)]
pub struct DiskReport {
    /// Latencies in nanoseconds of one write with its sync.
    latency: Histogram<u64>,
    seconds: f64,
}

/// Writes a file in `dir` and removes it. `tell` is called once a second with the progress.
pub fn check_disk(dir: &Path, stop: &Stop, tell: &mut dyn FnMut(&str)) -> Result<DiskReport> {
    let path = dir.join(FILE_NAME);
    let wrong = |error| Error::Local(format!("--dir {}: {error}", dir.display()));
    // Fails if the file exists, because it may belong to another check that is running.
    let file = OpenOptions::new().write(true).create_new(true).open(&path).map_err(wrong)?;
    // The name is removed immediately. The file itself is freed when the process closes it or ends.
    // So no file is left over.
    std::fs::remove_file(&path).map_err(wrong)?;
    write_all(file, stop, tell).map_err(wrong)
}

fn write_all(
    mut file: File,
    stop: &Stop,
    tell: &mut dyn FnMut(&str),
) -> std::io::Result<DiskReport> {
    let mut latency = Histogram::new(3).expect("three digits are in the bounds");
    let block = [0x5a; WRITE_BYTES];
    let writes = TOTAL_BYTES / WRITE_BYTES;
    let (begin, mut told) = (Instant::now(), 0);
    for number in 0..writes {
        let start = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        latency.record(start.elapsed().as_nanos() as u64).expect("it grows to the longest");
        if begin.elapsed().as_secs() > told {
            told = begin.elapsed().as_secs();
            tell(&format!("{told:3} s: {} of {writes} writes", number + 1));
        }
        if stop.is_set() {
            break;
        }
    }
    Ok(DiskReport { latency, seconds: begin.elapsed().as_secs_f64() })
}

impl DiskReport {
    fn ms(&self, quantile: f64) -> f64 {
        self.latency.value_at_quantile(quantile) as f64 / 1e6
    }

    pub fn is_good(&self) -> bool {
        self.ms(0.99) <= P99_MS_MAX
    }

    pub fn lines(&self) -> String {
        let times = QUANTILES.map(|(name, quantile)| format!("{name} {:.3}", self.ms(quantile)));
        let count = self.latency.len();
        let rate = count as f64 / self.seconds;
        let verdict = if self.is_good() {
            format!("good: p99 is at most {P99_MS_MAX} ms")
        } else {
            format!("too slow: p99 is above {P99_MS_MAX} ms, and heartbeats will be late")
        };
        format!(
            "{count} writes of {WRITE_BYTES} bytes, each synced, in {:.1} s: {rate:.0}/s\n\
             latency in ms: {}\n{verdict}",
            self.seconds,
            times.join(", ")
        )
    }

    pub fn json(&self) -> Value {
        let latency = QUANTILES.map(|(name, quantile)| (name, self.ms(quantile)));
        let latency = Value::from_iter(latency);
        json!({
            "writes": self.latency.len(),
            "write_bytes": WRITE_BYTES,
            "seconds": self.seconds,
            "latency_ms": latency,
            "good": self.is_good(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_follows_the_99th_percentile() {
        let mut latency = Histogram::new(3).expect("three digits are in the bounds");
        for (nanoseconds, count) in [(1_000_000, 985), (20_000_000, 15)] {
            latency.record_n(nanoseconds, count).expect("it grows to the longest");
        }
        let report = DiskReport { latency, seconds: 2.0 };
        assert!(!report.is_good());
        let lines = report.lines();
        assert!(lines.starts_with("1000 writes of 2300 bytes, each synced, in 2.0 s: 500/s"));
        assert!(lines.contains("too slow: p99 is above 10 ms"), "{lines}");
    }

    #[test]
    fn a_directory_that_is_not_there_is_told() {
        let missing = Path::new("/nowhere/at/all");
        let told = check_disk(missing, &Stop::default(), &mut |_| {}).map(drop);
        let told = told.expect_err("it is not there").to_string();
        assert!(told.starts_with("--dir /nowhere/at/all: "), "{told}");
    }
}
