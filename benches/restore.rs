//! How long the restart of a member takes, from a closed file to the first read.
//!
//! ```text
//! cargo bench --bench restore                # about a minute
//! cargo bench --bench restore -- --leases    # the same, with every key attached to a lease
//! cargo bench --bench restore -- --test      # each once, with few keys
//! ```
//!
//! The store has 1,000,000 keys of 32 random bytes, each put once, with values of 64 or 256 bytes,
//! on the engine bolt. Its file is in the system's file cache. **Timed:** opening the engine,
//! restoring the index, and one read, for each of the two indexes. Each run is a separate process.
//! The bench prints medians of elapsed time and of processor time (in steps of 10 ms), and the
//! highest resident set, which includes the engine's cache of up to 64 MiB. **Not timed:**
//! creating the store, starting the process, and dropping the restored data.

#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clearlane_backend::{Config, PreCommit};
use clearlane_benches::store::{record_key, value};
use clearlane_contention::Registry;
use clearlane_engine::{Bucket, Engine, EngineKind, KeyRange, Options};
use clearlane_mvcc::restore::{RUN_RECORDS, restore};
use clearlane_mvcc::{
    CompactionLock, IndexSnapshot, LockedIndex, RangeOptions, ReadTxn, SnapshotStore, StoreConfig,
    TreeIndex,
};
use clearlane_proto::mvccpb::KeyValue;
use prost::Message;
use tempfile::TempDir;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const KEYS: u64 = 1_000_000;
/// Number of records in each commit while a store is created.
const FILL_BATCH: u64 = 100_000;
const ROUNDS: usize = 5;
/// With this argument, the program makes a single run. The arguments after it describe the run.
const RUN: &str = "--run";

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == RUN) {
        return run(&arguments[at + 1..]);
    }
    let is = |word: &str| arguments.iter().any(|argument| argument == word);
    let (keys, rounds) = if is("--test") { (2_000, 1) } else { (KEYS, ROUNDS) };
    for value_size in [64, 256] {
        let directory = TempDir::new().expect("the system has a directory for temporary files");
        let store = directory.path().join("store");
        fill(&store, keys, value_size, is("--leases"));
        for index in ["persistent", "locked"] {
            let name = format!("{keys} keys, values of {value_size} B, {index}");
            report(&name, &measure(&store, keys, index, rounds));
        }
    }
}

/// Creates the store that results if each key is put once, in a separate transaction.
fn fill(path: &Path, keys: u64, value_size: usize, attached: bool) {
    let engine = open(path);
    let value = value(value_size);
    for first in (0..keys).step_by(FILL_BATCH as usize) {
        let numbers = first..(first + FILL_BATCH).min(keys);
        let records: Vec<([u8; 17], Vec<u8>)> = numbers
            .map(|number| {
                let revision = number as i64 + 2;
                let record = KeyValue {
                    key: key(number).to_vec().into(),
                    create_revision: revision,
                    mod_revision: revision,
                    version: 1,
                    value: value.clone(),
                    lease: if attached { revision } else { 0 },
                };
                (record_key(number + 2), record.encode_to_vec())
            })
            .collect();
        let mut txn = engine.begin_write().expect("no other transaction writes");
        let mut pairs = records.iter().map(|(key, record)| (&key[..], &record[..]));
        txn.put_all(Bucket::Key, &mut pairs).expect("a new store takes writes");
        txn.commit().expect("a new store commits");
    }
}

fn open(path: &Path) -> Arc<dyn Engine> {
    let engine = clearlane_engine::open(EngineKind::Bolt, path, Options::default());
    engine.expect("the store can be opened")
}

