//! The page that Prometheus reads: `docs/http.md`.
//!
//! Names, types and labels are etcd's, so that its dashboards and alerts work; those of our own
//! begin with `clearlane_`. Most is read from its owner when the page is requested. What remains to
//! be counted on the path of a request is in [`thread`]; names of what is not measured are in
//! [`not_measured`].

mod not_measured;
mod etcd;
pub mod counted_call;
mod clearlane_only;
mod page;
mod peers;
mod process;
mod rpcs;
pub mod thread;

use std::sync::Arc;

use clearlane_server::Server;
use parking_lot::Mutex;

use self::page::MetricsPage;
use self::process::ProcessStats;
pub use self::rpcs::RpcMethod;
use self::thread::ThreadCounters;
pub use self::thread::{CallMetrics, ThreadMetrics};

pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Clone, Debug, Default)]
pub struct MetricsOptions {
    /// `--metrics=extensive`: durations of each rpc.
    pub is_extensive: bool,
}

#[derive(Debug)]
pub struct RpcMetrics {
    options: MetricsOptions,
    threads: Mutex<Vec<Arc<ThreadCounters>>>,
}

impl RpcMetrics {
    pub fn new(options: MetricsOptions) -> RpcMetrics {
        RpcMetrics { options, threads: Mutex::default() }
    }

    pub fn register_thread(&self) -> ThreadMetrics {
        let thread = ThreadMetrics::new();
        self.threads.lock().push(Arc::clone(&thread.counters));
        thread
    }

    pub fn render(&self, member: &Server) -> String {
        let threads = self.threads.lock().clone();
        let mut page = MetricsPage::default();
        let sources = MetricSources { server: member, threads: &threads, options: &self.options };
        etcd::write(&mut page, &sources);
        peers::write(&mut page, &sources);
        not_measured::write(&mut page);
        clearlane_only::write(&mut page, &sources);
        write_process(&mut page, &ProcessStats::read());
        page.into_text()
    }
}

struct MetricSources<'s> {
    server: &'s Server,
    threads: &'s [Arc<ThreadCounters>],
    options: &'s MetricsOptions,
}

fn write_process(page: &mut MetricsPage, process: &ProcessStats) {
    if let Some(seconds) = process.cpu_seconds {
        let help = "Total user and system CPU time spent in seconds.";
        page.counter("process_cpu_seconds_total", help, seconds);
    }
    let start = process.start_seconds;
    let help = "Start time of the process since unix epoch in seconds.";
    page.gauge("process_start_time_seconds", help, start);
    let gauges = [
        ("process_resident_memory_bytes", "Resident memory size in bytes.", process.resident_bytes),
        ("process_virtual_memory_bytes", "Virtual memory size in bytes.", process.virtual_bytes),
        ("process_open_fds", "Number of open file descriptors.", process.fds),
        ("process_max_fds", "Maximum number of open file descriptors.", process.fds_max),
        ("os_fd_used", "The number of used file descriptors", process.fds),
        ("os_fd_limit", "The file descriptor limit", process.fds_max),
    ];
    for (name, help, value) in gauges {
        if let Some(value) = value {
            page.gauge(name, help, value);
        }
    }
}
