//! So many clients, each of which sends its next request when the one before is answered: what a
//! server can do at most, and how long a client waits then.
//!
//! Threads of their own, half as many as there are cores: the other half is the server's.

use std::thread;
use std::time::Duration;

use tokio::time::sleep;

use super::load::{WARM_UP, warn_of_failures};
use super::measurements::Measurements;
use crate::class_metrics::ClassMetrics;
use crate::closed_loop::engine::{self, LoopOptions, LoopRequest, RequestSource, WarmUp};
use crate::connection::{self, Endpoints};
use crate::requests::RequestGenerator;
use crate::run::WindowBegin;
use crate::stop::Stop;
use crate::workload::Workload;
use crate::{Error, Result};

const THREADS_MAX: usize = 8;
/// At most, as in etcd's own measurements.
const CLIENTS_PER_CONNECTION: u64 = 10;

#[derive(Clone, Copy, Debug)]
pub(super) struct ClosedLoop<'a> {
    /// Clients are spread over them.
    pub(super) endpoints: &'a [String],
    pub(super) workload: &'a Workload,
    /// The name of the class whose requests are sent; its rate and arrivals do not count.
    pub(super) class: &'a str,
    pub(super) clients: u64,
    pub(super) window: Duration,
    pub(super) seed: u64,
}

#[derive(Clone, Debug)]
pub(super) struct ClosedLoopReport {
    pub(super) metrics: ClassMetrics,
    /// In which requests were sent and answered.
    pub(super) window: Duration,
}

impl ClosedLoopReport {
    pub(super) fn per_second(&self) -> f64 {
        self.metrics.answered_per_second(self.window)
    }

    /// `FIGURE/per second`, `FIGURE/p50` and `FIGURE/p99`, at a point if there are several.
    pub(super) fn record(
        &self,
        figure: &str,
        at: impl Into<Option<f64>>,
        server: &str,
        into: &mut Measurements,
    ) {
        let at = at.into();
        into.add_at(server, &format!("{figure}/per second"), at, self.per_second());
        for (name, quantile) in [("p50", 0.5), ("p99", 0.99)] {
            if let Some(latency) = self.metrics.latency_ms(quantile) {
                into.add_at(server, &format!("{figure}/{name}"), at, latency);
            }
        }
        warn_of_failures(&self.metrics, &format!("{server}, {figure}"), into);
    }
}

impl ClosedLoop<'_> {
    /// Behind a warm-up.
    pub(super) async fn run(self) -> Result<ClosedLoopReport> {
        self.run_after(Box::pin(async { sleep(WARM_UP).await })).await
    }

    /// In the window of an open loop that goes on beside it: before, it warms up.
    pub(super) async fn run_beside(self, begin: WindowBegin) -> Result<ClosedLoopReport> {
        self.run_after(Box::pin(async move { begin.wait().await })).await
    }

    async fn run_after(self, warm_up: WarmUp) -> Result<ClosedLoopReport> {
        let ClosedLoop { endpoints, workload, class, clients, window, seed } = self;
        let found = workload.classes.iter().find(|known| known.name == class);
        let no_class = || Error::Workload(format!("there is no class {class}"));
        let class = found.ok_or_else(no_class)?;
        let endpoints = endpoints.iter().map(|endpoint| connection::endpoint(endpoint));
        let endpoints = endpoints.collect::<Result<Vec<_>>>()?;
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores / 2).clamp(1, THREADS_MAX) as u64;
        // Each thread has as many of each endpoint, if there are clients for them.
        let connections = clients.div_ceil(CLIENTS_PER_CONNECTION);
        let options = LoopOptions {
            connections: connections.next_multiple_of(endpoints.len() as u64 * threads),
            endpoints: Endpoints::new(endpoints)?,
            session: None,
            clients,
            threads,
            total: u64::MAX,
            rate: None,
            warm_up: Some(warm_up),
            window: Some(window),
            stop: Stop::default(),
        };
        let generator = |thread: u64| {
            let seed = seed.wrapping_mul(1 << 20).wrapping_add(thread);
            RequestGenerator::new(class, workload, (None, 0), seed)
        };
        let generators = (0..options.threads()).map(generator);
        let mut generators = generators.collect::<Result<Vec<_>>>()?.into_iter();
        let mut source = |_| -> RequestSource {
            let mut requests = generators.next().expect("there is one for each thread");
            Box::new(move |_| LoopRequest::Call { class: 0, call: requests.next_call() })
        };
        let (mut metrics, window) = engine::run(options, 1, &mut source, &mut |_| {}).await?;
        Ok(ClosedLoopReport { metrics: metrics.remove(0), window })
    }
}
