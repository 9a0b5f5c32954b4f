//! A closed loop of many clients. Each client sends its next request when the previous one is
//! answered. The loop shows the maximum rate of a server, and how long a client waits at that rate.
//!
//! The loop uses half as many threads as there are cores, but at least 1 and at most 8. The other
//! cores are for the server.

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
/// Maximum number of clients on a connection, as in etcd's own measurements.
const CLIENTS_PER_CONNECTION: u64 = 10;

#[derive(Clone, Copy, Debug)]
pub(super) struct ClosedLoop<'a> {
    /// The servers. Clients are spread over them.
    pub(super) endpoints: &'a [String],
    pub(super) workload: &'a Workload,
    /// The name of the class whose requests are sent. Its rate and arrivals are ignored.
    pub(super) class: &'a str,
    pub(super) clients: u64,
    pub(super) window: Duration,
    pub(super) seed: u64,
}

#[derive(Clone, Debug)]
pub(super) struct ClosedLoopReport {
    pub(super) metrics: ClassMetrics,
    /// How long requests were sent and answered.
    pub(super) window: Duration,
}

impl ClosedLoopReport {
    pub(super) fn per_second(&self) -> f64 {
        self.metrics.answered_per_second(self.window)
    }

    /// Records `FIGURE/per second`, `FIGURE/p50` and `FIGURE/p99`. `at` is the point of a curve, or
    /// `None` if there is no curve.
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
            let latency = self.metrics.latency_ms(quantile);
            into.add_at(server, &format!("{figure}/{name}"), at, latency);
        }
        warn_of_failures(&self.metrics, &format!("{server}, {figure}"), into);
    }
}

impl ClosedLoop<'_> {
    /// Runs the loop, and counts requests after a warm-up. The warm-up lasts
    /// [`WARM_UP`]. An open loop sets `begin`: then the warm-up ends when the window of the open
    /// loop starts.
    pub(super) async fn run(self, begin: Option<WindowBegin>) -> Result<ClosedLoopReport> {
        let warm_up: WarmUp = match begin {
            Some(begin) => Box::pin(async move { begin.wait().await }),
            None => Box::pin(sleep(WARM_UP)),
        };
        let ClosedLoop { endpoints, workload, class, clients, window, seed } = self;
        let found = workload.classes.iter().find(|known| known.name == class);
        let no_class = || Error::Workload(format!("the workload has no class {class}"));
        let class = found.ok_or_else(no_class)?;
        let endpoints = endpoints.iter().map(|endpoint| connection::endpoint(endpoint));
        let endpoints = endpoints.collect::<Result<Vec<_>>>()?;
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores / 2).clamp(1, THREADS_MAX) as u64;
        // Each thread has the same number of connections to each endpoint, if there are enough
        // clients.
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