/// Returns 32 bytes that look random, different for each number.
fn key(number: u64) -> [u8; 32] {
    let mut key = [0; 32];
    for (part, at) in key.chunks_mut(8).zip(0..) {
        let mixed = (number * 4 + at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        part.copy_from_slice(&(mixed ^ (mixed >> 31)).to_be_bytes());
    }
    key
}

/// The columns of one run's output: milliseconds and megabytes.
const COLUMNS: [&str; 5] = ["engine", "restore", "first read", "processors", "MB resident"];

/// Starts this program `rounds` times. Returns the figures of each run.
fn measure(store: &Path, keys: u64, index: &str, rounds: usize) -> Vec<[f64; COLUMNS.len()]> {
    let program = std::env::current_exe().expect("this program has a path");
    let round = |_| {
        let mut command = Command::new(&program);
        command.arg(RUN).arg(store).args([&keys.to_string(), index]);
        let output = command.output().expect("this program can be started again");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let figures: Vec<f64> =
            text.split_whitespace().map(|word| word.parse().expect("a number")).collect();
        figures.try_into().expect("a run prints all of its figures")
    };
    (0..rounds).map(round).collect()
}

fn report(name: &str, rounds: &[[f64; COLUMNS.len()]]) {
    let sorted = |figure: &dyn Fn(&[f64; COLUMNS.len()]) -> f64| {
        let mut figures: Vec<f64> = rounds.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        figures
    };
    let median = |figures: Vec<f64>| figures[figures.len() / 2];
    let [engine, restore, read, processors] =
        [0, 1, 2, 3].map(|at| median(sorted(&|figures| figures[at])));
    let all = median(sorted(&|figures| figures[..3].iter().sum()));
    let resident = sorted(&|figures| figures[4]).pop().unwrap_or(0.0);
    println!(
        "{name}: {all:.0} ms (engine {engine:.1}, restore {restore:.1}, first read {read:.3}), \
         processors {processors:.0} ms, {resident:.0} MB resident"
    );
}

/// Makes one run: opens the store, and prints its figures.
fn run(arguments: &[String]) {
    let [store, keys, index] = arguments else { panic!("a store and two words") };
    let keys: u64 = keys.parse().expect("a number of keys");
    let start = Instant::now();
    let engine = open(Path::new(store));
    let opened = start.elapsed();
    let (restored, read) = match index.as_str() {
        "locked" => run_locked(&engine, keys, start),
        _ => run_store(&engine, keys, start),
    };
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let parts = [opened, restored - opened, read - restored].map(ms);
    let [processors, resident] = [processors_ms(), resident_mb()];
    println!("{} {} {} {processors} {resident}", parts[0], parts[1], parts[2]);
    // Exits without dropping the restored data, which would take time. The system frees the memory.
    std::process::exit(0);
}

/// Returns the times from `start` until the store was restored, and until a key was read.
fn run_store(engine: &Arc<dyn Engine>, keys: u64, start: Instant) -> (Duration, Duration) {
    let save_nothing = PreCommit::new(|(): &(), _| Ok(()));
    let store_config = StoreConfig::new(Arc::clone(engine), Config::default(), save_nothing, ());
    let store = SnapshotStore::open(store_config);
    let (store, opened) = store.expect("the store can be restored");
    let restored = start.elapsed();
    let key = key(keys / 2);
    let to = [&key[..], &[0]].concat();
    let found = store.begin_read().range(KeyRange::new(&key, &to), RangeOptions::default());
    assert_eq!(found.expect("the key is there").records.len(), 1);
    let read = start.elapsed();
    check(opened.leases.len(), keys);
    std::mem::forget(store);
    (restored, read)
}

/// Like [`run_store`], but restores only the index that has a lock, without a store.
fn run_locked(engine: &Arc<dyn Engine>, keys: u64, start: Instant) -> (Duration, Duration) {
    let snapshot = engine.snapshot().expect("an open store has a snapshot");
    let index = LockedIndex::new(&Registry::new(), CompactionLock::PerKey);
    let restored = restore(&*snapshot, index, RUN_RECORDS);
    let restored = restored.expect("the store can be restored");
    let done = start.elapsed();
    let version = restored.index.snapshot().get(&key(keys / 2), restored.revision);
    let version = version.expect("the key is there");
    let record = snapshot.get(Bucket::Key, &version.modified.put_key());
    assert!(record.expect("the store can be read").is_some());
    let read = start.elapsed();
    check(restored.leases.len(), keys);
    std::mem::forget(restored.index);
    (done, read)
}

fn check(leases: usize, keys: u64) {
    assert!([0, keys as usize].contains(&leases), "{leases} of {keys} keys have a lease");
}

/// Returns the processor time of this process, or 0 if the system does not report it.
fn processors_ms() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name may contain spaces. After it, the 12th and 13th words are the times, in hundredths
    // of a second.
    let words = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: f64 = words.skip(11).take(2).filter_map(|word| word.parse::<f64>().ok()).sum();
    ticks * 10.0
}

/// Returns the highest resident set of this process, or 0 if the system does not report it.
fn resident_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse().ok());
    kilobytes.map_or(0.0, |kilobytes: f64| kilobytes * 1024.0 / 1e6)
}
