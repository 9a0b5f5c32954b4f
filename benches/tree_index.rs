//! The cost of the two tree indexes, `locked` and `persistent`, in time and memory, and the effect
//! of a scan on a put.
//!
//! Run it with `cargo bench --bench tree_index`. `-- report` runs only the parts that are timed by
//! hand.
//!
//! The indexes have 10 thousand and 1 million keys of 32 random bytes, each put once. The allocator
//! is mimalloc. `locked` has a registry that keeps metrics. The measurements of rates and of
//! the p99 publish snapshots of `persistent` in an `ArcSwap`.
//!
//! **Timed** by criterion: [`time_reads`], and `put` to a random existing key. **Not timed** there:
//! a compaction before each further `keys / 2` puts of a sample.
//!
//! **Timed** by hand: puts per second without snapshots, with a snapshot after every 100 puts, and
//! with a snapshot after every put, including the drop of the previous snapshot; the p99 of a put
//! during a scan ([`print_p99`]); the restore from runs of 65,536 records; the drop of the restored
//! index; puts to a key with 50,000 revisions.
//!
//! **Memory** per key is the growth of the resident set of a separate process while it puts the
//! keys, with one revision of each key and with two.

#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::hint::black_box;
use std::ops::ControlFlow;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use clearlane_contention::Registry;
use clearlane_engine::KeyRange;
use clearlane_mvcc::restore::RUN_RECORDS;
use clearlane_mvcc::{
    CompactionLock, EncodedLen, IndexSnapshot, LockedIndex, PersistentIndex, Revision,
    SortedRunBuilder, TreeIndex, Version,
};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion};
use hdrhistogram::Histogram;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const INDEX_KINDS: [&str; 2] = ["locked", "persistent"];
const MILLION: u64 = 1_000_000;
/// The interval between two puts in the measurement of [`print_p99`].
const PUT_INTERVAL: Duration = Duration::from_micros(50);

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let is = |word: &str| arguments.iter().any(|argument| argument == word);
    if let Some(at) = arguments.iter().position(|argument| argument == "--fill") {
        return print_growth(&arguments[at + 1..]);
    }
    let quick = is("--test");
    let sizes: &[u64] = if quick { &[100] } else { &[10_000, MILLION] };
    if !is("report") {
        let mut criterion = Criterion::default().configure_from_args();
        for keys in sizes {
            let mut group = criterion.benchmark_group(format!("tree_index/{keys}"));
            group.warm_up_time(Duration::from_millis(300)).sample_size(20);
            group.measurement_time(Duration::from_secs(1));
            time(&mut group, "locked", locked(), *keys);
            time(&mut group, "persistent", PersistentIndex::default(), *keys);
        }
        criterion.final_summary();
    }
    if quick || is("report") || arguments.len() <= 2 {
        report(if quick { 1_000 } else { MILLION });
    }
}

fn locked() -> LockedIndex {
    LockedIndex::new(&Registry::new(), CompactionLock::PerKey)
}

/// Returns a number that looks random. Each `seed` gives a different number.
fn scramble(seed: u64) -> u64 {
    let mixed = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn key(number: u64) -> [u8; 32] {
    let mut key = [0; 32];
    for (part, at) in key.chunks_mut(8).zip(0..) {
        part.copy_from_slice(&scramble(number * 4 + at).to_be_bytes());
    }
    key
}

fn revision(main: u64) -> Revision {
    Revision::new(main as i64, 0)
}

/// Puts each key once, at revisions starting at 1.
fn fill(index: &mut impl TreeIndex, keys: u64) {
    for number in 0..keys {
        index.put(&key(number), revision(number + 1), EncodedLen::of(9));
    }
}

/// Times everything that criterion measures, for one index.
fn time<I: TreeIndex>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    index_kind: &str,
    mut index: I,
    keys: u64,
) {
    fill(&mut index, keys);
    time_reads(group, index_kind, &index.snapshot(), keys);
    group.bench_function(format!("snapshot/{index_kind}"), |bencher| {
        bencher.iter(|| drop(black_box(index.snapshot())));
    });
    let mut main = keys;
    group.bench_function(format!("put/{index_kind}"), |bencher| {
        bencher.iter_custom(|iterations| time_puts(&mut index, keys, &mut main, iterations));
    });
}

