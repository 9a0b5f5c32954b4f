//! Metrics of this process from the operating system.
//!
//! Linux provides their values in `/proc`. On other systems these metrics are omitted. Only the
//! start time is shown on all systems; without `/proc`, it is the time of the first request for the
//! metrics page.

use std::fs;
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use super::page::MetricsPage;

/// Number of ticks per second in the times of `/proc`, on all systems that we support. It cannot be
/// queried without a call into C.
const TICKS_PER_SECOND: f64 = 100.0;

static FIRST_ASKED: LazyLock<f64> = LazyLock::new(|| {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
});

pub(super) fn write(page: &mut MetricsPage) {
    let (mut start, stat) = (*FIRST_ASKED, stat());
    if let Some([user, system, start_ticks]) = stat {
        let help = "Total user and system CPU time spent in seconds.";
        page.counter("process_cpu_seconds_total", help, (user + system) / TICKS_PER_SECOND);
        if let Some(boot) = number_after("/proc/stat", "btime ") {
            start = boot as f64 + start_ticks / TICKS_PER_SECOND;
        }
    }
    let help = "Start time of the process since unix epoch in seconds.";
    page.gauge("process_start_time_seconds", help, start);
    let kib = |name| number_after("/proc/self/status", name).map(|kib| kib * 1024);
    let (resident, size) = (kib("VmRSS:"), kib("VmSize:"));
    let fds = fs::read_dir("/proc/self/fd").ok().map(|open| open.count() as u64);
    let fds_max = number_after("/proc/self/limits", "Max open files");
    let gauges = [
        ("process_resident_memory_bytes", "Resident memory size in bytes.", resident),
        ("process_virtual_memory_bytes", "Virtual memory size in bytes.", size),
        ("process_open_fds", "Number of open file descriptors.", fds),
        ("process_max_fds", "Maximum number of open file descriptors.", fds_max),
        ("os_fd_used", "The number of used file descriptors", fds),
        ("os_fd_limit", "The file descriptor limit", fds_max),
    ];
    for (name, help, value) in gauges {
        if let Some(value) = value {
            page.gauge(name, help, value);
        }
    }
}

/// Returns the ticks of this process in user mode, its ticks in the kernel, and the ticks from boot
/// to its start. Returns `None` if `/proc` cannot be read. The positions of the fields are counted
/// from the end of the name of the process, which is in parentheses and may contain any character.
fn stat() -> Option<[f64; 3]> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split_whitespace().collect();
    Some([11, 12, 19].map(|at| fields.get(at).and_then(|at| at.parse().ok()).unwrap_or(0.0)))
}

fn number_after(file: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn linux_tells_everything() {
        let mut page = MetricsPage::default();
        write(&mut page);
        let text = page.into_text();
        let value = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
            line.unwrap().parse().unwrap()
        };
        let resident = value("process_resident_memory_bytes");
        assert!(resident > 1e6 && value("process_virtual_memory_bytes") >= resident);
        assert!(value("process_open_fds") >= 3.0 && value("os_fd_limit") >= value("os_fd_used"));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        assert!((now - 3600.0..=now + 1.0).contains(&value("process_start_time_seconds")));
        assert!(value("process_cpu_seconds_total") >= 0.0);
    }
}
