//! Sends requests when they are due, without waiting for answers.
//!
//! ```text
//!                    ┌──▶ a thread per class ── a task per request ──▶ connections of the class
//!   pace ──due──▶ ───┤          ▲                       │
//!                    └──▶ ...   └───────── Done ────────┘
//! ```
//!
//! A class has a thread and connections of its own: while one reads 25 MB from its socket, a
//! request of another must not be late. Classes of short answers get a core
//! [soon](SchedClass::Latency), so that the driver does not measure its own delay.
//!
//! After the last request, answers have another [`DRAIN`] to come. What has not come by then is an
//! error, and so is a request that was not sent because [`IN_FLIGHT_MAX`] of its class were open,
//! which bounds the driver's memory if the server does not answer.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use clearlane_net::sched::SchedClass;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep_until, timeout};
use tonic::transport::Channel;

use crate::arrivals::{self, Schedule};
use crate::class_metrics::{ClassMetrics, CompletedRequest};
use crate::connection::{Connection, Endpoints};
use crate::process::{DriverUsage, Process};
use crate::report::{ClassReport, Report};
use crate::requests::RequestGenerator;
use crate::server_latency::{LatencyComparison, ServerLatency};
use crate::stop::Stop;
use crate::target::OpenTarget;
use crate::users::Session;
use crate::workload::{Class, Operation, Workload};
use crate::{Error, Result, connection, fill};

/// Between the end of the preparations and the first request.
const HEAD_START: Duration = Duration::from_millis(50);
/// Time for answers after the last request was due.
pub const DRAIN: Duration = Duration::from_secs(30);
/// The same after a run that was ended early.
pub(crate) const STOPPED_DRAIN: Duration = Duration::from_secs(2);
/// How often a thread that waits for answers looks whether the run was ended.
const STOP_INTERVAL: Duration = Duration::from_millis(100);
/// Per class.
pub const IN_FLIGHT_MAX: usize = 100_000;
/// Per class.
const ARRIVAL_QUEUE_CAPACITY: usize = 65_536;

/// A longer answer keeps its thread busy for a while.
const SHORT_RESPONSE_BYTES: u64 = 256 << 10;

#[derive(Clone, Debug)]
pub struct RunOptions {
    pub target: OpenTarget,
    /// For arrival times and keys.
    pub seed: u64,
    /// Its use of the machine is reported.
    pub process: Option<Process>,
    /// Duration of the same load before the run, over the same connections, not counted. The first
    /// long answers of a server take up to four times as long as the others.
    pub warm_up: Duration,
    /// Set by the run.
    pub begin: WindowBegin,
    /// Ends the run early, with the results so far.
    pub stop: Stop,
}

/// When the window of a run begins: behind its preparations and its warm-up.
#[derive(Clone, Debug, Default)]
pub struct WindowBegin {
    at: watch::Sender<Option<Instant>>,
}

impl WindowBegin {
    fn set(&self, at: Instant) {
        self.at.send_replace(Some(at));
    }

    /// Returns then; never, if the run ends before.
    pub async fn wait(&self) {
        let mut at = self.at.subscribe();
        let at = at.wait_for(Option::is_some).await;
        let at = at.expect("this is a sender").unwrap_or_else(Instant::now);
        sleep_until(at.into()).await;
    }
}

impl RunOptions {
    /// Without a warm-up, and without a look at the server's process.
    pub fn new(target: OpenTarget, seed: u64) -> RunOptions {
        let (process, warm_up) = (None, Duration::ZERO);
        let (begin, stop) = (WindowBegin::default(), Stop::default());
        RunOptions { target, seed, process, warm_up, begin, stop }
    }
}

/// A class as the main task sees it.
struct ClassThread {
    class: Class,
    progress: Arc<Mutex<ClassProgress>>,
    /// The thread ends when all senders are dropped.
    windows: mpsc::Sender<SendWindow>,
}

struct SendWindow {
    arrivals: mpsc::Receiver<Duration>,
    start: Instant,
    /// Dropped when each request of the window is answered or given up.
    done: oneshot::Sender<()>,
}

