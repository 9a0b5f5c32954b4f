//! The load of experiments: the open loop of `clearlane-load run`, and requests that are repeated
//! while it runs.
//!
//! A workload is a text in the format of the files for `clearlane-load run`. The report of an
//! experiment shows the text.

use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::context::{Context, Running};
use super::measurements::Measurements;
use super::turn::Turn;
use crate::class_metrics::{ClassMetrics, LoopMetrics};
use crate::connection::{Connection, open_direct};
use crate::keys::KeySpace;
use crate::report::{Report, late_warning};
use crate::requests::{Call, RequestGenerator};
use crate::run::{RunOptions, WindowBegin, run};
use crate::target::OpenTarget;
use crate::users::User;
use crate::workload::Workload;
use crate::{Error, Result, connection, fill};

const FILL_CONNECTIONS: u64 = 4;
/// Pause after a failed request.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(100);

/// The quantiles that are recorded for each class.
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)];

pub(super) async fn fill(
    context: &Context,
    endpoint: &str,
    space: &KeySpace,
    seed: u64,
) -> Result<()> {
    let endpoint = connection::endpoint(endpoint)?;
    let mut tell = |line: &str| context.tell(line);
    fill::fill(space, &endpoint.into(), None, FILL_CONNECTIONS, seed, &mut tell).await.map(drop)
}

/// Minimum time of a warm-up, which sends the same load before each measurement. The first
/// responses of a connection are slower than later ones.
pub(super) const WARM_UP: Duration = Duration::from_millis(500);

/// Returns the time of a warm-up. It is long enough for one request of each class, because the
/// first long responses take several times as long as later ones.
fn warm_up(workload: &Workload) -> Duration {
    let longest = workload.classes.iter().map(|class| 1.0 / class.rate).fold(0.0, f64::max);
    WARM_UP.max(Duration::from_secs_f64(longest))
}

/// Sends the requests of a workload when they are due, after a warm-up. Sets `begin` when the
/// window after the warm-up starts. Records `NAME/CLASS/p99` and other figures, the usage of the
/// servers, and a warning if the driver was late.
pub(super) async fn open_loop(
    turn: &Turn<'_>,
    running: &Running,
    (name, workload): (&str, &Workload),
    begin: WindowBegin,
    into: &mut Measurements,
) -> Result<()> {
    let server = turn.server();
    let user = turn.plan.has_users.then(User::of_load);
    let target = OpenTarget::open(connection::endpoint(&running.leader)?.into(), user).await?;
    let (warm_up, stop) = (warm_up(workload), turn.context.stop.clone());
    let options = RunOptions { warm_up, begin, stop, ..RunOptions::new(target, turn.seed) };
    let before = running.usage()?;
    let report = run(workload, &options, &mut |line| turn.context.tell(line)).await?;
    if let Some((before, after)) = before.zip(running.usage()?) {
        let processor = (after.processor - before.processor).as_secs_f64();
        into.add(server, &format!("{name}/processor s"), processor);
        into.add(server, &format!("{name}/peak MB"), after.peak_bytes as f64 / 1e6);
    }
    record(&report, name, server, into);
    Ok(())
}

fn record(report: &Report, phase: &str, server: &str, into: &mut Measurements) {
    for line in &report.classes {
        let (class, metrics) = (&line.name, &line.metrics);
        let rate = metrics.answered_per_second(report.window);
        into.add(server, &format!("{phase}/{class}/per second"), rate);
        into.add(server, &format!("{phase}/{class}/failed"), metrics.failed() as f64);
        record_latency(metrics, &format!("{phase}/{class}"), server, into);
        let place = format!("{server}, {phase}, {class}");
        late_warning(&place, metrics).into_iter().for_each(|text| into.warn(text));
        warn_of_failures(metrics, &place, into);
    }
}

pub(super) fn warn_of_failures(metrics: &ClassMetrics, place: &str, into: &mut Measurements) {
    for (text, count) in metrics.errors() {
        into.warn(format!("{place}: {count} failed, `{text}`"));
    }
}

