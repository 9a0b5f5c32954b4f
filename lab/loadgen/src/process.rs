//! Processor time and memory of the server's process, from `/proc`.
//!
//! `/proc/PID/stat` has the processor time of all threads, ended ones included, in ticks of 10 ms.
//! `/proc/PID/status` has the resident memory and its peak. The peak is since the process started,
//! so that of a run is known only if the run exceeds it; a server that was filled by the same
//! process keeps the peak of the fill.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// `USER_HZ`: Linux reports times in hundredths of a second, whatever its own ticks are.
const TICKS_PER_SECOND: u64 = 100;

#[derive(Clone, Debug)]
pub struct Process {
    pid: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessUsage {
    /// User and system time since the process started.
    pub processor: Duration,
    pub resident_bytes: u64,
    /// Since the process started.
    pub peak_bytes: u64,
}

impl Process {
    /// An error if the process cannot be read.
    pub fn open(pid: u32) -> Result<Process> {
        if !Path::new("/proc/self/stat").exists() {
            let why = "this system has no /proc, so what the server uses is not known";
            return Err(Error::Local(format!("--pid {pid}: {why}; leave --pid out")));
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
        let strange = || Error::Local(format!("--pid {}: /proc is not as on Linux", self.pid));
        let processor = processor_time(&read("stat")?).ok_or_else(strange)?;
        let status = read("status")?;
        let bytes = |name| memory_bytes(&status, name).ok_or_else(strange);
        let (resident_bytes, peak_bytes) = (bytes("VmRSS:")?, bytes("VmHWM:")?);
        Ok(ProcessUsage { processor, resident_bytes, peak_bytes })
    }
}

/// What the driver itself used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverUsage {
    /// `None` where it is not known.
    pub processor: Option<Duration>,
    pub elapsed: Duration,
    pub threads: u64,
}

/// From the beginning of a run on.
#[derive(Debug)]
pub struct DriverTimer {
    process: Option<Process>,
    before: Option<Duration>,
    start: Instant,
    threads: u64,
}

impl DriverUsage {
    pub fn begin(threads: u64) -> DriverTimer {
        let process = Process::open(std::process::id()).ok();
        let before = process.as_ref().and_then(processor_of);
        DriverTimer { process, before, start: Instant::now(), threads }
    }

    /// The part of its threads' time in which they ran.
    pub fn share(&self) -> Option<f64> {
        let all = self.elapsed.as_secs_f64() * self.threads as f64;
        self.processor.map(|used| used.as_secs_f64() / all.max(f64::MIN_POSITIVE))
    }
}

impl DriverTimer {
    pub fn end(self) -> DriverUsage {
        let after = self.process.as_ref().and_then(processor_of);
        DriverUsage {
            processor: after.zip(self.before).map(|(after, before)| after - before),
            elapsed: self.start.elapsed(),
            threads: self.threads,
        }
    }
}

fn processor_of(process: &Process) -> Option<Duration> {
    process.usage().ok().map(|usage| usage.processor)
}

/// Fields 14 and 15. Field 2 is a name in brackets that may contain anything, brackets too.
fn processor_time(stat: &str) -> Option<Duration> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    let mut fields = behind_name.split_whitespace().skip(14 - 3);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some(Duration::from_millis((ticks()? + ticks()?) * 1000 / TICKS_PER_SECOND))
}

/// Reads a line as `VmRSS: 1234 kB`, with any white space.
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
        assert_eq!(memory_bytes(status, "VmHWM:"), Some(2 << 20));
        assert_eq!(memory_bytes(status, "VmRSS:"), Some(1 << 20));
        assert_eq!(memory_bytes(status, "VmSwap:"), None);
    }

    #[test]
    fn a_process_that_is_not_there_is_told() {
        // Above the largest number that Linux gives to a process.
        let told = Process::open(u32::MAX).map(drop).expect_err("no process has it").to_string();
        assert!(told.starts_with("--pid 4294967295: "), "{told}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_uses_something() {
        let used = Process::open(std::process::id()).and_then(|this| this.usage());
        let used = used.expect("this process is there");
        assert!(used.peak_bytes >= used.resident_bytes && used.resident_bytes > 0, "{used:?}");
    }
}