#[derive(Default)]
struct ClassProgress {
    metrics: ClassMetrics,
    due: u64,
}

/// A class on its own thread.
struct ClassSender {
    requests: RequestGenerator,
    connections: Vec<Connection>,
    session: Option<Arc<Session>>,
    progress: Arc<Mutex<ClassProgress>>,
    in_flight: JoinSet<CompletedRequest>,
    /// So long after the end of a window; requests that are open then have failed.
    given_up: watch::Sender<Option<Duration>>,
    stop: Stop,
}

/// `tell` is called once per second with the progress.
pub async fn run(
    workload: &Workload,
    options: &RunOptions,
    tell: &mut dyn FnMut(&str),
) -> Result<Report> {
    let OpenTarget { endpoints, session, servers } = &options.target;
    let channel = connection::open(endpoints, 1).await?.remove(0);
    check_filled(workload, channel.clone(), session.as_deref()).await?;
    let revision = revision(workload, channel, session.as_deref()).await?;
    let mut stop_at_drop = StopAtDrop(Some(options.stop.clone()));
    let mut threads = Vec::new();
    let mut first = 0;
    for class in &workload.classes {
        threads.push(start_class(workload, options, class, (revision, first)).await?);
        first += class.connections;
    }
    let window = Duration::from_secs(workload.seconds);
    if !options.warm_up.is_zero() {
        let start = Instant::now() + HEAD_START;
        let (length, seed) = (options.warm_up, !options.seed);
        run_window(&threads, options, start, (length, seed), &mut |_| {}).await?;
    }
    for thread in &threads {
        let metrics = ClassMetrics::of_window(window);
        *thread.progress.lock() = ClassProgress { metrics, due: 0 };
    }
    let usage = || options.process.as_ref().map(Process::usage).transpose();
    let latency_before = ServerLatency::read(endpoints).await;
    let usage_before = usage()?;
    let driver = DriverUsage::begin(threads.len() as u64);
    let start = Instant::now() + HEAD_START;
    options.begin.set(start);
    let sent_for = run_window(&threads, options, start, (window, options.seed), tell).await?;
    stop_at_drop.0 = None;
    let report = |ClassThread { class, progress, .. }| ClassReport {
        name: class.name,
        operation: class.operation.name(),
        rate: Some(class.rate),
        metrics: std::mem::take(&mut Mutex::lock(&progress).metrics),
    };
    let driver = driver.end();
    let classes = threads.into_iter().map(report).collect::<Vec<_>>();
    Ok(Report {
        endpoints: endpoints.text(),
        servers: servers.clone(),
        seed: options.seed,
        window: sent_for,
        is_open_loop: true,
        // The process may be gone.
        usage: usage_before.zip(usage().unwrap_or_default()),
        server_latency: compare(latency_before, endpoints, &classes).await,
        classes,
        notes: Vec::new(),
        driver,
    })
}

/// A run that is given up sends nothing more.
struct StopAtDrop(Option<Stop>);

impl Drop for StopAtDrop {
    fn drop(&mut self) {
        self.0.iter().for_each(Stop::set);
    }
}

/// With what the servers have measured since.
pub(crate) async fn compare(
    before: Option<ServerLatency>,
    endpoints: &Endpoints,
    classes: &[ClassReport],
) -> Vec<LatencyComparison> {
    let Some(before) = before else { return Vec::new() };
    let Some(after) = ServerLatency::read(endpoints).await else { return Vec::new() };
    after.compare(&before, classes.iter().map(|class| (class.operation, &class.metrics)))
}

