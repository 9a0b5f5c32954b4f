//! The cost of opening a read transaction, by era and by the number of pending puts.
//!
//! ```text
//! cargo bench --bench read_tx_open
//! ```
//!
//! **Timed:** opening a read transaction and dropping it, with 0, 100, 1,000 and 10,000 pending
//! puts (visible, not committed). **Not timed:** the puts. No other thread runs, so no lock is
//! contended. So the bench shows the cost that every read has on an idle server.
//!
//! Era 3.5 appears twice: `3.5` uses the copy that an earlier read has made. `3.5-stale` is the
//! first read after a write, and makes the copy.

use std::hint::black_box;
use std::time::{Duration, Instant};

use clearlane_backend::{Config, Era};
use clearlane_benches::store::{Store, value};
use clearlane_engine::EngineKind;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

const PENDING: [u64; 4] = [0, 100, 1_000, 10_000];
const COMMITTED: u64 = 10_000;

/// Creates a store with `pending` puts that are never committed.
fn store_with_pending(era: Era, pending: u64) -> Store {
    let config = Config { batch_limit: u64::MAX, ..Config::default() };
    let store = Store::open(era, EngineKind::Bolt, config);
    store.fill(COMMITTED, 64);
    for revision in COMMITTED + 1..=COMMITTED + pending {
        store.put(revision, value(64));
    }
    store
}

fn open(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("read_tx_open");
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    group.sample_size(30);
    for era in Era::DISTINCT_STORES {
        for pending in PENDING {
            let store = store_with_pending(era, pending);
            let id = BenchmarkId::new(era.name(), pending);
            group.bench_function(id, |bencher| {
                bencher.iter(|| drop(black_box(store.backend.begin_read())));
            });
        }
    }
    group.finish();
}

/// Times reads in era 3.5 that each follow a write, so the cached copy is out of date.
fn open_after_a_write(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("read_tx_open");
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    group.sample_size(30);
    for pending in PENDING {
        let store = store_with_pending(Era::V3_5, pending);
        let mut revision = COMMITTED + pending;
        group.bench_function(BenchmarkId::new("3.5-stale", pending), |bencher| {
            bencher.iter_custom(|iterations| {
                (0..iterations)
                    .map(|_| {
                        revision += 1;
                        let mut tx =
                            store.backend.begin_write().expect("a healthy store takes writes");
                        tx.put(clearlane_engine::Bucket::Meta, b"mark", value(8))
                            .expect("no order");
                        drop(tx.end(revision).expect("a healthy store takes writes"));
                        let start = Instant::now();
                        drop(black_box(store.backend.begin_read()));
                        start.elapsed()
                    })
                    .sum()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, open, open_after_a_write);
criterion_main!(benches);
