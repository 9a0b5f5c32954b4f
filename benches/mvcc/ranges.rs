//! The cost of a range, by the number of keys that it finds, at the newest revision and at an old
//! revision.
//!
//! **Timed:** a range, from its call to its result. Ranges without a limit read a store of 20,000
//! keys with values of 1 KiB. The page of 100 keys and the count use a store of a million keys with
//! values of 64 bytes. The old revision is the last revision before every tenth key was put again.
//! **Not timed:** dropping the result.

use std::time::{Duration, Instant};

use clearlane_backend::Era;
use clearlane_benches::store::value;
use clearlane_engine::KeyRange;
use clearlane_mvcc::RangeOptions;
use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::BenchConfig;
use crate::bench_store::BenchStore;
use crate::pace::histogram;
use crate::report::{Report, us};

/// A range that is read repeatedly.
struct RangeCase {
    name: &'static str,
    /// If true, the range uses the store with a million keys, otherwise the store with twenty
    /// thousand.
    large: bool,
    /// Number of keys, starting at a random key. If the store has fewer keys, the range covers all
    /// of them.
    keys: u64,
    limit: i64,
    count_only: bool,
}

const RANGE_CASES: [RangeCase; 5] = [
    RangeCase { name: "1 key", large: false, keys: 1, limit: 0, count_only: false },
    RangeCase { name: "100 keys", large: false, keys: 100, limit: 0, count_only: false },
    RangeCase { name: "20,000 keys", large: false, keys: u64::MAX, limit: 0, count_only: false },
    RangeCase {
        name: "count of 1,000,000",
        large: true,
        keys: u64::MAX,
        limit: 0,
        count_only: true,
    },
    RangeCase {
        name: "100 of 1,000,000",
        large: true,
        keys: u64::MAX,
        limit: 100,
        count_only: false,
    },
];

/// A store, and its number of keys.
struct FilledStore {
    store: BenchStore,
    keys: u64,
    /// The revision before every tenth key was put for the second time.
    old_revision: i64,
}

impl FilledStore {
    fn new(era: Era, keys: u64, value_size: usize) -> FilledStore {
        let stage = BenchStore::open(era);
        let value = value(value_size);
        stage.fill((0..keys).map(key), &value, 1_000);
        let old = stage.store.begin_read().revision();
        stage.fill((0..keys).step_by(10).map(key), &value, 1_000);
        FilledStore { store: stage, keys, old_revision: old }
    }
}

pub(crate) fn measure(settings: &BenchConfig) {
    let (small, large) = if settings.quick { (200, 1_000) } else { (20_000, 1_000_000) };
    let window = Duration::from_millis(if settings.quick { 1 } else { 300 });
    let fill = |era: &Era| [FilledStore::new(*era, small, 1024), FilledStore::new(*era, large, 64)];
    let filled: Vec<[FilledStore; 2]> = settings.eras.iter().map(fill).collect();
    let mut report = Report::default();
    for round in 0..settings.rounds {
        for question in &RANGE_CASES {
            for at in ["head", "old"] {
                for stores in &filled {
                    let filled = &stores[usize::from(question.large)];
                    let revision = if at == "old" { filled.old_revision } else { 0 };
                    let met = time_range(filled, question, revision, window, round as u64);
                    let name = format!("{}, {}, {at}", filled.store.era, question.name);
                    let figures = vec![("p50 µs", us(&met, 0.5)), ("p99 µs", us(&met, 0.99))];
                    report.add(&name, figures);
                }
            }
        }
    }
    report.finish("ranges", settings, |_, _| Vec::new());
}

fn time_range(
    filled: &FilledStore,
    question: &RangeCase,
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
        skip_count: false,
    };
    let begin = Instant::now();
    while begin.elapsed() < window {
        let first = choices.random_range(0..=filled.keys - keys);
        let (from, to) = (key(first), key(first + keys));
        let start = Instant::now();
        let answer = filled.store.store.begin_read().range(KeyRange::new(&from, &to), options);
        met.saturating_record(start.elapsed().as_nanos() as u64);
        let answer = answer.expect("a healthy store can be read");
        assert_eq!(answer.count, keys, "every key that was put is found");
        let limit = if question.limit > 0 { question.limit as u64 } else { u64::MAX };
        let records = if question.count_only { 0 } else { keys.min(limit) };
        assert_eq!(answer.records.len() as u64, records, "with its record");
    }
    met
}

/// Returns a key of 32 bytes. Keys are in the order of their numbers.
fn key(number: u64) -> Vec<u8> {
    format!("/registry/things/name-{number:010}").into_bytes()
}
