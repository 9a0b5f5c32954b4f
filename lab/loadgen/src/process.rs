//! Processor time and memory of the server's process, read from `/proc`.
//!
//! `/proc/PID/stat` has the processor time of all threads, including ended ones, in ticks of 10 ms.
//! `/proc/PID/status` has the resident memory and its peak since the start of the process. So the
//! peak of a run is known only if it is above all earlier peaks. If the same process was filled
//! before the run, the peak may be from the fill.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// The constant `USER_HZ`. Linux reports times in hundredths of a second, independent of its
/// internal ticks.
const TICKS_PER_SECOND: u64 = 100;

#[derive(Clone, Debug)]
pub struct Process {
    pid: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// User and system time since the process started.
    pub processor: Duration,
    pub resident_bytes: u64,
    /// The peak of the resident memory since the process started.
    pub peak_bytes: u64,
}

impl Process {
    /// Returns the process with this ID. Fails if the usage of the process cannot be read.
    pub fn open(pid: u32) -> Result<Process> {
        if !Path::new("/proc/self/stat").exists() {
            let why = "this system has no /proc, so the server's usage is unknown";
            return Err(Error::Local(format!("--pid {pid}: {why}; omit --pid")));
        }
        let process = Process { pid };
        process.usage().map(|_| process)
    }

    pub fn usage(&self) -> Result<ProcessUsage> {
        let read = |name: &str| {
            let gone =
                |error| Error::Local(format!("--pid {}: no such process: {error}", self.pid));
            fs::read_to_string(format!("/proc/{}/{name}", self.pid)).map_err(gone)
        };
        let strange =
            || Error::Local(format!("--pid {}: /proc does not have the format of Linux", self.pid));
        let processor = processor_time(&read("stat")?).ok_or_else(strange)?;
        let status = read("status")?;
        let bytes = |name| memory_bytes(&status, name).ok_or_else(strange);
        let (resident_bytes, peak_bytes) = (bytes("VmRSS:")?, bytes("VmHWM:")?);
        Ok(ProcessUsage { processor, resident_bytes, peak_bytes })
    }
}

/// The processor time that the driver itself used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverUsage {
    /// Processor time of all threads of the driver. `None` if the system does not report it.
    pub processor: Option<Duration>,
    pub elapsed: Duration,
    pub threads: u64,
}

impl DriverUsage {
    /// Starts to measure. The result is a function that ends the measurement.
    pub fn begin(threads: u64) -> impl FnOnce() -> DriverUsage {
        let (before, start) = (own_processor_time(), Instant::now());
        move || DriverUsage {
            processor: own_processor_time().zip(before).map(|(after, before)| after - before),
            elapsed: start.elapsed(),
            threads,
        }
    }

    /// Returns the fraction of the time that the driver's threads were running, or `None` if the
    /// processor time is not known.
    pub fn share(&self) -> Option<f64> {
        let all = self.elapsed.as_secs_f64() * self.threads as f64;
        self.processor.map(|used| used.as_secs_f64() / all.max(f64::MIN_POSITIVE))
    }
}

fn own_processor_time() -> Option<Duration> {
    Process::open(std::process::id()).and_then(|this| this.usage()).ok().map(|used| used.processor)
}

/// Returns the sum of fields 14 and 15 of `/proc/PID/stat`, which are the user and system time.
/// Field 2 is a name in parentheses that may itself contain parentheses. So fields are counted from
/// the last closing parenthesis.
fn processor_time(stat: &str) -> Option<Duration> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    let mut fields = behind_name.split_whitespace().skip(14 - 3);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some(Duration::from_millis((ticks()? + ticks()?) * 1000 / TICKS_PER_SECOND))
}

/// Reads a line such as `VmRSS: 1234 kB`. The amount of white space does not matter.
fn memory_bytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194560 9 0 0 0 123 77 5 6 20 0 3 0 100 1 2";
        assert_eq!(processor_time(stat), Some(Duration::from_secs(2)));
        assert_eq!(processor_time("42 (a) S 1 2 3"), None);
        assert_eq!(processor_time(""), None);
    }

    #[test]
    fn memory_is_given_in_kib() {
        let status = "Name:\ta\nVmHWM:\t    2048 kB\nVmRSS:\t 1024 kB\n";
        let bytes = ["VmHWM:", "VmRSS:", "VmSwap:"].map(|name| memory_bytes(status, name));
        assert_eq!(bytes, [Some(2 << 20), Some(1 << 20), None]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_uses_something() {
        let used = Process::open(std::process::id()).and_then(|this| this.usage());
        let used = used.expect("this process is there");
        assert!(used.peak_bytes >= used.resident_bytes && used.resident_bytes > 0, "{used:?}");
    }
}