/// Returns when all classes have sent what is due in the window and have the answers: how long
/// requests were sent.
async fn run_window(
    threads: &[ClassThread],
    options: &RunOptions,
    start: Instant,
    (window, seed): (Duration, u64),
    tell: &mut dyn FnMut(&str),
) -> Result<Duration> {
    let (mut senders, mut ends) = (Vec::new(), Vec::new());
    for thread in threads {
        let (sender, arrivals) = mpsc::channel(ARRIVAL_QUEUE_CAPACITY);
        let (done, end) = oneshot::channel();
        senders.push(sender);
        ends.push(end);
        // The thread waits for windows, so this does not fail.
        let _ = thread.windows.send(SendWindow { arrivals, start, done }).await;
    }
    let schedule = |ClassThread { class, .. }: &ClassThread| {
        Schedule::new(class.spacing, class.rate, seeds(seed, class)[0])
    };
    let schedules: Vec<Schedule> = threads.iter().map(schedule).collect();
    let arrivals = arrivals::merge(schedules, window);
    let pacer = arrivals::pace(arrivals, start, senders, options.stop.clone());
    let pacer = pacer.map_err(thread_error)?;
    let mut second = interval(Duration::from_secs(1));
    second.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for mut end in ends {
        while tokio::select! {
            over = &mut end => {
                over.expect("a class neither panics nor is stopped");
                false
            }
            _ = second.tick() => true,
        } {
            tell(&progress(threads, start));
        }
    }
    let stopped = pacer.join().expect("it sleeps and sends");
    Ok(stopped.unwrap_or(window))
}

fn thread_error(error: std::io::Error) -> Error {
    Error::Local(format!("no thread could be started: {error}"))
}

/// One seed for arrival times, one for requests.
fn seeds(seed: u64, class: &Class) -> [u64; 2] {
    let first = seed.wrapping_mul(1 << 20).wrapping_add(class.index * 2);
    [first, first + 1]
}

/// Starts the thread of a class, which opens its connections, and waits for windows.
async fn start_class(
    workload: &Workload,
    options: &RunOptions,
    class: &Class,
    (revision, first): (i64, u64),
) -> Result<ClassThread> {
    let [_, seed] = seeds(options.seed, class);
    let OpenTarget { endpoints, session, .. } = options.target.clone();
    let user = session.as_deref().map(Session::user);
    let requests = RequestGenerator::new(class, workload, (user, revision), seed)?;
    let (connections, stop) = (class.connections, options.stop.clone());
    let progress = Arc::<Mutex<ClassProgress>>::default();
    let (ready, is_ready) = oneshot::channel();
    let (windows, mut next_window) = mpsc::channel::<SendWindow>(1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::Local(format!("no runtime: {error}")))?;
    let own_progress = Arc::clone(&progress);
    let send_windows = async move {
        let connections = match connection::open_direct(&endpoints, first, connections).await {
            Ok(connections) => connections,
            Err(error) => return drop(ready.send(Err(error))),
        };
        let (progress, in_flight) = (own_progress, JoinSet::new());
        let given_up = watch::Sender::new(None);
        let mut sender =
            ClassSender { requests, connections, session, progress, in_flight, given_up, stop };
        let _ = ready.send(Ok(()));
        while let Some(SendWindow { arrivals, start, done }) = next_window.recv().await {
            sender.send_all(arrivals, start).await;
            sender.drain().await;
            // If the receiver is gone, the result is not needed.
            let _ = done.send(());
        }
    };
    // A class of short answers measures the delays that others cause, and must not be late itself.
    let record = workload.space.key_size.saturating_add(workload.space.value.max);
    let is_short = class.operation.keys_sent().saturating_mul(record) <= SHORT_RESPONSE_BYTES;
    let sched_class = if is_short { SchedClass::Latency } else { SchedClass::Normal };
    let work = move || {
        sched_class.apply_to_thread();
        runtime.block_on(send_windows);
    };
    let thread = thread::Builder::new().name(format!("class {}", class.name));
    thread.spawn(work).map_err(thread_error)?;
    is_ready.await.expect("it says so, or why not")?;
    Ok(ClassThread { class: class.clone(), progress, windows })
}

/// Reads of missing keys are fast and would pass for good results.
async fn check_filled(
    workload: &Workload,
    channel: Channel,
    session: Option<&Session>,
) -> Result<()> {
    if workload.has_deletes() || !workload.has_ranges() {
        return Ok(());
    }
    let space = &workload.space;
    let remedy = "clearlane-load fill";
    fill::check_filled(channel, space, session, "workload", remedy).await.map(drop)
}

