//! Tests in which bbolt itself, written in Go, checks files of the `bolt` engine and then writes to
//! them.
//!
//! `tests/compat/bbolt/run` builds the Go program and runs these tests.
//! `CLEARLANE_TXNS=10000 CLEARLANE_ROUNDS=1000` runs the tests for longer, and `CLEARLANE_SEED=7`
//! selects other data.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use clearlane_engine::{Bucket, Engine, EngineKind, Snapshot};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::support::{Change, Model, apply_all, changes_of, open_small, seed_or};

/// A bucket that only the Go program writes.
const FOREIGN_BUCKET: &str = "scratch";

/// Runs bbolt on a file with `lines` as its input, and returns its output. `page_size` is used if
/// bbolt creates the file. If `writes_freelist`, bbolt stores its freelist in the file.
fn bbolt(file: &Path, page_size: usize, writes_freelist: bool, lines: &str) -> String {
    let program = std::env::var_os("CLEARLANE_BBOLT").expect("CLEARLANE_BBOLT names the program");
    let mut command = Command::new(program);
    command.arg(file).arg(page_size.to_string()).args(writes_freelist.then_some("freelist"));
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    // If the program has ended early, the assertion below shows its error message.
    let _ = input.write_all(lines.as_bytes());
    drop(input);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the expected output of bbolt for `check` and for the checksums of all buckets.
fn judgement(model: &Model) -> String {
    let mut text = "ok\n".to_owned();
    for bucket in Bucket::ALL {
        let of_bucket = model.records.iter().filter(|((of, _), _)| *of == bucket);
        let (mut count, mut sum) = (0, 0);
        for ((_, key), value) in of_bucket {
            for part in [key, value] {
                sum = crc32c::crc32c_append(sum, &(part.len() as u32).to_le_bytes());
                sum = crc32c::crc32c_append(sum, part);
            }
            count += 1;
        }
        writeln!(text, "{} {count} {sum:08x}", bucket.name()).unwrap();
    }
    text
}

fn questions() -> String {
    let sums = Bucket::ALL.map(|bucket| format!("sum {}\n", bucket.name()));
    format!("check\n{}", sums.concat())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// Returns a change as an input line for bbolt.
fn line(change: &Change) -> String {
    let (bucket, key) = (change.bucket.name(), hex(&change.key));
    match change.value.as_deref() {
        None => format!("delete {bucket} {key}\n"),
        Some([]) => format!("put {bucket} {key} -\n"),
        Some(value) if value.iter().all(|byte| *byte == value[0]) => {
            format!("put {bucket} {key} *{}:{}\n", value.len(), value[0])
        }
        Some(value) => format!("put {bucket} {key} {}\n", hex(value)),
    }
}

/// Returns the changes of transaction `number`. They include the changes of the workload in
/// `support.rs`. Some transactions also put or delete a large value, delete many records so that
/// pages are merged, or delete the records of an old transaction.
fn changes(seed: u64, number: u64) -> Vec<Change> {
    let mut rng = StdRng::seed_from_u64(seed ^ (number << 32));
    let mut changes = changes_of(seed, number);
    if rng.random_ratio(1, 20) {
        let key = format!("large{}", rng.random_range(0..10)).into_bytes();
        let value = (!rng.random_ratio(1, 3)).then(|| vec![7; rng.random_range(4_000..2 << 20)]);
        changes.push(Change { bucket: Bucket::Key, key, value });
    }
    if rng.random_ratio(1, 10) {
        let bucket = [Bucket::Lease, Bucket::Key][rng.random_range(0..2)];
        let from = rng.random_range(0..200);
        let keys = (from..from + rng.random_range(0..200)).map(|key| format!("k{key:03}"));
        changes.extend(keys.map(|key| Change { bucket, key: key.into_bytes(), value: None }));
    }
    if number > 40 && rng.random_ratio(1, 4) {
        // A compaction also deletes old records in this way.
        let old = number - 40;
        let keys = (0..8u8).map(|sub| [b"r", &old.to_be_bytes()[..], &[sub]].concat());
        changes.extend(keys.map(|key| Change { bucket: Bucket::Key, key, value: None }));
    }
    changes
}

fn commit(engine: &dyn Engine, changes: &[Change]) {
    let mut txn = engine.begin_write().unwrap();
    apply_all(changes, &mut *txn).unwrap();
    txn.commit().unwrap();
}

fn data_file(dir: &Path) -> PathBuf {
    let mut names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    names.find(|path| path.extension().is_some_and(|number| number != "new")).unwrap()
}

#[test]
#[ignore = "needs the program of tests/compat/bbolt"]
fn bbolt_accepts_every_file_of_random_transactions() {
    let (seed, transactions) = (seed_or("CLEARLANE_SEED", 1), seed_or("CLEARLANE_TXNS", 1_000));
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copy");
    let store = dir.path().join("store");
    let mut engine = open_small(EngineKind::Bolt, &store);
    let mut rng = StdRng::seed_from_u64(seed);
    let mut model = Model::default();
    let mut readers: Vec<(Arc<dyn Snapshot>, Model)> = Vec::new();
    for number in 1..=transactions {
        let changes = changes(seed, number);
        commit(&*engine, &changes);
        changes.iter().for_each(|change| model.apply(change));
        if rng.random_ratio(1, 20) {
            readers.push((engine.snapshot().unwrap(), model.clone()));
        }
        if readers.len() > 5 {
            let (reader, seen) = readers.swap_remove(rng.random_range(0..readers.len()));
            seen.assert_same(&*reader, &format!("seed {seed}, a reader at {number}"));
        }
        if number % 100 == 0 {
            // bbolt gets a copy, because the store is open and holds the lock on its file.
            fs::copy(data_file(&store), &copy).unwrap();
            let judged = bbolt(&copy, 4096, false, &questions());
            assert_eq!(judged, judgement(&model), "seed {seed}, transaction {number}");
        }
        if number % 250 == 0 {
            readers.clear();
            drop(engine);
            engine = open_small(EngineKind::Bolt, &store);
            assert!(engine.opening_notes().is_empty(), "{:?}", engine.opening_notes());
            model.assert_same(&*engine.snapshot().unwrap(), "opened again");
        }
    }
    let size = fs::metadata(data_file(&store)).unwrap().len();
    println!("seed {seed}: {transactions} transactions, {size} bytes");
}

/// Compares the number of pages in our file with bbolt's file after the same transactions. Our file
/// may have up to 10 % more.
#[test]
#[ignore = "needs the program of tests/compat/bbolt"]
fn our_file_is_not_larger_than_bbolts() {
    let (seed, transactions) = (seed_or("CLEARLANE_SEED", 1), seed_or("CLEARLANE_TXNS", 1_000));
    let dir = tempfile::tempdir().unwrap();
    let engine = open_small(EngineKind::Bolt, &dir.path().join("store"));
    let mut lines = String::new();
    for number in 1..=transactions {
        let changes = changes(seed, number);
        commit(&*engine, &changes);
        lines.extend(changes.iter().map(line));
        lines += "commit\n";
    }
    drop(engine);
    let pages = |file: &Path, lines: &str| -> u64 {
        let found = bbolt(file, 4096, false, &format!("{lines}pages\n"));
        found.trim().parse().unwrap()
    };
    let theirs = pages(&dir.path().join("theirs"), &lines);
    let ours = pages(&data_file(&dir.path().join("store")), "");
    println!("seed {seed}: {ours} pages, bbolt {theirs}");
    assert!(ours * 10 <= theirs * 11, "{ours} pages, bbolt {theirs}");
}

/// Checks two claims of `docs/bolt.md` about bbolt. bbolt has no checksum for values. If the
/// checksum of the newest meta page is wrong, bbolt opens the previous state without a message.
#[test]
#[ignore = "needs the program of tests/compat/bbolt"]
fn a_flipped_bit_is_a_value_to_bbolt() {
    let dir = tempfile::tempdir().unwrap();
    let (store, copy) = (dir.path().join("store"), dir.path().join("copy"));
    let engine = open_small(EngineKind::Bolt, &store);
    let mut models = Vec::new();
    for value in [vec![1; 3_000], vec![2; 3_000]] {
        let changes = [Change { bucket: Bucket::Key, key: b"k".to_vec(), value: Some(value) }];
        commit(&*engine, &changes);
        let mut model = models.last().cloned().unwrap_or_else(Model::default);
        model.apply(&changes[0]);
        models.push(model);
    }
    drop(engine);
    let [before, newest] = &models[..] else { unreachable!("two commits") };
    let image = fs::read(data_file(&store)).unwrap();
    let judged = |flipped: usize| {
        let mut damaged = image.clone();
        damaged[flipped] ^= 1;
        fs::write(&copy, &damaged).unwrap();
        fs::write(data_file(&store), &damaged).unwrap();
        bbolt(&copy, 4096, false, &questions())
    };
    let leaf = image.windows(100).position(|bytes| bytes == [2; 100]).unwrap();
    let (key, mut wrong) = ((Bucket::Key, b"k".to_vec()), newest.clone());
    wrong.records.get_mut(&key).unwrap()[0] ^= 1;
    assert_eq!(judged(leaf), judgement(&wrong));
    let refused = clearlane_engine::open(EngineKind::Bolt, &store, Default::default());
    assert!(refused.unwrap_err().to_string().contains("the checksum is wrong"));
    // The two commits have the txids 3 and 4. Since 4 is even, page 0 is the newest meta page, and
    // offset 32 is inside it.
    assert_eq!(judged(32), judgement(before));
    let engine = open_small(EngineKind::Bolt, &store);
    newest.assert_same(&*engine.snapshot().unwrap(), "mended from its second copy");
}

/// Lets bbolt and our engine take turns writing to one file. Each checks the records that the other
/// has written.
fn take_turns(page_size: usize, writes_freelist: bool) {
    let (seed, rounds) = (seed_or("CLEARLANE_SEED", 1), seed_or("CLEARLANE_ROUNDS", 100));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("data.0");
    let marker = "clearlane-engine 1\nengine bolt\ngeneration 0\n";
    fs::write(dir.path().join("engine"), marker).unwrap();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut model = Model::default();
    let mut foreign = BTreeMap::new();
    for round in 0..rounds {
        // bbolt has the first turn, and creates the file.
        let mut lines = String::new();
        for number in [4 * round + 1, 4 * round + 2] {
            let changes = changes(seed, number);
            lines.extend(changes.iter().map(line));
            lines += &foreign_changes(&mut foreign, &mut rng);
            lines += "commit\n";
            changes.iter().for_each(|change| model.apply(change));
        }
        let judged = bbolt(&file, page_size, writes_freelist, &(lines + &questions()));
        assert_eq!(judged, judgement(&model), "seed {seed}, round {round}: after bbolt's turn");

        let engine = open_small(EngineKind::Bolt, dir.path());
        let hint = format!("seed {seed}, round {round}: what bbolt has written");
        model.assert_same(&*engine.snapshot().unwrap(), &hint);
        assert_eq!(engine.size_in_use(), model.size(), "{hint}");
        assert!(engine.opening_notes()[0].text().contains("another program"));
        for number in [4 * round + 3, 4 * round + 4] {
            let changes = changes(seed, number);
            commit(&*engine, &changes);
            changes.iter().for_each(|change| model.apply(change));
        }
        drop(engine);
        let asked = format!("{}sum {FOREIGN_BUCKET}\n", questions());
        let expected = format!("{}{}", judgement(&model), foreign_sum(&foreign));
        let judged = bbolt(&file, page_size, writes_freelist, &asked);
        assert_eq!(judged, expected, "seed {seed}, round {round}: after our turn");
    }
    println!("seed {seed}: {rounds} rounds");
}

/// Returns input lines for bbolt that create, change or remove a bucket that is not etcd's. Applies
/// the same changes to `foreign`.
fn foreign_changes(foreign: &mut BTreeMap<Vec<u8>, Vec<u8>>, rng: &mut StdRng) -> String {
    if !foreign.is_empty() && rng.random_ratio(1, 4) {
        foreign.clear();
        return format!("drop {FOREIGN_BUCKET}\n");
    }
    let mut lines = String::new();
    for _ in 0..rng.random_range(0..40) {
        let key = vec![rng.random_range(b'a'..=b'z'); rng.random_range(1..20)];
        let value = vec![1; rng.random_range(1..500)];
        writeln!(lines, "put {FOREIGN_BUCKET} {} {}", hex(&key), hex(&value)).unwrap();
        foreign.insert(key, value);
    }
    lines
}

fn foreign_sum(foreign: &BTreeMap<Vec<u8>, Vec<u8>>) -> String {
    // The checksum of a bucket does not depend on its name, so the records are put under the name
    // `alarm`.
    let of_key = |(key, value): (&Vec<u8>, &Vec<u8>)| ((Bucket::Alarm, key.clone()), value.clone());
    let model = Model { records: foreign.iter().map(of_key).collect() };
    let line = judgement(&model).lines().nth(1).unwrap().replace("alarm", FOREIGN_BUCKET);
    line + "\n"
}

#[test]
#[ignore = "needs the program of tests/compat/bbolt"]
fn bbolt_and_we_write_by_turns() {
    take_turns(4096, false);
}

#[test]
#[ignore = "needs the program of tests/compat/bbolt"]
fn bbolt_and_we_write_by_turns_with_a_freelist_page() {
    take_turns(4096, true);
}

#[test]
#[ignore = "needs the program of tests/compat/bbolt"]
fn bbolt_and_we_write_by_turns_with_small_pages() {
    take_turns(1024, false);
}

#[test]
#[ignore = "needs the program of tests/compat/bbolt"]
fn bbolt_and_we_write_by_turns_with_large_pages() {
    take_turns(65_536, true);
}
