//! The cost of a commit, and the number of puts per second that a backend sustains while it
//! commits.
//!
//! ```text
//! cargo bench --bench commit
//! ```
//!
//! * `commit`: **timed** is one forced commit of 100, 1,000 and 10,000 pending puts of 256 B,
//!   including the engine's sync. **Not timed:** the puts. In the old eras a put writes into the
//!   engine's tree, and the commit only writes that tree to disk. In the default era the commit
//!   does both.
//! * `puts`: **timed** are puts of 256 B, each in a separate write transaction, while a thread
//!   commits every 100 ms or 10,000 operations. In the old eras, the put that reaches the limit
//!   commits. The run ends with a commit, which is also timed. So the cost of every put is
//!   included.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clearlane_backend::{Config, Era};
use clearlane_benches::store::{Store, value};
use clearlane_engine::EngineKind;
use criterion::{
    BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main,
};

const VALUE_SIZE: usize = 256;
/// Number of puts in one round of `puts`.
const ROUND: u64 = 300_000;

fn commit(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("commit");
    group.warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_secs(1));
    group.sample_size(10).sampling_mode(SamplingMode::Flat);
    for era in Era::DISTINCT_STORES {
        for pending in [100, 1_000, 10_000] {
            let config = Config { batch_limit: u64::MAX, ..Config::default() };
            let store = Store::open(era, EngineKind::Bolt, config);
            let (value, mut revision) = (value(VALUE_SIZE), 0);
            group.bench_function(BenchmarkId::new(era.name(), pending), |bencher| {
                bencher.iter_custom(|iterations| {
                    (0..iterations)
                        .map(|_| {
                            put_many(&store, &mut revision, pending, &value);
                            let start = Instant::now();
                            store.backend.commit().expect("a healthy store commits");
                            start.elapsed()
                        })
                        .sum()
                });
            });
        }
    }
    group.finish();
}

fn puts(criterion: &mut Criterion) {
    let quick = std::env::args().any(|argument| argument == "--test");
    let round = if quick { 1_000 } else { ROUND };
    let mut group = criterion.benchmark_group("puts");
    group.warm_up_time(Duration::from_millis(1)).measurement_time(Duration::from_secs(5));
    group.sample_size(10).sampling_mode(SamplingMode::Flat);
    group.throughput(Throughput::Elements(round));
    for era in Era::DISTINCT_STORES {
        let store = Store::open(era, EngineKind::Bolt, Config::default());
        let began = Instant::now();
        let (value, mut revision) = (value(VALUE_SIZE), 0);
        group.bench_function(era.name(), |bencher| {
            bencher.iter_custom(|iterations| {
                let store = (&store, began);
                (0..iterations).map(|_| sustained(store, &mut revision, round, &value)).sum()
            });
        });
    }
    group.finish();
}

/// Runs one round of puts, with commits at the same time.
fn sustained(
    (store, began): (&Store, Instant),
    revision: &mut u64,
    round: u64,
    value: &Bytes,
) -> Duration {
    let over = AtomicBool::new(false);
    let start = Instant::now();
    std::thread::scope(|threads| {
        let committer = threads.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                store.backend.commit_if_due(began.elapsed()).expect("a healthy store commits");
                std::thread::park_timeout(Duration::from_millis(5));
            }
        });
        put_many(store, revision, round, value);
        over.store(true, Ordering::Relaxed);
        committer.thread().unpark();
    });
    store.backend.commit().expect("a healthy store commits");
    start.elapsed()
}

fn put_many(store: &Store, revision: &mut u64, count: u64, value: &Bytes) {
    for _ in 0..count {
        *revision += 1;
        // Each put has its own value. If the puts shared one value, the copy that a real server
        // makes would be missing.
        store.put(*revision, Bytes::copy_from_slice(value));
    }
}

criterion_group!(benches, commit, puts);
criterion_main!(benches);
