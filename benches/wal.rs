//! The cost of a synced append to the write-ahead log, and the effect of sharing a sync.
//!
//! `cargo bench --bench wal` takes about a minute; `-- group` runs one part, `-- --test` each part
//! once. Entries have 256 B of data. The log is in the system's temporary directory, in segments of
//! 64 MB. The start of a new segment is part of the timed work. **Not timed:** creating the log,
//! and, except in `group`, creating the entries.
//!
//! * `append`: **timed** is one append of 1, 10, 100 and 1,000 entries with a state, and its sync.
//! * `bare`: **timed** is the same number of bytes, written by one call into a file of the same
//!   size, with the same allocation, and synced. The additional time of `append` is the log's own
//!   work.
//! * `group`: **timed** are 65,536 entries. `one_writer` appends and syncs batches of 256 KiB. In
//!   `1000_writers`, each writer waits for its entry. In `1000_appends`, each entry is appended
//!   separately.
//!
//! At the end, even after a run of a single part, `append` and `bare` are run in turn, and so are
//! the first part of `group` and each of its other parts. The medians are printed. They are run in
//! turn because the speed of a shared disk may change within a minute by more than the difference
//! between the two results.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clearlane_wal::files::{File, FileSystem, OsFileSystem};
use clearlane_wal::group_commit::{Batch, GroupCommit};
use clearlane_wal::{Append, Options, Wal};
use clearlane_wal::{Entry, EntryKind, HardState, Metadata};
use criterion::measurement::WallTime;
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group,
    criterion_main,
};
use tempfile::TempDir;

const VALUE_SIZE: usize = 256;
/// Number of bytes that the record of an entry with 256 B of data takes in a segment, including its
/// frame.
const RECORD_SIZE: usize = 288;
const WRITERS: u64 = 1_000;
/// Number of entries in 256 KiB.
const BATCH: u64 = 1_024;
/// Number of entries in one run of `group`.
const GROUP_RUN_ENTRIES: u64 = 64 * BATCH;

/// A log. Its directory is removed when the log is dropped.
struct BenchWal {
    wal: Wal,
    next: u64,
    value: Bytes,
    directory: TempDir,
}

impl BenchWal {
    fn new() -> BenchWal {
        let home = tempfile::tempdir().expect("a temporary directory");
        let options = Options { segments_max: None, ..Options::default() };
        let dir = home.path().join("wal");
        let files = Arc::new(OsFileSystem);
        let wal = Wal::create(files, &dir, Metadata::default(), options, &[], None);
        let wal = wal.expect("an empty directory takes a log");
        BenchWal { wal, next: 1, value: vec![7; VALUE_SIZE].into(), directory: home }
    }

    fn entries(&mut self, count: u64) -> Vec<Entry> {
        let from = self.next;
        self.next += count;
        (from..self.next).map(|index| entry(index, &self.value)).collect()
    }

    /// Appends and syncs. Returns the time that this took.
    fn append(&mut self, count: u64) -> Duration {
        let entries = self.entries(count);
        let state = HardState { term: 1, vote: 1, commit: self.next - count - 1 };
        let start = Instant::now();
        self.wal.save(&entries, Some(&state)).expect("a healthy disk");
        self.wal.sync().expect("a healthy disk");
        start.elapsed()
    }
}

fn entry(index: u64, value: &Bytes) -> Entry {
    // Each entry has its own value, as in a server.
    let data = Bytes::copy_from_slice(value);
    Entry { kind: EntryKind::Normal, term: 1, index, data }
}

/// A file that is written without a log.
struct PlainFile {
    file: Box<dyn File>,
    offset: u64,
    data: Vec<u8>,
}

impl PlainFile {
    fn new(dir: &Path, size: usize) -> PlainFile {
        let mut file = OsFileSystem.create(&dir.join("bare")).expect("a new file");
        let length = Options::default().segment_bytes;
        file.allocate(length).expect("space");
        file.sync().expect("a healthy disk");
        PlainFile { file, offset: 0, data: vec![7; size] }
    }

    fn append(&mut self) -> Duration {
        let length = self.data.len() as u64;
        if self.offset + length > Options::default().segment_bytes {
            self.offset = 0;
        }
        let start = Instant::now();
        self.file.write_at(self.offset, &self.data).expect("a healthy disk");
        self.file.sync().expect("a healthy disk");
        self.offset += length;
        start.elapsed()
    }
}

fn quick() -> bool {
    std::env::args().any(|argument| argument == "--test")
}

fn short_group<'a>(criterion: &'a mut Criterion, name: &str) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group.warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_secs(2));
    group.sample_size(20).sampling_mode(SamplingMode::Flat);
    group
}

