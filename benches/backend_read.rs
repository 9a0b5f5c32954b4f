//! The cost of reads in an open transaction: a point read, and a long range.
//!
//! ```text
//! cargo bench --bench backend_read
//! ```
//!
//! * `point_read`: **timed** is one look-up of a random committed record of 256 B in an open
//!   transaction, including its copy into the result.
//! * `range`: **timed** is one range of 20,000 records of 1 KiB. Every value is copied into one
//!   reused buffer. The throughput counts the bytes of the values.
//!
//! **Not timed:** opening the transaction, which is in `read_tx_open`, and the layers above the
//! backend.

use std::hint::black_box;
use std::ops::ControlFlow;
use std::time::Duration;

use clearlane_backend::{Config, Era, ReadTx};
use clearlane_benches::store::{Store, record_key};
use clearlane_engine::{Bucket, EngineKind, KeyRange};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

const POINT_RECORDS: u64 = 100_000;
const RANGE_RECORDS: u64 = 20_000;
const RANGE_VALUE: usize = 1024;

fn point_read(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("point_read");
    group.measurement_time(Duration::from_secs(2)).sample_size(30);
    for era in Era::DISTINCT_STORES {
        let store = Store::open(era, EngineKind::Bolt, Config::default());
        store.fill(POINT_RECORDS, 256);
        let tx = store.backend.begin_read();
        let mut random = SmallRng::seed_from_u64(7);
        group.bench_function(era.name(), |bencher| {
            bencher.iter(|| {
                let key = record_key(random.random_range(1..=POINT_RECORDS));
                black_box(tx.get(Bucket::Key, &key).expect("a healthy store").is_some())
            });
        });
    }
    group.finish();
}

fn range(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("range");
    group.measurement_time(Duration::from_secs(2)).sample_size(30);
    group.throughput(Throughput::Bytes(RANGE_RECORDS * RANGE_VALUE as u64));
    for era in Era::DISTINCT_STORES {
        let store = Store::open(era, EngineKind::Bolt, Config::default());
        store.fill(RANGE_RECORDS, RANGE_VALUE);
        let tx = store.backend.begin_read();
        let mut buffer = Vec::new();
        group.bench_function(BenchmarkId::new(era.name(), RANGE_RECORDS), |bencher| {
            bencher.iter(|| read_all(&*tx, &mut buffer));
        });
    }
    group.finish();
}

fn read_all(tx: &dyn ReadTx, buffer: &mut Vec<u8>) -> usize {
    buffer.clear();
    tx.range(Bucket::Key, KeyRange::ALL, &mut |_, value| {
        buffer.extend_from_slice(&value);
        ControlFlow::Continue(())
    })
    .expect("a healthy store");
    assert_eq!(buffer.len(), RANGE_RECORDS as usize * RANGE_VALUE, "every record is there");
    black_box(buffer.len())
}

criterion_group!(benches, point_read, range);
criterion_main!(benches);
