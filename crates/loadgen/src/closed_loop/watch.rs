//! Watches, and puts of the keys that they watch.
//!
//! ```text
//!   create   each stream creates its watches one after the other
//!   put      clients put the watched keys in turn
//!   event    from when the put was sent to its event at one watch
//! ```
//!
//! An event has the revision of its put, and may come before the put's answer, which tells the
//! revision: such an event waits in [`Events::early`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::watch_client::WatchClient;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{PutRequest, WatchCreateRequest, WatchRequest, WatchResponse};
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use super::arguments::ClosedLoop;
use super::{LoopOutcome, failed};
use crate::class_metrics::{ClassMetrics, CompletedRequest};
use crate::keys::{KeySpace, Sizes, ValueGenerator};
use crate::process::DriverUsage;
use crate::report::ClassReport;
use crate::response_scanner::ResponseStats;
use crate::run::{DRAIN, STOPPED_DRAIN};
use crate::stop::Stop;
use crate::target::OpenTarget;
use crate::users::Session;
use crate::{Error, Result, connection};

struct WatchPlan {
    streams: u64,
    watches_per_stream: u64,
    prev_kv: bool,
    space: KeySpace,
    puts: u64,
    /// Puts a second.
    rate: Option<u64>,
    connections: u64,
    clients: u64,
    seed: u64,
}

impl WatchPlan {
    fn of(asked: &ClosedLoop) -> Result<WatchPlan> {
        let common = asked.common();
        let (keys, key_size, value_size) = match *asked {
            ClosedLoop::Watch { watched_key_total, key_size, .. } => {
                (watched_key_total, key_size, 8)
            }
            ClosedLoop::WatchLatency { key_size, val_size, .. } => (1, key_size, val_size),
            _ => unreachable!("it is no watch"),
        };
        let shortest = KeySpace::min_key_size("", keys);
        if key_size < shortest {
            let allowed = format!("{keys} keys have at least {shortest} bytes");
            return Err(Error::Local(format!("--key-size {key_size}: {allowed}")));
        }
        let value = Sizes::constant(value_size);
        let space = KeySpace { prefix: String::new(), count: keys, key_size, value };
        let (streams, watches_per_stream, puts, rate, prev_kv) = match *asked {
            ClosedLoop::Watch { streams, watch_per_stream, put_total, put_rate, .. } => {
                (streams, watch_per_stream, put_total, put_rate, false)
            }
            ClosedLoop::WatchLatency {
                streams,
                watchers_per_stream,
                put_total,
                put_rate,
                prevkv,
                ..
            } => (streams, watchers_per_stream, put_total, put_rate, prevkv),
            _ => unreachable!("it is no watch"),
        };
        Ok(WatchPlan {
            streams,
            watches_per_stream,
            prev_kv,
            space,
            puts,
            rate: (rate > 0).then_some(rate),
            connections: common.conns,
            clients: common.clients,
            seed: common.target.seed,
        })
    }

    /// Of the watch with this number.
    fn key_number(&self, watch: u64) -> u64 {
        watch % self.space.count
    }

    fn watches(&self) -> u64 {
        self.streams * self.watches_per_stream
    }

    /// Watches of the key with this number.
    fn watches_of(&self, key: u64) -> u64 {
        let (each, rest) = (self.watches() / self.space.count, self.watches() % self.space.count);
        each + u64::from(key < rest)
    }
}

/// Shared by all tasks of the load.
struct SharedWatch {
    /// When all watches are created.
    start: Instant,
    events: Mutex<Events>,
    puts: Mutex<ClassMetrics>,
    stop: Stop,
}

