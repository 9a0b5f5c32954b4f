//! The page that Prometheus reads: `docs/http.md`.
//!
//! Names, types and labels are the same as etcd's, so that etcd's dashboards and alerts work. Our
//! own metrics start with `clearlane_`. Most values are read from their owners when the page is
//! requested. The module [`thread`] has the values that must be counted while a request is served.
//! The module [`not_measured`] has the names of etcd's metrics that are not measured here.

mod not_measured;
mod etcd;
pub(crate) mod counted_call;
mod clearlane_only;
mod page;
mod peers;
mod process;
mod rpcs;
mod thread;

use std::sync::Arc;

use clearlane_server::Server;
use parking_lot::Mutex;

use self::page::MetricsPage;
pub use self::rpcs::RpcMethod;
use self::thread::ThreadCounters;
pub use self::thread::{CallMetrics, ThreadMetrics};

pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Debug, Default)]
pub struct RpcMetrics {
    is_extensive: bool,
    threads: Mutex<Vec<Arc<ThreadCounters>>>,
}

impl RpcMetrics {
    /// If `is_extensive` is true (`--metrics=extensive`), the page has the durations of each rpc.
    pub fn new(is_extensive: bool) -> RpcMetrics {
        RpcMetrics { is_extensive, threads: Mutex::default() }
    }

    pub fn register_thread(&self) -> ThreadMetrics {
        let thread = ThreadMetrics::new();
        self.threads.lock().push(Arc::clone(&thread.counters));
        thread
    }

    pub fn render(&self, member: &Server) -> String {
        let threads = self.threads.lock().clone();
        let mut page = MetricsPage::default();
        let is_extensive = self.is_extensive;
        let sources = MetricSources { server: member, threads: &threads, is_extensive };
        etcd::write(&mut page, &sources);
        peers::write(&mut page, &sources);
        not_measured::write(&mut page);
        clearlane_only::write(&mut page, &sources);
        process::write(&mut page);
        page.into_text()
    }
}

struct MetricSources<'s> {
    server: &'s Server,
    threads: &'s [Arc<ThreadCounters>],
    is_extensive: bool,
}