/// Behind which watches read events; 0 if none do.
async fn revision(workload: &Workload, channel: Channel, session: Option<&Session>) -> Result<i64> {
    let has_watch =
        |class: &Class| matches!(class.operation, Operation::Watch { events } if events > 0);
    if !workload.classes.iter().any(has_watch) {
        return Ok(0);
    }
    fill::revision(channel, session).await
}

fn progress(threads: &[ClassThread], start: Instant) -> String {
    let each = threads.iter().map(|ClassThread { class, progress, .. }| {
        let ClassProgress { metrics, due } = &*progress.lock();
        let (answered, errors) = (metrics.answered(), metrics.failed());
        let p99 = metrics.latency_ms(0.99).unwrap_or_default();
        format!("{} {answered} of {due}, {errors} errors, p99 {p99:.1} ms", class.name)
    });
    let elapsed = Instant::now().saturating_duration_since(start).as_secs();
    format!("{elapsed:3} s: {}", each.collect::<Vec<_>>().join("; "))
}

impl ClassSender {
    /// Until the channel is closed.
    async fn send_all(&mut self, mut arrivals: mpsc::Receiver<Duration>, start: Instant) {
        loop {
            tokio::select! {
                due = arrivals.recv() => match due {
                    Some(due) => self.send(due, start),
                    None => return,
                },
                Some(done) = self.in_flight.join_next() => self.record(done),
            }
        }
    }

    fn send(&mut self, due: Duration, start: Instant) {
        let mut progress = self.progress.lock();
        progress.due += 1;
        if self.in_flight.len() >= IN_FLIGHT_MAX {
            let text = format!("not sent: {IN_FLIGHT_MAX} others had no answer");
            progress.metrics.add_failure(due, text);
            return;
        }
        let turn = progress.due as usize % self.connections.len();
        drop(progress);
        let (call, connection) = (self.requests.next_call(), self.connections[turn].clone());
        let (session, mut given_up) = (self.session.clone(), self.given_up.subscribe());
        self.in_flight.spawn(async move {
            let sent = start.elapsed();
            let answer = async {
                match session {
                    Some(session) => session.call(&connection, &call).await,
                    None => connection.call(&call).await,
                }
            };
            let result = tokio::select! {
                result = answer => result,
                after = given_up.wait_for(Option::is_some) => {
                    let seconds = after.map_or(0, |after| after.unwrap_or_default().as_secs());
                    Err(format!("no answer {seconds} s after the end"))
                }
            };
            CompletedRequest { due, sent, answered: start.elapsed(), result }
        });
    }

    /// Waits for the answers; what has none in time is counted as a failure, and not in the next
    /// window.
    async fn drain(&mut self) {
        let from = Instant::now();
        let mut stopped = None;
        let drain = loop {
            if stopped.is_none() && self.stop.is_set() {
                stopped = Some(Instant::now());
            }
            let (since, drain) = stopped.map_or((from, DRAIN), |since| (since, STOPPED_DRAIN));
            if since.elapsed() >= drain {
                break drain;
            }
            match timeout(STOP_INTERVAL, self.in_flight.join_next()).await {
                Ok(Some(done)) => self.record(done),
                Ok(None) => return,
                Err(_) => {}
            }
        };
        self.given_up.send_replace(Some(drain));
        while let Some(done) = self.in_flight.join_next().await {
            self.record(done);
        }
        self.given_up.send_replace(None);
    }

    fn record(&self, done: std::result::Result<CompletedRequest, tokio::task::JoinError>) {
        let done = done.expect("a request neither panics nor is stopped");
        self.progress.lock().metrics.add(done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_begin_of_a_window_is_waited_for() {
        let begin = WindowBegin::default();
        assert!(timeout(Duration::from_millis(5), begin.wait()).await.is_err());
        let at = Instant::now() + Duration::from_millis(20);
        let waiting = begin.clone();
        let waiting = tokio::spawn(async move {
            waiting.wait().await;
            Instant::now()
        });
        begin.set(at);
        assert!(waiting.await.expect("it does not panic") >= at);
    }
}
