//! Tests of the tools: a store is saved, restored, defragmented, hashed and migrated; a log is
//! printed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/program.rs"]
mod program;
mod support;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Arc;

use clearlane::data::MemberConfig;
use clearlane_backend::Era;
use clearlane_engine::{Bucket, Engine, Image, MemoryEngine, Options, SingleFileStore, Snapshot};
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use clearlane_proto::etcdserverpb::{
    DowngradeVersionTestRequest, HashKvRequest, InternalRaftRequest, RangeRequest,
};
use clearlane_replica::apply::Limits;
use clearlane_server::Server;
use clearlane_server::snapshot::snapshot_file::SnapshotWriter;
use clearlane_wal::files::OsFileSystem;
use clearlane_wal::{Entry, EntryKind, Wal};
use prost::Message as _;

use crate::program::{RunningProgram, alone, member, program};
use crate::support::{block_on, connect, put};

fn clearlane(arguments: &[&str]) -> Output {
    program(arguments).output().unwrap()
}

/// Runs `clearlane`, which must succeed. Returns its output.
fn done(arguments: &[&str]) -> String {
    let output = clearlane(arguments);
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && printed.is_empty(), "{arguments:?}: {printed}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs `clearlane`, which must end with the exit code `status`. Returns its error output.
fn refused(arguments: &[&str], status: i32) -> String {
    let output = clearlane(arguments);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Creates a store and saves it to `file`. The store has puts of `a` to `e` at the revisions 2 to
/// 6.
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
    save(snapshot, file);
}

fn save(snapshot: Arc<dyn Snapshot>, file: &Path) {
    let mut saved = fs::File::create(file).unwrap();
    let image = Image::new(snapshot, file.parent().unwrap()).unwrap();
    let mut writer = SnapshotWriter::new(image);
    while let Some(piece) = writer.next_chunk().unwrap() {
        saved.write_all(&piece).unwrap();
    }
}

/// Runs a member during `work`, and kills it afterwards.
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

/// Checks the output of `snapshot status` for a file that [`make`] has saved.
fn check_status(file: &str, version: &str) {
    let output = done(&["snapshot", "status", file]);
    let fields: Vec<&str> = output.trim_end_matches('\n').split(", ").collect();
    assert_eq!(fields.len(), 5, "{output}");
    assert_eq!((fields[1], fields[2], fields[4]), ("6", "5", version), "{output}");
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
    let _alone = alone();
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
    // The new cluster has a different id, and does not have the old members.
    let (old_wal, new_wal) =
        (done(&["wal", "dump", old.to_str().unwrap()]), done(&["wal", "dump", new]));
    let cluster =
        |text: &str| text.lines().find(|line| line.contains("clusterID=")).unwrap().to_owned();
    assert!(old_wal.contains("put PutRequest"), "{old_wal}");
    assert_ne!(cluster(&old_wal), cluster(&new_wal));
}

#[test]
fn a_restored_store_begins_further_on() {
    let _alone = alone();
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
        let output = done(&[&restore[..], &bump].concat());
        assert_eq!(output, format!("restored {new} at revision 1006\n"));
        let expected = match marks {
            true => Err("etcdserver: mvcc: required revision has been compacted".to_owned()),
            false => Ok((5, 1006)),
        };
        assert_eq!(asked(new, &flag, vec![all(), old.clone()]), [Ok((5, 1006)), expected.clone()]);
        // The result is the same after a restart.
        assert_eq!(asked(new, &flag, vec![all(), old.clone()]), [Ok((5, 1006)), expected]);
    }
    let error = refused(&[&restore[..], &["--mark-compacted"]].concat(), 1);
    assert!(error.contains("--mark-compacted needs --bump-revision"), "{error}");
    let new = dir.path().join("new");
    for bump in [1_u64 << 62, (1 << 62) + 1, u64::MAX] {
        let flags = [format!("--bump-revision={bump}"), format!("--data-dir={}", new.display())];
        let error = refused(&[&restore[..], &[&flags[0], &flags[1]]].concat(), 1);
        assert!(
            error.contains("--bump-revision ") && error.contains("4611686018427387904"),
            "{error}"
        );
        assert!(!new.exists());
    }
}

