//! Tests of `clearlane bolt ...` on intact and damaged files of Clearlane, on a file that another
//! program has open, and on files that the engine `bolt` has not written.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/program.rs"]
mod program;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::{Arc, MutexGuard};

use clearlane::data::MemberConfig;
use clearlane_backend::Era;
use clearlane_engine::{Bucket, Engine, EngineKind, Options, open};
use clearlane_mvcc::Revision;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;

use crate::program::program;

const PAGE: usize = 4096;
const COMMANDS: [&str; 3] = ["pages", "keys", "check"];

fn alone() -> (MutexGuard<'static, ()>, TempDir) {
    (program::alone(), tempfile::tempdir().unwrap())
}

fn bolt(arguments: &[&str]) -> Output {
    program(&[&["bolt"], arguments].concat()).output().unwrap()
}

/// Runs `clearlane bolt`, which must succeed. Returns its output.
fn done(arguments: &[&str]) -> String {
    let output = bolt(arguments);
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && printed.is_empty(), "{arguments:?}: {printed}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs `clearlane bolt`, which must fail with an error of one line. Returns the output and the
/// error.
fn failed(arguments: &[&str]) -> (String, String) {
    let output = bolt(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
    let printed = String::from_utf8(output.stderr).unwrap();
    let line = printed.strip_prefix("clearlane: ").and_then(|printed| printed.strip_suffix('\n'));
    let line = line.unwrap_or_else(|| panic!("{arguments:?}: {printed}"));
    assert!(!line.contains('\n'), "{arguments:?}: {printed}");
    (String::from_utf8(output.stdout).unwrap(), line.to_owned())
}

fn refused(arguments: &[&str]) -> String {
    let (printed, line) = failed(arguments);
    assert_eq!(printed, "", "{arguments:?}");
    line
}

fn open_store(dir: &Path) -> Arc<dyn Engine> {
    open(EngineKind::Bolt, dir, Options::default()).unwrap()
}

/// Creates a store with 3,000 records in the bucket `key`, and deletes 1,000 of them. The store
/// also has a large tombstone and the record `term`. Returns the path of the store's file.
fn make(dir: &Path) -> PathBuf {
    let engine = open_store(dir);
    for first in (0..3_000).step_by(100) {
        let mut txn = engine.begin_write().unwrap();
        for main in first..first + 100 {
            let key = Revision::new(main, 0).put_key();
            txn.put(Bucket::Key, &key, format!("value {main}").as_bytes()).unwrap();
        }
        txn.put(Bucket::Meta, b"term", &[0, 7]).unwrap();
        txn.commit().unwrap();
    }
    let mut txn = engine.begin_write().unwrap();
    for main in 0..1_000 {
        txn.delete(Bucket::Key, &Revision::new(main, 0).put_key()).unwrap();
    }
    txn.put(Bucket::Key, &Revision::new(3_000, 1).tombstone_key(), &[5; 9_000]).unwrap();
    txn.commit().unwrap();
    dir.join("data.0")
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns the rows that `pages` prints, without the head of the table.
fn rows(file: &str) -> Vec<Vec<String>> {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    done(&["pages", file]).lines().skip(2).map(words).collect()
}

#[test]
fn pages_are_listed() {
    let (_alone, dir) = alone();
    let file = make(&dir.path().join("store"));
    let file = text(&file);
    let rows = rows(file);
    assert_eq!(rows[0][..2], ["0", "meta"]);
    let of = |kind: &'static str| rows.iter().filter(move |row| row[1] == kind);
    assert_eq!((of("meta").count(), of("checksum-root").count()), (2, 1));
    assert!(of("checksum-table").count() >= 1 && of("free").count() >= 1);
    let branch = of("branch").next().unwrap();
    assert_eq!(branch.last().unwrap(), "key");
    let root = of("leaf").find(|row| row.last().unwrap() == "(buckets)").unwrap();
    assert_eq!(root[2], "10");
    assert!(of("leaf").any(|row| row[3] == "2" && row.last().unwrap() == "key"), "a large value");
}

#[test]
fn keys_are_listed() {
    let (_alone, dir) = alone();
    let file = make(&dir.path().join("store"));
    let file = text(&file);
    let keys = done(&["keys", file, "key", "--format=revision"]);
    let expected: String = (1_000..3_000).map(|main| format!("{main}_0\n")).collect();
    assert_eq!(keys, expected + "3000_1t\n");
    assert_eq!(done(&["keys", file, "meta"]), "term\n");
    assert!(done(&["keys", file, "key"]).starts_with("00000000000003e85f0000000000000000\n"));
    let buckets = done(&["keys", file]);
    assert_eq!(buckets.lines().count(), 10);
    assert!(buckets.contains("members_removed\n"));
    let line = refused(&["keys", file, "none"]);
    assert!(line.starts_with(&format!("{file}: there is no bucket \"none\", but \"alarm\", ")));
    let line = refused(&["keys", file, "meta", "term"]);
    assert!(line.ends_with("there is no bucket \"term\", but none"), "{line}");
}

#[test]
fn a_whole_file_is_ok() {
    let (_alone, dir) = alone();
    let file = make(&dir.path().join("store"));
    let checked = done(&["check", text(&file)]);
    assert_eq!(checked, "checksums: present, compared with every page\nOK\n");
}

#[test]
fn every_problem_of_a_damaged_file_is_told() {
    let (_alone, dir) = alone();
    let file = make(&dir.path().join("store"));
    let leaves: Vec<u64> = rows(text(&file))
        .iter()
        .filter(|row| row[1] == "leaf" && row.last().unwrap() == "key")
        .map(|row| row[0].parse().unwrap())
        .collect();
    let mut bytes = fs::read(&file).unwrap();
    bytes[leaves[0] as usize * PAGE + PAGE - 1] ^= 1;
    bytes[leaves[1] as usize * PAGE + 8] = 0x33;
    fs::write(&file, &bytes).unwrap();
    let file = text(&file);
    let (printed, line) = failed(&["check", file]);
    for (leaf, problem) in [
        (leaves[0], "the checksum is wrong"),
        (leaves[1], "the checksum is wrong"),
        (leaves[1], "flags 0x33, not a branch or leaf"),
    ] {
        assert!(printed.contains(&format!("page {leaf}: {problem}\n")), "{printed}");
    }
    assert_eq!(line, format!("{file}: 3 problems found"));
    let listed = done(&["pages", file]);
    let row = format!("\n{:<8} unknown", leaves[1]);
    assert!(listed.contains(&row) && listed.contains("(the checksum is wrong)"), "{listed}");
    let (_, line) = failed(&["keys", file, "key"]);
    assert!(line.ends_with("the checksum is wrong"), "{line}");
}

#[test]
fn a_file_is_found_by_its_data_directory() {
    let (_alone, dir) = alone();
    let data_dir = dir.path().join("member");
    let member = |kind| {
        let mut config = MemberConfig::new("m", &data_dir, "http://localhost:2380", Era::Clearlane);
        config.engine_kind = kind;
        config.open_alone().unwrap().stop();
    };
    member(EngineKind::Bolt);
    let expected = done(&["pages", text(&data_dir.join("member/snap/db"))]);
    assert_eq!(done(&["pages", text(&data_dir)]), expected);

    fs::remove_dir_all(&data_dir).unwrap();
    member(EngineKind::Sled);
    let line = refused(&["check", text(&data_dir)]);
    assert!(line.ends_with("member/snap/db: No such file or directory (os error 2)"), "{line}");
    let line = refused(&["check", text(&data_dir.join("member"))]);
    assert!(line.ends_with(": a directory, not a file"), "{line}");
}

#[test]
fn a_file_that_is_open_is_refused_in_one_line_and_not_changed() {
    let (_alone, dir) = alone();
    let store = dir.path().join("store");
    let file = make(&store);
    let bytes = fs::read(&file).unwrap();
    let engine = open_store(&store);
    for command in COMMANDS {
        let line = refused(&with_arguments(command, text(&file)));
        let words = "in use by another process or another part of this one";
        assert_eq!(line, format!("{}: {words}", text(&file)), "{command}");
    }
    drop(engine);
    for command in COMMANDS {
        done(&with_arguments(command, text(&file)));
    }
    assert!(fs::read(&file).unwrap() == bytes);
}

/// Returns the arguments that run this command on a file.
fn with_arguments<'a>(command: &'a str, file: &'a str) -> Vec<&'a str> {
    let more: &[&str] = match command {
        "keys" => &["key"],
        _ => &[],
    };
    [&[command, file], more].concat()
}

#[test]
fn what_is_no_bolt_file_is_refused_in_one_line() {
    let (_alone, dir) = alone();
    let path = |name: &str| dir.path().join(name);
    let file = make(&path("store"));
    let whole = fs::read(&file).unwrap();
    let mut rng = StdRng::seed_from_u64(5);
    let random: Vec<u8> = (0..50_000).map(|_| rng.random()).collect();
    let (empty, text_file) = (Vec::new(), b"some text\n".to_vec());
    let cut = whole[..3 * PAGE].to_vec();
    fs::create_dir(path("directory")).unwrap();
    for (name, bytes) in [("random", random), ("empty", empty), ("text", text_file), ("cut", cut)] {
        fs::write(path(name), bytes).unwrap();
    }
    let names = ["missing", "directory", "random", "empty", "text", "cut"];
    for (name, command) in names.iter().flat_map(|name| COMMANDS.map(|command| (name, command))) {
        let file = path(name);
        let arguments = with_arguments(command, text(&file));
        // `pages` succeeds for a truncated file, and lists the remaining pages.
        if command == "pages" && *name == "cut" {
            done(&arguments);
        } else {
            let (_, line) = failed(&arguments);
            assert!(line.starts_with(text(&file)), "{arguments:?}: {line}");
        }
    }
    let shown = refused(&["check", text(&path("text"))]);
    assert!(shown.contains("no meta page is valid: page 0: the file is too short"), "{shown}");
}

#[test]
fn output_that_is_not_read_to_its_end_is_no_error() {
    let (_alone, dir) = alone();
    let file = make(&dir.path().join("store"));
    for command in ["pages", "keys"] {
        let arguments = [vec!["bolt"], with_arguments(command, text(&file))].concat();
        let mut process = program(&arguments);
        let mut process = process.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        let mut output = BufReader::with_capacity(16, process.stdout.take().unwrap());
        output.read_line(&mut first).unwrap();
        assert!(!first.is_empty());
        drop(output);
        let mut output = String::new();
        process.stderr.take().unwrap().read_to_string(&mut output).unwrap();
        assert_eq!((process.wait().unwrap().code(), &output[..]), (Some(0), ""), "{arguments:?}");
    }
}
