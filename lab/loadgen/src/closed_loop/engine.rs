//! Clients that each send the next request when the one before is answered.
//!
//! ```text
//!   thread ── clients ── next request ── connection of the client ──▶ server
//!                 ▲                            │
//!                 └────────── metrics ◀────────┘
//! ```
//!
//! Clients of a thread share a source of requests and their metrics. A latency counts from when a
//! request is sent: while the server stands still no request is due, which is what an open loop is
//! for (`docs/load.md`).

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::RangeRequest;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use crate::class_metrics::{ClassMetrics, CompletedRequest};
use crate::connection::{self, Connection, Endpoints};
use crate::requests::Call;
use crate::response_scanner::ResponseStats;
use crate::run::{DRAIN, STOPPED_DRAIN};
use crate::stop::Stop;
use crate::users::Session;
use crate::{Error, Result};

/// After a request that failed: a server that restarts is not asked in vain thousands of times.
const FAILURE_PAUSE: Duration = Duration::from_millis(100);
/// How often a thread looks whether its clients are to end.
const END_INTERVAL: Duration = Duration::from_millis(50);
/// Keys of a page.
const PAGE_KEYS: i64 = 10_000;

pub(crate) enum LoopRequest {
    Call {
        class: usize,
        call: Call,
    },
    /// A range that is read page by page.
    Pages(Channel, RangeRequest),
}

/// Makes the next request of a client.
pub(crate) type RequestSource = Box<dyn FnMut(u64) -> LoopRequest + Send>;

/// It is waited for when all connections are open.
pub(crate) type WarmUp = Pin<Box<dyn Future<Output = ()>>>;

pub(crate) struct LoopOptions {
    pub(crate) endpoints: Endpoints,
    pub(crate) session: Option<Arc<Session>>,
    pub(crate) connections: u64,
    pub(crate) clients: u64,
    pub(crate) threads: u64,
    pub(crate) total: u64,
    /// Requests a second of all clients.
    pub(crate) rate: Option<u64>,
    /// Requests that are sent before its end are not counted.
    pub(crate) warm_up: Option<WarmUp>,
    /// After which no request is sent.
    pub(crate) window: Option<Duration>,
    pub(crate) stop: Stop,
}

impl LoopOptions {
    /// Of which each has a client.
    pub(crate) fn threads(&self) -> u64 {
        self.threads.min(self.clients).max(1)
    }
}

/// What the threads share.
struct SharedLoop {
    /// Set when all connections are open.
    begin: OnceLock<Instant>,
    has_begun: Notify,
    /// Since the begin; set at the end of the warm-up.
    counted_from: OnceLock<Duration>,
    opened: Barrier,
    /// Requests that are still to be sent.
    left: AtomicU64,
    /// When the next request may be sent, in nanoseconds since the begin.
    next_slot: AtomicU64,
    slot: Option<Duration>,
    window: Option<Duration>,
    stop: Stop,
    /// Nothing waits for the results any more.
    is_given_up: AtomicBool,
    session: Option<Arc<Session>>,
}

/// Ends the threads when it is dropped.
struct GiveUp(Arc<SharedLoop>);

struct ClientThread {
    source: Mutex<RequestSource>,
    metrics: Mutex<Vec<ClassMetrics>>,
}

