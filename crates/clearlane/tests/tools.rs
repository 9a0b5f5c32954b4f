//! Tools on data: a store is saved, restored, defragmented; a log is printed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/program.rs"]
mod program;
mod support;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;

use clearlane::data::MemberConfig;
use clearlane_backend::Era;
use clearlane_engine::stream::Exporter;
use clearlane_engine::{Bucket, Engine as _, Image, MemoryEngine, Snapshot};
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::{InternalRaftRequest, RangeRequest};
use clearlane_server::Server;
use clearlane_server::apply::Limits;
use clearlane_server::snapshot_file::SnapshotWriter;
use sha2::{Digest as _, Sha256};

use crate::program::{RunningProgram, member, program};
use crate::support::{block_on, connect, put};

fn clearlane(arguments: &[&str]) -> Output {
    program(arguments).output().unwrap()
}

/// Returns what is printed.
fn done(arguments: &[&str]) -> String {
    let output = clearlane(arguments);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.is_empty(), "{arguments:?}: {told}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the error.
fn refused(arguments: &[&str], status: i32) -> String {
    let output = clearlane(arguments);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// It puts `a` to `e` at the revisions 2 to 6.
fn make(data_dir: &Path, file: &Path) {
    let config = MemberConfig::new("old", data_dir, "http://localhost:2380", Era::Clearlane);
    let node = Arc::new(config.open_alone().unwrap());
    block_on(async {
        let member = Server::new(&node, Limits::default());
        let desk = tokio::spawn(member.requests().clone().run());
        for key in ["a", "b", "c", "d", "e"] {
            let put = Some(put(key, vec![b'v'; 1000]));
            let request = InternalRaftRequest { put, ..Default::default() };
            member.propose(request).await.unwrap();
        }
        desk.abort();
    });
    let snapshot = Arc::clone(node.store().snapshot().unwrap().snapshot());
    node.stop();
    save(Arc::clone(&snapshot), file);
    save_former(snapshot, &former(file));
}

fn save(snapshot: Arc<dyn Snapshot>, file: &Path) {
    let mut saved = fs::File::create(file).unwrap();
    let image = Image::new(snapshot, file.parent().unwrap()).unwrap();
    let mut writer = SnapshotWriter::new(image);
    while let Some(piece) = writer.next_chunk().unwrap() {
        saved.write_all(&piece).unwrap();
    }
}

fn former(file: &Path) -> PathBuf {
    file.with_added_extension("former")
}

/// As Clearlane saved it once: the stream of the records, its length, and the sum.
fn save_former(snapshot: Arc<dyn Snapshot>, file: &Path) {
    let (mut exporter, mut bytes) = (Exporter::new(snapshot), Vec::new());
    while let Some(chunk) = exporter.next_chunk().unwrap() {
        bytes.extend_from_slice(&chunk);
    }
    let length = bytes.len() as u64;
    bytes.resize((bytes.len() + 8).next_multiple_of(512) - 8, 0);
    bytes.extend_from_slice(&length.to_be_bytes());
    let sum = Sha256::digest(&bytes);
    bytes.extend_from_slice(&sum);
    fs::write(file, bytes).unwrap();
}

/// The member is killed when the work is done.
fn while_it_runs<T>(data_dir: &str, flag: &str, work: impl FnOnce(&str) -> T) -> T {
    let mut process =
        RunningProgram::start(&mut member(Path::new(data_dir), &[flag, "--name=new"]));
    work(&process.ready())
}

fn asked(
    data_dir: &str,
    flag: &str,
    requests: Vec<RangeRequest>,
) -> Vec<Result<(i64, i64), String>> {
    while_it_runs(data_dir, flag, |address| {
        block_on(async {
            let mut client = KvClient::new(connect(address).await);
            let mut answers = Vec::new();
            for request in requests {
                let answer = client.range(request).await.map(|answer| answer.into_inner());
                let answer = answer.map(|answer| (answer.count, answer.header.unwrap().revision));
                answers.push(answer.map_err(|status| status.message().to_owned()));
            }
            answers
        })
    })
}

fn all() -> RangeRequest {
    RangeRequest { key: vec![0].into(), range_end: vec![0].into(), ..Default::default() }
}

/// Of what [`make`] has saved.
fn check_status(file: &str, version: &str) {
    let told = done(&["snapshot", "status", file]);
    let fields: Vec<&str> = told.trim_end_matches('\n').split(", ").collect();
    assert_eq!(fields.len(), 5, "{told}");
    assert_eq!((fields[1], fields[2], fields[4]), ("6", "5", version), "{told}");
    let hash = u32::from_str_radix(fields[0], 16).unwrap();
    let json = done(&["snapshot", "status", file, "--write-out=json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["hash"], &json["totalKey"]), (&hash.into(), &5.into()), "{json}");
    let lines = done(&["snapshot", "status", file, "-w", "fields"]);
    assert!(lines.starts_with(&format!("\"Hash\" : {hash}\n\"Revision\" : 6\n")), "{lines}");
    let table = done(&["snapshot", "status", file, "-w", "table"]);
    assert!(table.contains("│ TOTAL KEYS │") && table.contains("│          5 │"), "{table}");
}

#[test]
fn a_store_is_saved_and_restored() {
    let dir = tempfile::tempdir().unwrap();
    let (old, file) = (dir.path().join("old"), dir.path().join("file"));
    make(&old, &file);
    let file = file.to_str().unwrap();
    check_status(file, "");

    let new = dir.path().join("new");
    let new = new.to_str().unwrap();
    let peers = "--initial-advertise-peer-urls=http://127.0.0.1:9";
    let restore = ["snapshot", "restore", file, "--data-dir", new, "--name=new", peers];
    assert_eq!(done(&restore), format!("restored {new} at revision 6\n"));
    assert!(refused(&restore, 1).ends_with("is not empty\n"));
    let wal = done(&["wal", "dump", new]);
    assert!(wal.contains("WAL entries: 1\n") && wal.contains("conf AddNode"), "{wal}");
    assert_eq!(asked(new, "--era=clearlane", vec![all()]), [Ok((5, 6))]);
    // The old members are none now.
    let (old_wal, new_wal) =
        (done(&["wal", "dump", old.to_str().unwrap()]), done(&["wal", "dump", new]));
    let cluster =
        |text: &str| text.lines().find(|line| line.contains("clusterID=")).unwrap().to_owned();
    assert!(old_wal.contains("put PutRequest"), "{old_wal}");
    assert_ne!(cluster(&old_wal), cluster(&new_wal));
}

#[test]
fn a_restored_store_begins_further_on() {
    let dir = tempfile::tempdir().unwrap();
    make(&dir.path().join("old"), &dir.path().join("file"));
    let file = dir.path().join("file");
    let restore = ["snapshot", "restore", file.to_str().unwrap(), "--name=new"];
    let old = RangeRequest { revision: 6, ..all() };
    for (era, marks) in [("clearlane", true), ("3.5", true), ("clearlane", false), ("3.5", false)] {
        let new = dir.path().join(format!("{era}-{marks}"));
        let new = new.to_str().unwrap();
        let mark = format!("--mark-compacted={marks}");
        let flag = format!("--era={era}");
        let bump = ["--bump-revision=1000", &mark, "--data-dir", new];
        let told = done(&[&restore[..], &bump].concat());
        assert_eq!(told, format!("restored {new} at revision 1006\n"));
        let told = match marks {
            true => Err("etcdserver: mvcc: required revision has been compacted".to_owned()),
            false => Ok((5, 1006)),
        };
        assert_eq!(asked(new, &flag, vec![all(), old.clone()]), [Ok((5, 1006)), told.clone()]);
        // And the same after a restart.
        assert_eq!(asked(new, &flag, vec![all(), old.clone()]), [Ok((5, 1006)), told]);
    }
    let told = refused(&[&restore[..], &["--mark-compacted"]].concat(), 1);
    assert!(told.contains("give --bump-revision"), "{told}");
}

#[test]
fn a_damaged_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    make(&dir.path().join("old"), &dir.path().join("file"));
    let file = dir.path().join("file");
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, &bytes).unwrap();
    let (file, new) = (file.to_str().unwrap(), dir.path().join("new"));
    let new = new.to_str().unwrap();
    assert!(refused(&["snapshot", "status", file], 1).contains("sum does not match"));
    let restore = ["snapshot", "restore", file, "--data-dir", new];
    assert!(refused(&restore, 1).contains("sum does not match"));
    assert!(!Path::new(new).exists());
    let told = refused(&["snapshot", "status", "nowhere"], 1);
    assert!(told.starts_with("clearlane: nowhere: "), "{told}");
}

#[test]
fn a_file_is_restored_with_any_engine() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    make(&dir.path().join("old"), &file);
    let (former, copied) = (former(&file), dir.path().join("copied"));
    let bytes = fs::read(&file).unwrap();
    fs::write(&copied, &bytes[..bytes.len() - 32]).unwrap();
    check_status(former.to_str().unwrap(), "");
    check_status(copied.to_str().unwrap(), "");
    for (file, checks_sum) in [(&file, true), (&former, true), (&copied, false)] {
        for engine in ["bolt", "sled"] {
            let new = file.with_added_extension(engine);
            let (file, new) = (file.to_str().unwrap(), new.to_str().unwrap());
            let (skip, engine) =
                (format!("--skip-hash-check={}", !checks_sum), format!("--engine={engine}"));
            let restore = ["snapshot", "restore", file, "--name=new", "--data-dir", new, &engine];
            if !checks_sum {
                let told = refused(&restore, 1);
                assert!(told.contains("no sum behind a multiple of 512"), "{told}");
            }
            done(&[&restore[..], &[&skip]].concat());
            assert_eq!(asked(new, &engine, vec![all()]), [Ok((5, 6))]);
        }
    }
}

#[test]
fn nothing_is_left_of_a_file_that_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (file, new) = (dir.path().join("file"), dir.path().join("new"));
    make(&dir.path().join("old"), &file);
    let refuse = |bytes: &[u8], words: &str| {
        fs::write(&file, bytes).unwrap();
        for engine in ["bolt", "sled"] {
            let (file, new) = (file.to_str().unwrap(), new.to_str().unwrap());
            let flags = ["--data-dir", new, "--skip-hash-check", "--engine", engine];
            let told = refused(&[&["snapshot", "restore", file][..], &flags].concat(), 1);
            assert!(told.starts_with(&format!("clearlane: {file}: ")), "{told}");
            assert!(told.contains(words) && told.lines().count() == 1, "{words}: {told}");
            assert!(!Path::new(new).exists() && !Path::new(&format!("{new}.restoring")).exists());
        }
    };
    let whole = fs::read(&file).unwrap();
    // In the first value of a leaf, which is in use.
    let mut damaged = whole.clone();
    let at = whole.windows(20).position(|bytes| bytes == [b'v'; 20]).unwrap();
    damaged[at] ^= 1;
    refuse(&damaged, &format!("damaged: page {}: the checksum is wrong", at / 4096));
    refuse(&whole[..4096 * 3], "damaged: ");
    refuse(&whole[..4096 * 3 + 7], "damaged: ");
    refuse(&[&whole[..], &[0; 7]].concat(), "no sum behind a multiple of 512");
    refuse(&[0; 4096], "the snapshot is damaged: ");
    refuse(b"", "the snapshot is damaged: it is empty");
    let engine = MemoryEngine::new();
    let mut txn = engine.begin_write().unwrap();
    txn.put(Bucket::Meta, b"storageVersion", b"3.8.0").unwrap();
    txn.commit().unwrap();
    save(engine.snapshot().unwrap(), &file);
    let later = fs::read(&file).unwrap();
    refuse(
        &later,
        "the storage version is 3.8, and this program knows up to 3.7; nothing was changed",
    );
}