#[test]
fn a_damaged_file_is_refused() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    make(&dir.path().join("old"), &dir.path().join("file"));
    let file = dir.path().join("file");
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, &bytes).unwrap();
    let (file, new) = (file.to_str().unwrap(), dir.path().join("new"));
    let new = new.to_str().unwrap();
    assert!(refused(&["snapshot", "status", file], 1).contains("checksum mismatch"));
    let restore = ["snapshot", "restore", file, "--data-dir", new];
    assert!(refused(&restore, 1).contains("checksum mismatch"));
    assert!(!Path::new(new).exists());
    let error = refused(&["snapshot", "status", "nowhere"], 1);
    assert!(error.starts_with("clearlane: nowhere: "), "{error}");
}

#[test]
fn a_file_is_restored_with_any_engine() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    make(&dir.path().join("old"), &file);
    let copied = dir.path().join("copied");
    let bytes = fs::read(&file).unwrap();
    fs::write(&copied, &bytes[..bytes.len() - 32]).unwrap();
    check_status(copied.to_str().unwrap(), "");
    for (file, checks_sum) in [(&file, true), (&copied, false)] {
        for engine in ["bolt", "sled"] {
            let new = file.with_added_extension(engine);
            let (file, new) = (file.to_str().unwrap(), new.to_str().unwrap());
            let (skip, engine) =
                (format!("--skip-hash-check={}", !checks_sum), format!("--engine={engine}"));
            let restore = ["snapshot", "restore", file, "--name=new", "--data-dir", new, &engine];
            if !checks_sum {
                let error = refused(&restore, 1);
                assert!(error.contains("no checksum after a multiple of 512"), "{error}");
            }
            done(&[&restore[..], &[&skip]].concat());
            assert_eq!(asked(new, &engine, vec![all()]), [Ok((5, 6))]);
        }
    }
}

#[test]
fn nothing_is_left_of_a_file_that_is_refused() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (file, new) = (dir.path().join("file"), dir.path().join("new"));
    make(&dir.path().join("old"), &file);
    let refuse = |bytes: &[u8], words: &str| {
        fs::write(&file, bytes).unwrap();
        for engine in ["bolt", "sled"] {
            let (file, new) = (file.to_str().unwrap(), new.to_str().unwrap());
            let flags = ["--data-dir", new, "--skip-hash-check", "--engine", engine];
            let error = refused(&[&["snapshot", "restore", file][..], &flags].concat(), 1);
            assert!(error.starts_with(&format!("clearlane: {file}: ")), "{error}");
            assert!(error.contains(words) && error.lines().count() == 1, "{words}: {error}");
            assert!(!Path::new(new).exists());
        }
    };
    let whole = fs::read(&file).unwrap();
    // Damages the first value of a leaf page that is in use.
    let mut damaged = whole.clone();
    let at = whole.windows(20).position(|bytes| bytes == [b'v'; 20]).unwrap();
    damaged[at] ^= 1;
    refuse(&damaged, &format!("damaged: page {}: the checksum is wrong", at / 4096));
    refuse(&whole[..4096 * 3], "damaged: ");
    refuse(&whole[..4096 * 3 + 7], "damaged: ");
    refuse(&[&whole[..], &[0; 7]].concat(), "no checksum after a multiple of 512");
    refuse(&[0; 4096], "the snapshot is damaged: ");
    refuse(b"", "the snapshot is damaged: ");
    let engine = MemoryEngine::new();
    let mut txn = engine.begin_write().unwrap();
    txn.put(Bucket::Meta, b"storageVersion", b"3.8.0").unwrap();
    txn.commit().unwrap();
    save(engine.snapshot().unwrap(), &file);
    let later = fs::read(&file).unwrap();
    refuse(
        &later,
        "the storage version is 3.8, but this program knows up to 3.7; nothing was changed",
    );
}

#[test]
fn a_store_is_defragmented() {
    let _alone = alone();
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

/// Tests the whole sequence: save from a running member, and restore as a new one.
#[test]
fn a_running_member_is_saved() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let old = dir.path().join("old");
    make(&old, &dir.path().join("by hand"));
    let (file, new) = (dir.path().join("file"), dir.path().join("new"));
    let (file, new) = (file.to_str().unwrap(), new.to_str().unwrap());
    while_it_runs(old.to_str().unwrap(), "--era=clearlane", |address| {
        let output = done(&["snapshot", "save", address, file]);
        assert!(output.starts_with(&format!("Snapshot saved at {file} (")), "{output}");
    });
    assert!(!Path::new(&format!("{file}.part")).exists());
    check_status(file, "3.7.0");
    done(&["snapshot", "restore", file, "--name=new", "--data-dir", new]);
    assert_eq!(asked(new, "--era=clearlane", vec![all()]), [Ok((5, 6))]);
}

