//! What a synced append to the write-ahead log costs, and what sharing a sync brings.
//!
//! `cargo bench --bench wal` (about a minute; `-- group` one part, `-- --test` each once). Entries
//! have 256 B of data; the log is under the system's temporary directory, in segments of 64 MB,
//! whose cuts are part of what is timed. **Kept out:** making the log, and except in `group` the
//! entries.
//!
//! * `append`: **timed** is one append of 1, 10, 100 and 1,000 entries with a state, and its sync.
//! * `bare`: the same number of bytes, by one call, into a file of the same size that was allocated
//!   the same way, and synced. What `append` takes longer is the log's own work.
//! * `group`: **timed** are 65,536 entries: `one_writer` appends and syncs batches of 256 KiB,
//!   `1000_writers` wait for one entry each, `1000_appends` hands each entry over by itself.
//!
//! In the end `append` and `bare`, and the two of `group`, take turns and their medians are
//! printed, because a shared disk changes more from one minute to the next than these differ.

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
/// What a record of such an entry takes in a segment, with its frame.
const RECORD_SIZE: usize = 288;
const WRITERS: u64 = 1_000;
/// Entries in 256 KiB.
const BATCH: u64 = 1_024;
/// Entries of one run of the group.
const GROUP_RUN_ENTRIES: u64 = 64 * BATCH;

/// A log in a directory that goes away.
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

    /// Appends and syncs; how long that took.
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
    // A put brings its own value.
    let data = Bytes::copy_from_slice(value);
    Entry { kind: EntryKind::Normal, term: 1, index, data }
}

/// A file to which bytes are written without any log.
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

/// Runs two things in turn, so that a disk that is slow for a while is slow for both; the medians.
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

/// What the log adds to a bare write and sync, and what a thousand writers reach of one.
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

/// Synced batches of 256 KiB. Making the entries is timed, as it is with many writers.
fn one_writer(log: &mut BenchWal, count: u64) -> Duration {
    let start = Instant::now();
    for _ in 0..count / BATCH {
        log.append(BATCH);
    }
    start.elapsed()
}

/// Each writer proposes its next entry when its last one is durable. At most `each` entries go into
/// one append: all that were proposed in one turn of the loop, as raft does it, or 1, which no
/// server does, to show what that would cost. The writers are what clients are to a server: a
/// thousand counters in the one thread that would be raft's, not a thousand threads.
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