#[derive(Default)]
struct Events {
    metrics: ClassMetrics,
    /// When the put of a revision was sent.
    sent: HashMap<i64, Duration>,
    /// By revision, when events came whose put has no answer yet.
    early: HashMap<i64, Vec<Duration>>,
    expected: u64,
    /// Why a stream has ended.
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
) -> Result<LoopOutcome> {
    let plan = Arc::new(WatchPlan::of(asked)?);
    let channels = connection::open(&target.endpoints, plan.connections).await?;
    let session = target.session.clone();
    let (created, mut streams) = create_all(&plan, &channels, session.as_deref()).await?;
    let driver = DriverUsage::begin(1);
    let events = Mutex::default();
    let shared =
        Arc::new(SharedWatch { start: Instant::now(), events, puts: Mutex::default(), stop });
    let mut receivers = JoinSet::new();
    for (_, responses) in &mut streams {
        if let Some(responses) = responses.take() {
            receivers.spawn(receive(responses, Arc::clone(&shared)));
        }
    }
    let putting = put_all(&plan, &channels, session, &shared);
    tokio::pin!(putting);
    let mut second = tokio::time::interval(Duration::from_secs(1));
    second.tick().await;
    let mut stopped_for = Duration::ZERO;
    while stopped_for < STOPPED_DRAIN {
        tokio::select! {
            () = &mut putting => break,
            _ = second.tick() => tell(&progress(&plan, &shared)),
        }
        if shared.stop.is_set() {
            stopped_for += Duration::from_secs(1);
        }
    }
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
    let class = |name: &'static str, metrics| ClassReport {
        name: name.to_owned(),
        operation: name,
        rate: None,
        metrics,
    };
    let classes =
        vec![class("create", created), class("put", puts), class("event", events.metrics)];
    // Up to the last put or event.
    let window = classes[1..].iter().map(|class| class.metrics.last_answer()).max();
    Ok(LoopOutcome { classes, window: window.unwrap_or_default(), driver })
}

fn progress(plan: &WatchPlan, shared: &SharedWatch) -> String {
    let (puts, events) = (shared.puts.lock().answered(), shared.events.lock());
    let seconds = shared.start.elapsed().as_secs();
    let p99 = events.metrics.latency_ms(0.99).unwrap_or_default();
    let seen = events.metrics.answered();
    format!("{seconds:3} s: {puts} of {} puts, {seen} events, p99 {p99:.1} ms", plan.puts)
}

/// The requests of a stream, which ends when they are dropped, and its responses.
type OpenStream = (mpsc::Sender<WatchRequest>, Option<Streaming<WatchResponse>>);

async fn create_all(
    plan: &Arc<WatchPlan>,
    channels: &[Channel],
    session: Option<&Session>,
) -> Result<(ClassMetrics, Vec<OpenStream>)> {
    let mut creating = JoinSet::new();
    for stream in 0..plan.streams {
        let channel = channels[stream as usize % channels.len()].clone();
        let (sender, requests) = mpsc::channel(1);
        let request = Session::request_of(session, ReceiverStream::new(requests));
        let plan = Arc::clone(plan);
        creating.spawn(async move { create(&plan, stream, channel, sender, request).await });
    }
    let (mut metrics, mut streams) = (ClassMetrics::default(), Vec::new());
    while let Some(created) = creating.join_next().await {
        let (latencies, stream) = created.expect("it neither panics nor is stopped")?;
        for (sent, answered) in latencies {
            metrics.add(completed(sent, answered));
        }
        streams.push(stream);
    }
    Ok((metrics, streams))
}

type Latencies = Vec<(Duration, Duration)>;

