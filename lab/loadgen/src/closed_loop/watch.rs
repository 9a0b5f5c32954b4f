//! The loops `watch` and `watch-latency`: watches, and puts of the watched keys.
//!
//! The report has three classes, with these latencies:
//!
//! ```text
//!   create   a request for a watch ──▶ its response; a stream creates its watches in turn
//!   put      a put of a watched key ──▶ its response
//!   event    a put is sent ──▶ one watch receives its event
//! ```
//!
//! An event has the revision of its put. The revision is also in the response of the put, but the
//! event may arrive earlier. Such an event waits in [`Events::early`] until the response arrives.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::watch_client::WatchClient;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{WatchCreateRequest, WatchRequest, WatchResponse};
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use super::arguments::{ClosedLoop, WatchArguments};
use super::{class_report, key_space};
use crate::class_metrics::{ClassMetrics, CompletedRequest};
use crate::keys::{KeySpace, ValueGenerator};
use crate::load_thread::{DRAIN, STOPPED_DRAIN, drain, with_progress};
use crate::observation::LoadResult;
use crate::process::DriverUsage;
use crate::requests::put;
use crate::response_scanner::ResponseStats;
use crate::stop::Stop;
use crate::target::OpenTarget;
use crate::users::Session;
use crate::{Error, Result, connection};

struct WatchPlan {
    options: WatchArguments,
    watches_per_stream: u64,
    prev_kv: bool,
    space: KeySpace,
    /// Puts per second of all clients together. `None` if there is no limit.
    rate: Option<u64>,
}

impl WatchPlan {
    fn of(asked: &ClosedLoop) -> Result<WatchPlan> {
        let (options, space, watches_per_stream, rate, prev_kv) = match asked {
            ClosedLoop::Watch { options, watch_per_stream, watched_key_total, put_rate } => {
                let space = key_space(*watched_key_total, options.key_size, 8)?;
                (options, space, *watch_per_stream, *put_rate, false)
            }
            ClosedLoop::WatchLatency {
                options,
                watchers_per_stream,
                prevkv,
                put_rate,
                val_size,
            } => {
                let space = key_space(1, options.key_size, *val_size)?;
                (options, space, *watchers_per_stream, *put_rate, *prevkv)
            }
            _ => unreachable!("it is no watch"),
        };
        let (options, rate) = (options.clone(), (rate > 0).then_some(rate));
        Ok(WatchPlan { options, watches_per_stream, prev_kv, space, rate })
    }

    /// Returns the number of the key that the watch or put with this number uses.
    fn key_number(&self, number: u64) -> u64 {
        number % self.space.count
    }

    /// Returns the number of watches of this key.
    fn watches_of(&self, key: u64) -> u64 {
        let watches = self.options.streams * self.watches_per_stream;
        watches / self.space.count + u64::from(key < watches % self.space.count)
    }
}

/// State that all tasks of the load share.
struct SharedWatch {
    /// The time when all watches were created.
    start: Instant,
    events: Mutex<Events>,
    puts: Mutex<ClassMetrics>,
    /// The number of the next put.
    next_put: AtomicU64,
    stop: Stop,
}

#[derive(Default)]
struct Events {
    metrics: ClassMetrics,
    /// The time when the put of each revision was sent.
    sent: HashMap<i64, Duration>,
    /// Arrival times of events whose put has no response yet, by revision.
    early: HashMap<i64, Vec<Duration>>,
    expected: u64,
    /// The reason why a stream has ended. If several streams have ended, this is the latest reason.
    why_ended: Option<String>,
}

impl Events {
    fn add(&mut self, revision: i64, at: Duration) {
        match self.sent.get(&revision) {
            Some(sent) => self.metrics.add(completed(*sent, at)),
            None => self.early.entry(revision).or_default().push(at),
        }
    }

    fn add_put(&mut self, revision: i64, sent: Duration, watches: u64) {
        self.expected += watches;
        self.sent.insert(revision, sent);
        for at in self.early.remove(&revision).into_iter().flatten() {
            self.metrics.add(completed(sent, at));
        }
    }

    fn is_complete(&self) -> bool {
        self.metrics.answered() >= self.expected
    }
}

fn completed(sent: Duration, answered: Duration) -> CompletedRequest {
    let result = Ok(ResponseStats { keys: 1, bytes: 0 });
    CompletedRequest { due: sent, sent, answered, result }
}

