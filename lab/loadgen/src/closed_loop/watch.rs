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
use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::WatchCreateRequest;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use super::arguments::{ClosedLoop, WatchArguments};
use super::engine::{self, LoopOptions, LoopRequest, RequestSource};
use super::{class_report, key_space};
use crate::class_metrics::{ClassMetrics, CompletedRequest};
use crate::connection::{OpenWatch, next_events, open_watch};
use crate::keys::{KeySpace, ValueGenerator};
use crate::load_thread::{DRAIN, STOPPED_DRAIN};
use crate::observation::LoadResult;
use crate::process::DriverUsage;
use crate::requests::{put, watch_request};
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

/// The events, and the time when all watches were created. All times are since then.
struct SharedEvents {
    start: Instant,
    events: Mutex<Events>,
}

#[derive(Default)]
struct Events {
    metrics: ClassMetrics,
    /// The time when the put of each revision was sent.
    sent: HashMap<i64, Duration>,
    /// Arrival times of events whose put has no response yet, by revision.
    early: HashMap<i64, Vec<Duration>>,
    expected: u64,
    /// The reason why a stream has ended. If several streams have ended, this is the reason of the
    /// stream that ended last.
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
    let WatchArguments { put_total, common, .. } = &plan.options;
    let channels = connection::open(&target.endpoints, common.conns).await?;
    let (created, streams) = create_all(&plan, &channels, target.session.as_deref()).await?;
    let driver = DriverUsage::begin(2);
    let shared = Arc::new(SharedEvents { start: Instant::now(), events: Mutex::default() });
    let streams = streams.into_iter().map(|stream| receive(stream, Arc::clone(&shared)));
    let mut receivers: JoinSet<()> = streams.collect();
    // The puts use the channels of the watches.
    let options = LoopOptions {
        total: *put_total,
        rate: plan.rate,
        stop: stop.clone(),
        ..LoopOptions::new(target.endpoints.clone(), common.clients)
    };
    let mut source = |_| put_source(&plan, &channels, target.session.as_ref(), &shared);
    let mut progress = |line: &str| {
        let events = shared.events.lock();
        let p99 = events.metrics.latency_ms(0.99).unwrap_or_default();
        tell(&format!("{line}; {} events, p99 {p99:.1} ms", events.metrics.answered()));
    };
    let (mut puts, _) = engine::run(options, 1, &mut source, &mut progress).await?;
    wait_for_events(&shared, &mut receivers, &stop).await;
    let driver = driver();
    receivers.shutdown().await;
    let mut events = std::mem::take(&mut *shared.events.lock());
    let missing = events.expected.saturating_sub(events.metrics.answered());
    if missing > 0 {
        let text = events.why_ended.take();
        let text = text.unwrap_or_else(|| "no event came while it was waited for".to_owned());
        events.metrics.add_failures(text, missing);
    }
    let puts = puts.remove(0);
    let class = |(name, metrics)| class_report(name, name, metrics);
    // The window lasts until the last response or event.
    let window = puts.last_answer().max(events.metrics.last_answer());
    let classes = [("create", created), ("put", puts), ("event", events.metrics)].map(class).into();
    Ok(LoadResult { is_open_loop: false, classes, window, driver, notes: Vec::new() })
}

async fn create_all(
    plan: &WatchPlan,
    channels: &[Channel],
    session: Option<&Session>,
) -> Result<(ClassMetrics, Vec<OpenWatch>)> {
    let metrics = Mutex::<ClassMetrics>::default();
    let create = |(stream, channel): (u64, &Channel)| {
        create(plan, stream * plan.watches_per_stream, channel.clone(), session, &metrics)
    };
    let streams = (0..plan.options.streams).zip(channels.iter().cycle()).map(create);
    let streams = try_join_all(streams).await?;
    Ok((metrics.into_inner(), streams))
}

