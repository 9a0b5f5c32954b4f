//! A closed loop: clients that each send the next request when the previous one is answered.
//!
//! ```text
//!   thread ── clients ── next request ── connection of the client ──▶ server
//!                 ▲                            │
//!                 └────────── metrics ◀────────┘
//! ```
//!
//! The clients of a thread share one source of requests and one set of metrics. A latency starts
//! when its request is sent. While the server is blocked, a closed loop sends nothing and so hides
//! the delay. An open loop shows the delay (`docs/load.md`).

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use clearlane_net::sched::SchedClass;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::Result;
use crate::class_metrics::{CallResult, ClassMetrics, CompletedRequest};
use crate::connection::{Connection, Endpoints};
use crate::load_thread::{END_INTERVAL, drain, start_thread, with_progress};
use crate::requests::Call;
use crate::stop::{Stop, StopAtDrop};
use crate::users::Session;

/// Pause after a failed request. Without it, the clients would send thousands of requests that fail
/// while a server restarts.
const FAILURE_PAUSE: Duration = Duration::from_millis(100);

pub(crate) enum LoopRequest {
    Call {
        class: usize,
        call: Call,
    },
    /// A request of the first class that does not use the client's connection: several calls, or
    /// a call whose source needs its response.
    Calls(Pin<Box<dyn Future<Output = CallResult> + Send>>),
}

/// Creates the next request of a client. The argument is the client's number.
pub(crate) type RequestSource = Box<dyn FnMut(u64) -> LoopRequest + Send>;

/// A future that completes at the end of the warm-up. It is first polled when all connections are
/// open.
pub(crate) type WarmUp = Pin<Box<dyn Future<Output = ()>>>;

pub(crate) struct LoopOptions {
    pub(crate) endpoints: Endpoints,
    pub(crate) session: Option<Arc<Session>>,
    /// Number of connections, which clients use in turn. 0 if no source makes a
    /// [`LoopRequest::Call`].
    pub(crate) connections: u64,
    pub(crate) clients: u64,
    pub(crate) threads: u64,
    pub(crate) total: u64,
    /// Maximum number of requests per second of all clients together. `None` if there is no limit.
    pub(crate) rate: Option<u64>,
    /// The warm-up, if there is one. Requests that are sent before its end are not counted.
    pub(crate) warm_up: Option<WarmUp>,
    /// How long requests are sent, counted from the end of the warm-up. `None` if there is no
    /// limit.
    pub(crate) window: Option<Duration>,
    pub(crate) stop: Stop,
}

impl LoopOptions {
    /// Creates options for clients on one thread, without connections, user or limits.
    pub(crate) fn new(endpoints: Endpoints, clients: u64) -> LoopOptions {
        LoopOptions {
            endpoints,
            session: None,
            connections: 0,
            clients,
            threads: 1,
            total: u64::MAX,
            rate: None,
            warm_up: None,
            window: None,
            stop: Stop::default(),
        }
    }

    /// Returns the number of threads. It is at most the number of clients, so that each thread has
    /// a client.
    pub(crate) fn threads(&self) -> u64 {
        self.threads.min(self.clients).max(1)
    }

    /// Returns the share of each thread: the number of its first connection, how many connections
    /// it has, and the numbers of its clients.
    fn shares(&self) -> impl Iterator<Item = ((u64, u64), Vec<u64>)> {
        let (threads, clients) = (self.threads(), self.clients);
        let all =
            if self.connections == 0 { 0 } else { self.connections.min(clients).max(threads) };
        // If the connections cannot be divided equally, the first threads have one more.
        let first = move |thread: u64| all / threads * thread + thread.min(all % threads);
        (0..threads).map(move |thread| {
            let connections = (first(thread), first(thread + 1) - first(thread));
            (connections, (thread..clients).step_by(threads as usize).collect())
        })
    }
}

