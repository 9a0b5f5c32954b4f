//! Tests of logs that are damaged after etcd or Clearlane has written to the directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::{PutRequest, RangeRequest};
use nix::sys::signal::Signal;
use tonic::transport::Channel;

use crate::servers::{Members, Program};

const PUTS: u32 = 200;

async fn put_all(channel: &Channel) {
    let mut client = KvClient::new(channel.clone());
    for number in 0..PUTS {
        let (key, value) = (format!("key{number}").into(), "v".repeat(300).into());
        client.put(PutRequest { key, value, ..PutRequest::default() }).await.unwrap();
    }
}

async fn count(channel: &Channel) -> i64 {
    let (key, range_end) = ("key".into(), "kez".into());
    let all = RangeRequest { key, range_end, count_only: true, ..RangeRequest::default() };
    KvClient::new(channel.clone()).range(all).await.unwrap().into_inner().count
}

fn last_segment(wal: &Path) -> PathBuf {
    let names = fs::read_dir(wal).unwrap().map(|entry| entry.unwrap().path());
    names.filter(|path| path.extension().is_some_and(|end| end == "wal")).max().unwrap()
}

/// Fills `length` bytes of the last segment with zeros. The zeros start at the beginning of the
/// sector that contains the byte at `before_end` bytes before the end of the written data.
fn zero(wal: &Path, before_end: usize, length: usize) {
    let segment = last_segment(wal);
    let mut bytes = fs::read(&segment).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let from = (end - before_end) / 512 * 512;
    bytes[from..from + length].fill(0);
    fs::write(&segment, bytes).unwrap();
}

/// Returns the last line of Clearlane's output when it fails to start.
fn refusal(members: &Members) -> String {
    let ended = members.command(Program::Clearlane, 0).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    String::from_utf8(ended.stderr).unwrap().lines().last().unwrap().to_owned()
}

/// A log may lack the last entries that the store has applied. Clearlane accepts such a log only if
/// etcd made the last commit of the store. The newest meta page of the store shows which program
/// made that commit.
#[tokio::test]
#[ignore = "needs etcd: run tests/compat/dump-logs/run"]
async fn a_log_that_ends_before_the_store_is_accepted_after_etcd_only() {
    let dir = tempfile::tempdir().unwrap();
    let mut members = Members::new(dir.path(), 1);
    let wal = members.data_dir(0).join("member/wal");
    put_all(&members.start(Program::Etcd).await[0]).await;
    // SIGTERM stops etcd in an orderly way, so etcd first commits its store.
    members.stop(Signal::SIGTERM);
    zero(&wal, 4096, 8192);
    let channels = members.start(Program::Clearlane).await;
    assert_eq!(count(&channels[0]).await, i64::from(PUTS));
    assert!(members.said(0).contains("the log ends before the store"), "{}", members.said(0));
    put_all(&channels[0]).await;
    members.stop(Signal::SIGTERM);
    // Makes the same damage again, and removes the file in which Clearlane records the durable end,
    // so that this file cannot show the damage.
    fs::remove_file(wal.join("durable")).unwrap();
    zero(&wal, 4096, 8192);
    let said = refusal(&members);
    assert!(said.contains("are missing from the log; nothing was changed"), "{said}");
    assert!(said.contains("--unsafe-accept-log-loss"), "{said}");
}

#[tokio::test]
#[ignore = "needs etcd: run tests/compat/dump-logs/run"]
async fn a_hole_in_a_log_of_etcd_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut members = Members::new(dir.path(), 1);
    put_all(&members.start(Program::Etcd).await[0]).await;
    members.stop(Signal::SIGKILL);
    zero(&members.data_dir(0).join("member/wal"), 20_000, 4096);
    let said = refusal(&members);
    assert!(said.contains("has a later record"), "{said}");
}

/// Clearlane records the durable end of the log in a file, and etcd does not use this file. The
/// recorded end stays valid while etcd appends to the log, so Clearlane still detects that a part
/// before this end is missing.
#[tokio::test]
#[ignore = "needs etcd: run tests/compat/dump-logs/run"]
async fn what_clearlane_had_synced_is_missed_after_etcd_too() {
    let dir = tempfile::tempdir().unwrap();
    let mut members = Members::new(dir.path(), 1);
    let wal = members.data_dir(0).join("member/wal");
    put_all(&members.start(Program::Clearlane).await[0]).await;
    members.stop(Signal::SIGKILL);
    let before = fs::read(wal.join("durable")).unwrap();
    members.start(Program::Etcd).await;
    members.stop(Signal::SIGKILL);
    assert_eq!(fs::read(wal.join("durable")).unwrap(), before);
    // The zeros start before etcd's first record and reach beyond its last one.
    zero(&wal, 20_000, 24_576);
    let said = refusal(&members);
    assert!(said.contains("the log has lost its end"), "{said}");
}