/// Creates the watches of a stream in turn. `first` is the number of the first one.
async fn create(
    plan: &WatchPlan,
    first: u64,
    channel: Channel,
    session: Option<&Session>,
    metrics: &Mutex<ClassMetrics>,
) -> Result<OpenWatch> {
    let watch = |number: u64| {
        let key = plan.space.key(plan.key_number(number));
        WatchCreateRequest { key, prev_kv: plan.prev_kv, ..Default::default() }
    };
    let closed = || Error::Server("the server closed a watch stream".to_owned());
    let failed = |status| connection::error("a watch failed")(status);
    let (start, mut sent) = (Instant::now(), Duration::ZERO);
    let opened = open_watch(channel, session, watch(first)).await;
    let (sender, mut responses) = opened.map_err(failed)?;
    let end = first + plan.watches_per_stream;
    for next in first + 1..=end {
        let answer = loop {
            let answer = responses.message().await.map_err(failed)?.ok_or_else(closed)?;
            // Another client may put the key at the same time, so an event may arrive here. It is
            // skipped.
            if answer.created || answer.canceled {
                break answer;
            }
        };
        if answer.canceled {
            let why = answer.cancel_reason;
            return Err(Error::Server(format!("the server rejected a watch: {why}")));
        }
        metrics.lock().add(completed(sent, start.elapsed()));
        if next < end {
            sent = start.elapsed();
            sender.send(watch_request(watch(next))).await.map_err(|_| closed())?;
        }
    }
    Ok((sender, responses))
}

/// Receives events until the stream or one of its watches ends.
async fn receive((_open, mut responses): OpenWatch, shared: Arc<SharedEvents>) {
    let why = loop {
        let arrived = match next_events(&mut responses).await {
            Ok(arrived) => arrived,
            Err(why) => break why,
        };
        let at = shared.start.elapsed();
        let mut events = shared.events.lock();
        for event in &arrived {
            events.add(event.kv.as_ref().map_or(0, |kv| kv.mod_revision), at);
        }
    };
    shared.events.lock().why_ended = Some(why);
}

/// Returns the source of the puts of all clients. The event of a put is expected as soon as the put
/// is answered.
fn put_source(
    plan: &Arc<WatchPlan>,
    channels: &[Channel],
    session: Option<&Arc<Session>>,
    shared: &Arc<SharedEvents>,
) -> RequestSource {
    let (plan, channels, session) = (Arc::clone(plan), channels.to_vec(), session.cloned());
    let shared = Arc::clone(shared);
    let seed = plan.options.common.target.seed;
    let values = ValueGenerator::new(plan.space.value, seed);
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut numbers = 0_u64..;
    Box::new(move |client| {
        let key = plan.key_number(numbers.next().expect("the numbers do not end"));
        let put = put(&plan.space, key, values.random_value(&mut rng));
        let put = Session::request_of(session.as_deref(), put);
        let mut kv = KvClient::new(channels[client as usize % channels.len()].clone());
        let (watches, shared) = (plan.watches_of(key), Arc::clone(&shared));
        LoopRequest::Calls(Box::pin(async move {
            let sent = shared.start.elapsed();
            let answer = kv.put(put).await.map_err(connection::text)?.into_inner();
            let revision = answer.header.map_or(0, |header| header.revision);
            shared.events.lock().add_put(revision, sent, watches);
            Ok(ResponseStats { keys: 1, bytes: 0 })
        }))
    })
}

async fn wait_for_events(shared: &SharedEvents, receivers: &mut JoinSet<()>, stop: &Stop) {
    let end = Instant::now() + if stop.is_set() { STOPPED_DRAIN } else { DRAIN };
    while !shared.events.lock().is_complete() && !receivers.is_empty() && Instant::now() < end {
        // A receiver ends only if its stream or one of its watches ends. After all receivers have
        // ended, no more events can arrive.
        let _ = tokio::time::timeout(Duration::from_millis(1), receivers.join_next()).await;
    }
}
