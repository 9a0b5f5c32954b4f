//! What a range costs: by how much it finds, at the head and in the past.

use std::time::{Duration, Instant};

use clearlane_backend::Design;
use clearlane_benches::store::value;
use clearlane_engine::KeyRange;
use clearlane_mvcc::RangeOptions;
use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::Settings;
use crate::pace::histogram;
use crate::report::{Report, us};
use crate::stage::Stage;

/// A range that is asked for again and again.
struct Question {
    name: &'static str,
    /// In the store of a million keys, not in that of twenty thousand.
    large: bool,
    /// How many keys from a random one on; all if there are no more.
    keys: u64,
    limit: i64,
    count_only: bool,
}

const QUESTIONS: [Question; 5] = [
    Question { name: "1 key", large: false, keys: 1, limit: 0, count_only: false },
    Question { name: "100 keys", large: false, keys: 100, limit: 0, count_only: false },
    Question { name: "20,000 keys", large: false, keys: u64::MAX, limit: 0, count_only: false },
    Question {
        name: "count of 1,000,000",
        large: true,
        keys: u64::MAX,
        limit: 0,
        count_only: true,
    },
    Question {
        name: "100 of 1,000,000",
        large: true,
        keys: u64::MAX,
        limit: 100,
        count_only: false,
    },
];

/// A store, and how many keys it has.
struct Filled {
    stage: Stage,
    keys: u64,
    /// What was put behind this revision was put for the second time.
    old: i64,
}

impl Filled {
    fn with(era: Design, keys: u64, value_size: usize) -> Filled {
        let stage = Stage::open(era);
        let value = value(value_size);
        stage.fill((0..keys).map(key), &value, 1_000);
        let old = stage.store.read().revision();
        stage.fill((0..keys).step_by(10).map(key), &value, 1_000);
        Filled { stage, keys, old }
    }
}

pub(crate) fn measure(settings: &Settings) {
    let (small, large) = if settings.quick { (200, 1_000) } else { (20_000, 1_000_000) };
    let window = Duration::from_millis(if settings.quick { 1 } else { 300 });
    let fill = |era: &Design| [Filled::with(*era, small, 1024), Filled::with(*era, large, 64)];
    let filled: Vec<[Filled; 2]> = settings.eras.iter().map(fill).collect();
    let mut report = Report::default();
    for round in 0..settings.rounds {
        for question in &QUESTIONS {
            for at in ["head", "old"] {
                for stores in &filled {
                    let filled = &stores[usize::from(question.large)];
                    let revision = if at == "old" { filled.old } else { 0 };
                    let met = ask(filled, question, revision, window, round as u64);
                    let name = format!("{}, {}, {at}", filled.stage.era, question.name);
                    let figures = vec![("p50 µs", us(&met, 0.5)), ("p99 µs", us(&met, 0.99))];
                    report.add(&name, figures);
                }
            }
        }
    }
    report.finish("ranges", settings, |_, _| Vec::new());
}

fn ask(
    filled: &Filled,
    question: &Question,
    revision: i64,
    window: Duration,
    seed: u64,
) -> Histogram<u64> {
    let (mut met, mut choices) = (histogram(), SmallRng::seed_from_u64(seed));
    let keys = question.keys.min(filled.keys);
    let options = RangeOptions {
        revision,
        limit: question.limit,
        count_only: question.count_only,
        uncounted: false,
    };
    let begin = Instant::now();
    while begin.elapsed() < window {
        let first = choices.random_range(0..=filled.keys - keys);
        let (from, to) = (key(first), key(first + keys));
        let start = Instant::now();
        let answer = filled.stage.store.read().range(KeyRange::new(&from, &to), options);
        met.saturating_record(start.elapsed().as_nanos() as u64);
        let answer = answer.expect("a healthy store can be read");
        assert_eq!(answer.count, keys, "every key that was put is found");
        let limit = if question.limit > 0 { question.limit as u64 } else { u64::MAX };
        let records = if question.count_only { 0 } else { keys.min(limit) };
        assert_eq!(answer.records.len() as u64, records, "with its record");
    }
    met
}

/// Keys that lie in the order of their numbers, thirty-two bytes each.
fn key(number: u64) -> Vec<u8> {
    format!("/registry/things/name-{number:010}").into_bytes()
}