pub(super) async fn run(
    asked: &ClosedLoop,
    target: &OpenTarget,
    stop: Stop,
    tell: &mut dyn FnMut(&str),
) -> Result<LoadResult> {
    let plan = Arc::new(WatchPlan::of(asked)?);
    let channels = connection::open(&target.endpoints, plan.options.common.conns).await?;
    let session = target.session.clone();
    let (created, streams) = create_all(&plan, &channels, session.as_deref()).await?;
    let driver = DriverUsage::begin(1);
    let shared = Arc::new(SharedWatch {
        start: Instant::now(),
        events: Mutex::default(),
        puts: Mutex::default(),
        next_put: AtomicU64::new(0),
        stop,
    });
    let streams = streams.into_iter().map(|stream| receive(stream, Arc::clone(&shared)));
    let mut receivers: JoinSet<()> = streams.collect();
    let mut clients = put_all(&plan, &channels, session.as_ref(), &shared);
    let putting = drain(&mut clients, || false, &shared.stop, |()| {});
    with_progress(putting, Duration::from_secs(1), || tell(&progress(&plan, &shared))).await;
    wait_for_events(&shared, &mut receivers).await;
    let driver = driver.end();
    receivers.shutdown().await;
    let mut events = std::mem::take(&mut *shared.events.lock());
    let missing = events.expected.saturating_sub(events.metrics.answered());
    if missing > 0 {
        let text = events.why_ended.take();
        let text = text.unwrap_or_else(|| "no event came while it was waited for".to_owned());
        events.metrics.add_failures(text, missing);
    }
    let puts = std::mem::take(&mut *shared.puts.lock());
    let class = |(name, metrics)| class_report(name, name, metrics);
    // The window lasts until the last response or event.
    let window = puts.last_answer().max(events.metrics.last_answer());
    let classes = [("create", created), ("put", puts), ("event", events.metrics)].map(class).into();
    Ok(LoadResult { is_open_loop: false, classes, window, driver, notes: Vec::new() })
}

fn progress(plan: &WatchPlan, shared: &SharedWatch) -> String {
    let (puts, events) = (shared.puts.lock().answered(), shared.events.lock());
    let seconds = shared.start.elapsed().as_secs();
    let p99 = events.metrics.latency_ms(0.99).unwrap_or_default();
    let seen = events.metrics.answered();
    format!(
        "{seconds:3} s: {puts} of {} puts, {seen} events, p99 {p99:.1} ms",
        plan.options.put_total
    )
}

/// An open stream: the sender of its requests, and the receiver of its responses. The stream ends
/// when both are dropped.
type OpenStream = (mpsc::Sender<WatchRequest>, Streaming<WatchResponse>);

async fn create_all(
    plan: &Arc<WatchPlan>,
    channels: &[Channel],
    session: Option<&Session>,
) -> Result<(ClassMetrics, Vec<OpenStream>)> {
    let (mut creating, mut streams) = (JoinSet::new(), Vec::new());
    let metrics = Arc::<Mutex<ClassMetrics>>::default();
    for (stream, channel) in (0..plan.options.streams).zip(channels.iter().cycle().cloned()) {
        let (sender, requests) = mpsc::channel(1);
        let request = Session::request_of(session, ReceiverStream::new(requests));
        let (plan, metrics) = (Arc::clone(plan), Arc::clone(&metrics));
        creating.spawn(async move {
            let client = WatchClient::new(channel).max_decoding_message_size(usize::MAX);
            create(&plan, stream, client, (sender, request), &metrics).await
        });
    }
    while let Some(created) = creating.join_next().await {
        streams.push(created.expect("it neither panics nor is stopped")?);
    }
    let metrics = std::mem::take(&mut *metrics.lock());
    Ok((metrics, streams))
}

