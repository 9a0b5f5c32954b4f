//! 2,000 puts per second to one key that up to a thousand watchers watch. Each watcher has a
//! separate stream (`own`), or all are in one stream (`one`).
//!
//! `load_window.rs` describes the timed part. Watchers have the same threads as in a server: one
//! thread delivers events, one synchronizes watchers, and up to two take responses. In the default
//! era, the watchable store wakes the first two; in the old eras they run every 10 ms and 100 ms,
//! as in etcd. Every event is checked: each must arrive once, and in order.

use std::time::{Duration, Instant};

use bytes::Bytes;
use clearlane_backend::Era;
use clearlane_benches::store::value;
use clearlane_mvcc::Change;
use clearlane_mvcc::watch::{Event, Response, ResponseKind, WatchRequest, WatchedKeys};
use hdrhistogram::Histogram;

use crate::BenchConfig;
use crate::bench_store::{BenchStore, random_key};
use crate::load_window::{LoadWindow, Progress, WindowResult};
use crate::pace::{Schedule, histogram};
use crate::report::{Report, Row, us};
use crate::watch_threads::{Streams, WatchThreads};

pub(crate) const ERAS: [Era; 2] = [Era::Clearlane, Era::V3_5];
pub(crate) const PUTS_PER_SECOND: f64 = 2_000.0;
pub(crate) const VALUE_SIZE: usize = 256;
/// Number of threads that take responses.
const CONSUMERS: usize = 2;
const KEY: &[u8] = b"watched";

/// The watchers during the puts.
#[derive(Clone, Copy)]
struct WatcherLayout {
    watchers: usize,
    /// If true, all watchers are in one stream. Otherwise each has a separate stream.
    in_one_stream: bool,
}

impl WatcherLayout {
    fn name(self) -> String {
        match self {
            WatcherLayout { watchers: 0, .. } => "none".to_owned(),
            WatcherLayout { watchers, in_one_stream: true } => format!("{watchers} one"),
            WatcherLayout { watchers, in_one_stream: false } => format!("{watchers} own"),
        }
    }
}

pub(crate) fn measure(settings: &BenchConfig) {
    let window = Duration::from_millis(if settings.quick { 20 } else { 2_500 });
    let sizes: &[usize] = if settings.quick { &[10] } else { &[1, 10, 100, 1_000] };
    let largest = *sizes.last().expect("there are sizes");
    let mut report = Report::default();
    for round in 0..settings.rounds {
        let schedule = Schedule::new(PUTS_PER_SECOND, window, round as u64);
        let no_watchers = WatcherLayout { watchers: 0, in_one_stream: false };
        for era in ERAS {
            report.add(&format!("{era}, none"), run(era, no_watchers, &schedule, &[]).0);
        }
        for in_one in [false, true] {
            for watchers in sizes {
                let crowd = WatcherLayout { watchers: *watchers, in_one_stream: in_one };
                for era in ERAS {
                    let name = format!("{era}, {}", crowd.name());
                    let (figures, shares) = run(era, crowd, &schedule, &[]);
                    report.add(&name, figures);
                    if *watchers == largest {
                        let (figures, _) = run(era, no_watchers, &schedule, &shares);
                        report.add(&format!("{era}, spin as {}", crowd.name()), figures);
                    }
                }
            }
        }
    }
    report.finish("fan_out", settings, |report, row| ratio(report, row, &ERAS));
}

/// Returns the p99 of a put, relative to the p99 without watchers. The result is empty if either
/// p99 is missing.
pub(crate) fn ratio(report: &Report, row: &Row, eras: &[Era]) -> Vec<(&'static str, f64)> {
    let era = eras.iter().find(|era| row.name().starts_with(era.name()));
    let alone = era.and_then(|era| report.row(&format!("{era}, none"))?.median("p99 µs"));
    let p99 = row.median("p99 µs");
    alone.zip(p99).map(|(alone, p99)| ("p99 / none", p99 / alone)).into_iter().collect()
}

