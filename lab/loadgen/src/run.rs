//! Sends requests when they are due, without waiting for responses: an open loop.
//!
//! ```text
//!                    ┌──▶ a thread per class ── a task per request ──▶ connections of the class
//!   pace ──due──▶ ───┤          ▲                       │
//!                    └──▶ ...   └── CompletedRequest ───┘
//! ```
//!
//! Each class has its own thread and connections. While one class reads 25 MB from its socket, the
//! requests of another class must not be late. The threads of classes with short responses get a
//! core [soon](SchedClass::Latency), so that the driver does not measure its own delay.
//!
//! After the last request was due, responses may take up to [`DRAIN`], or
//! [`STOPPED_DRAIN`](crate::load_thread::STOPPED_DRAIN) after a stop. A request is recorded as
//! failed
//! * if the server answers with an error, or with a different number of keys than expected;
//! * if its response does not arrive within this time;
//! * if it was not sent, because [`IN_FLIGHT_MAX`] requests of its class were in flight. This limit
//!   bounds the driver's memory if the server does not answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clearlane_net::sched::SchedClass;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::sleep_until;
use tonic::transport::Channel;

use crate::arrivals::{self, Schedule};
use crate::class_metrics::{ClassMetrics, CompletedRequest};
use crate::connection::Connection;
pub use crate::load_thread::DRAIN;
use crate::load_thread::{drain, start_thread, thread_error, with_progress};
use crate::observation::{LoadResult, observe};
use crate::process::{DriverUsage, Process};
use crate::report::{ClassReport, Report};
use crate::requests::RequestGenerator;
use crate::stop::{Stop, StopAtDrop};
use crate::target::OpenTarget;
use crate::users::Session;
use crate::workload::{Class, Operation, Workload};
use crate::{Result, connection, fill};

/// Time from the end of the preparations to the start of the window.
const HEAD_START: Duration = Duration::from_millis(50);
/// Maximum number of requests of one class that are in flight.
pub const IN_FLIGHT_MAX: usize = 100_000;
/// Capacity of the queue from the pacing thread to one class.
const ARRIVAL_QUEUE_CAPACITY: usize = 65_536;

/// Largest expected response of a class whose thread gets a core soon. Longer responses keep a
/// thread busy for a while.
const SHORT_RESPONSE_BYTES: u64 = 256 << 10;

#[derive(Clone, Debug)]
pub struct RunOptions {
    pub target: OpenTarget,
    /// The seed for arrival times, keys and values.
    pub seed: u64,
    /// The server process whose processor time and memory are reported, if any.
    pub process: Option<Process>,
    /// How long the same load runs before the run, over the same connections. Its requests are not
    /// counted. The first long responses of a server take up to four times as long as later ones.
    pub warm_up: Duration,
    /// The run sets this when its window starts.
    pub begin: WindowBegin,
    /// Ends the run early. The report then has the results so far.
    pub stop: Stop,
}

/// When the window of a run starts: after its preparations and its warm-up.
#[derive(Clone, Debug, Default)]
pub struct WindowBegin {
    at: watch::Sender<Option<Instant>>,
}

impl WindowBegin {
    pub(crate) fn set(&self, at: Instant) {
        self.at.send_replace(Some(at));
    }

    /// Returns when the window starts. Never returns if the run ends before its window.
    pub async fn wait(&self) {
        let mut at = self.at.subscribe();
        let at = at.wait_for(Option::is_some).await;
        let at = at.expect("this is a sender").unwrap_or_else(Instant::now);
        sleep_until(at.into()).await;
    }
}

impl RunOptions {
    /// Creates options without a warm-up. The report then has no usage of the server process.
    pub fn new(target: OpenTarget, seed: u64) -> RunOptions {
        let (process, warm_up) = (None, Duration::ZERO);
        let (begin, stop) = (WindowBegin::default(), Stop::default());
        RunOptions { target, seed, process, warm_up, begin, stop }
    }
}

/// The main task's handle of a class, which runs on a separate thread.
struct ClassThread {
    class: Class,
    progress: Arc<Mutex<ClassProgress>>,
    /// Sends windows to the class's thread. The thread ends when the sender is dropped.
    windows: mpsc::Sender<SendWindow>,
}

struct SendWindow {
    arrivals: mpsc::Receiver<Duration>,
    start: Instant,
    /// The class's thread sends on this channel when each request of the window has been answered
    /// or given up.
    done: oneshot::Sender<()>,
}

#[derive(Default)]
struct ClassProgress {
    metrics: ClassMetrics,
    due: u64,
}

/// The state of a class on its own thread, which sends the requests.
struct ClassSender {
    requests: RequestGenerator,
    connections: Vec<Connection>,
    session: Option<Arc<Session>>,
    progress: Arc<Mutex<ClassProgress>>,
    in_flight: JoinSet<CompletedRequest>,
    /// The reason why the open requests are given up. It is set when the time for the responses of
    /// a window is over, and cleared before the next window.
    given_up: watch::Sender<Option<String>>,
    stop: Stop,
}

/// Runs a workload. `tell` is called once per second with the progress.
pub async fn run(
    workload: &Workload,
    options: &RunOptions,
    tell: &mut dyn FnMut(&str),
) -> Result<Report> {
    let OpenTarget { endpoints, session, .. } = &options.target;
    let channel = connection::channel(endpoints).await?;
    let revision = prepare(workload, channel, session.as_deref()).await?;
    let stop_at_drop = StopAtDrop::new(&options.stop);
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
    let load = async {
        let driver = DriverUsage::begin(threads.len() as u64);
        let start = Instant::now() + HEAD_START;
        options.begin.set(start);
        let sent_for = run_window(&threads, options, start, (window, options.seed), tell).await?;
        stop_at_drop.disarm();
        let driver = driver();
        let report = |ClassThread { class, progress, .. }| ClassReport {
            name: class.name,
            operation: class.operation.name(),
            rate: Some(class.rate),
            metrics: std::mem::take(&mut Mutex::lock(&progress).metrics),
        };
        let classes = threads.into_iter().map(report).collect();
        let notes = Vec::new();
        Ok(LoadResult { is_open_loop: true, classes, window: sent_for, driver, notes })
    };
    observe(&options.target, options.process.as_ref(), options.seed, load).await
}

