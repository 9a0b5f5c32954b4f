//! One, many and very many watchers of one range, at a member and through proxies.
//!
//! Each watcher has its own stream. A writer puts a key of the range at the member at a low rate.
//! The next put waits until each watcher has the event of the last one. The value is the number of
//! the put, so each watcher notices lost and doubled events.
//!
//! ```text
//!   writer ── put ──▶ member ──▶ proxy ──▶ 10,000 watchers ──▶ Deliveries
//!     ▲                                                            │ all have the event
//!     ╰────────────────────────────────────────────────────────────╯
//! ```
//!
//! Each number of watchers has its own member and proxy. So the memory of the proxy is the memory
//! that these watchers need.

use std::cell::RefCell;
use std::future::pending;
use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::{PutRequest, WatchCreateRequest};
use futures_util::future::{join_all, try_join_all};
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tonic::transport::Channel;

use super::context::{PREFIX, Running, channel};
use super::load::warn_of_failures;
use super::measurements::Measurements;
use super::turn::Turn;
use crate::class_metrics::{ClassMetrics, CompletedRequest};
use crate::connection::{self, OpenWatch, next_events, open_watch};
use crate::process::DriverUsage;
use crate::response_scanner::ResponseStats;
use crate::server_latency::metric;
use crate::{Error, Result};

const WATCHERS_PER_CONNECTION: u64 = 100;
/// Maximum time until all watchers have an event. After this time nothing more is put, and missing
/// events are lost.
const DELIVERY_MAX: Duration = Duration::from_secs(20);
const SENT_BYTES: &str = "etcd_network_client_grpc_sent_bytes_total";
const WATCHES: &str = "etcd_debugging_mvcc_watcher_total";

pub(super) async fn measure(turn: &Turn<'_>, into: &mut Measurements) -> Result<()> {
    if let Some(points) = &turn.plan.points {
        for watchers in points.at.at(turn.context.scale) {
            let turn = turn.at(&points.name, *watchers);
            turn.context.tell(&format!("{}: {watchers} watchers", turn.server()));
            let running = turn.start(&[]).await?;
            let streams = open_watches(&running.endpoints[0], *watchers as u64).await?;
            let deliveries = Deliveries::new(streams.len());
            let receiving = streams.into_iter().map(|stream| deliveries.receive(stream));
            let receiving = async {
                join_all(receiving).await;
                pending().await
            };
            tokio::select! {
                ended = put(&turn, &running, &deliveries, *watchers, into) => ended?,
                never = receiving => never,
            }
            running.end().await?;
        }
    }
    Ok(())
}

/// Opens the streams of all watchers, and returns when each watch is created.
async fn open_watches(endpoint: &str, count: u64) -> Result<Vec<OpenWatch>> {
    let endpoints = connection::endpoint(endpoint)?.into();
    let channels = connection::open(&endpoints, count.div_ceil(WATCHERS_PER_CONNECTION)).await?;
    let failed = |why| Error::Server(format!("a watch was not created: {why}"));
    let open = async |(first, channel): (u64, Channel)| {
        let mut streams = Vec::new();
        for _ in first..count.min(first + WATCHERS_PER_CONNECTION) {
            let (key, range_end) = (format!("{PREFIX}watched/"), format!("{PREFIX}watched0"));
            let (key, range_end) = (key.into(), range_end.into());
            let create = WatchCreateRequest { key, range_end, ..WatchCreateRequest::default() };
            let mut stream = open_watch(channel.clone(), None, create)
                .await
                .map_err(|status| failed(connection::text(status)))?;
            next_events(&mut stream.1).await.map_err(failed)?;
            streams.push(stream);
        }
        Ok(streams)
    };
    let firsts = (0..count).step_by(WATCHERS_PER_CONNECTION as usize);
    let opened = try_join_all(firsts.zip(channels).map(open)).await?;
    Ok(opened.into_iter().flatten().collect())
}

/// Puts at a rate for the time of the window, and records what that costs. The first put, which is
/// not measured, is a warm-up.
async fn put(
    turn: &Turn<'_>,
    running: &Running,
    deliveries: &Deliveries,
    watchers: f64,
    into: &mut Measurements,
) -> Result<()> {
    let window = Duration::from_secs(turn.values.get("seconds")?);
    let mut turns = interval(Duration::from_secs(1) / turn.values.get::<u32>("puts")?);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let value_bytes = turn.values.get("value")?;
    let mut client = KvClient::new(channel(&running.leader).await?);
    deliveries.put(&mut client, value_bytes).await?;
    deliveries.state.borrow_mut().metrics = ClassMetrics::default();

    let bytes_before = member_metric(running, SENT_BYTES).await?;
    let (processor_before, driver) = (running.processor()?, DriverUsage::begin(1));
    let (start, mut puts) = (Instant::now(), 0);
    while start.elapsed() < window {
        turns.tick().await;
        puts += 1;
        if !deliveries.put(&mut client, value_bytes).await? {
            into.warn(format!("{}: an event did not reach all watchers", turn.server()));
            break;
        }
    }
    let (elapsed, driver) = (start.elapsed().as_secs_f64(), driver());
    let mut add = |figure: &str, value: Option<f64>| {
        into.add_at(turn.server(), figure, watchers, value);
    };
    for (name, used) in running.processor()?.since(processor_before) {
        add(&format!("{name} %"), Some(100.0 * used.as_secs_f64() / elapsed));
    }
    add("driver %", driver.share().map(|share| 100.0 * share));
    let bytes = member_metric(running, SENT_BYTES).await? - bytes_before;
    add("sent KB", Some(bytes / 1e3 / f64::from(puts)));
    add("watches", Some(member_metric(running, WATCHES).await?));
    add("proxy MB", running.proxy_usage()?.map(|usage| usage.resident_bytes as f64 / 1e6));
    let state = deliveries.state.borrow();
    for (name, quantile) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
        add(&format!("delivery/{name}"), state.metrics.latency_ms(quantile));
    }
    add("lost", Some(state.sent.len() as f64 * watchers - state.received as f64));
    add("doubled", Some(state.doubled as f64));
    warn_of_failures(&state.metrics, &format!("{}, {watchers} watchers", turn.server()), into);
    Ok(())
}