#[test]
fn a_store_is_defragmented() {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("old");
    make(&data_dir, &dir.path().join("file"));
    let flag = format!("--data-dir={}", data_dir.display());
    assert!(done(&["defrag", &flag]).contains(" bytes, now "));
    let old = data_dir.to_str().unwrap();
    assert_eq!(asked(old, "--era=clearlane", vec![all()]), [Ok((5, 6))]);
    assert!(refused(&["defrag", &flag, "--engine=sled"], 1).contains("engine bolt"));
    assert!(refused(&["defrag"], 1).contains("--data-dir=DIR"));
}

/// The whole way: out of a member that runs, and into a new one.
#[test]
fn a_running_member_is_saved() {
    let dir = tempfile::tempdir().unwrap();
    let old = dir.path().join("old");
    make(&old, &dir.path().join("by hand"));
    let (file, new) = (dir.path().join("file"), dir.path().join("new"));
    let (file, new) = (file.to_str().unwrap(), new.to_str().unwrap());
    while_it_runs(old.to_str().unwrap(), "--era=clearlane", |address| {
        let told = done(&["snapshot", "save", address, file]);
        assert!(told.starts_with(&format!("Snapshot saved at {file} (")), "{told}");
    });
    assert!(!Path::new(&format!("{file}.part")).exists());
    check_status(file, "3.7.0");
    done(&["snapshot", "restore", file, "--name=new", "--data-dir", new]);
    assert_eq!(asked(new, "--era=clearlane", vec![all()]), [Ok((5, 6))]);
}

#[test]
fn what_is_no_tool_is_told() {
    let told = refused(&["snapshot", "sav"], 1);
    assert!(told.contains("\"sav\" is not a valid flag or command; did you mean save?"), "{told}");
    assert!(told.contains("Usage: clearlane snapshot <COMMAND>"), "{told}");
    assert!(refused(&["snapshot"], 2).contains("save, status, restore"));
    assert!(refused(&["snapshot", "restore"], 2).contains("<FILE>"));
    let told = refused(&["snapshot", "save", "127.0.0.1:1", "file"], 1);
    assert!(told.starts_with("clearlane: 127.0.0.1:1: "), "{told}");
    assert!(!Path::new("file.part").exists());
}