fn append(criterion: &mut Criterion) {
    let mut group = short_group(criterion, "append");
    for batch in [1, 10, 100, 1_000] {
        group.throughput(Throughput::Bytes(batch * VALUE_SIZE as u64));
        let mut log = BenchWal::new();
        group.bench_function(BenchmarkId::new("synced", batch), |bencher| {
            bencher.iter_custom(|iterations| (0..iterations).map(|_| log.append(batch)).sum());
        });
        let mut bare = PlainFile::new(log.directory.path(), RECORD_SIZE * batch as usize + 48);
        group.bench_function(BenchmarkId::new("bare", batch), |bencher| {
            bencher.iter_custom(|iterations| (0..iterations).map(|_| bare.append()).sum());
        });
    }
    group.finish();
}

/// Runs two operations in turn, so that a disk that is slow for a while affects both. Returns their
/// medians.
fn alternate(
    rounds: usize,
    mut one: impl FnMut() -> Duration,
    mut other: impl FnMut() -> Duration,
) -> (Duration, Duration) {
    let times: Vec<(Duration, Duration)> = (0..rounds).map(|_| (one(), other())).collect();
    let (mut ones, mut others): (Vec<Duration>, Vec<Duration>) = times.into_iter().unzip();
    ones.sort();
    others.sort();
    (ones[rounds / 2], others[rounds / 2])
}

/// Prints how much the log adds to a plain write and sync, and the share of one writer's rate that
/// a thousand writers reach.
#[allow(clippy::print_stdout, reason = "the result of a bench")]
fn compared(_: &mut Criterion) {
    let rounds = if quick() { 1 } else { 40 };
    let mut log = BenchWal::new();
    let mut bare = PlainFile::new(log.directory.path(), RECORD_SIZE + 48);
    let (synced, alone) = alternate(100 * rounds, || log.append(1), || bare.append());
    let more_us = (synced.as_secs_f64() - alone.as_secs_f64()) * 1e6;
    println!("one entry: append {synced:.1?}, bare {alone:.1?}, so the log takes {more_us:.0} us");
    let entries = if quick() { 4 * BATCH } else { GROUP_RUN_ENTRIES };
    for (name, each) in [("1000 writers", WRITERS), ("1000 appends", 1)] {
        let (mut log, mut shared) = (BenchWal::new(), BenchWal::new());
        let (one, many) = alternate(
            rounds,
            || one_writer(&mut log, entries),
            || many_writers(&mut shared, entries, each),
        );
        let reached = 100.0 * one.as_secs_f64() / many.as_secs_f64();
        println!("{entries} entries: one writer {one:.1?}, {name} {many:.1?}: {reached:.0} %");
    }
}

fn group(criterion: &mut Criterion) {
    let entries = if quick() { 4 * BATCH } else { GROUP_RUN_ENTRIES };
    let mut group = short_group(criterion, "group");
    group.measurement_time(Duration::from_secs(6));
    group.throughput(Throughput::Bytes(entries * VALUE_SIZE as u64));
    let mut log = BenchWal::new();
    group.bench_function("one_writer", |bencher| {
        bencher
            .iter_custom(|iterations| (0..iterations).map(|_| one_writer(&mut log, entries)).sum());
    });
    for (name, each) in [("1000_writers", WRITERS), ("1000_appends", 1)] {
        let mut log = BenchWal::new();
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|iterations| {
                (0..iterations).map(|_| many_writers(&mut log, entries, each)).sum()
            });
        });
    }
    group.finish();
}

/// Writes synced batches of 256 KiB. The timed part includes creating the entries, as in
/// [`many_writers`].
fn one_writer(log: &mut BenchWal, count: u64) -> Duration {
    let start = Instant::now();
    for _ in 0..count / BATCH {
        log.append(BATCH);
    }
    start.elapsed()
}

/// Runs many writers. Each writer proposes its next entry when its last entry is durable. At most
/// `each` entries are in one append: either all entries that were proposed in one turn of the loop,
/// as with raft, or only 1. No server appends entries one by one; this shows the cost. Like the
/// clients of a server, the writers are not threads. They are a thousand counters in one thread,
/// which has the role of the server's raft loop.
fn many_writers(log: &mut BenchWal, count: u64, each: u64) -> Duration {
    let (first, value) = (log.next, log.value.clone());
    log.next += count;
    let wal = &mut log.wal;
    let (to_log, batches) = mpsc::channel::<Batch>();
    let (from_log, written) = mpsc::channel();
    let start = Instant::now();
    thread::scope(|threads| {
        threads.spawn(move || {
            for batch in batches {
                from_log.send(batch.write(wal)).expect("the writers wait");
            }
        });
        let mut group = GroupCommit::default();
        let mut done = 0;
        while done < count {
            let until = (done + WRITERS).min(count);
            while done < until {
                let next = (done + each).min(until);
                let entries = (done..next).map(|number| entry(first + number, &value));
                let append = Append { entries: entries.collect(), ..Append::default() };
                group.submit(append);
                done = next;
            }
            let batch = group.take_batch().expect("no batch is on its way");
            to_log.send(batch).expect("the log serves until the end");
            let written = written.recv().expect("the log serves until the end");
            group.finish_batch(written).expect("a healthy disk");
        }
        drop(to_log);
    });
    start.elapsed()
}

criterion_group!(benches, append, group, compared);
criterion_main!(benches);
