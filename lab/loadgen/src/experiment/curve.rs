//! Runs closed loops, at each point of a curve if there is one. The loops show the maximum rate of
//! a server while something grows, such as the number of clients, and how long a client waits at
//! that rate.
//!
//! A loop uses half as many threads as there are cores, but at least 1 and at most 8. The other
//! cores are for the server.

use std::time::{Duration, Instant};
use std::{slice, thread};

use tokio::time::sleep;
use tokio::try_join;

use super::context::Running;
use super::load::{WARM_UP, open_loop, warn_of_failures};
use super::measurements::Measurements;
use super::plan::LoopPlan;
use super::turn::Turn;
use crate::Result;
use crate::class_metrics::ClassMetrics;
use crate::closed_loop::engine::{self, LoopOptions, LoopRequest, RequestSource};
use crate::connection::{self, Endpoints};
use crate::requests::RequestGenerator;
use crate::run::WindowBegin;
use crate::servers::DelayProxy;
use crate::workload::{Class, Operation, Workload};

const THREADS_MAX: usize = 8;
/// Maximum number of clients on a connection, as in etcd's own measurements.
const CLIENTS_PER_CONNECTION: u64 = 10;

pub(super) async fn measure(turn: &Turn<'_>, into: &mut Measurements) -> Result<()> {
    let Some(points) = &turn.plan.points else {
        let running = turn.start(&[]).await?;
        run_loops(turn, &running, None, into).await?;
        return running.end().await;
    };
    let ascending = points.at.at(turn.context.scale);
    if points.has_own_servers {
        for at in ascending {
            let turn = turn.at(&points.name, *at);
            let running = turn.start(&[]).await?;
            run_loops(&turn, &running, Some(*at), into).await?;
            running.end().await?;
        }
        return Ok(());
    }
    let running = turn.start(&[]).await?;
    let windows = turn.values.get("windows").unwrap_or(1);
    for at in turn.context.in_order(ascending, turn.seed).repeat(windows) {
        run_loops(&turn.at(&points.name, at), &running, Some(at), into).await?;
    }
    running.end().await
}

/// Runs the loops of the plan, one after the other.
pub(super) async fn run_loops(
    turn: &Turn<'_>,
    running: &Running,
    at: Option<f64>,
    into: &mut Measurements,
) -> Result<()> {
    if let Some(round_trip) = turn.round_trip()? {
        let measured = DelayProxy::measure(round_trip)?.as_secs_f64() * 1e3;
        into.add_at(turn.server(), "measured", at, measured);
    }
    for planned in &turn.plan.loops {
        run_planned(turn, running, planned, at, into).await?;
    }
    Ok(())
}

/// Runs one loop of the plan.
pub(super) async fn run_planned(
    turn: &Turn<'_>,
    running: &Running,
    planned: &LoopPlan,
    at: Option<f64>,
    into: &mut Measurements,
) -> Result<()> {
    let (server, seed) = (turn.server(), turn.seed);
    let workload = &turn.values.workload(&turn.plan.load)?;
    let window = Duration::from_secs(turn.values.get("seconds")?);
    let LoopPlan { figure, class, clients, is_spread, .. } = planned;
    let leader = slice::from_ref(&running.leader);
    let endpoints = if *is_spread { &running.endpoints[..] } else { leader };
    let mut options = loop_options(endpoints, turn.values.number(clients)?, window)?;
    let class = workload.class(class)?;
    let begin = WindowBegin::default();
    let has_begun = begin.clone();
    let report = match &turn.plan.open_loop {
        Some(open) if at != Some(0.0) => {
            // The warm-up ends when the window of the open loop starts.
            options.warm_up = Some(Box::pin(async move { has_begun.wait().await }));
            let closed = run_class(options, workload, class, seed);
            let open = run_open_loop(turn, running, (open, begin), at, into);
            try_join!(closed, open)?.0
        }
        _ => {
            options.warm_up = Some(Box::pin(async move {
                sleep(WARM_UP).await;
                begin.set(Instant::now());
            }));
            let before = async {
                has_begun.wait().await;
                running.processor()
            };
            let closed = run_class(options, workload, class, seed);
            let (report, before) = try_join!(closed, before)?;
            for (name, used) in running.processor()?.since(before) {
                let each = used.as_secs_f64() * 1e6 / report.metrics.answered() as f64;
                into.add_at(server, &format!("{figure}/{name} µs"), at, each);
            }
            report
        }
    };
    report.record(figure, at, server, into);
    if let Operation::Put { value } = class.operation {
        let mb = (value.min + value.max) as f64 / 2.0 / 1e6;
        into.add_at(server, &format!("{figure}/MB per second"), at, report.per_second() * mb);
    }
    Ok(())
}

/// Runs the open loop of the plan while a closed loop runs, for the same time.
async fn run_open_loop(
    turn: &Turn<'_>,
    running: &Running,
    (plan, begin): (&LoopPlan, WindowBegin),
    at: Option<f64>,
    into: &mut Measurements,
) -> Result<()> {
    let (server, mut found) = (turn.server(), Measurements::default());
    let LoopPlan { figure, class, load, .. } = plan;
    let workload = turn.values.workload(load)?;
    open_loop(turn, running, (figure, &workload), begin, &mut found).await?;
    for name in ["p99", "per second"] {
        let value = found.median(server, &format!("{figure}/{class}/{name}"));
        into.add_at(server, &format!("{figure}/{name}"), at, value);
    }
    into.take_warnings(found);
    Ok(())
}

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
pub(super) fn loop_options(
    endpoints: &[String],
    clients: u64,
    window: Duration,
) -> Result<LoopOptions> {
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

pub(super) async fn run_loop(
    options: LoopOptions,
    source: &mut dyn FnMut(u64) -> RequestSource,
) -> Result<ClosedLoopReport> {
    let (mut metrics, window) = engine::run(options, 1, source, &mut |_| {}).await?;
    Ok(ClosedLoopReport { metrics: metrics.remove(0), window })
}

/// Sends the requests of a class. Its rate and arrivals are ignored.
async fn run_class(
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
    run_loop(options, &mut source).await
}