/// State that the threads share.
struct SharedLoop {
    /// The time when all connections were open.
    begin: Instant,
    /// The end of the warm-up, as a time since `begin`. Not set until the warm-up ends.
    counted_from: OnceLock<Duration>,
    /// Number of requests that are still to be sent.
    left: AtomicU64,
    /// The earliest time of the next request, in nanoseconds since `begin`.
    next_slot: AtomicU64,
    slot: Option<Duration>,
    window: Option<Duration>,
    stop: Stop,
    session: Option<Arc<Session>>,
}

struct ClientThread {
    source: Mutex<RequestSource>,
    metrics: Mutex<Vec<ClassMetrics>>,
}

/// Runs a closed loop. Returns the metrics of each class, and the running time without the warm-up.
/// `source` makes the request source of each thread from its number. `tell` is called once a second
/// with the progress.
pub(crate) async fn run(
    mut options: LoopOptions,
    classes: usize,
    source: &mut dyn FnMut(u64) -> RequestSource,
    tell: &mut dyn FnMut(&str),
) -> Result<(Vec<ClassMetrics>, Duration)> {
    let stop_at_drop = StopAtDrop::new(&options.stop);
    let warm_up = options.warm_up.take();
    let new_metrics = || ClassMetrics::of_window(options.window.unwrap_or_default());
    let (mut results, mut states, mut begins) = (Vec::new(), Vec::new(), Vec::new());
    for (number, (connections, clients)) in (0..).zip(options.shares()) {
        let (source, metrics) = (Mutex::new(source(number)), vec![new_metrics(); classes]);
        let state = Arc::new(ClientThread { source, metrics: Mutex::new(metrics) });
        states.push(Arc::clone(&state));
        let (begin, has_begun) = oneshot::channel();
        begins.push(begin);
        let work = |connections| run_clients(connections, clients, has_begun, state);
        let name = format!("clients {number}");
        let endpoints = &options.endpoints;
        let class = SchedClass::Normal;
        results.push(start_thread(name, class, endpoints, connections, work).await?);
    }
    let shared = Arc::new(SharedLoop::new(&options, warm_up.is_none()));
    for begin in begins {
        // Sending does not fail unless the thread has ended, because each thread waits for this
        // message.
        let _ = begin.send(Arc::clone(&shared));
    }
    let ended = async {
        let mut elapsed = Duration::ZERO;
        for result in results {
            elapsed = elapsed.max(result.await.expect("clients do not panic"));
        }
        elapsed
    };
    let counting = async {
        if let Some(warm_up) = warm_up {
            warm_up.await;
            shared.counted_from.get_or_init(|| shared.begin.elapsed());
        }
        std::future::pending().await
    };
    let ended = async {
        tokio::select! {
            elapsed = ended => elapsed,
            never = counting => never,
        }
    };
    let progress = || tell(&progress(&states, options.total, shared.begin.elapsed()));
    let elapsed = with_progress(ended, Duration::from_secs(1), progress).await;
    stop_at_drop.disarm();
    let mut sums = vec![new_metrics(); classes];
    for state in states {
        sums.iter_mut().zip(&*state.metrics.lock()).for_each(|(sum, of)| sum.merge(of));
    }
    // A thread runs until all its requests have been answered or given up. The wait for requests
    // that were given up must not count. So the returned time ends no later than the window or the
    // last response, whichever is later.
    let last_answer = sums.iter().map(ClassMetrics::last_answer).max().unwrap_or_default();
    let longest = options.window.map_or(elapsed, |window| window.max(last_answer));
    Ok((sums, elapsed.min(longest)))
}

fn progress(states: &[Arc<ClientThread>], total: u64, elapsed: Duration) -> String {
    let (mut answered, mut failed, mut p99) = (0, 0, 0.0_f64);
    for state in states {
        for metrics in &*state.metrics.lock() {
            answered += metrics.answered();
            failed += metrics.failed();
            p99 = p99.max(metrics.latency_ms(0.99).unwrap_or_default());
        }
    }
    let seconds = elapsed.as_secs_f64();
    let rate = answered as f64 / seconds.max(0.001);
    format!(
        "{seconds:3.0} s: {answered} of {total} answered, {failed} errors, {rate:.0}/s, p99 {p99:.1} ms"
    )
}

