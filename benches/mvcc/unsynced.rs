//! 2,000 puts per second while a watcher starts at revision 2 in a store that has 200,000 revisions
//! before the first window.
//!
//! The watcher watches every key, or a single key, and stays open after it has become synced.
//! `load_window.rs` describes the timed part, and `fan_out.rs` the threads of the watchers.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clearlane_backend::Era;
use clearlane_benches::store::value;
use clearlane_mvcc::watch::{Response, ResponseKind, WatchRequest, WatchedKeys};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::BenchConfig;
use crate::bench_store::{BenchStore, random_key};
use crate::fan_out::{ERAS, PUTS_PER_SECOND, VALUE_SIZE, put_metrics, ratio, revision_of};
use crate::load_window::{LoadWindow, Progress, WindowResult};
use crate::pace::Schedule;
use crate::report::Report;
use crate::watch_threads::{Streams, WatchThreads};

/// Number of revisions of each key before the first window.
const REVISIONS_PER_KEY: i64 = 10;
/// The revision of the first put to a new store.
const FIRST_REVISION: i64 = 2;

/// The keys that a watcher watches.
#[derive(Clone, Copy)]
enum WatchedRange {
    Nothing,
    /// One key, which gets no puts during the window.
    OneKey,
    Everything,
}

/// A store with a history.
struct StoreWithHistory {
    store: BenchStore,
    watch_threads: WatchThreads,
    keys: Vec<Vec<u8>>,
}

impl StoreWithHistory {
    fn new(era: Era, keys: u64) -> StoreWithHistory {
        let stage = BenchStore::open(era);
        let keys: Vec<Vec<u8>> = (0..keys).map(random_key).collect();
        let value = value(VALUE_SIZE);
        for _ in 0..REVISIONS_PER_KEY {
            stage.fill(keys.iter(), &value, 1);
        }
        let watching = WatchThreads::new(&stage);
        StoreWithHistory { store: stage, watch_threads: watching, keys }
    }

    /// Runs one window. The result contains the progress of its watchers.
    fn run(
        &self,
        watched: WatchedRange,
        schedule: &Schedule,
        burners: &[f64],
    ) -> WindowResult<LagTimes> {
        let (stage, watching) = (&self.store, &self.watch_threads);
        let value = value(VALUE_SIZE);
        let mut choices = SmallRng::seed_from_u64(schedule.due.len() as u64);
        let keys = match watched {
            WatchedRange::Nothing => None,
            WatchedRange::OneKey => Some(WatchedKeys::Single(Bytes::from(self.keys[0].clone()))),
            WatchedRange::Everything => Some(WatchedKeys::From(Bytes::new())),
        };
        let consumers = keys
            .into_iter()
            .map(|keys| |progress: &Progress| UnsyncedWatcher::new(watching, keys).run(progress));
        let consumers = consumers.collect();
        let put_one = |writer: &mut crate::bench_store::Writer<'_>, _| {
            writer.put(&self.keys[choices.random_range(1..self.keys.len())], &value)
        };
        LoadWindow { store: stage, watch_threads: watching, schedule, busy_shares: burners }
            .run(put_one, consumers)
    }
}

pub(crate) fn measure(settings: &BenchConfig) {
    let window = Duration::from_millis(if settings.quick { 20 } else { 4_000 });
    let keys = if settings.quick { 20 } else { 20_000 };
    let pasts = ERAS.map(|era| StoreWithHistory::new(era, keys));
    let mut report = Report::default();
    for round in 0..settings.rounds {
        let schedule = Schedule::new(PUTS_PER_SECOND, window, round as u64);
        for past in &pasts {
            let alone = past.run(WatchedRange::Nothing, &schedule, &[]);
            report.add(&format!("{}, none", past.store.era), put_metrics(&alone));
        }
        for (name, watched) in
            [("one key", WatchedRange::OneKey), ("everything", WatchedRange::Everything)]
        {
            for past in &pasts {
                let era = past.store.era;
                let played = past.run(watched, &schedule, &[]);
                report.add(&format!("{era}, {name}"), window_metrics(&played));
                let spin = past.run(WatchedRange::Nothing, &schedule, &played.shares());
                report.add(&format!("{era}, spin as {name}"), put_metrics(&spin));
            }
        }
    }
    report.finish("lagging", settings, |report, row| ratio(report, row, &ERAS));
}

fn window_metrics(played: &WindowResult<LagTimes>) -> Vec<(&'static str, f64)> {
    let mut figures = put_metrics(played);
    for lags in &played.consumed {
        figures.push(("1000 events/s", lags.events as f64 / 1e3 / played.elapsed.as_secs_f64()));
        figures.push(("caught up", f64::from(u8::from(lags.caught_up.is_some()))));
        figures.extend(lags.caught_up.map(|time| ("in ms", time.as_secs_f64() * 1e3)));
    }
    figures
}

/// The progress of a watcher.
#[derive(Default)]
struct LagTimes {
    events: u64,
    /// The time until the watcher was synced. `None` if it was never synced.
    caught_up: Option<Duration>,
}

/// A watcher that starts at the first revision, and stays open after it has become synced.
struct UnsyncedWatcher<'w> {
    streams: Streams<'w>,
    request: WatchRequest,
    /// The revision of the next expected event. If a single key is watched, it is the version of
    /// this key in the next expected event.
    next: i64,
    /// The last event that the watcher must get to be synced, by revision or version like `next`.
    last: i64,
    began: Instant,
}

impl<'w> UnsyncedWatcher<'w> {
    fn new(watching: &'w WatchThreads, keys: WatchedKeys) -> UnsyncedWatcher<'w> {
        let request = WatchRequest { start_revision: FIRST_REVISION, ..WatchRequest::new(keys) };
        let streams = Streams::new(watching);
        UnsyncedWatcher { streams, request, next: 0, last: 0, began: Instant::now() }
    }

    fn begin(&mut self, progress: &Progress) {
        (self.next, self.last) = match self.request.keys {
            WatchedKeys::Single(_) => (1, REVISIONS_PER_KEY),
            _ => (FIRST_REVISION, progress.revision.load(Ordering::Acquire)),
        };
        self.began = Instant::now();
        self.streams.open(std::iter::once(self.request.clone()));
    }

    fn run(mut self, progress: &Progress) -> LagTimes {
        let mut lags = LagTimes::default();
        self.begin(progress);
        while progress.should_continue(false) {
            let (next, request) = (&mut self.next, &self.request);
            self.streams.poll(&mut |_, responses| {
                for response in responses {
                    lags.events += check(response, request, next);
                }
            });
            if self.next > self.last && lags.caught_up.is_none() {
                lags.caught_up = Some(self.began.elapsed());
            }
        }
        lags
    }
}

/// Checks that each event arrives once and in order. Returns the number of events.
fn check(response: &Response, request: &WatchRequest, next: &mut i64) -> u64 {
    let ResponseKind::Events { events, .. } = &response.kind else { return 0 };
    for event in &**events {
        let (clearlane_mvcc::Change::Put(record) | clearlane_mvcc::Change::Delete(record)) =
            &event.change;
        let delivered = match &request.keys {
            WatchedKeys::Single(key) => {
                assert_eq!(record.key, *key, "nothing was asked of another key");
                record.version
            }
            _ => revision_of(event),
        };
        assert_eq!(delivered, *next, "each event comes once, and in order");
        *next += 1;
    }
    events.len() as u64
}
