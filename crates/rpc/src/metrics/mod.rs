//! How is it doing, in numbers? The page that Prometheus reads.
//!
//! # The problem
//!
//! There are dashboards, alerts and tests for etcd, and all of them ask for names. A server that
//! calls its leader's age differently has no dashboard. And there are things to see here that etcd
//! does not measure.
//!
//! # The idea
//!
//! The names, types and labels are etcd's; ours begin with `clearlane_`. Nothing is collected that
//! lies somewhere already: the page is written when it is asked for, and the part that knows is asked then.
//!
//! ```text
//!                      ┌─ store      revision, sizes, alarms, members
//!   GET /metrics ──▶ page ─ node     what its threads have counted
//!                      ├─ threads    rpcs, summed over the network threads    thread
//!                      ├─ locks      who waited, how long
//!                      └─ process    memory, files
//! ```
//!
//! What remains to be counted on the way of a request is in [`thread`]: a few additions to memory
//! that no other thread writes to.
//!
//! # What differs
//!
//! Some of etcd's figures are of parts that are not here: a store of version 2, a proxy, pages of
//! bbolt. They are on the page, and stay zero, so that a query for a name finds it:
//! [`not_measured`]. What etcd measures elsewhere than we do, [`etcd`] tells case by case.

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
pub use self::thread::{CallMetrics, Counter, ThreadMetrics};

/// What the page is: text, in the form of this version.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What is shown besides what is counted.
#[derive(Clone, Debug, Default)]
pub struct MetricsOptions {
    /// Whether the time that calls take is shown for each rpc (`--metrics=extensive`).
    pub is_extensive: bool,
}

/// The figures of a server.
#[derive(Debug)]
pub struct RpcMetrics {
    options: MetricsOptions,
    threads: Mutex<Vec<Arc<ThreadCounters>>>,
}

impl RpcMetrics {
    /// Nothing was counted yet.
    pub fn new(options: MetricsOptions) -> RpcMetrics {
        RpcMetrics { options, threads: Mutex::default() }
    }

    /// A place for the counts of one thread.
    pub fn register_thread(&self) -> ThreadMetrics {
        let thread = ThreadMetrics::new();
        self.threads.lock().push(Arc::clone(&thread.counters));
        thread
    }

    /// The page.
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

/// The parts that are asked.
struct MetricSources<'s> {
    server: &'s Server,
    threads: &'s [Arc<ThreadCounters>],
    options: &'s MetricsOptions,
}

impl MetricSources<'_> {
    fn count(&self, counter: Counter) -> u64 {
        self.threads.iter().map(|cells| cells.count(counter)).sum()
    }
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