#[test]
fn the_hash_of_a_file_is_the_members() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (old, file) = (dir.path().join("old"), dir.path().join("file"));
    make(&old, &file);
    let (store, old) = (old.join("member/snap/db"), old.to_str().unwrap());
    let (store, file) = (store.to_str().unwrap(), file.to_str().unwrap());
    for revision in [0, 4, -3] {
        let answer = while_it_runs(old, "--era=clearlane", |address| {
            block_on(async {
                let mut client = MaintenanceClient::new(connect(address).await);
                client.hash_kv(HashKvRequest { revision }).await.unwrap().into_inner()
            })
        });
        let (hash, at) = (answer.hash, answer.hash_revision);
        let rev = format!("--rev={revision}");
        assert_eq!(done(&["hashkv", file, &rev]), format!("{hash}, {at}, -1\n"));
        let json = format!("{{\"hash\":{hash},\"hashRevision\":{at},\"compactRevision\":-1}}\n");
        assert_eq!(done(&["hashkv", &rev, "-w", "json", store]), json);
        let fields =
            format!("\"Hash\" : {hash}\n\"Hash revision\" : {at}\n\"Compact revision\" : -1\n");
        assert_eq!(done(&["hashkv", store, &rev, "-w=fields"]), fields);
        let table = done(&["hashkv", store, &rev, "--write-out=table"]);
        assert!(table.contains("│ HASH REVISION │ COMPACT REVISION │\n"), "{table}");
    }
    let before = fs::read(store).unwrap();
    done(&["hashkv", store]);
    assert!(fs::read(store).unwrap() == before, "it is only read");
    let error = refused(&["hashkv", file, "--rev=7"], 1);
    let words = "--rev: revision 7 is a future revision; allowed are 1 to 6\n";
    assert_eq!(error, format!("clearlane: {file}: {words}"));
}

#[test]
fn the_hash_of_what_is_no_store_is_refused() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    let path = file.to_str().unwrap();
    let refuse = |words: &str| {
        let error = refused(&["hashkv", path], 1);
        assert!(error.starts_with(&format!("clearlane: {path}: ")), "{error}");
        assert!(error.contains(words) && error.lines().count() == 1, "{words}: {error}");
    };
    refuse("No such file or directory");
    fs::write(&file, "records").unwrap();
    refuse("neither a store of engine bolt nor a snapshot");
    // A store that is compacted at revision 6, which is also its newest revision.
    let engine = MemoryEngine::new();
    let mut txn = engine.begin_write().unwrap();
    txn.put(Bucket::Meta, b"scheduledCompactRev", &[0, 0, 0, 0, 0, 0, 0, 6, b'_']).unwrap();
    txn.commit().unwrap();
    save(engine.snapshot().unwrap(), &file);
    let error = refused(&["hashkv", path, "--rev=5"], 1);
    assert!(
        error.ends_with("--rev: revision 5 has been compacted; allowed are 6 to 6\n"),
        "{error}"
    );
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..4096 * 2]).unwrap();
    refuse("");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    refuse("it is not a file");
}

#[test]
fn a_file_that_is_open_elsewhere_is_waited_for() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    make(&dir.path().join("old"), &dir.path().join("file"));
    let data_dir = format!("--data-dir={}", dir.path().join("old").display());
    let path = dir.path().join("old/member/snap/db");
    let store = path.to_str().unwrap();
    let tools = [
        &["hashkv", store][..],
        &["snapshot", "status", store],
        &["defrag", &data_dir],
        &["migrate", &data_dir, "--target-version=3.7"],
    ];
    for tool in tools {
        let locked = fs::File::open(&path).unwrap();
        locked.lock().unwrap();
        for timeout in [&[][..], &["--timeout=0"], &["--timeout", "50ms"]] {
            let error = refused(&[tool, timeout].concat(), 1);
            let words = "in use by another process or another part of this one";
            assert_eq!(error, format!("clearlane: {store}: {words}\n"));
        }
        let error = refused(&[tool, &["--timeout=-1s"]].concat(), 1);
        let words = "invalid value \"-1s\" for flag -timeout: it must not be below 0\n";
        assert_eq!(error, format!("clearlane: {words}"));
        let error = refused(&[tool, &["--timeout=soon"]].concat(), 2);
        assert!(error.contains("it must be a duration such as 100ms or 1h30m"), "{error}");
        let waiting = [tool, &["--timeout=60s"]].concat();
        let waiting = program(&waiting).stdout(Stdio::null()).spawn().unwrap();
        drop(locked);
        assert!(waiting.wait_with_output().unwrap().status.success());
    }
}