async fn member_metric(running: &Running, name: &str) -> Result<f64> {
    let value = metric(&running.leader, name).await?;
    value.ok_or_else(|| Error::Server(format!("the member's page /metrics has no {name}")))
}

/// The events that the watchers have received. All times are since `start`.
struct Deliveries {
    start: Instant,
    state: RefCell<DeliveryState>,
    /// Wakes the writer when all watchers have the last event.
    is_complete: Notify,
}

#[derive(Default)]
struct DeliveryState {
    /// Number of watchers whose streams are open.
    open: usize,
    /// The time when each put was sent.
    sent: Vec<Duration>,
    /// Number of watchers that have the event of the last put.
    have_last: usize,
    /// Number of events, without repetitions.
    received: u64,
    /// Number of events that a watcher already had, or that arrived after a later event.
    doubled: u64,
    /// The latencies from sending a put to the arrival of its event, and why streams have ended.
    metrics: ClassMetrics,
}

impl Deliveries {
    fn new(open: usize) -> Deliveries {
        let state = DeliveryState { open, ..DeliveryState::default() }.into();
        Deliveries { start: Instant::now(), state, is_complete: Notify::new() }
    }

    /// Puts the next number, and waits until each open watcher has it. Returns false if that takes
    /// longer than [`DELIVERY_MAX`].
    async fn put(&self, client: &mut KvClient<Channel>, value_bytes: usize) -> Result<bool> {
        let number = self.state.borrow().sent.len();
        let value = format!("{number:0value_bytes$}").into();
        let put = PutRequest {
            key: format!("{PREFIX}watched/key").into(),
            value,
            ..PutRequest::default()
        };
        self.state.borrow_mut().add_put(self.start.elapsed());
        client.put(put).await.map_err(connection::error("a put of a watched key failed"))?;
        let is_complete = async {
            while !self.state.borrow().is_complete() {
                self.is_complete.notified().await;
            }
        };
        Ok(timeout(DELIVERY_MAX, is_complete).await.is_ok())
    }

    /// Receives the events of a watcher until its stream ends.
    async fn receive(&self, (_open, mut responses): OpenWatch) {
        let mut next = 0;
        let why = loop {
            let events = match next_events(&mut responses).await {
                Ok(events) => events,
                Err(why) => break why,
            };
            let (at, mut state) = (self.start.elapsed(), self.state.borrow_mut());
            for pair in events.into_iter().filter_map(|event| event.kv) {
                let number = str::from_utf8(&pair.value).ok().and_then(|text| text.parse().ok());
                state.add_event(number.unwrap_or(usize::MAX), at, &mut next);
            }
            if state.is_complete() {
                self.is_complete.notify_one();
            }
        };
        let mut state = self.state.borrow_mut();
        state.open -= 1;
        state.metrics.add_failures(why, 1);
        self.is_complete.notify_one();
    }
}

impl DeliveryState {
    fn add_put(&mut self, at: Duration) {
        self.sent.push(at);
        self.have_last = 0;
    }

    /// Adds the event with this number. `next` is the number of the next event of the same watcher.
    fn add_event(&mut self, number: usize, at: Duration, next: &mut usize) {
        let Some(sent) = self.sent.get(number).filter(|_| number >= *next) else {
            self.doubled += 1;
            return;
        };
        let result = Ok(ResponseStats::default());
        self.metrics.add(CompletedRequest { due: *sent, sent: *sent, answered: at, result });
        self.received += 1;
        self.have_last += usize::from(number + 1 == self.sent.len());
        *next = number + 1;
    }

    fn is_complete(&self) -> bool {
        self.have_last >= self.open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_and_doubled_events_are_noticed() {
        let ms = Duration::from_millis;
        let mut state = DeliveryState { open: 2, ..DeliveryState::default() };
        let (mut one, mut other) = (0, 0);
        state.add_put(ms(0));
        state.add_event(0, ms(1), &mut one);
        state.add_event(0, ms(2), &mut one);
        assert_eq!((state.received, state.doubled, state.is_complete()), (1, 1, false));
        state.add_event(0, ms(3), &mut other);
        assert!(state.is_complete());
        state.add_put(ms(10));
        assert!(!state.is_complete());
        state.add_put(ms(20));
        // The event 1 is lost for the first watcher, and arrives too late for the second one.
        state.add_event(2, ms(21), &mut one);
        state.add_event(2, ms(21), &mut other);
        state.add_event(1, ms(22), &mut other);
        assert_eq!((state.received, state.doubled, state.is_complete()), (4, 2, true));
        // No put has this number.
        state.add_event(7, ms(23), &mut one);
        assert_eq!((state.received, state.doubled), (4, 3));
        assert_eq!(state.metrics.answered(), 4);
    }
}
