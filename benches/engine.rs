//! Compares the times of the three storage engines for the operations that etcd needs.
//!
//! `cargo bench --bench engine` takes three minutes. `-- bolt/point_get` runs one engine and one
//! kind of work. Records have 17-byte revision keys in bucket `key`. "Mixed" values have 1 B to 32
//! KiB, evenly distributed. Each engine has a cache of 1 GiB, so reads need no disk. **Timed:**
//!
//! * `load`, `bulk_put`, `bulk_put_1000`, `commit_100`: synced commits of 100 mixed records, of
//!   10,000 x 256 B, of 1,000 x 256 B, and of 100 x 64 B into a store of 30,000 mixed records.
//! * `range_mixed`, `range_1k`: a scan of 20,000 records. `range_mixed` adds up one byte per page,
//!   and `range_1k` adds up every byte.
//! * `point_get`: a record of 1 KiB among 100,000. `get_100`, `scan_100`: 100 adjacent records, one
//!   by one or in one scan. `get_100_near`: 100 of 1,000 records in any order, like a range.
//!   `snapshot`: a snapshot is created and dropped.
//! * `reopen`: 30,000 mixed records that were closed cleanly. `open_many`: 1,000,000 x 64 B in
//!   bolt.
//!
//! **Not timed:** creating directories, filling stores before reads, and closing before `reopen`.
//! The disk is the disk of the system's temporary directory.