fn set(data_dir: &Path, key: &str, value: Option<&[u8]>) {
    let store = SingleFileStore::open(&data_dir.join("member/snap/db"), Options::default());
    let store = store.unwrap();
    let mut txn = store.engine().begin_write().unwrap();
    match value {
        Some(value) => txn.put(Bucket::Meta, key.as_bytes(), value).unwrap(),
        None => txn.delete(Bucket::Meta, key.as_bytes()).unwrap(),
    }
    txn.commit().unwrap();
}

fn version_of(data_dir: &Path) -> String {
    let file = data_dir.join("member/snap/db");
    let output = done(&["snapshot", "status", file.to_str().unwrap()]);
    output.trim_end_matches('\n').rsplit(", ").next().unwrap().to_owned()
}

#[test]
fn the_storage_version_is_set() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let old = dir.path().join("old");
    make(&old, &dir.path().join("file"));
    let path = old.to_str().unwrap();
    let migrate = |to: &str| done(&["migrate", "--data-dir", path, "--target-version", to]);
    for (to, expected, version) in [
        ("3.5", "3.5 already", ""),
        ("3.7", "3.5, now 3.7", "3.7.0"),
        ("3.7", "3.7 already", "3.7.0"),
        ("3.6", "3.7, now 3.6", "3.6.0"),
        ("3.5", "3.6, now 3.5", ""),
        ("3.6", "3.5, now 3.6", "3.6.0"),
    ] {
        assert_eq!(migrate(to), format!("{path}: storage version {expected}\n"));
        assert_eq!(version_of(&old), version);
    }
    assert_eq!(asked(path, "--era=clearlane", vec![all()]), [Ok((5, 6))]);
}

#[test]
fn a_storage_version_that_cannot_be_set_is_refused() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let old = dir.path().join("old");
    make(&old, &dir.path().join("file"));
    let path = old.to_str().unwrap();
    let file = old.join("member/snap/db");
    let refuse = |flags: &[&str], status: i32, words: &str| {
        let before = fs::read(&file).unwrap();
        let error = refused(&[&["migrate"], flags].concat(), status);
        assert!(error.contains(words) && error.lines().count() == 1, "{words}: {error}");
        assert!(fs::read(&file).unwrap() == before, "{words}: it was changed");
    };
    let data_dir = format!("--data-dir={path}");
    let to = |version: &str| format!("--target-version={version}");
    refuse(&[&to("3.7")], 1, "migrate takes --data-dir=DIR");
    refuse(&[&data_dir], 1, "migrate takes --target-version=3.5|3.6|3.7");
    for version in ["3", "3.4", "3.8", "4.0", "3.6.0", "v3.6"] {
        for force in ["--force=false", "--force"] {
            let words = "it must be one of 3.5, 3.6, 3.7";
            refuse(&[&data_dir, &to(version), force], 2, words);
        }
    }
    refuse(&["--data-dir=nowhere", &to("3.7")], 1, "nowhere has no store");
    assert!(!Path::new("nowhere").exists());

    let versions = [("3.8.0", "3.8"), ("4.0.0", "4.0"), ("3.4.0", "3.4")];
    for (text, version) in versions {
        set(&old, "storageVersion", Some(text.as_bytes()));
        let words =
            format!("the storage version is {version}, but only 3.5 to 3.7 are known; nothing");
        refuse(&[&data_dir, &to("3.7")], 1, &words);
        let output = done(&["migrate", &data_dir, &to("3.7"), "--force"]);
        assert_eq!(output, format!("{path}: storage version {version}, now 3.7\n"));
    }
    set(&old, "storageVersion", Some(b"new"));
    refuse(
        &[&data_dir, &to("3.7"), "--force"],
        1,
        "storageVersion is \"new\", which is not a version",
    );
    set(&old, "storageVersion", None);
    set(&old, "term", None);
    refuse(&[&data_dir, &to("3.7"), "--force"], 1, "neither a storage version nor a term");
    set(&old, "storageVersion", Some(b"3.7.0"));
    fs::rename(old.join("member/wal"), old.join("wal")).unwrap();
    refuse(&[&data_dir, &to("3.6"), "--force"], 1, "member/wal: there is no write-ahead log");
    done(&["migrate", &data_dir, &to("3.7")]);
}

