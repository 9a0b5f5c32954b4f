//! Tests of directories that Clearlane cannot use: each causes a one-line error, and stays
//! unchanged. The test `moving` covers the directories that Clearlane can use.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/entries.rs"]
mod entries;
#[path = "support/program.rs"]
mod program;

use std::fs;
use std::path::Path;
use std::process::Command;

use clearlane_engine::{Bucket, Options, SingleFileStore};

use crate::entries::all_of;
use crate::program::{RunningProgram, alone, failure, member};

/// Returns the command of a member that would create certificates in the directory.
fn member_with_tls(data: &Path) -> Command {
    let urls = ["--listen-client-urls=https://127.0.0.1:0", "--advertise-client-urls=https://a:1"];
    let mut program = member(data, &urls);
    program.arg("--auto-tls");
    program
}

fn refused(data: &Path) -> String {
    let before = all_of(data);
    let error = failure(&mut member_with_tls(data));
    assert_eq!(all_of(data), before, "{error}");
    error
}

/// Creates a directory with a log, and with a store that contains these records.
fn directory(records: &[(Bucket, &str, &[u8])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut running = RunningProgram::start(&mut member_with_tls(dir.path()));
    running.line("now serving peer/client/metrics");
    drop(running);
    let file = dir.path().join("member/snap/db");
    let store = SingleFileStore::open(&file, Options::default()).unwrap();
    let mut txn = store.engine().begin_write().unwrap();
    for (bucket, key, value) in records {
        txn.put(*bucket, key.as_bytes(), value).unwrap();
    }
    txn.commit().unwrap();
    dir
}

#[test]
fn versions_that_are_not_known_are_refused() {
    let _alone = alone();
    let (cluster, storage) = ("clusterVersion", "storageVersion");
    let cases: [(Bucket, &str, &[u8], &str); 7] = [
        (Bucket::Cluster, cluster, b"3.8.0", "the cluster version is 3.8, but this program knows"),
        (Bucket::Cluster, cluster, b"4.0.0", "the cluster version is 4.0, but this program knows"),
        (Bucket::Meta, storage, b"3.8.0", "the storage version is 3.8, but this program knows"),
        (Bucket::Cluster, cluster, b"3.5.0", "the cluster version is 3.5: start etcd 3.6 with"),
        (Bucket::Cluster, cluster, b"3.0.0", "the cluster version is 3.0: start etcd 3.6 with"),
        (Bucket::Cluster, cluster, b"new", "clusterVersion is \"new\", which is not a version"),
        (Bucket::Meta, storage, b"", "storageVersion is \"\", which is not a version"),
    ];
    for (bucket, key, value, words) in cases {
        let dir = directory(&[(bucket, key, value)]);
        let error = refused(dir.path());
        assert!(error.contains("member/snap/db: ") && error.contains(words), "{error}");
    }
    let dir = directory(&[(Bucket::Cluster, cluster, b"3.6.0"), (Bucket::Meta, storage, b"3.6.0")]);
    let mut running = RunningProgram::start(&mut member_with_tls(dir.path()));
    running.line("ready to serve client requests");
}

#[test]
fn a_store_without_its_log_is_refused() {
    let _alone = alone();
    let dir = directory(&[(Bucket::Meta, "consistent_index", &8_u64.to_be_bytes())]);
    fs::remove_dir_all(dir.path().join("member/wal")).unwrap();
    let error = refused(dir.path());
    assert!(
        error.contains("there is no log next to it; restore the file with `etcdutl snapshot"),
        "{error}"
    );
}

#[test]
fn a_file_that_is_no_store_is_refused() {
    let _alone = alone();
    for bytes in [&b"records"[..], &[0; 9000], &[7; 20_000]] {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("member/snap")).unwrap();
        fs::write(dir.path().join("member/snap/db"), bytes).unwrap();
        let error = refused(dir.path());
        assert!(error.contains("member/snap/db: damaged: no meta page is valid"), "{error}");
    }
}

/// etcd leaves an empty file if it is killed at its first start. Clearlane must accept this file.
#[test]
fn an_empty_file_is_made_a_store() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("member/snap")).unwrap();
    fs::write(dir.path().join("member/snap/db"), "").unwrap();
    let mut running = RunningProgram::start(&mut member_with_tls(dir.path()));
    running.line("ready to serve client requests");
}