use std::hint::black_box;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clearlane_engine::{Bucket, Engine, EngineKind, KeyRange, Options, open};
use criterion::measurement::WallTime;
use criterion::{
    BenchmarkGroup, Criterion, SamplingMode, Throughput, criterion_group, criterion_main,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;

const SEED: u64 = 20_261_120;
const MIXED_VALUE_MAX: usize = 32 << 10;

/// The numbers of records in the measurements. They are small with `--test`.
#[derive(Clone, Copy)]
struct Scale {
    load: u64,
    mixed: u64,
    small: u64,
    range: u64,
    bulk: u64,
    many: u64,
}

impl Scale {
    fn chosen() -> Scale {
        if std::env::args().any(|argument| argument == "--test") {
            let (few, range) = (300, 200);
            return Scale { load: few, mixed: few, small: few, range, bulk: few, many: few };
        }
        Scale {
            load: 3_000,
            mixed: 30_000,
            small: 100_000,
            range: 20_000,
            bulk: 10_000,
            many: 1_000_000,
        }
    }
}

struct Store {
    engine: Arc<dyn Engine>,
    dir: TempDir,
}

fn options() -> Options {
    Options { cache_bytes: 1 << 30, ..Options::default() }
}

fn new_store(kind: EngineKind) -> Store {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let engine = open(kind, dir.path(), options()).expect("a new store");
    Store { engine, dir }
}

fn revision_key(revision: u64) -> [u8; 17] {
    let mut key = [0; 17];
    key[..8].copy_from_slice(&revision.to_be_bytes());
    key[8] = b'_';
    key
}

/// Commits `count` records, starting at revision `first`. `length` chooses the lengths of their
/// values.
fn put(engine: &dyn Engine, first: u64, count: u64, length: &mut dyn FnMut() -> usize) {
    let value = vec![0x5a; MIXED_VALUE_MAX];
    let keys: Vec<_> = (first..first + count).map(revision_key).collect();
    let mut txn = engine.begin_write().expect("no other writer");
    let mut records = keys.iter().map(|key| (&key[..], &value[..length()]));
    txn.put_all(Bucket::Key, &mut records).expect("a put");
    txn.commit().expect("a commit");
}

/// Puts `count` records, in commits of `batch` records.
fn fill(engine: &dyn Engine, count: u64, batch: u64, length: &mut dyn FnMut() -> usize) {
    for first in (0..count).step_by(batch as usize) {
        put(engine, first, batch.min(count - first), length);
    }
}

fn mixed_lengths() -> impl FnMut() -> usize {
    let mut rng = SmallRng::seed_from_u64(SEED);
    move || rng.random_range(1..=MIXED_VALUE_MAX)
}

/// Scans `count` records, starting at revision `first`. `look` converts a value to a number.
fn scan(engine: &dyn Engine, first: u64, count: u64, look: fn(&[u8]) -> u64) -> u64 {
    let (from, to) = (revision_key(first), revision_key(first + count));
    let snapshot = engine.snapshot().expect("a snapshot");
    let (mut sum, mut seen) = (0u64, 0);
    let mut visit = |_: &[u8], value: &[u8]| {
        sum = sum.wrapping_add(look(value));
        seen += 1;
        ControlFlow::Continue(())
    };
    snapshot.scan(Bucket::Key, KeyRange::new(&from, &to), &mut visit).expect("a scan");
    assert_eq!(seen, count);
    sum
}

fn one_byte_per_page(value: &[u8]) -> u64 {
    value.iter().step_by(4096).map(|byte| u64::from(*byte)).sum()
}

fn every_byte(value: &[u8]) -> u64 {
    let words = value.chunks_exact(8);
    let rest: u64 = words.remainder().iter().map(|byte| u64::from(*byte)).sum();
    words.fold(rest, |sum, word| {
        sum.wrapping_add(u64::from_le_bytes(word.try_into().expect("eight bytes")))
    })
}

/// Returns the time to open an engine. The engine is then closed, because only one engine can be
/// open in a directory. Closing it is not timed.
fn time_to_open(kind: EngineKind, dir: &Path, options: Options) -> Duration {
    let start = Instant::now();
    let engine = open(kind, dir, options).expect("the store is there");
    let taken = start.elapsed();
    drop(engine);
    taken
}

type Group<'c> = BenchmarkGroup<'c, WallTime>;

fn writes(group: &mut Group<'_>, kind: EngineKind, scale: Scale) {
    group.throughput(Throughput::Elements(scale.load));
    group.bench_function("load", |bench| {
        bench.iter_custom(|rounds| {
            let load = |store: Store| {
                let start = Instant::now();
                fill(&*store.engine, scale.load, 100, &mut mixed_lengths());
                start.elapsed()
            };
            (0..rounds).map(|_| load(new_store(kind))).sum::<Duration>()
        });
    });

    for (name, count) in [("bulk_put", scale.bulk), ("bulk_put_1000", scale.bulk.min(1_000))] {
        group.throughput(Throughput::Elements(count));
        let store = new_store(kind);
        let mut next = 0;
        group.bench_function(name, |bench| {
            bench.iter(|| {
                put(&*store.engine, next, count, &mut || 256);
                next += count;
            });
        });
    }
}

fn mixed_store(group: &mut Group<'_>, kind: EngineKind, scale: Scale) {
    let Store { engine, dir } = new_store(kind);
    fill(&*engine, scale.mixed, 1_000, &mut mixed_lengths());

    group.throughput(Throughput::Elements(scale.range));
    group.bench_function("range_mixed", |bench| {
        bench.iter(|| black_box(scan(&*engine, 50, scale.range, one_byte_per_page)));
    });

    group.throughput(Throughput::Elements(100));
    let mut next = scale.mixed;
    group.bench_function("commit_100", |bench| {
        bench.iter(|| {
            put(&*engine, next, 100, &mut || 64);
            next += 100;
        });
    });

    drop(engine);
    if kind.is_durable() {
        group.throughput(Throughput::Elements(1));
        group.bench_function("reopen", |bench| {
            bench.iter_custom(|rounds| {
                (0..rounds).map(|_| time_to_open(kind, dir.path(), options())).sum()
            });
        });
    }
}

fn small_store(group: &mut Group<'_>, kind: EngineKind, scale: Scale) {
    let store = new_store(kind);
    fill(&*store.engine, scale.small, 10_000, &mut || 1024);

    group.throughput(Throughput::Bytes(scale.range * 1024));
    group.bench_function("range_1k", |bench| {
        bench.iter(|| black_box(scan(&*store.engine, 50, scale.range, every_byte)));
    });
    gets(group, &store, scale);
    group.throughput(Throughput::Elements(1));
    group.bench_function("snapshot", |bench| {
        bench.iter(|| store.engine.snapshot().expect("a snapshot"));
    });
}

/// Reads records of `small_store`.
fn gets(group: &mut Group<'_>, store: &Store, scale: Scale) {
    group.throughput(Throughput::Elements(1));
    let snapshot = store.engine.snapshot().expect("a snapshot");
    let mut rng = SmallRng::seed_from_u64(SEED);
    group.bench_function("point_get", |bench| {
        bench.iter(|| {
            let key = revision_key(rng.random_range(0..scale.small));
            snapshot.get(Bucket::Key, &key).expect("a read").expect("a record")
        });
    });
    let first = scale.small / 2;
    let follow: Vec<u64> = (first..first + 100).collect();
    let nearby = first..(first + 1_000).min(scale.small);
    let near = (0..100).map(|_| rng.random_range(nearby.clone())).collect();
    group.throughput(Throughput::Elements(100));
    for (name, revisions) in [("get_100", follow), ("get_100_near", near)] {
        group.bench_function(name, |bench| {
            bench.iter(|| {
                for revision in &revisions {
                    let key = revision_key(*revision);
                    black_box(snapshot.get(Bucket::Key, &key).expect("a read").expect("a record"));
                }
            });
        });
    }
    group.bench_function("scan_100", |bench| {
        bench.iter(|| black_box(scan(&*store.engine, first, 100, one_byte_per_page)));
    });
}

fn engines(criterion: &mut Criterion) {
    let scale = Scale::chosen();
    for kind in EngineKind::ALL {
        let mut group = criterion.benchmark_group(format!("engine/{kind}"));
        group.sample_size(10).sampling_mode(SamplingMode::Flat);
        group.warm_up_time(Duration::from_millis(500));
        group.measurement_time(Duration::from_secs(2));
        writes(&mut group, kind, scale);
        mixed_store(&mut group, kind, scale);
        small_store(&mut group, kind, scale);
        group.finish();
    }
}

/// Times the first step of the start of a server with many keys: opening the engine. The server
/// reads the keys later.
fn open_many(criterion: &mut Criterion) {
    let scale = Scale::chosen();
    let mut group = criterion.benchmark_group("engine/bolt");
    group.sample_size(10).sampling_mode(SamplingMode::Flat);
    group.warm_up_time(Duration::from_millis(100));
    group.measurement_time(Duration::from_secs(2));
    let Store { engine, dir } = new_store(EngineKind::Bolt);
    fill(&*engine, scale.many, 10_000, &mut || 64);
    drop(engine);
    group.bench_function("open_many", |bench| {
        bench.iter_custom(|rounds| {
            (0..rounds).map(|_| time_to_open(EngineKind::Bolt, dir.path(), options())).sum()
        });
    });
    group.finish();
}

criterion_group!(benches, engines, open_many);
criterion_main!(benches);
