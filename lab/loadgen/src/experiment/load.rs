//! The load of experiments: the open loop of `clearlane-load run`, and what goes on beside it.
//!
//! A workload is written as a file of `clearlane-load run` would be; a report shows it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tonic::transport::Channel;

use super::context::{Context, Running};
use super::measurements::Measurements;
use crate::class_metrics::{ClassMetrics, CompletedRequest};
use crate::keys::KeySpace;
use crate::report::{Report, late_warning};
use crate::requests::{Call, RequestGenerator};
use crate::run::{RunOptions, WindowBegin, run};
use crate::target::OpenTarget;
use crate::users::User;
use crate::workload::Workload;
use crate::{Error, Result, connection, fill};

const FILL_CONNECTIONS: u64 = 4;
/// After a request that failed.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(100);

/// What is recorded of each class.
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

/// One phase: the load at its own times.
#[derive(Debug)]
pub(super) struct Phase<'a> {
    /// In the names of its figures.
    pub(super) name: &'a str,
    pub(super) endpoint: &'a str,
    pub(super) workload: &'a Workload,
    pub(super) user: Option<User>,
    pub(super) seed: u64,
    /// Set by the phase, behind its warm-up.
    pub(super) begin: WindowBegin,
}

/// Of the same load, at least, before each run: the first answers of a connection are slower.
pub(super) const WARM_UP: Duration = Duration::from_millis(500);

/// Long enough for one request of each class: the first long answers take several times as long.
fn warm_up(workload: &Workload) -> Duration {
    let longest = workload.classes.iter().map(|class| 1.0 / class.rate).fold(0.0, f64::max);
    WARM_UP.max(Duration::from_secs_f64(longest))
}

impl Phase<'_> {
    /// Records `PHASE/CLASS/p99` and others, what the servers used, and a warning if the driver was
    /// late.
    pub(super) async fn run(
        self,
        context: &Context,
        server: &str,
        running: &Running,
        into: &mut Measurements,
    ) -> Result<()> {
        let Phase { name, endpoint, workload, user, seed, begin } = self;
        let endpoint = connection::endpoint(endpoint)?;
        let target = OpenTarget::open(endpoint.into(), user).await?;
        let warm_up = warm_up(workload);
        let stop = context.stop.clone();
        let options = RunOptions { warm_up, begin, stop, ..RunOptions::new(target, seed) };
        let before = running.usage()?;
        let mut tell = |line: &str| context.tell(line);
        let report = run(workload, &options, &mut tell).await?;
        if let Some((before, after)) = before.zip(running.usage()?) {
            let processor = (after.processor - before.processor).as_secs_f64();
            into.add(server, &format!("{name}/processor s"), processor);
            into.add(server, &format!("{name}/peak MB"), after.peak_bytes as f64 / 1e6);
        }
        record(&report, name, server, into);
        Ok(())
    }
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

/// Requests that are sent again and again beside a phase, each on a connection of its own; it ends
/// when it is dropped.
#[derive(Debug)]
pub(super) struct Background {
    tasks: JoinSet<()>,
    metrics: Arc<Mutex<ClassMetrics>>,
    start: Instant,
}

/// How often a request of a [`Background`] is sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Repetition {
    /// Before the first one.
    pub(super) delay: Duration,
    /// Between an answer and the next request.
    pub(super) pause: Duration,
}

impl Background {
    pub(super) async fn start(
        endpoint: &str,
        calls: Vec<Call>,
        repetition: Repetition,
    ) -> Result<Background> {
        let endpoint = connection::endpoint(endpoint)?;
        let channels = connection::open(&endpoint.into(), calls.len() as u64).await?;
        let (mut tasks, metrics) = (JoinSet::new(), Arc::<Mutex<ClassMetrics>>::default());
        let start = Instant::now();
        for (channel, call) in channels.into_iter().zip(calls) {
            tasks.spawn(repeat(channel, call, start, repetition, Arc::clone(&metrics)));
        }
        Ok(Background { tasks, metrics, start })
    }