/// Returns the metrics of each class, and how long it took, without the warm-up. `tell` is called
/// once a second.
pub(crate) async fn run(
    options: LoopOptions,
    classes: usize,
    source: &mut dyn FnMut(u64) -> RequestSource,
    tell: &mut dyn FnMut(&str),
) -> Result<(Vec<ClassMetrics>, Duration)> {
    let threads = options.threads();
    let connections = options.connections.min(options.clients).max(threads);
    let shared = Arc::new(SharedLoop {
        begin: OnceLock::new(),
        has_begun: Notify::new(),
        counted_from: match options.warm_up {
            Some(_) => OnceLock::new(),
            None => OnceLock::from(Duration::ZERO),
        },
        opened: Barrier::new(threads as usize),
        left: AtomicU64::new(options.total),
        next_slot: AtomicU64::new(0),
        slot: options.rate.map(|rate| Duration::from_secs(1) / rate as u32),
        window: options.window,
        stop: options.stop.clone(),
        is_given_up: AtomicBool::new(false),
        session: options.session.clone(),
    });
    let _give_up = GiveUp(Arc::clone(&shared));
    let new_metrics = || ClassMetrics::of_window(options.window.unwrap_or_default());
    let (mut joined, mut states, mut first) = (Vec::new(), Vec::new(), 0);
    for number in 0..threads {
        let own = |count: u64| count / threads + u64::from(number < count % threads);
        let state = Arc::new(ClientThread {
            source: Mutex::new(source(number)),
            metrics: Mutex::new(vec![new_metrics(); classes]),
        });
        let (endpoints, shared) = (options.endpoints.clone(), Arc::clone(&shared));
        states.push(Arc::clone(&state));
        // Numbers of clients are those of all threads.
        let clients = (number..options.clients).step_by(threads as usize).collect::<Vec<_>>();
        let connections = (first, own(connections).max(1));
        first += connections.1;
        let work = move || run_thread(&endpoints, connections, &clients, &shared, &state);
        let thread = thread::Builder::new().name(format!("clients {number}")).spawn(work);
        joined.push(thread.map_err(thread_error)?);
    }
    let mut second = tokio::time::interval(Duration::from_secs(1));
    second.tick().await;
    let mut counting = pin!(shared.count_after(options.warm_up));
    let mut poll = tokio::time::interval(Duration::from_millis(20));
    while !joined.iter().all(thread::JoinHandle::is_finished) {
        tokio::select! {
            never = &mut counting => match never {},
            _ = poll.tick() => {}
            _ = second.tick() => tell(&progress(&states, options.total, shared.elapsed())),
        }
    }
    let mut elapsed = Duration::ZERO;
    for thread in joined {
        elapsed = elapsed.max(thread.join().expect("clients do not panic")?);
    }
    let mut sums = vec![new_metrics(); classes];
    for state in states {
        sums.iter_mut().zip(&*state.metrics.lock()).for_each(|(sum, of)| sum.merge(of));
    }
    // What has no answer keeps a thread for longer, and does not make the window longer.
    let last_answer = sums.iter().map(ClassMetrics::last_answer).max().unwrap_or_default();
    let longest = options.window.map_or(elapsed, |window| window.max(last_answer));
    Ok((sums, elapsed.min(longest)))
}

fn thread_error(error: std::io::Error) -> Error {
    Error::Local(format!("no thread could be started: {error}"))
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

/// Returns when the last request ended, since the end of the warm-up.
fn run_thread(
    endpoints: &Endpoints,
    (first, connections): (u64, u64),
    clients: &[u64],
    shared: &Arc<SharedLoop>,
    state: &Arc<ClientThread>,
) -> Result<Duration> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::Local(format!("no runtime: {error}")))?;
    runtime.block_on(async {
        let opened = connection::open_direct(endpoints, first, connections).await;
        // Also if there was an error: the others wait, and then end.
        shared.is_given_up.fetch_or(opened.is_err(), Ordering::Relaxed);
        shared.opened.wait();
        let connections = opened?;
        shared.begin.get_or_init(Instant::now);
        shared.has_begun.notify_one();
        let mut running = JoinSet::new();
        for (number, client) in clients.iter().enumerate() {
            let connection = connections[number % connections.len()].clone();
            let (shared, state) = (Arc::clone(shared), Arc::clone(state));
            running.spawn(run_client(*client, connection, shared, state));
        }
        let mut drain = Drain::default();
        while !running.is_empty() {
            if let Some(drain) = drain.ended(shared) {
                let text = format!("no answer {} s after the end", drain.as_secs());
                state.metrics.lock()[0].add_failures(text, running.len() as u64);
                running.shutdown().await;
            }
            let ended = tokio::time::timeout(END_INTERVAL, running.join_next()).await;
            if let Ok(Some(ended)) = ended {
                ended.expect("a client neither panics nor is stopped while it is waited for");
            }
        }
        Ok(shared.counted_for().unwrap_or_default())
    })
}

