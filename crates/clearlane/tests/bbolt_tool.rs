//! `clearlane bolt ...` against the tool `bbolt`, on files of both: the same pages, keys and
//! counts, the same judgement, and copies that bbolt finds whole.
//!
//! `.ci/bbolt` builds the tool, and the program of `tests/compat/bbolt` that makes the files, and
//! runs these tests. Another run: `CLEARLANE_SEED=7 .ci/bbolt`.

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

/// Runs the program of `tests/compat/bbolt`.
fn bbolt(file: &Path, page_size: usize, writes_freelist: bool, lines: &str) -> String {
    let program = std::env::var_os("CLEARLANE_BBOLT").expect("it names the program");
    let mut command = Command::new(program);
    command.arg(file).arg(page_size.to_string()).args(writes_freelist.then_some("freelist"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    printed(child.wait_with_output().unwrap())
}

const PATHS: [&str; 8] = ["key", "lease", "meta", "a", "a/b", "a/b/c", "a/inline", "scratch"];

/// A file of bbolt's with buckets in buckets, large values and free pages.
fn their_file(dir: &Path, page_size: usize, writes_freelist: bool) -> PathBuf {
    let file = dir.join(format!("theirs-{page_size}-{writes_freelist}"));
    let mut rng = StdRng::seed_from_u64(seed());
    let mut lines = String::new();
    for commit in 0..30 {
        for _ in 0..rng.random_range(1..60) {
            let path = PATHS[rng.random_range(0..PATHS.len())];
            // Mostly few, so that some buckets are inline.
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

/// Files of bbolt's in all of its ways, and one of ours.
fn files(dir: &Path) -> Vec<PathBuf> {
    let ways = [(1024, false), (4096, false), (4096, true), (65_536, true)];
    let mut files: Vec<_> = ways.map(|(size, freelist)| their_file(dir, size, freelist)).into();
    files.push(our_file(&dir.join("store")));
    println!("seed {}", seed());
    files
}

/// Id, type, items and overflow of each page, as bbolt sees it.
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
        // A table of checksums is nothing to bbolt.
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
fn pages_of_trees_are_shown_as_bbolt_shows_them() {
    let dir = tempfile::tempdir().unwrap();
    for file in files(dir.path()) {
        let file = text(&file);
        let all = pages(&printed(ours(&["pages", file])));
        let mut compared = 0;
        let formats = ["auto", "ascii-encoded", "hex", "redacted"].iter().cycle();
        let is_shown = |page: &&[String; 4]| ["leaf", "branch"].contains(&&page[1][..]);
        for ([id, kind, ..], format) in all.iter().filter(is_shown).zip(formats) {
            let arguments = ["page", file, id, "--format-value", format];
            let theirs = printed(theirs(&arguments));
            let ours = printed(ours(&arguments));
            // bbolt does not show the records of inline buckets.
            let lines = ours.lines().filter(|line| !line.starts_with("    "));
            let ours = lines.collect::<Vec<_>>().join("\n");
            assert_eq!(ours.trim_end(), theirs.trim_end(), "{file}: {kind} {id}");
            compared += 1;
        }
        assert!(compared >= 6, "{file}: {compared}");
    }
}

#[test]
#[ignore = "needs the tool bbolt"]
fn keys_and_counts_are_the_same() {
    let dir = tempfile::tempdir().unwrap();
    for file in files(dir.path()) {
        let is_theirs = text(&file).contains("theirs");
        let file = text(&file);
        let counts = |output: Output| {
            let all = printed(output);
            all[all.find("Aggregate").unwrap()..].to_owned()
        };
        assert_eq!(counts(ours(&["stats", file])), counts(theirs(&["stats", file])), "{file}");
        assert_eq!(printed(ours(&["keys", file])), printed(theirs(&["buckets", file])), "{file}");
        let paths = if is_theirs { &PATHS[..] } else { &["key", "lease", "authUsers"] };
        for path in paths {
            for format in ["auto", "ascii-encoded", "hex", "bytes"] {
                let path: Vec<&str> = path.split('/').collect();
                let arguments = [&["keys", file], &path[..], &["--format", format]].concat();
                assert_eq!(ours(&arguments).stdout, theirs(&arguments).stdout, "{arguments:?}");
            }
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
            // The header and the first elements, where bbolt can notice it.
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

/// What the first meta page says.
fn page_size(bytes: &[u8]) -> usize {
    u32::from_le_bytes(bytes[24..28].try_into().unwrap()) as usize
}

#[test]
#[ignore = "needs the tool bbolt"]
fn a_copy_is_whole_and_has_all() {
    let dir = tempfile::tempdir().unwrap();
    for (number, file) in files(dir.path()).iter().enumerate() {
        let page_size = page_size(&fs::read(file).unwrap());
        let tree = |file: &Path| bbolt(file, page_size, false, "check\ntree\n");
        for size in ["0", "1", "65536"] {
            let copy = dir.path().join(format!("copy-{number}-{size}"));
            let arguments = ["compact", "-o", text(&copy), "--tx-max-size", size, text(file)];
            printed(ours(&arguments));
            for judge in [ours, theirs] {
                assert!(printed(judge(&["check", text(&copy)])).ends_with("OK\n"), "{file:?}");
            }
            let checked = printed(ours(&["check", text(&copy)]));
            assert!(checked.starts_with("checksums: present"), "{checked}");
            let their_copy = dir.path().join("their-copy");
            printed(theirs(&["compact", "-o", text(&their_copy), text(file)]));
            let used = |file: &Path| {
                let listed = pages(&printed(theirs(&["pages", text(file)])));
                let used = listed.iter().filter(|page| page[1] != "free");
                let pages: usize = used.map(|page| 1 + page[3].parse().unwrap_or(0)).sum();
                pages * self::page_size(&fs::read(file).unwrap())
            };
            // bbolt's copy has the page size of the machine.
            let (our_bytes, their_bytes) = (used(&copy), used(&their_copy));
            println!("{file:?}: {our_bytes} bytes, bbolt {their_bytes}");
            let is_same_size = page_size == self::page_size(&fs::read(&their_copy).unwrap());
            assert!(!is_same_size || our_bytes * 10 <= their_bytes * 11, "{our_bytes}");
            fs::remove_file(their_copy).unwrap();
            // Of the copies, since bbolt may write into the file that it opens.
            let source = dir.path().join("source");
            fs::copy(file, &source).unwrap();
            assert_eq!(tree(&copy), tree(&source), "{file:?}");
        }
    }
}