/// Runs the clients of a thread. Returns when the last request has ended or was given up. The
/// result is the time since the end of the warm-up, or 0 if the warm-up has not ended.
async fn run_clients(
    connections: Vec<Connection>,
    clients: Vec<u64>,
    has_begun: oneshot::Receiver<Arc<SharedLoop>>,
    state: Arc<ClientThread>,
) -> Duration {
    // Another thread may have failed to open its connections. Then there is no load.
    let Ok(shared) = has_begun.await else { return Duration::ZERO };
    let mut running = JoinSet::new();
    for (place, client) in clients.into_iter().enumerate() {
        let connection = connections.get(place % connections.len().max(1)).cloned();
        running.spawn(run_client(client, connection, Arc::clone(&shared), Arc::clone(&state)));
    }
    if let Some(why) = drain(&mut running, || shared.is_over(), &shared.stop, |()| {}).await {
        state.metrics.lock()[0].add_failures(why, running.len() as u64);
        running.shutdown().await;
    }
    shared.counted_for().unwrap_or_default()
}

async fn run_client(
    client: u64,
    connection: Option<Connection>,
    shared: Arc<SharedLoop>,
    state: Arc<ClientThread>,
) {
    while shared.take_turn() {
        if !shared.wait_for_slot().await {
            return;
        }
        let request = (state.source.lock())(client);
        let sent = shared.begin.elapsed();
        let (class, result) = match request {
            LoopRequest::Call { class, call } => {
                let connection = connection.as_ref().expect("a loop of calls has connections");
                (class, Session::call(shared.session.as_deref(), connection, &call).await)
            }
            LoopRequest::Calls(calls) => (0, calls.await),
        };
        let has_failed = result.is_err();
        if let Some(completed) = shared.counted(sent, result) {
            state.metrics.lock()[class].add(completed);
        }
        if has_failed {
            tokio::time::sleep(FAILURE_PAUSE).await;
        }
    }
}

impl SharedLoop {
    /// Starts the clock. Requests are counted from the start, or from the end of a warm-up.
    fn new(options: &LoopOptions, counts_from_begin: bool) -> SharedLoop {
        let counted_from = match counts_from_begin {
            true => OnceLock::from(Duration::ZERO),
            false => OnceLock::new(),
        };
        SharedLoop {
            begin: Instant::now(),
            counted_from,
            left: AtomicU64::new(options.total),
            next_slot: AtomicU64::new(0),
            slot: options.rate.map(|rate| Duration::from_secs(1) / rate as u32),
            window: options.window,
            stop: options.stop.clone(),
            session: options.session.clone(),
        }
    }

    /// Returns the result of a request that ends now, with times since the end of the warm-up.
    /// Returns `None` if the request was sent during the warm-up.
    fn counted(&self, sent: Duration, result: CallResult) -> Option<CompletedRequest> {
        let sent = sent.checked_sub(*self.counted_from.get()?)?;
        let answered = self.counted_for()?;
        Some(CompletedRequest { due: sent, sent, answered, result })
    }

    /// Returns the time since the end of the warm-up, or `None` if the warm-up has not ended.
    fn counted_for(&self) -> Option<Duration> {
        Some(self.begin.elapsed().saturating_sub(*self.counted_from.get()?))
    }

    /// Returns true if no more requests may be sent, even if some are left.
    fn is_over(&self) -> bool {
        let is_longer = |window| self.counted_for().is_some_and(|elapsed| elapsed >= window);
        self.stop.is_set() || self.window.is_some_and(is_longer)
    }