async fn create(
    plan: &WatchPlan,
    stream: u64,
    channel: Channel,
    sender: mpsc::Sender<WatchRequest>,
    request: tonic::Request<ReceiverStream<WatchRequest>>,
) -> Result<(Latencies, OpenStream)> {
    let start = Instant::now();
    let mut client = WatchClient::new(channel).max_decoding_message_size(usize::MAX);
    let watch = |number: u64| {
        let key = plan.space.key(plan.key_number(stream * plan.watches_per_stream + number));
        let create = WatchCreateRequest { key, prev_kv: plan.prev_kv, ..Default::default() };
        WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
    };
    let closed = || Error::Server("a watch stream was closed".to_owned());
    let mut latencies = Vec::new();
    let mut sent = start.elapsed();
    sender.send(watch(0)).await.map_err(|_| closed())?;
    // The server answers a stream with its first message.
    let responses = client.watch(request).await.map_err(|status| failed("a watch", &status))?;
    let mut responses = responses.into_inner();
    for number in 1..=plan.watches_per_stream {
        let answer = loop {
            let answer = responses.message().await.map_err(|status| failed("a watch", &status))?;
            let answer = answer.ok_or_else(closed)?;
            // Others may put the key meanwhile.
            if answer.created || answer.canceled {
                break answer;
            }
        };
        if answer.canceled {
            return Err(Error::Server(format!("a watch was refused: {}", answer.cancel_reason)));
        }
        latencies.push((sent, start.elapsed()));
        if number < plan.watches_per_stream {
            sent = start.elapsed();
            sender.send(watch(number)).await.map_err(|_| closed())?;
        }
    }
    Ok((latencies, (sender, Some(responses))))
}

/// Until the stream ends, or a watch of it.
async fn receive(mut responses: Streaming<WatchResponse>, shared: Arc<SharedWatch>) {
    let why = loop {
        let response = match responses.message().await {
            Ok(Some(response)) if response.canceled => {
                break format!("a watch was canceled: {}", response.cancel_reason);
            }
            Ok(Some(response)) => response,
            Ok(None) => break "a watch stream was closed".to_owned(),
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

/// Returns when all puts are answered.
async fn put_all(
    plan: &Arc<WatchPlan>,
    channels: &[Channel],
    session: Option<Arc<Session>>,
    shared: &Arc<SharedWatch>,
) {
    let next = Arc::new(Mutex::new(0));
    let values = ValueGenerator::new(plan.space.value, plan.seed);
    let mut clients = JoinSet::new();
    for client in 0..plan.clients {
        let channel = channels[client as usize % channels.len()].clone();
        let (plan, shared, next) = (Arc::clone(plan), Arc::clone(shared), Arc::clone(&next));
        let (session, values) = (session.clone(), values.clone());
        clients.spawn(async move {
            let mut rng = SmallRng::seed_from_u64(plan.seed.wrapping_add(client));
            let mut kv = KvClient::new(channel);
            loop {
                let number = {
                    let mut next = next.lock();
                    *next += 1;
                    *next - 1
                };
                if number >= plan.puts || shared.stop.is_set() {
                    return;
                }
                if let Some(rate) = plan.rate {
                    let due = Duration::from_secs_f64(number as f64 / rate as f64);
                    tokio::time::sleep(due.saturating_sub(shared.start.elapsed())).await;
                }
                let key = plan.key_number(number);
                let value = values.random_value(&mut rng);
                let put = PutRequest { key: plan.space.key(key), value, ..Default::default() };
                let sent = shared.start.elapsed();
                match kv.put(Session::request_of(session.as_deref(), put)).await {
                    Ok(answer) => {
                        let revision = answer.into_inner().header.map_or(0, |of| of.revision);
                        shared.puts.lock().add(completed(sent, shared.start.elapsed()));
                        shared.events.lock().add_put(revision, sent, plan.watches_of(key));
                    }
                    Err(status) => {
                        shared.puts.lock().add_failures(connection::text(status), 1);
                    }
                }
            }
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended.expect("a client neither panics nor is stopped");
    }
}

async fn wait_for_events(shared: &SharedWatch, receivers: &mut JoinSet<()>) {
    let end = Instant::now() + if shared.stop.is_set() { STOPPED_DRAIN } else { DRAIN };
    while !shared.events.lock().is_complete() && !receivers.is_empty() && Instant::now() < end {
        // A receiver ends only if its stream does.
        let _ = tokio::time::timeout(Duration::from_millis(1), receivers.join_next()).await;
    }
}
