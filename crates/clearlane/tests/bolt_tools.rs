//! `bolt ...` on files of ours: whole, damaged, open elsewhere, and on what is no file of bolt.

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
const COMMANDS: [&str; 6] = ["pages", "page", "keys", "check", "stats", "compact"];

fn alone() -> (MutexGuard<'static, ()>, TempDir) {
    (program::alone(), tempfile::tempdir().unwrap())
}

fn bolt(arguments: &[&str]) -> Output {
    program(&[&["bolt"], arguments].concat()).output().unwrap()
}

/// Returns what is printed.
fn done(arguments: &[&str]) -> String {
    let output = bolt(arguments);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.is_empty(), "{arguments:?}: {told}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns what is printed, and the error, which is one line.
fn failed(arguments: &[&str]) -> (String, String) {
    let output = bolt(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
    let told = String::from_utf8(output.stderr).unwrap();
    let line = told.strip_prefix("clearlane: ").and_then(|told| told.strip_suffix('\n'));
    let line = line.unwrap_or_else(|| panic!("{arguments:?}: {told}"));
    assert!(!line.contains('\n'), "{arguments:?}: {told}");
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

/// A store with 3,000 revisions and a few other records, some of them deleted.
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

/// The rows of `pages`, without its head.
fn rows(file: &str) -> Vec<Vec<String>> {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    done(&["pages", file]).lines().skip(2).map(words).collect()
}

#[test]
fn pages_are_listed_and_shown() {
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
    let shown = done(&["page", file, &branch[0], "--format-key=revision"]);
    assert!(shown.starts_with(&format!("Page ID:    {}\nPage Type:  branch\n", branch[0])));
    assert_eq!(shown.matches(": <pgid=").count(), branch[2].parse::<usize>().unwrap());
    assert!(shown.contains("\n1000_0: <pgid="), "{shown}");

    let root = of("leaf").find(|row| row.last().unwrap() == "(buckets)").unwrap();
    let shown = done(&["page", file, &root[0], "--format-value", "hex"]);
    assert!(shown.contains("\"meta\": <pgid=0,seq=0>\n    \"term\": 0007\n"), "{shown}");
    let large = of("leaf").find(|row| row[3] == "2").unwrap();
    let shown =
        done(&["page", file, &large[0], "--format-key=revision", "--format-value=redacted"]);
    assert!(shown.contains("Total Size: 12288 bytes\nOverflow pages: 2\n"), "{shown}");
    assert!(shown.contains("3000_1t: <redacted len:9000 sha256:"), "{shown}");

    let shown = done(&["page", file, "0", "1"]);
    assert_eq!(shown.matches("Newest:     yes").count(), 1);
    assert_eq!(shown.matches("\n====").count(), 1);
    let all = done(&["page", file, "--all"]);
    assert_eq!(all.matches("Page Type:  meta").count(), 2);
    assert_eq!(all.matches("Page ID:    ").count(), rows.len());
    assert_eq!(all.matches("\nFree:       yes\n").count(), of("free").count());
    assert!(all.matches("\nOf bucket:  key\n").count() > of("branch").count());
    assert!(all.contains("\n<pgid=2> crc32c "), "a page of the checksum table");
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
    assert_eq!(done(&["keys", file, "meta", "-f", "hex"]), "7465726d\n");
    let buckets = done(&["keys", file]);
    assert_eq!(buckets.lines().count(), 10);
    assert!(buckets.contains("members_removed\n"));
    let line = refused(&["keys", file, "none"]);
    assert!(line.starts_with(&format!("{file}: there is no bucket \"none\", but \"alarm\", ")));
    let line = refused(&["keys", file, "meta", "term"]);
    assert!(line.ends_with("there is no bucket \"term\", but none"), "{line}");
}

#[test]
fn a_whole_file_is_ok_and_is_counted() {
    let (_alone, dir) = alone();
    let file = make(&dir.path().join("store"));
    let checked = done(&["check", text(&file)]);
    assert_eq!(checked, "checksums: present, compared with every page\nOK\n");
    let counted = done(&["stats", text(&file)]);
    let key = counted.lines().find(|line| line.starts_with("key ")).unwrap();
    assert!(key.split_whitespace().nth(1) == Some("2001"), "{counted}");
    assert!(counted.contains("Aggregate statistics for 10 buckets\n"), "{counted}");
    assert!(counted.contains("\tNumber of keys/value pairs: 2002\n"), "{counted}");
    assert!(counted.contains("\tTotal number on inlined buckets: 9 (90%)\n"), "{counted}");
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
    let shown = done(&["page", file, &leaves[1].to_string()]);
    assert!(shown.contains("Problem:    flags 0x33\n"), "{shown}");
    let (_, line) = failed(&["keys", file, "key"]);
    assert!(line.ends_with("the checksum is wrong"), "{line}");
    let (counted, line) = failed(&["stats", file]);
    assert!(counted.contains("Aggregate") && line.ends_with("see bolt check"), "{line}");
    let copy = dir.path().join("copy");
    let line = refused(&["compact", "-o", text(&copy), file]);
    assert!(line.ends_with("the checksum is wrong") && !copy.exists(), "{line}");
}

#[test]
fn a_compacted_copy_has_the_same_records_and_opens() {
    let (_alone, dir) = alone();
    let file = make(&dir.path().join("store"));
    let copied = dir.path().join("copied");
    fs::create_dir(&copied).unwrap();
    fs::write(copied.join("engine"), "clearlane-engine 1\nengine bolt\ngeneration 0\n").unwrap();
    let copy = copied.join("data.0");
    let before = fs::metadata(&file).unwrap().len();
    let told = done(&["compact", "-o", text(&copy), text(&file)]);
    let after = fs::metadata(&copy).unwrap().len();
    assert!(told.starts_with(&format!("{before} -> {after} bytes (gain=")), "{told}");
    assert!(after < before * 3 / 4, "{told}");
    assert!(done(&["check", text(&copy)]).ends_with("OK\n"));
    assert!(rows(text(&copy)).iter().all(|row| row[1] != "free"));
    for bucket in Bucket::ALL {
        let keys = |file: &Path| done(&["keys", text(file), bucket.name()]);
        assert_eq!(keys(&copy), keys(&file));
    }
    let line = refused(&["compact", "-o", text(&copy), text(&file)]);
    assert!(line.ends_with("it is there already, and is not replaced"), "{line}");
    let line = refused(&["compact", text(&file)]);
    assert_eq!(line, "bolt compact takes -o FILE, the file to be made");

    let engine = open_store(&copied);
    assert!(engine.opening_notes().is_empty(), "{:?}", engine.opening_notes());
    let snapshot = engine.snapshot().unwrap();
    let key = Revision::new(2_500, 0).put_key();
    assert_eq!(snapshot.get(Bucket::Key, &key).unwrap().unwrap(), "value 2500");
    let mut txn = engine.begin_write().unwrap();
    txn.put(Bucket::Lease, b"a", b"b").unwrap();
    txn.commit().unwrap();
}

#[test]
fn a_file_is_found_by_its_store_or_data_directory() {
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
    let store = data_dir.join("member/snap/store.0");
    let expected = ": belongs to engine sled, not bolt; refusing to touch it";
    for path in [&store, &data_dir] {
        assert_eq!(refused(&["check", text(path)]), format!("{}{expected}", text(&store)));
    }
    // A store by itself.
    let alone = dir.path().join("store");
    let file = make(&alone);
    assert_eq!(done(&["pages", text(&alone)]), done(&["pages", text(&file)]));
}

#[test]
fn a_file_that_is_open_is_refused_in_one_line_and_not_changed() {
    let (_alone, dir) = alone();
    let store = dir.path().join("store");
    let file = make(&store);
    let bytes = fs::read(&file).unwrap();
    let engine = open_store(&store);
    for command in COMMANDS {
        let line = refused(&with_arguments(command, text(&file), "nowhere"));
        assert_eq!(line, format!("{}: already open elsewhere", text(&file)), "{command}");
    }
    drop(engine);
    let copy = dir.path().join("copy");
    for command in COMMANDS {
        done(&with_arguments(command, text(&file), text(&copy)));
    }
    assert!(fs::read(&file).unwrap() == bytes);
}

/// A command on a file.
fn with_arguments<'a>(command: &'a str, file: &'a str, copy: &'a str) -> Vec<&'a str> {
    let more: &[&str] = match command {
        "page" => &["--all"],
        "keys" => &["key"],
        "compact" => &["-o", copy],
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
        let (file, copy) = (path(name), path("copy"));
        // What can be shown of the pages of a damaged file is.
        let is_shown = command == "page" && !["missing", "directory"].contains(name);
        let is_listed = command == "pages" && *name == "cut";
        let arguments = with_arguments(command, text(&file), text(&copy));
        if is_shown || is_listed {
            done(&arguments);
        } else {
            let (_, line) = failed(&arguments);
            assert!(line.starts_with(text(&file)), "{arguments:?}: {line}");
        }
        assert!(!copy.exists(), "{arguments:?}");
    }
    let shown = refused(&["check", text(&path("text"))]);
    assert!(shown.contains("no meta page is valid: page 0: the file is too short"), "{shown}");
    let file = text(&file);
    let (printed, line) = failed(&["page", file, "999999", "0"]);
    assert!(line.contains("there is no page 999999: the file has "), "{line}");
    assert!(printed.contains("Page ID:    0\n"), "the others are shown: {printed}");
    assert_eq!(refused(&["page", file]), "bolt page takes the ids of pages, or --all");
    assert_eq!(refused(&["page", file, "--all", "1"]), refused(&["page", file]));
    let output = bolt(&["page", file, "seven"]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("invalid value \"seven\" for argument ID"), "{told}");
}

#[test]
fn output_that_is_not_read_to_its_end_is_no_error() {
    let (_alone, dir) = alone();
    let file = make(&dir.path().join("store"));
    for arguments in [["page", "--all"], ["keys", "key"]] {
        let arguments = ["bolt", arguments[0], text(&file), arguments[1]];
        let mut process = program(&arguments);
        let mut process = process.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        let mut output = BufReader::with_capacity(16, process.stdout.take().unwrap());
        output.read_line(&mut first).unwrap();
        assert!(!first.is_empty());
        drop(output);
        let mut told = String::new();
        process.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        assert_eq!((process.wait().unwrap().code(), &told[..]), (Some(0), ""), "{arguments:?}");
    }
}
