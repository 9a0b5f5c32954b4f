//! What the operating system knows of this process.
//!
//! Linux shows it in `/proc`. Elsewhere what cannot be known is not shown, but for the start, which
//! is then the time of the first query.

use std::fs;
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Debug, Default)]
pub(super) struct ProcessStats {
    pub(super) cpu_seconds: Option<f64>,
    pub(super) resident_bytes: Option<u64>,
    pub(super) virtual_bytes: Option<u64>,
    pub(super) start_seconds: f64,
    pub(super) fds: Option<u64>,
    pub(super) fds_max: Option<u64>,
}

/// The kernel counts in ticks of this length and pages of that, on all that we run on: neither can
/// be asked for without calling into C.
const TICKS_PER_SECOND: f64 = 100.0;

static FIRST_ASKED: LazyLock<f64> = LazyLock::new(|| {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
});

impl ProcessStats {
    pub(super) fn read() -> ProcessStats {
        let mut process = ProcessStats { start_seconds: *FIRST_ASKED, ..ProcessStats::default() };
        if let Ok(status) = fs::read_to_string("/proc/self/status") {
            process.resident_bytes = kib(&status, "VmRSS:");
            process.virtual_bytes = kib(&status, "VmSize:");
        }
        process.read_stat();
        process.fds = fs::read_dir("/proc/self/fd").ok().map(|open| open.count() as u64);
        if let Ok(limits) = fs::read_to_string("/proc/self/limits") {
            let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
            process.fds_max = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        }
        process
    }

    /// Fields are counted behind the name, which is in parentheses and may have any character.
    fn read_stat(&mut self) {
        let Ok(stat) = fs::read_to_string("/proc/self/stat") else { return };
        let Some((_, fields)) = stat.rsplit_once(") ") else { return };
        let fields: Vec<f64> =
            fields.split_whitespace().map(|field| field.parse().unwrap_or(0.0)).collect();
        let [user, system, start] = [11, 12, 19].map(|at| fields.get(at).copied().unwrap_or(0.0));
        self.cpu_seconds = Some((user + system) / TICKS_PER_SECOND);
        let boot = fs::read_to_string("/proc/stat").ok().and_then(|stat| {
            stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse::<f64>().ok()
        });
        if let Some(boot) = boot {
            self.start_seconds = boot + start / TICKS_PER_SECOND;
        }
    }
}

fn kib(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn linux_tells_everything() {
        let process = ProcessStats::read();
        assert!(process.resident_bytes.unwrap() > 1 << 20);
        assert!(process.virtual_bytes >= process.resident_bytes);
        assert!(process.fds.unwrap() >= 3 && process.fds <= process.fds_max);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        assert!((now - 3600.0..=now + 1.0).contains(&process.start_seconds), "{process:?}");
        assert!(process.cpu_seconds.unwrap() >= 0.0);
    }
}
