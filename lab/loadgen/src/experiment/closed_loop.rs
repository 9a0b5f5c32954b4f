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
use crate::Result;
use crate::class_metrics::ClassMetrics;
use crate::closed_loop::engine::{self, LoopOptions, LoopRequest, RequestSource};
use crate::connection::{self, Endpoints};
use crate::requests::RequestGenerator;
use crate::workload::{Class, Workload};

const THREADS_MAX: usize = 8;
/// Maximum number of clients on a connection, as in etcd's own measurements.
const CLIENTS_PER_CONNECTION: u64 = 10;

#[derive(Clone, Debug)]
pub(super) struct ClosedLoopReport {
    pub(super) metrics: ClassMetrics,
    /// How long requests were sent and answered.
    window: Duration,
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
        at: Option<f64>,
        server: &str,
        into: &mut Measurements,
    ) {
        into.add_at(server, &format!("{figure}/per second"), at, self.per_second());
        for (name, quantile) in [("p50", 0.5), ("p99", 0.99)] {
            let latency = self.metrics.latency_ms(quantile);
            into.add_at(server, &format!("{figure}/{name}"), at, latency);
        }
        warn_of_failures(&self.metrics, &format!("{server}, {figure}"), into);
    }
}

/// Returns the options of a loop that starts with a warm-up and then lasts for `window`. Clients
/// are spread over the servers.
pub(super) fn options(endpoints: &[String], clients: u64, window: Duration) -> Result<LoopOptions> {
    let endpoints = endpoints.iter().map(|endpoint| connection::endpoint(endpoint));
    let endpoints = endpoints.collect::<Result<Vec<_>>>()?;
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = (cores / 2).clamp(1, THREADS_MAX) as u64;
    // Each thread has the same number of connections to each endpoint, if there are enough
    // clients.
    let connections = clients.div_ceil(CLIENTS_PER_CONNECTION);
    Ok(LoopOptions {
        connections: connections.next_multiple_of(endpoints.len() as u64 * threads),
        threads,
        warm_up: Some(Box::pin(sleep(WARM_UP))),
        window: Some(window),
        ..LoopOptions::new(Endpoints::new(endpoints)?, clients)
    })
}

pub(super) async fn run(
    options: LoopOptions,
    source: &mut dyn FnMut(u64) -> RequestSource,
) -> Result<ClosedLoopReport> {
    let (mut metrics, window) = engine::run(options, 1, source, &mut |_| {}).await?;
    Ok(ClosedLoopReport { metrics: metrics.remove(0), window })
}

/// Sends the requests of a class. Its rate and arrivals are ignored.
pub(super) async fn run_class(
    options: LoopOptions,
    workload: &Workload,
    class: &Class,
    seed: u64,
) -> Result<ClosedLoopReport> {
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
    run(options, &mut source).await
}