async fn run_client(
    client: u64,
    connection: Connection,
    shared: Arc<SharedLoop>,
    state: Arc<ClientThread>,
) {
    while shared.take_turn() {
        if !shared.wait_for_slot().await {
            return;
        }
        let request = (state.source.lock())(client);
        let sent = shared.elapsed();
        let (class, result) = match request {
            LoopRequest::Call { class, call } => (class, shared.call(&connection, &call).await),
            LoopRequest::Pages(channel, range) => (0, shared.read_pages(&channel, range).await),
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

/// The time for answers when no more requests are sent: shorter from a stop on.
#[derive(Default)]
struct Drain {
    over: Option<Instant>,
    stopped: Option<Instant>,
}

impl Drain {
    /// How long it was, when it has ended.
    fn ended(&mut self, shared: &SharedLoop) -> Option<Duration> {
        let begun = |at: &mut Option<Instant>, is: bool| {
            is.then(|| at.get_or_insert_with(Instant::now).elapsed())
        };
        let over = begun(&mut self.over, shared.is_over());
        let stopped = begun(&mut self.stopped, shared.is_stopped());
        let ended = |since: Option<Duration>, drain| since.is_some_and(|of| of >= drain);
        if ended(stopped, STOPPED_DRAIN) {
            return Some(STOPPED_DRAIN);
        }
        ended(over, DRAIN).then_some(DRAIN)
    }
}

impl Drop for GiveUp {
    fn drop(&mut self) {
        self.0.is_given_up.store(true, Ordering::Relaxed);
    }
}

impl SharedLoop {
    async fn count_after(&self, warm_up: Option<WarmUp>) -> Infallible {
        if let Some(warm_up) = warm_up {
            self.has_begun.notified().await;
            warm_up.await;
            self.counted_from.get_or_init(|| self.elapsed());
        }
        std::future::pending().await
    }

    /// A request that ends now; `None` if it was sent in the warm-up.
    fn counted(
        &self,
        sent: Duration,
        result: std::result::Result<ResponseStats, String>,
    ) -> Option<CompletedRequest> {
        let sent = sent.checked_sub(*self.counted_from.get()?)?;
        let answered = self.counted_for()?;
        Some(CompletedRequest { due: sent, sent, answered, result })
    }

    fn elapsed(&self) -> Duration {
        self.begin.get().map_or(Duration::ZERO, Instant::elapsed)
    }

    /// Since the end of the warm-up; `None` while it lasts.
    fn counted_for(&self) -> Option<Duration> {
        Some(self.elapsed().saturating_sub(*self.counted_from.get()?))
    }

    fn is_stopped(&self) -> bool {
        self.stop.is_set() || self.is_given_up.load(Ordering::Relaxed)
    }

    /// Whether no more requests are to be sent, though some are left.
    fn is_over(&self) -> bool {
        let is_longer = |window| self.counted_for().is_some_and(|elapsed| elapsed >= window);
        self.is_stopped() || self.window.is_some_and(is_longer)
    }

    /// Whether there is a request to send.
    fn take_turn(&self) -> bool {
        if self.is_over() {
            return false;
        }
        let less = |left: u64| left.checked_sub(1);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Whether the request is to be sent after that.
    async fn wait_for_slot(&self) -> bool {
        let Some(slot) = self.slot else { return true };
        let now = self.elapsed().as_nanos() as u64;
        let slot = slot.as_nanos() as u64;
        let take = |next: u64| Some(next.max(now) + slot);
        let taken = self.next_slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        let at = Duration::from_nanos(taken.unwrap_or_default().max(now));
        loop {
            let left = at.saturating_sub(self.elapsed());
            if left.is_zero() || self.is_over() {
                return !self.is_over();
            }
            tokio::time::sleep(left.min(END_INTERVAL)).await;
        }
    }

    async fn call(
        &self,
        connection: &Connection,
        call: &Call,
    ) -> std::result::Result<ResponseStats, String> {
        match &self.session {
            Some(session) => session.call(connection, call).await,
            None => connection.call(call).await,
        }
    }

    /// All pages are at the revision of the first.
    async fn read_pages(
        &self,
        channel: &Channel,
        mut range: RangeRequest,
    ) -> std::result::Result<ResponseStats, String> {
        let mut client = KvClient::new(channel.clone()).max_decoding_message_size(usize::MAX);
        let mut stats = ResponseStats::default();
        range.limit = PAGE_KEYS;
        loop {
            let request = Session::request_of(self.session.as_deref(), range.clone());
            let page = client.range(request).await.map_err(connection::text)?.into_inner();
            stats.keys += page.kvs.len() as u64;
            stats.bytes += clearlane_proto::Message::encoded_len(&page) as u64;
            let Some(last) = page.kvs.last().filter(|_| page.more) else { return Ok(stats) };
            range.key = [&last.key[..], &[0]].concat().into();
            range.revision = page.header.map_or(0, |header| header.revision);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;
    use crate::stub::{self, StubSizes};

    fn options(total: u64, warm_up: Option<WarmUp>) -> LoopOptions {
        let sizes = StubSizes { key: 1, value: 1, snapshot: 1 };
        let listen = "127.0.0.1:0".parse().expect("an address");
        let address = stub::start(listen, sizes).expect("a free port").to_string();
        LoopOptions {
            endpoints: connection::endpoint(&address).expect("an address").into(),
            session: None,
            connections: 2,
            clients: 4,
            threads: 2,
            total,
            rate: None,
            warm_up,
            window: None,
            stop: Stop::default(),
        }
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
        // It does not end before the last request.
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
        // The threads have their sources until they end.
        while Arc::strong_count(&in_use) > 1 {
            sleep(Duration::from_millis(1)).await;
        }
    }
}