/// Requests that are repeated while a phase runs, each on its own connection. They end when this
/// value is dropped.
#[derive(Debug)]
pub(super) struct Background {
    tasks: JoinSet<()>,
    metrics: LoopMetrics,
}

impl Background {
    /// Starts to send after `delay`. `pause` is the time between a response and the next request.
    pub(super) async fn start(
        endpoint: &str,
        calls: Vec<Call>,
        [delay, pause]: [Duration; 2],
    ) -> Result<Background> {
        let endpoint = connection::endpoint(endpoint)?;
        let connections = open_direct(&endpoint.into(), 0, calls.len() as u64).await?;
        let metrics = LoopMetrics::start();
        let repeat = |(connection, call): (Connection, Call)| {
            let metrics = metrics.clone();
            async move {
                sleep(delay).await;
                loop {
                    let is_answered = metrics.add(connection.call(&call)).await;
                    sleep(if is_answered { pause } else { pause.max(PAUSE_AFTER_FAILURE) }).await;
                }
            }
        };
        let tasks = connections.into_iter().zip(calls).map(repeat).collect();
        Ok(Background { tasks, metrics })
    }

    /// Drops the requests in flight. Records the latencies of the completed requests under
    /// `NAME/p50`, `NAME/max` and others, and their rate under `NAME/per second`.
    pub(super) async fn end(mut self, name: &str, server: &str, into: &mut Measurements) {
        self.tasks.shutdown().await;
        let (metrics, elapsed) = (self.metrics.take(), self.metrics.start.elapsed());
        record_latency(&metrics, name, server, into);
        let rate = metrics.answered() as f64 / elapsed.as_secs_f64();
        into.add(server, &format!("{name}/per second"), rate);
        warn_of_failures(&metrics, &format!("{server}, {name}"), into);
    }
}

/// Runs one client that sends the same request for the time `window`, and at least three times.
pub(super) async fn in_a_loop(
    endpoint: &str,
    call: &Call,
    window: Duration,
) -> Result<ClassMetrics> {
    const TIMES_MIN: u64 = 3;
    let endpoint = connection::endpoint(endpoint)?;
    let connection = open_direct(&endpoint.into(), 0, 1).await?.remove(0);
    let (metrics, mut times) = (LoopMetrics::start(), 0);
    while times < TIMES_MIN || metrics.start.elapsed() < window {
        metrics.add(connection.call(call)).await;
        times += 1;
    }
    Ok(metrics.take())
}

/// Sends `count` requests of the first class, which are puts, to create the same number of
/// revisions. Many puts are in flight at a time. The store applies them one after the other.
pub(super) async fn write_revisions(
    endpoint: &str,
    workload: &Workload,
    count: u64,
    seed: u64,
) -> Result<()> {
    const CONNECTIONS: u64 = 4;
    const CLIENTS: u64 = 128;
    let endpoint = connection::endpoint(endpoint)?;
    let connections = open_direct(&endpoint.into(), 0, CONNECTIONS).await?;
    let failed = |what| Error::Server(format!("a put of the history failed: {what}"));
    let write = async |(client, connection): (u64, &Connection)| {
        let own = count / CLIENTS + u64::from(client < count % CLIENTS);
        let seed = seed.wrapping_mul(CLIENTS).wrapping_add(client);
        let mut puts = RequestGenerator::new(&workload.classes[0], workload, (None, 0), seed)?;
        for _ in 0..own {
            connection.call(&puts.next_call()).await.map_err(failed)?;
        }
        Ok(())
    };
    try_join_all((0..CLIENTS).zip(connections.iter().cycle()).map(write)).await.map(drop)
}

/// The points of a curve over percentiles.
const PERCENTILES: [f64; 9] = [10.0, 50.0, 75.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.9];

fn record_latency(metrics: &ClassMetrics, name: &str, server: &str, into: &mut Measurements) {
    for (quantile_name, quantile) in QUANTILES {
        let figure = format!("{name}/{quantile_name}");
        into.add(server, &figure, metrics.latency_ms(quantile));
    }
    let figure = format!("{name}/latency by percentile");
    for percentile in PERCENTILES {
        into.add_at(server, &figure, percentile, metrics.latency_ms(percentile / 100.0));
    }
}