async fn create(
    plan: &WatchPlan,
    stream: u64,
    mut client: WatchClient<Channel>,
    (sender, request): (mpsc::Sender<WatchRequest>, tonic::Request<ReceiverStream<WatchRequest>>),
    metrics: &Mutex<ClassMetrics>,
) -> Result<OpenStream> {
    let start = Instant::now();
    let watch = |number: u64| {
        let key = plan.space.key(plan.key_number(stream * plan.watches_per_stream + number));
        let create = WatchCreateRequest { key, prev_kv: plan.prev_kv, ..Default::default() };
        WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
    };
    let closed = || Error::Server("the server closed a watch stream".to_owned());
    let failed = |status| connection::error("a watch failed")(status);
    let mut sent = start.elapsed();
    sender.send(watch(0)).await.map_err(|_| closed())?;
    // The server answers a stream only when its first message has arrived.
    let mut responses = client.watch(request).await.map_err(failed)?.into_inner();
    for next in 1..=plan.watches_per_stream {
        let answer = loop {
            let answer = responses.message().await.map_err(failed)?.ok_or_else(closed)?;
            // Another client may put the key at the same time, so an event may arrive here. It is
            // skipped.
            if answer.created || answer.canceled {
                break answer;
            }
        };
        if answer.canceled {
            return Err(Error::Server(format!(
                "the server rejected a watch: {}",
                answer.cancel_reason
            )));
        }
        metrics.lock().add(completed(sent, start.elapsed()));
        if next < plan.watches_per_stream {
            sent = start.elapsed();
            sender.send(watch(next)).await.map_err(|_| closed())?;
        }
    }
    Ok((sender, responses))
}

/// Receives events until the stream or one of its watches ends.
async fn receive((_open, mut responses): OpenStream, shared: Arc<SharedWatch>) {
    let why = loop {
        let response = match responses.message().await {
            Ok(Some(response)) if response.canceled => {
                break format!("a watch was canceled: {}", response.cancel_reason);
            }
            Ok(Some(response)) => response,
            Ok(None) => break "the server closed a watch stream".to_owned(),
            Err(status) => break connection::text(status),
        };
        let at = shared.start.elapsed();
        let mut events = shared.events.lock();
        for event in &response.events {
            events.add(event.kv.as_ref().map_or(0, |kv| kv.mod_revision), at);
        }
    };
    shared.events.lock().why_ended = Some(why);
}

/// Starts the clients that put keys. A client ends when no puts are left, or at a stop.
fn put_all(
    plan: &Arc<WatchPlan>,
    channels: &[Channel],
    session: Option<&Arc<Session>>,
    shared: &Arc<SharedWatch>,
) -> JoinSet<()> {
    let common = &plan.options.common;
    let values = ValueGenerator::new(plan.space.value, common.target.seed);
    let clients = (0..common.clients).zip(channels.iter().cycle().cloned());
    let clients = clients.map(|(client, channel)| {
        let rng = SmallRng::seed_from_u64(common.target.seed.wrapping_add(client));
        let (plan, values, session) = (Arc::clone(plan), values.clone(), session.cloned());
        put_keys(plan, KvClient::new(channel), session, (values, rng), Arc::clone(shared))
    });
    clients.collect()
}

async fn put_keys(
    plan: Arc<WatchPlan>,
    mut kv: KvClient<Channel>,
    session: Option<Arc<Session>>,
    (values, mut rng): (ValueGenerator, SmallRng),
    shared: Arc<SharedWatch>,
) {
    loop {
        let number = shared.next_put.fetch_add(1, Ordering::Relaxed);
        if number >= plan.options.put_total || shared.stop.is_set() {
            return;
        }
        if let Some(rate) = plan.rate {
            let due = Duration::from_secs_f64(number as f64 / rate as f64);
            tokio::time::sleep(due.saturating_sub(shared.start.elapsed())).await;
        }
        let key = plan.key_number(number);
        let put = put(&plan.space, key, values.random_value(&mut rng));
        let sent = shared.start.elapsed();
        match kv.put(Session::request_of(session.as_deref(), put)).await {
            Ok(answer) => {
                let revision = answer.into_inner().header.map_or(0, |of| of.revision);
                shared.puts.lock().add(completed(sent, shared.start.elapsed()));
                shared.events.lock().add_put(revision, sent, plan.watches_of(key));
            }
            Err(status) => shared.puts.lock().add_failures(connection::text(status), 1),
        }
    }
}

async fn wait_for_events(shared: &SharedWatch, receivers: &mut JoinSet<()>) {
    let end = Instant::now() + if shared.stop.is_set() { STOPPED_DRAIN } else { DRAIN };
    while !shared.events.lock().is_complete() && !receivers.is_empty() && Instant::now() < end {
        // A receiver ends only if its stream or one of its watches ends. After all receivers have
        // ended, no more events can arrive.
        let _ = tokio::time::timeout(Duration::from_millis(1), receivers.join_next()).await;
    }
}
