//! Compares `clearlane bolt ...` with the tool `bbolt`, on files that bbolt has written and on a
//! file of Clearlane: both must show the same pages and keys, and Clearlane must find all damage
//! that bbolt finds. Commands that only bbolt's tool has are run on a file of Clearlane.
//!
//! `tests/compat/bbolt/run` builds the tool and a program that creates the files, and runs these
//! tests. To run them with other data: `CLEARLANE_SEED=7 tests/compat/bbolt/run`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the seed of a failure is printed with it")]

#[path = "support/program.rs"]
mod program;

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use clearlane_engine::{Bucket, EngineKind, Options, open};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::program::program;

fn seed() -> u64 {
    std::env::var("CLEARLANE_SEED").map_or(1, |seed| seed.parse().unwrap())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs the tool `bbolt`.
fn theirs(arguments: &[&str]) -> Output {
    let tool = std::env::var_os("CLEARLANE_BBOLT_TOOL").expect("it names the tool");
    Command::new(tool).args(arguments).output().unwrap()
}

fn ours(arguments: &[&str]) -> Output {
    program(&[&["bolt"], arguments].concat()).output().unwrap()
}

fn printed(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the program of `tests/compat/bbolt` with `lines` as its input. Returns its output.
fn bbolt(file: &Path, page_size: usize, writes_freelist: bool, lines: &str) -> String {
    let program = std::env::var_os("CLEARLANE_BBOLT").expect("it names the program");
    let mut command = Command::new(program);
    command.arg(file).arg(page_size.to_string()).args(writes_freelist.then_some("freelist"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    printed(child.wait_with_output().unwrap())
}

const PATHS: [&str; 8] = ["key", "lease", "meta", "a", "a/b", "a/b/c", "a/inline", "scratch"];

/// Creates a file with bbolt that has nested buckets, large values and free pages.
fn their_file(dir: &Path, page_size: usize, writes_freelist: bool) -> PathBuf {
    let file = dir.join(format!("theirs-{page_size}-{writes_freelist}"));
    let mut rng = StdRng::seed_from_u64(seed());
    let mut lines = String::new();
    for commit in 0..30 {
        for _ in 0..rng.random_range(1..60) {
            let path = PATHS[rng.random_range(0..PATHS.len())];
            // The bucket `a/inline` gets few keys, so that it stays inline.
            let key = rng.random_range(0..if path == "a/inline" { 3 } else { 3_000 });
            let key = match rng.random_range(0..3) {
                0 => format!("{key:08x}"),
                1 => hex(format!("key \"{key}\"").as_bytes()),
                _ => hex(format!("k\u{e9}y {key}").as_bytes()),
            };
            let value = match rng.random_range(0..20) {
                0 if path != "a/inline" => format!("*{}:7", rng.random_range(4_000..80_000)),
                1 => "-".to_owned(),
                2 => "00ff".to_owned(),
                _ => hex(format!("value of commit {commit}").as_bytes()),
            };
            writeln!(lines, "put {path} {key} {value}").unwrap();
            if rng.random_ratio(1, 10) {
                writeln!(lines, "delete {path} {key}").unwrap();
            }
        }
        writeln!(lines, "sequence a/b {commit}").unwrap();
        writeln!(lines, "sequence scratch {}", 100 + commit).unwrap();
        if commit % 10 == 5 {
            lines += "drop scratch\n";
        }
        lines += "commit\n";
    }
    bbolt(&file, page_size, writes_freelist, &lines);
    file
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn our_file(dir: &Path) -> PathBuf {
    let engine = open(EngineKind::Bolt, dir, Options::default()).unwrap();
    let mut rng = StdRng::seed_from_u64(seed());
    for _ in 0..40 {
        let mut txn = engine.begin_write().unwrap();
        for _ in 0..rng.random_range(1..100) {
            let bucket = [Bucket::Key, Bucket::Lease, Bucket::AuthUsers][rng.random_range(0..3)];
            let key = format!("key{}", rng.random_range(0..2_000));
            txn.put(bucket, key.as_bytes(), &vec![b'v'; rng.random_range(0..300)]).unwrap();
        }
        txn.commit().unwrap();
    }
    dir.join("data.0")
}

/// Returns four files that bbolt has written, with different page sizes and with or without a
/// stored freelist, and one file of Clearlane.
fn files(dir: &Path) -> Vec<PathBuf> {
    let ways = [(1024, false), (4096, false), (4096, true), (65_536, true)];
    let mut files: Vec<_> = ways.map(|(size, freelist)| their_file(dir, size, freelist)).into();
    files.push(our_file(&dir.join("store")));
    println!("seed {}", seed());
    files
}

/// Parses a printed list of pages. Returns id, type, number of items and overflow of each page.
/// Clearlane's tables of checksums are shown as free pages, as in bbolt's list.
fn pages(listed: &str) -> Vec<[String; 4]> {
    let mut rows = listed.lines();
    let head = rows.next().unwrap();
    let column = |line: &str, name: &str| {
        let from = head.find(name).unwrap();
        let rest = line.get(from..).unwrap_or_default();
        rest.split(' ').next().unwrap_or_default().to_owned()
    };
    let row = |line: &str| {
        let names = ["ID", "TYPE", "ITEMS", "OVRFLW"];
        let page = names.map(|name| column(line, name));
        // bbolt does not recognize Clearlane's tables of checksums, and lists them as free pages.
        match page[1].starts_with("checksum-") {
            true => [page[0].clone(), "free".to_owned(), String::new(), String::new()],
            false => page,
        }
    };
    rows.skip(1).map(row).collect()
}

#[test]
#[ignore = "needs the tool bbolt"]
fn pages_are_those_that_bbolt_sees() {
    let dir = tempfile::tempdir().unwrap();
    for file in files(dir.path()) {
        let file = text(&file);
        let (theirs, ours) = (printed(theirs(&["pages", file])), printed(ours(&["pages", file])));
        let (theirs, ours) = (pages(&theirs), pages(&ours));
        assert_eq!(ours, theirs, "{file}");
    }
}

#[test]
#[ignore = "needs the tool bbolt"]
fn keys_are_the_same() {
    let dir = tempfile::tempdir().unwrap();
    for file in files(dir.path()) {
        let is_theirs = text(&file).contains("theirs");
        let file = text(&file);
        assert_eq!(printed(ours(&["keys", file])), printed(theirs(&["buckets", file])), "{file}");
        let paths = if is_theirs { &PATHS[..] } else { &["key", "lease", "authUsers"] };
        for path in paths {
            let path: Vec<&str> = path.split('/').collect();
            let arguments = [&["keys", file], &path[..]].concat();
            assert_eq!(ours(&arguments).stdout, theirs(&arguments).stdout, "{arguments:?}");
        }
        let missing = ["keys", file, "none"];
        assert!(!ours(&missing).status.success() && !theirs(&missing).status.success());
    }
}

#[test]
#[ignore = "needs the tool bbolt"]
fn damage_that_bbolt_finds_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let damaged = dir.path().join("damaged");
    for file in files(dir.path()) {
        for judge in [ours, theirs] {
            assert!(printed(judge(&["check", text(&file)])).ends_with("OK\n"), "{file:?}");
        }
        let bytes = fs::read(&file).unwrap();
        let listed = pages(&printed(ours(&["pages", text(&file)])));
        let is_part = |page: &&[String; 4]| ["leaf", "branch", "freelist"].contains(&&page[1][..]);
        let parts: Vec<u64> =
            listed.iter().filter(is_part).map(|page| page[0].parse().unwrap()).collect();
        let page_size = page_size(&bytes);
        let mut rng = StdRng::seed_from_u64(seed());
        let (mut by_theirs, mut by_ours) = (0, 0);
        for number in 0..60 {
            let mut changed = bytes.clone();
            let page = parts[rng.random_range(0..parts.len())] as usize * page_size;
            // Flips a bit in the first 48 bytes of a page: in its header or its first elements,
            // where bbolt can detect damage.
            let at = rng.random_range(0..48);
            changed[page + at] ^= 1 << rng.random_range(0..8);
            fs::write(&damaged, changed).unwrap();
            let arguments = ["check", text(&damaged)];
            let (found_theirs, found_ours) =
                (!theirs(&arguments).status.success(), !ours(&arguments).status.success());
            let hint = format!("{file:?}, number {number}: byte {at} of the page at {page}");
            assert!(found_ours || !found_theirs, "{hint}");
            by_theirs += usize::from(found_theirs);
            by_ours += usize::from(found_ours);
        }
        println!("{file:?}: of 60 damages, bbolt finds {by_theirs}, and we {by_ours}");
        assert!(by_theirs >= 10, "{by_theirs}");
    }
}

/// Reads the page size from the first meta page.
fn page_size(bytes: &[u8]) -> usize {
    u32::from_le_bytes(bytes[24..28].try_into().unwrap()) as usize
}

#[test]
#[ignore = "needs the tool bbolt"]
fn the_other_commands_of_bbolt_work_on_our_file() {
    let dir = tempfile::tempdir().unwrap();
    let (file, copy) = (our_file(&dir.path().join("store")), dir.path().join("copy"));
    let file = text(&file);
    let shown = printed(theirs(&["page", file, "0", "1"]));
    assert_eq!(shown.matches("Page Type:  meta").count(), 2, "{shown}");
    let counted = printed(theirs(&["stats", file]));
    assert!(counted.starts_with("Aggregate statistics for 10 buckets"), "{counted}");
    let copy = text(&copy);
    printed(theirs(&["compact", "-o", copy, file]));
    let checked = printed(ours(&["check", copy]));
    assert!(checked.starts_with("checksums: missing") && checked.ends_with("OK\n"), "{checked}");
    for bucket in Bucket::ALL {
        let keys = |file| printed(ours(&["keys", file, bucket.name()]));
        assert_eq!(keys(copy), keys(file), "{bucket:?}");
    }
}