    /// Gives up what is under way, and records `NAME/p50`, `NAME/max`, `NAME/per second` of what
    /// has ended.
    pub(super) async fn end(mut self, name: &str, server: &str, into: &mut Measurements) {
        self.tasks.shutdown().await;
        let metrics = self.metrics.lock();
        record_latency(&metrics, name, server, into);
        let seconds = self.start.elapsed().as_secs_f64();
        into.add(server, &format!("{name}/per second"), metrics.answered() as f64 / seconds);
        warn_of_failures(&metrics, &format!("{server}, {name}"), into);
    }
}

async fn repeat(
    channel: Channel,
    call: Call,
    start: Instant,
    Repetition { delay, pause }: Repetition,
    metrics: Arc<Mutex<ClassMetrics>>,
) {
    sleep(delay).await;
    loop {
        let is_answered = send(&channel, &call, start, &metrics).await;
        sleep(if is_answered { pause } else { pause.max(PAUSE_AFTER_FAILURE) }).await;
    }
}

async fn send(
    channel: &Channel,
    call: &Call,
    start: Instant,
    metrics: &Mutex<ClassMetrics>,
) -> bool {
    let sent = start.elapsed();
    let result = connection::call(channel.clone(), call.clone()).await;
    let is_answered = result.is_ok();
    metrics.lock().add(CompletedRequest { due: sent, sent, answered: start.elapsed(), result });
    is_answered
}

/// One client that sends the same request for so long, and some times at least.
pub(super) async fn in_a_loop(
    endpoint: &str,
    call: &Call,
    window: Duration,
) -> Result<ClassMetrics> {
    const TIMES_MIN: u64 = 3;
    let endpoint = connection::endpoint(endpoint)?;
    let channel = connection::open(&endpoint.into(), 1).await?.remove(0);
    let (start, metrics) = (Instant::now(), Mutex::<ClassMetrics>::default());
    let mut times = 0;
    while times < TIMES_MIN || start.elapsed() < window {
        send(&channel, call, start, &metrics).await;
        times += 1;
    }
    Ok(metrics.into_inner())
}

/// Requests of the first class, which are puts: as many revisions, one after the other in the
/// store, many at once on the way.
pub(super) async fn write_revisions(
    endpoint: &str,
    workload: &Workload,
    count: u64,
    seed: u64,
) -> Result<()> {
    const CONNECTIONS: u64 = 4;
    const CLIENTS: u64 = 128;
    let endpoint = connection::endpoint(endpoint)?;
    let channels = connection::open(&endpoint.into(), CONNECTIONS).await?;
    let (mut clients, class) = (JoinSet::new(), &workload.classes[0]);
    for (client, channel) in (0..CLIENTS).zip(channels.iter().cycle().cloned()) {
        let own = count / CLIENTS + u64::from(client < count % CLIENTS);
        let seed = seed.wrapping_mul(CLIENTS).wrapping_add(client);
        let mut puts = RequestGenerator::new(class, workload, (None, 0), seed)?;
        clients.spawn(async move {
            for _ in 0..own {
                connection::call(channel.clone(), puts.next_call()).await?;
            }
            Ok::<_, String>(())
        });
    }
    while let Some(done) = clients.join_next().await {
        let failed = |what| Error::Server(format!("a put of the history failed: {what}"));
        done.map_err(|error| failed(error.to_string()))?.map_err(failed)?;
    }
    Ok(())
}

/// The points of a curve over percentiles.
const PERCENTILES: [f64; 9] = [10.0, 50.0, 75.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.9];

fn record_latency(metrics: &ClassMetrics, name: &str, server: &str, into: &mut Measurements) {
    for (quantile_name, quantile) in QUANTILES {
        let figure = format!("{name}/{quantile_name}");
        into.add_some(server, &figure, metrics.latency_ms(quantile));
    }
    let figure = format!("{name}/latency by percentile");
    for percentile in PERCENTILES {
        if let Some(latency) = metrics.latency_ms(percentile / 100.0) {
            into.add_at(server, &figure, percentile, latency);
        }
    }
}