/// Times `get` of a random key; `range` of 100 and of 20,000 keys from a random key, visiting key
/// and version; `count` over all keys, over a random interval and at an old revision; and `page`,
/// the first 100 keys of a random interval with the count of all its keys. (`snapshot`, in the
/// function `time`, creates a snapshot and drops it.)
fn time_reads<V: IndexSnapshot>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    index_kind: &str,
    snapshot: &V,
    keys: u64,
) {
    let mut seed = 0;
    let mut next = || {
        seed += 1;
        scramble(seed) % keys
    };
    let now = keys as i64;
    group.bench_function(format!("get/{index_kind}"), |bencher| {
        bencher.iter(|| snapshot.get(&key(next()), now));
    });
    for length in [100, 20_000].into_iter().filter(|length| *length <= keys) {
        group.bench_function(format!("range_{length}/{index_kind}"), |bencher| {
            bencher.iter(|| walk_some(snapshot, &key(next()), now, length));
        });
    }
    group.bench_function(format!("count_all/{index_kind}"), |bencher| {
        bencher.iter(|| snapshot.count(KeyRange::ALL, now));
    });
    group.bench_function(format!("count_interval/{index_kind}"), |bencher| {
        bencher.iter(|| snapshot.count(interval(&[key(next()), key(next())]), now));
    });
    group.bench_function(format!("count_all_at_an_old_revision/{index_kind}"), |bencher| {
        bencher.iter(|| snapshot.count(KeyRange::ALL, now / 2));
    });
    group.bench_function(format!("page_100/{index_kind}"), |bencher| {
        bencher.iter(|| {
            let ends = [key(next()), key(next())];
            let mut visit = |key: &[u8], version: Version| {
                black_box((key, version));
                ControlFlow::Continue(())
            };
            snapshot.revisions(interval(&ends), now, 100, &mut visit)
        });
    });
}

fn interval(ends: &[[u8; 32]; 2]) -> KeyRange<'_> {
    let [a, b] = ends;
    KeyRange::new(a.min(b), a.max(b))
}