#[test]
fn a_log_that_a_version_cannot_read_holds_it_back() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let old = dir.path().join("old");
    make(&old, &dir.path().join("file"));
    let test = Some(DowngradeVersionTestRequest { ver: "3.7.0".to_owned() });
    let request = InternalRaftRequest { downgrade_version_test: test, ..Default::default() };
    let (files, wal) = (Arc::new(OsFileSystem), old.join("member/wal"));
    let (mut wal, found) = Wal::open(files, &wal, (0, 0), Default::default()).unwrap();
    let (index, term) = (wal.last_index() + 1, found.hard_state.term);
    let data = request.encode_to_vec().into();
    wal.save(&[Entry { index, term, kind: EntryKind::Normal, data }], None).unwrap();
    wal.close().unwrap();
    let data_dir = format!("--data-dir={}", old.display());
    let migrate = ["migrate", &data_dir];
    // Setting version 3.7 succeeds, because it is not a downgrade.
    done(&[&migrate[..], &["--target-version=3.7"]].concat());
    for version in ["3.6", "3.5"] {
        let to = format!("--target-version={version}");
        let error = refused(&[&migrate[..], &[&to]].concat(), 1);
        let words = format!("entries that need 3.7; {version} cannot read them; nothing");
        assert!(error.contains(&words) && error.lines().count() == 1, "{error}");
        assert_eq!(version_of(&old), "3.7.0");
    }
    done(&[&migrate[..], &["--target-version=3.6", "--force"]].concat());
    assert_eq!(version_of(&old), "3.6.0");
}

#[test]
fn a_store_of_sled_is_not_migrated() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (old, file) = (dir.path().join("old"), dir.path().join("file"));
    make(&dir.path().join("bolt"), &file);
    let (old, file) = (old.to_str().unwrap(), file.to_str().unwrap());
    done(&["snapshot", "restore", file, "--name=new", "--data-dir", old, "--engine=sled"]);
    let error = refused(&["migrate", "--data-dir", old, "--target-version=3.7"], 1);
    assert_eq!(error, format!("clearlane: {old} has no store of engine bolt\n"));
}

/// Each flag either has an effect, or the help gives the reason why it has none.
#[test]
fn the_flags_of_etcdutl_are_taken() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (old, file, new) =
        (dir.path().join("old"), dir.path().join("file"), dir.path().join("new"));
    make(&old, &file);
    let (old, file, new) = (old.to_str().unwrap(), file.to_str().unwrap(), new.to_str().unwrap());
    let restore = [
        &["snapshot", "restore", file, "--data-dir", new, "--name=m", "--wal-dir="][..],
        &["--initial-cluster=m=http://localhost:2380", "--initial-cluster-token=t"],
        &["--initial-advertise-peer-urls=http://localhost:2380", "--skip-hash-check"],
        &["--initial-memory-map-size=10737418240", "--bump-revision=1", "--mark-compacted"],
    ];
    let tools = [
        (&["snapshot", "status", file][..], &["simple", "json", "table", "fields"][..]),
        (&["hashkv", file, "--rev=3"], &["simple", "json", "table", "fields"]),
        (&["defrag", "--data-dir", old], &["simple", "json", "table", "fields", "protobuf"]),
        (
            &["migrate", "--data-dir", old, "--target-version=3.7", "--force"],
            &["simple", "json", "table", "fields", "protobuf"],
        ),
        (&restore.concat(), &["simple", "json", "table", "fields", "protobuf"]),
    ];
    for (tool, formats) in tools {
        for format in formats {
            // A restore fails if the directory is not empty.
            let _ = fs::remove_dir_all(new);
            done(&[tool, &["-w", format, "--timeout=1s"]].concat());
        }
        let error = refused(&[tool, &["--write-out=xml"]].concat(), 2);
        let words = format!("\"xml\"; it must be one of {}\n", formats.join(", "));
        assert!(error.ends_with(&words), "{error}");
    }
    let wrong = [&restore.concat()[..], &["--initial-memory-map-size=all"]].concat();
    assert!(refused(&wrong, 2).ends_with("it must be a whole number, 0 or more\n"));
    let help = done(&["snapshot", "restore", "--help"]);
    assert!(help.contains("NOT HONOURED: pages are read, not mapped."), "{help}");
}