/// Runs one window. Returns its figures, and the processor shares of the watch threads.
fn run(
    era: Era,
    crowd: WatcherLayout,
    schedule: &Schedule,
    burners: &[f64],
) -> (Vec<(&'static str, f64)>, Vec<f64>) {
    let stage = BenchStore::open(era);
    let value = value(VALUE_SIZE);
    stage.fill((0..1_000).map(random_key), &value, 1_000);
    let watching = WatchThreads::new(&stage);
    let next = stage.store.begin_read().revision() + 1;
    let mut consumers: Vec<WatchConsumer<'_>> = Vec::new();
    if crowd.watchers > 0 {
        consumers.extend((0..CONSUMERS).map(|_| WatchConsumer::new(&watching, schedule, next)));
        let streams = if crowd.in_one_stream { 1 } else { crowd.watchers };
        for stream in 0..streams {
            consumers[stream % CONSUMERS].open(crowd.watchers / streams);
        }
    }
    let consumers =
        consumers.into_iter().map(|consumer| |progress: &Progress| consumer.run(progress));
    let scene =
        LoadWindow { store: &stage, watch_threads: &watching, schedule, busy_shares: burners };
    let played = scene.run(|writer, _| writer.put(KEY, &value), consumers.collect());
    let shares = played.shares();
    (window_metrics(played, crowd), shares)
}

fn window_metrics(
    played: WindowResult<DeliveryTimes>,
    crowd: WatcherLayout,
) -> Vec<(&'static str, f64)> {
    let mut figures = put_metrics(&played);
    if crowd.watchers > 0 {
        let (mut delivery, mut events, mut responses) = (histogram(), 0, 0);
        for delivered in &played.consumed {
            delivery.add(&delivered.delivery).expect("all histograms have the same bounds");
            events += delivered.events;
            responses += delivered.responses;
        }
        let processor: f64 = played.processor_times.iter().map(Duration::as_secs_f64).sum();
        figures.extend([
            ("delivered p50 µs", us(&delivery, 0.5)),
            ("delivered p99 µs", us(&delivery, 0.99)),
            ("processor µs/event", processor * 1e6 / events as f64),
            ("events/response", events as f64 / responses.max(1) as f64),
            ("1000 events/s", events as f64 / 1e3 / played.elapsed.as_secs_f64()),
        ]);
    }
    figures
}

/// Returns the figures about the times of the puts of a window.
pub(crate) fn put_metrics<T>(played: &WindowResult<T>) -> Vec<(&'static str, f64)> {
    let met = &played.puts;
    vec![
        ("p50 µs", us(&met.latency, 0.5)),
        ("p99 µs", us(&met.latency, 0.99)),
        ("p99.9 µs", us(&met.latency, 0.999)),
        ("longest lock wait µs", us(&met.lock_wait, 1.0)),
        ("service µs", met.service.mean() / 1e3),
        ("served %", met.served() * 100.0),
    ]
}

/// The times of the events that one thread has taken.
struct DeliveryTimes {
    /// The time from the due time of the put to the event.
    delivery: Histogram<u64>,
    events: u64,
    responses: u64,
}

/// Takes responses and checks them.
struct WatchConsumer<'w> {
    streams: Streams<'w>,
    schedule: &'w Schedule,
    /// The revision of the first put.
    first: i64,
    /// The revision that each watcher must get next, by stream and watcher id.
    next: Vec<Vec<i64>>,
}

impl<'w> WatchConsumer<'w> {
    fn new(watching: &'w WatchThreads, schedule: &'w Schedule, first: i64) -> WatchConsumer<'w> {
        WatchConsumer { streams: Streams::new(watching), schedule, first, next: Vec::new() }
    }

    fn open(&mut self, watchers: usize) {
        let request = WatchRequest::new(WatchedKeys::Single(Bytes::from_static(KEY)));
        self.streams.open((0..watchers).map(|_| request.clone()));
        self.next.push(vec![self.first; watchers]);
    }

    /// Takes responses until all events were delivered to every watcher.
    fn run(mut self, progress: &Progress) -> DeliveryTimes {
        let mut delivered = DeliveryTimes { delivery: histogram(), events: 0, responses: 0 };
        while progress.should_continue(self.is_waiting(progress)) {
            let (next, due, first) = (&mut self.next, &self.schedule.due, self.first);
            self.streams.poll(&mut |stream, responses| {
                let now = Instant::now().saturating_duration_since(progress.start);
                for Response { id, kind: says, .. } in responses {
                    let ResponseKind::Events { events, .. } = says else { continue };
                    let next = &mut next[stream][*id as usize];
                    delivered.responses += 1;
                    for event in &**events {
                        let revision = revision_of(event);
                        assert_eq!(revision, *next, "each event comes once, and in order");
                        *next += 1;
                        delivered.events += 1;
                        let waited = now.saturating_sub(due[(revision - first) as usize]);
                        delivered.delivery.saturating_record(waited.as_nanos() as u64);
                    }
                }
            });
        }
        delivered
    }

    fn is_waiting(&self, progress: &Progress) -> bool {
        let newest = progress.revision.load(std::sync::atomic::Ordering::Acquire);
        self.next.iter().flatten().any(|next| *next <= newest)
    }
}

pub(crate) fn revision_of(event: &Event) -> i64 {
    let (Change::Put(record) | Change::Delete(record)) = &event.change;
    record.mod_revision
}