    /// Takes one of the remaining requests. Returns false if none is left, or if no more may be
    /// sent.
    fn take_turn(&self) -> bool {
        if self.is_over() {
            return false;
        }
        let less = |left: u64| left.checked_sub(1);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Waits until the rate allows the next request. Returns false if the load has ended by then.
    async fn wait_for_slot(&self) -> bool {
        let Some(slot) = self.slot else { return true };
        let now = self.begin.elapsed().as_nanos() as u64;
        let slot = slot.as_nanos() as u64;
        let take = |next: u64| Some(next.max(now) + slot);
        let taken = self.next_slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        let at = Duration::from_nanos(taken.unwrap_or_default().max(now));
        loop {
            let left = at.saturating_sub(self.begin.elapsed());
            if left.is_zero() || self.is_over() {
                return !self.is_over();
            }
            tokio::time::sleep(left.min(END_INTERVAL)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use clearlane_proto::etcdserverpb::RangeRequest;
    use tokio::time::sleep;

    use super::*;
    use crate::connection;
    use crate::stub::{self, StubSizes};

    fn options(total: u64, warm_up: Option<WarmUp>) -> LoopOptions {
        let sizes = StubSizes { key: 1, value: 1, snapshot: 1 };
        let listen = "127.0.0.1:0".parse().expect("an address");
        let address = stub::start(listen, sizes).expect("a free port").to_string();
        let endpoint = connection::endpoint(&address).expect("an address");
        let options = LoopOptions::new(endpoint.into(), 4);
        LoopOptions { connections: 2, threads: 2, total, warm_up, ..options }
    }

    fn gets(_thread: u64) -> RequestSource {
        let get = RangeRequest { key: "a".into(), ..RangeRequest::default() };
        let call = Call::new("/etcdserverpb.KV/Range", &get, None);
        Box::new(move |_| LoopRequest::Call { class: 0, call: call.clone() })
    }

    async fn answered(options: LoopOptions) -> (u64, Duration) {
        let done = run(options, 1, &mut gets, &mut |_| {}).await;
        let (metrics, elapsed) = done.expect("the stub is there");
        assert_eq!(metrics[0].failed(), 0, "{:?}", metrics[0].errors());
        (metrics[0].answered(), elapsed)
    }

    #[tokio::test]
    async fn what_is_sent_in_the_warm_up_is_not_counted() {
        assert_eq!(answered(options(20, None)).await.0, 20);
        // This warm-up never ends, so none of the 20 requests is counted.
        let endless = Box::pin(std::future::pending());
        assert_eq!(answered(options(20, Some(endless))).await, (0, Duration::ZERO));
    }

    #[tokio::test]
    async fn the_window_begins_behind_the_warm_up() {
        let (warm_up, window) = (Duration::from_millis(300), Duration::from_secs(1));
        let options = options(u64::MAX, Some(Box::pin(async move { sleep(warm_up).await })));
        let begin = Instant::now();
        let (answered, elapsed) = answered(LoopOptions { window: Some(window), ..options }).await;
        assert!(answered > 0 && elapsed >= window, "{answered} in {elapsed:?}");
        assert!(elapsed + warm_up <= begin.elapsed(), "{elapsed:?}");
    }

    #[tokio::test]
    async fn a_loop_that_nothing_waits_for_ends() {
        let in_use = Arc::new(());
        let mut sources = |thread| -> RequestSource {
            let (in_use, mut source) = (Arc::clone(&in_use), gets(thread));
            Box::new(move |client| {
                let _ = &in_use;
                source(client)
            })
        };
        let mut tell = |_: &str| {};
        let running = run(options(u64::MAX, None), 1, &mut sources, &mut tell);
        let early = Duration::from_millis(50);
        assert!(tokio::time::timeout(early, running).await.is_err());
        // The threads keep their sources until they end. So the loop has ended if only the test
        // uses `in_use`.
        while Arc::strong_count(&in_use) > 1 {
            sleep(Duration::from_millis(1)).await;
        }
    }
}