#[test]
fn what_is_no_tool_is_told() {
    let _alone = alone();
    let error = refused(&["snapshot", "sav"], 1);
    assert!(
        error.contains("\"sav\" is not a valid flag or command; did you mean save?"),
        "{error}"
    );
    assert!(error.contains("Usage: clearlane snapshot <COMMAND>"), "{error}");
    assert!(refused(&["snapshot"], 2).contains("save, status, restore"));
    assert!(refused(&["snapshot", "restore"], 2).contains("<FILE>"));
    let error = refused(&["snapshot", "save", "127.0.0.1:1", "file"], 1);
    assert!(error.starts_with("clearlane: 127.0.0.1:1: "), "{error}");
    assert!(!Path::new("file.part").exists());
}

#[test]
fn a_store_is_restored_into_a_directory_that_exists() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (file, new) = (dir.path().join("file"), dir.path().join("new"));
    make(&dir.path().join("old"), &file);
    let restore = |dir: &str| {
        let mut program = program(&["snapshot", "restore", file.to_str().unwrap()]);
        program.args(["--data-dir", dir]).current_dir(&new).output().unwrap()
    };
    fs::create_dir(&new).unwrap();
    // In an earlier version, `restore` created a temporary directory with this name.
    fs::create_dir(dir.path().join("new.restoring")).unwrap();
    // These directories remain from an interrupted `restore`.
    fs::create_dir_all(new.join("member.restoring/snap")).unwrap();
    let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(&new).unwrap());
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&new, &link).unwrap();
    for data_dir in [".", new.to_str().unwrap(), link.to_str().unwrap()] {
        let output = restore(data_dir);
        assert!(output.status.success(), "{data_dir}: {}", String::from_utf8_lossy(&output.stderr));
        let names: Vec<_> =
            fs::read_dir(&new).unwrap().map(|name| name.unwrap().file_name()).collect();
        assert_eq!(names, ["member"]);
        assert!(new.join("member/snap/db").exists() && new.join("member/wal").exists());
        let output = restore(data_dir);
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(printed, format!("clearlane: {data_dir} is not empty\n"));
        fs::remove_dir_all(new.join("member")).unwrap();
    }
    assert_eq!(std::os::unix::fs::MetadataExt::ino(&fs::metadata(&new).unwrap()), inode);
    assert!(dir.path().join("new.restoring").exists());
}

#[test]
fn a_log_is_created_in_other_places() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    make(&dir.path().join("old"), &file);
    let (file, path) = (file.to_str().unwrap(), |name: &str| dir.path().join(name));
    fs::create_dir(path("empty")).unwrap();
    for (number, wal_dir) in ["slash/", "a/b/deep", "empty", "empty/"].into_iter().enumerate() {
        let data_dir = path(&format!("{number}"));
        let wal_dir = format!("{}/{wal_dir}", dir.path().display());
        done(&[
            "snapshot",
            "restore",
            file,
            "--data-dir",
            data_dir.to_str().unwrap(),
            "--wal-dir",
            &wal_dir,
        ]);
        assert!(Path::new(&wal_dir).join("durable").exists(), "{wal_dir}");
        let _ = fs::remove_dir_all(path("empty"));
        fs::create_dir(path("empty")).unwrap();
    }
    let occupied = path("occupied");
    fs::create_dir(&occupied).unwrap();
    fs::write(occupied.join("durable"), "").unwrap();
    let data_dir = format!("--data-dir={}", path("member").display());
    let mut member = program(&[&data_dir, &format!("--wal-dir={}", occupied.display())]);
    let error = crate::program::failure(&mut member);
    assert!(
        error.ends_with(&format!(
            "{}: there is no write-ahead log, but files that another log or program left: durable; \
             move them away, or choose another directory",
            occupied.display()
        )),
        "{error}"
    );
    assert!(!path("occupied.tmp").exists());
}
