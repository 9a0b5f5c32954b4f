//! Puts beside a watcher that begins at the beginning.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clearlane_backend::Design;
use clearlane_benches::store::value;
use clearlane_mvcc::watch::{Response, Says, WatchRequest, WatchedKeys};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::Settings;
use crate::fan_out::{ERAS, PUTS_PER_SECOND, VALUE_SIZE, put_figures, ratio, revision_of};
use crate::pace::Schedule;
use crate::report::Report;
use crate::scene::{Played, Progress, Scene};
use crate::stage::{Stage, random_key};
use crate::watching::{Streams, Watching};

/// Each key has so many revisions before the first window.
const REVISIONS_PER_KEY: i64 = 10;
/// The revision of the first put to a new store.
const FIRST: i64 = 2;

/// What a watcher watches.
#[derive(Clone, Copy)]
enum Watched {
    Nothing,
    /// One key, which is put no more.
    OneKey,
    Everything,
}

/// A store with a past.
struct Past {
    stage: Stage,
    watching: Watching,
    keys: Vec<Vec<u8>>,
}

impl Past {
    fn of(era: Design, keys: u64) -> Past {
        let stage = Stage::open(era);
        let keys: Vec<Vec<u8>> = (0..keys).map(random_key).collect();
        let value = value(VALUE_SIZE);
        for _ in 0..REVISIONS_PER_KEY {
            stage.fill(keys.iter(), &value, 1);
        }
        let watching = Watching::of(&stage);
        Past { stage, watching, keys }
    }

    /// One window. What became of the watchers, if there were some.
    fn run(&self, watched: Watched, schedule: &Schedule, burners: &[f64]) -> Played<Lags> {
        let (stage, watching) = (&self.stage, &self.watching);
        let value = value(VALUE_SIZE);
        let mut choices = SmallRng::seed_from_u64(schedule.due.len() as u64);
        let keys = match watched {
            Watched::Nothing => None,
            Watched::OneKey => Some(WatchedKeys::One(Bytes::from(self.keys[0].clone()))),
            Watched::Everything => Some(WatchedKeys::From(Bytes::new())),
        };
        let takers = keys
            .into_iter()
            .map(|keys| |progress: &Progress| Laggard::new(watching, keys).take(progress));
        let takers = takers.collect();
        let put_one = |writer: &mut crate::stage::Writer<'_>, _| {
            writer.put(&self.keys[choices.random_range(1..self.keys.len())], &value)
        };
        Scene { stage, watching, schedule, burners }.play(put_one, takers)
    }
}

pub(crate) fn measure(settings: &Settings) {
    let window = Duration::from_millis(if settings.quick { 20 } else { 4_000 });
    let keys = if settings.quick { 20 } else { 20_000 };
    let pasts = ERAS.map(|era| Past::of(era, keys));
    let mut report = Report::default();
    for round in 0..settings.rounds {
        let schedule = Schedule::new(PUTS_PER_SECOND, window, round as u64);
        for past in &pasts {
            let alone = past.run(Watched::Nothing, &schedule, &[]);
            report.add(&format!("{}, none", past.stage.era), put_figures(&alone));
        }
        for (name, watched) in [("one key", Watched::OneKey), ("everything", Watched::Everything)] {
            for past in &pasts {
                let era = past.stage.era;
                let played = past.run(watched, &schedule, &[]);
                report.add(&format!("{era}, {name}"), figures(&played));
                let spin = past.run(Watched::Nothing, &schedule, &played.shares());
                report.add(&format!("{era}, spin as {name}"), put_figures(&spin));
            }
        }
    }
    report.finish("lagging", settings, |report, row| ratio(report, row, &ERAS));
}

fn figures(played: &Played<Lags>) -> Vec<(&'static str, f64)> {
    let mut figures = put_figures(played);
    for lags in &played.took {
        figures.push(("1000 events/s", lags.events as f64 / 1e3 / played.time.as_secs_f64()));
        figures.push(("caught up", f64::from(u8::from(lags.caught_up.is_some()))));
        figures.extend(lags.caught_up.map(|time| ("in ms", time.as_secs_f64() * 1e3)));
    }
    figures
}

/// What a watcher met.
#[derive(Default)]
struct Lags {
    events: u64,
    /// How long it took, if it has caught up.
    caught_up: Option<Duration>,
}

/// Watches from the first revision on, and stays when it has caught up.
struct Laggard<'w> {
    streams: Streams<'w>,
    request: WatchRequest,
    /// What it must be told next: a revision, or of a single key a version.
    next: i64,
    /// What it must have been told to have caught up.
    last: i64,
    began: Instant,
}

impl<'w> Laggard<'w> {
    fn new(watching: &'w Watching, keys: WatchedKeys) -> Laggard<'w> {
        let request = WatchRequest { start: FIRST, ..WatchRequest::of(keys) };
        let streams = Streams::new(watching);
        Laggard { streams, request, next: 0, last: 0, began: Instant::now() }
    }

    fn begin(&mut self, progress: &Progress) {
        (self.next, self.last) = match self.request.keys {
            WatchedKeys::One(_) => (1, REVISIONS_PER_KEY),
            _ => (FIRST, progress.revision.load(Ordering::Acquire)),
        };
        self.began = Instant::now();
        self.streams.open(std::iter::once(self.request.clone()));
    }

    fn take(mut self, progress: &Progress) -> Lags {
        let mut lags = Lags::default();
        self.begin(progress);
        while progress.goes_on(false) {
            let (next, request) = (&mut self.next, &self.request);
            self.streams.take(&mut |_, responses| {
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

/// Each event comes once, and in order. Says how many there were.
fn check(response: &Response, request: &WatchRequest, next: &mut i64) -> u64 {
    let Says::Events { events, .. } = &response.says else { return 0 };
    for event in &**events {
        let (clearlane_mvcc::Change::Put(record) | clearlane_mvcc::Change::Delete(record)) =
            &event.change;
        let told = match &request.keys {
            WatchedKeys::One(key) => {
                assert_eq!(record.key, *key, "nothing was asked of another key");
                record.version
            }
            _ => revision_of(event),
        };
        assert_eq!(told, *next, "each event comes once, and in order");
        *next += 1;
    }
    events.len() as u64
}
