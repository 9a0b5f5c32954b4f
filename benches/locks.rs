//! The cost of a lock that collects figures.
//!
//! ```text
//! cargo bench --bench locks
//! ```
//!
//! Timed is one lock and unlock around an addition or a read: by one thread (`alone`), and by one
//! thread while a second thread locks and unlocks the same lock (`two_threads`). `clock` times one
//! reading of each of two clocks. The named locks do the same work as in production: two clock
//! readings, the lock state, and the figures. With `recording` there is also an event for each
//! hold. The buffer for events is full, so the event is counted and dropped.
//!
//! Not timed: building locks and registries, the first hold of an actor, which creates a histogram,
//! and reports. Waiting for a long hold is not a cost of the lock itself. The benches of the read
//! path show such waits.

use std::{
    hint::black_box,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use clearlane_contention::{Mutex, Registry, RwLock, TaskLabel, now_ns};
use criterion::{Criterion, criterion_group, criterion_main};

fn uncontended(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("alone");
    let _as = TaskLabel::named("bench").enter();
    for (name, step) in &locks() {
        group.bench_function(*name, |bencher| bencher.iter(step));
    }
    group.finish();
}

fn two_threads(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("two_threads");
    let _as = TaskLabel::named("bench").enter();
    for (name, step) in &locks() {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let _as = TaskLabel::named("rival").enter();
                while !stop.load(Relaxed) {
                    step();
                }
            });
            group.bench_function(*name, |bencher| bencher.iter(step));
            stop.store(true, Relaxed);
        });
    }
    group.finish();
}

fn clock(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("clock");
    group.bench_function("now_ns", |bencher| bencher.iter(now_ns));
    group.bench_function("std_instant", |bencher| bencher.iter(std::time::Instant::now));
    group.finish();
}

fn recording(criterion: &mut Criterion) {
    let registry = Registry::new();
    let mutex = Mutex::new(&registry, "mutex", 0_u64);
    let _recorder = registry.record(1);
    let mut group = criterion.benchmark_group("recording");
    group.bench_function("named_mutex", |bencher| {
        bencher.iter(|| *mutex.lock() += black_box(1));
    });
    group.finish();
}

/// A function that locks and unlocks once.
type Step = Box<dyn Fn() + Send + Sync>;

/// Returns the bare locks and the named locks, as steps.
fn locks() -> [(&'static str, Step); 7] {
    let registry = Registry::new();
    let bare_mutex = parking_lot::Mutex::new(0_u64);
    let (bare_read, bare_write) =
        (parking_lot::RwLock::new(0_u64), parking_lot::RwLock::new(0_u64));
    let std_read = std::sync::RwLock::new(0_u64);
    let mutex = Mutex::new(&registry, "mutex", 0_u64);
    let read = RwLock::new(&registry, "read", 0_u64);
    let write = RwLock::new(&registry, "write", 0_u64);
    [
        ("parking_lot_mutex", Box::new(move || *bare_mutex.lock() += black_box(1))),
        ("parking_lot_read", Box::new(move || keep(*bare_read.read()))),
        ("parking_lot_write", Box::new(move || *bare_write.write() += black_box(1))),
        ("std_read", Box::new(move || keep(*std_read.read().expect("no thread panics")))),
        ("named_mutex", Box::new(move || *mutex.lock() += black_box(1))),
        ("named_read", Box::new(move || keep(*read.read()))),
        ("named_write", Box::new(move || *write.write() += black_box(1))),
    ]
}

/// Uses a value, so that the compiler does not remove the read.
fn keep(value: u64) {
    black_box(value);
}

criterion_group!(benches, clock, uncontended, two_threads, recording);
criterion_main!(benches);