fn walk_some(snapshot: &impl IndexSnapshot, from: &[u8], at: i64, length: u64) {
    let mut left = length;
    snapshot.walk(KeyRange::starting_at(from), at, &mut |key, version| {
        black_box((key, version));
        left -= 1;
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
}

/// Times puts to random keys. The compactions between the puts are not timed.
fn time_puts(index: &mut impl TreeIndex, keys: u64, main: &mut u64, iterations: u64) -> Duration {
    let mut took = Duration::ZERO;
    let mut left = iterations;
    while left > 0 {
        let batch = left.min(keys / 2);
        let start = Instant::now();
        for _ in 0..batch {
            *main += 1;
            index.put(&key(scramble(*main) % keys), revision(*main), EncodedLen::of(9));
        }
        took += start.elapsed();
        left -= batch;
        if left > 0 {
            compact(index, *main);
        }
    }
    took
}

fn compact(index: &mut impl TreeIndex, at: u64) {
    let mut compaction = index.begin_compaction(at as i64);
    while !index.compact_step(&mut compaction, 1_000) {}
}

/// Runs the parts that are timed by hand.
fn report(keys: u64) {
    print_rates(keys);
    print_p99("locked", locked(), keys);
    print_p99("persistent", PersistentIndex::default(), keys);
    print_restore(keys);
    print_hot_key(keys / 20);
    for index_kind in INDEX_KINDS {
        for revisions in [1, 2] {
            print_memory(index_kind, keys, revisions);
        }
    }
}

/// Prints the puts per second of `persistent`, and how they depend on snapshots.
fn print_rates(keys: u64) {
    for every in [None, Some(100), Some(1)] {
        let mut index = PersistentIndex::default();
        fill(&mut index, keys);
        let published = ArcSwap::from_pointee(index.snapshot());
        let publish = |index: &PersistentIndex, main: u64| {
            if every.is_some_and(|every| main.is_multiple_of(every)) {
                published.store(Arc::new(index.snapshot()));
            }
        };
        if every.is_none() {
            published.store(Arc::default());
        }
        let new = (keys..keys + keys / 5).map(key);
        let there = (0..keys / 2).map(|number| key(scramble(number) % keys));
        let mut main = keys * 2;
        let mut rate = |keys: &mut dyn Iterator<Item = [u8; 32]>| {
            let (start, first) = (Instant::now(), main);
            for key in keys {
                main += 1;
                index.put(&key, revision(main), EncodedLen::of(9));
                publish(&index, main);
            }
            (main - first) as f64 / start.elapsed().as_secs_f64()
        };
        let (new, there) = (rate(&mut { new }), rate(&mut { there }));
        let every =
            every.map_or("no snapshot".to_owned(), |every| format!("a snapshot every {every}"));
        println!("persistent, {keys} keys, {every}: {new:.0} new keys/s, {there:.0} puts/s");
    }
}

/// Prints how another thread delays a put, for one index, at 20,000 puts per second: without
/// another thread (`calm`), with a thread that spins (`spin`), and with a thread that visits all
/// keys in a loop (`walk`). If `walk` delays puts more than `spin` does, the index is the cause.
fn print_p99<I: TreeIndex>(index_kind: &str, mut index: I, keys: u64)
where
    I::Snapshot: Sync,
{
    fill(&mut index, keys);
    let mut main = keys;
    let published = ArcSwap::from_pointee(index.snapshot());
    let window = if keys < MILLION { Duration::from_millis(5) } else { Duration::from_secs(1) };
    let mut rounds: [Vec<u64>; 3] = Default::default();
    for _ in 0..5 {
        for (round, beside) in rounds.iter_mut().zip(["calm", "spin", "walk"]) {
            let stop = AtomicBool::new(false);
            let p99 = std::thread::scope(|scope| {
                scope.spawn(|| run_disturbance(beside, &published, &stop));
                let p99 = put_latency(&mut index, &published, keys, &mut main, window);
                stop.store(true, Ordering::Relaxed);
                p99
            });
            round.push(p99);
            compact(&mut index, main);
            published.store(Arc::new(index.snapshot()));
        }
    }
    let [calm, spin, walk] = rounds.map(|mut round| {
        round.sort_unstable();
        round[round.len() / 2]
    });
    let ratio = walk as f64 / spin.max(1) as f64;
    println!(
        "{index_kind}, {keys} keys, p99 of a put: calm {calm} ns, spin {spin} ns, walk {walk} ns, \
         walk/spin {ratio:.2}"
    );
}

fn run_disturbance<V: IndexSnapshot>(how: &str, published: &ArcSwap<V>, stop: &AtomicBool) {
    while how != "calm" && !stop.load(Ordering::Relaxed) {
        if how == "walk" {
            walk_some(&*published.load_full(), &[], i64::MAX, u64::MAX);
        }
        std::hint::spin_loop();
    }
}

/// Returns the p99 of puts that are due at a fixed rate, in nanoseconds. A snapshot is published
/// after each put. The time of a put starts when the put is due, so a stall delays all puts that
/// become due during it. A put that is still queued at the end of the window is recorded with its
/// wait so far.
fn put_latency<I: TreeIndex>(
    index: &mut I,
    published: &ArcSwap<I::Snapshot>,
    keys: u64,
    main: &mut u64,
    window: Duration,
) -> u64 {
    let histogram = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3);
    let mut histogram = histogram.expect("a minute, in three digits");
    let begin = Instant::now();
    let mut due = begin;
    while begin.elapsed() < window {
        while Instant::now() < due {
            std::hint::spin_loop();
        }
        *main += 1;
        index.put(&key(scramble(*main) % keys), revision(*main), EncodedLen::of(9));
        published.store(Arc::new(index.snapshot()));
        histogram.saturating_record(due.elapsed().as_nanos() as u64);
        due += PUT_INTERVAL;
    }
    while due < begin + window {
        histogram.saturating_record(due.elapsed().as_nanos() as u64);
        due += PUT_INTERVAL;
    }
    histogram.value_at_quantile(0.99)
}

/// Prints the time to restore an index from records in the order of revisions.
fn print_restore(keys: u64) {
    let start = Instant::now();
    let build_run = |first: u64| {
        let mut builder = SortedRunBuilder::default();
        for number in first..(first + RUN_RECORDS as u64).min(keys) {
            let modified = revision(number + 1);
            let version = Version {
                modified,
                created: modified.main,
                version: 1,
                encoded_len: EncodedLen::of(9),
            };
            builder.put(&key(number), version);
        }
        builder.finish()
    };
    let runs = (0..keys).step_by(RUN_RECORDS).map(build_run).collect();
    let sorted = start.elapsed();
    let mut index = PersistentIndex::default();
    index.restore(runs);
    let restored = start.elapsed();
    drop(index);
    let dropped = start.elapsed() - restored;
    println!("persistent, {keys} keys: restored in {restored:.0?} (runs {sorted:.0?})");
    println!("persistent, {keys} keys: the last snapshot dropped in {dropped:.1?}");
}

/// Times repeated puts of one key, with a snapshot after each put.
fn print_hot_key(revisions: u64) {
    let mut index = PersistentIndex::default();
    let mut snapshot = index.snapshot();
    let mut start = Instant::now();
    for main in 0..2 * revisions {
        if main == revisions {
            start = Instant::now();
        }
        index.put(b"hot", revision(main + 1), EncodedLen::of(9));
        snapshot = index.snapshot();
    }
    let per_put = start.elapsed() / revisions as u32;
    black_box(snapshot);
    println!(
        "persistent, one key from {revisions} revisions on: {per_put:.0?} for a put and a snapshot"
    );
}

/// Starts another process that fills an index, and prints how much the memory of that process grew.
fn print_memory(index_kind: &str, keys: u64, revisions: u64) {
    let program = std::env::current_exe().expect("this program has a path");
    let (keys_word, revisions_word) = (keys.to_string(), revisions.to_string());
    let output = Command::new(program)
        .args(["--fill", index_kind, &keys_word, &revisions_word])
        .output()
        .expect("this program can be started again");
    let growth: f64 = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap_or(f64::NAN);
    let (per_key, megabytes) = (growth / keys as f64, growth / 1e6);
    println!(
        "{index_kind}, {keys} keys, {revisions} revisions: {per_key:.0} B/key, {megabytes:.0} MB"
    );
}

/// Runs in the process that [`print_memory`] starts: fills an index, and prints the growth of the
/// resident set.
fn print_growth(arguments: &[String]) {
    let [index_kind, keys, revisions] = arguments else { panic!("an index and two numbers") };
    let (keys, revisions) = (keys.parse(), revisions.parse());
    let (keys, revisions) = (keys.expect("a number of keys"), revisions.expect("a number"));
    let growth = match index_kind.as_str() {
        "locked" => growth(locked(), keys, revisions),
        _ => growth(PersistentIndex::default(), keys, revisions),
    };
    println!("{growth}");
}

fn growth<I: TreeIndex>(mut index: I, keys: u64, revisions: u64) -> u64 {
    let before = resident();
    for main in 0..keys * revisions {
        index.put(&key(main % keys), revision(main + 1), EncodedLen::of(9));
    }
    let growth = resident().saturating_sub(before);
    drop(index);
    growth
}

/// Returns the resident set of this process in bytes, or 0 if the system does not report it.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse().ok());
    kilobytes.unwrap_or(0) * 1024
}