/// Runs one window: a warm-up or the run itself. Returns when all classes have sent their requests
/// and each request is answered or given up. The result is how long requests were sent.
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
        // Sending does not fail, because the thread waits for windows.
        let _ = thread.windows.send(SendWindow { arrivals, start, done }).await;
    }
    let schedule = |ClassThread { class, .. }: &ClassThread| {
        Schedule::new(class.spacing, class.rate, seeds(seed, class)[0])
    };
    let schedules: Vec<Schedule> = threads.iter().map(schedule).collect();
    let arrivals = arrivals::merge(schedules, window);
    let pacer = arrivals::pace(arrivals, start, senders, options.stop.clone());
    let pacer = pacer.map_err(thread_error)?;
    let ended = async {
        for end in ends {
            end.await.expect("a class neither panics nor is stopped");
        }
    };
    with_progress(ended, Duration::ZERO, || tell(&progress(threads, start))).await;
    let stopped = pacer.join().expect("it sleeps and sends");
    Ok(stopped.unwrap_or(window))
}

/// Returns two seeds: one for arrival times, one for requests.
fn seeds(seed: u64, class: &Class) -> [u64; 2] {
    let first = seed.wrapping_mul(1 << 20).wrapping_add(class.index * 2);
    [first, first + 1]
}

/// Starts the thread of a class. The thread opens its connections and waits for windows.
async fn start_class(
    workload: &Workload,
    options: &RunOptions,
    class: &Class,
    (revision, first): (i64, u64),
) -> Result<ClassThread> {
    let [_, seed] = seeds(options.seed, class);
    let OpenTarget { endpoints, session, .. } = &options.target;
    let user = session.as_deref().map(Session::user);
    let requests = RequestGenerator::new(class, workload, (user, revision), seed)?;
    let (session, stop) = (session.clone(), options.stop.clone());
    let progress = Arc::<Mutex<ClassProgress>>::default();
    let own_progress = Arc::clone(&progress);
    let (windows, mut next_window) = mpsc::channel::<SendWindow>(1);
    let send_windows = |connections| async move {
        let (progress, in_flight) = (own_progress, JoinSet::new());
        let given_up = watch::Sender::new(None);
        let mut sender =
            ClassSender { requests, connections, session, progress, in_flight, given_up, stop };
        while let Some(SendWindow { arrivals, start, done }) = next_window.recv().await {
            sender.send_all(arrivals, start).await;
            sender.drain().await;
            // Sending fails if the receiver was dropped. Then nobody needs the result.
            let _ = done.send(());
        }
    };
    // A class with short responses measures the delays that other requests cause, so its thread
    // must not be late.
    let record = workload.space.key_size.saturating_add(workload.space.value.max);
    let is_short = class.operation.keys_sent().saturating_mul(record) <= SHORT_RESPONSE_BYTES;
    let sched_class = if is_short { SchedClass::Latency } else { SchedClass::Normal };
    let (name, connections) = (format!("class {}", class.name), (first, class.connections));
    start_thread(name, sched_class, endpoints, connections, send_windows).await?;
    Ok(ClassThread { class: class.clone(), progress, windows })
}

/// Returns the store's revision if a class watches events of the past, otherwise 0.
///
/// Fails if a workload reads ranges and its keys are missing. A workload that also deletes keys is
/// not checked. Reads of missing keys are fast and would look like good results.
async fn prepare(workload: &Workload, channel: Channel, session: Option<&Session>) -> Result<i64> {
    if workload.has_ranges() && !workload.has_deletes() {
        let (space, remedy) = (&workload.space, "clearlane-load fill");
        fill::check_filled(channel.clone(), space, session, "workload", remedy).await?;
    }
    let watches_past =
        |class: &Class| matches!(class.operation, Operation::Watch { events } if events > 0);
    match workload.classes.iter().any(watches_past) {
        true => fill::revision(channel, session).await,
        false => Ok(0),
    }
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
    /// Sends requests until the channel is closed.
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
            let text = format!("not sent: {IN_FLIGHT_MAX} other requests had no response yet");
            progress.metrics.add_failure(due, text);
            return;
        }
        let turn = progress.due as usize % self.connections.len();
        drop(progress);
        let (call, connection) = (self.requests.next_call(), self.connections[turn].clone());
        let (session, mut given_up) = (self.session.clone(), self.given_up.subscribe());
        self.in_flight.spawn(async move {
            let sent = start.elapsed();
            let result = tokio::select! {
                result = Session::call(session.as_deref(), &connection, &call) => result,
                why = given_up.wait_for(Option::is_some) => {
                    Err(why.ok().and_then(|why| why.clone()).unwrap_or_default())
                }
            };
            CompletedRequest { due, sent, answered: start.elapsed(), result }
        });
    }

    /// Waits for the remaining responses. A request without a response in time is recorded as
    /// failed in this window, so that it does not affect the next window.
    async fn drain(&mut self) {
        let add = |done| self.progress.lock().metrics.add(done);
        let why = drain(&mut self.in_flight, || true, &self.stop, add).await;
        self.given_up.send_replace(why);
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
    use tokio::time::timeout;

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
