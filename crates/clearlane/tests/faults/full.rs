//! Tests of a disk that becomes full. Writes are rejected and reads continue. Once there is free
//! space again, writes also continue.
//!
//! The disk is a file system in memory, which requires the right to mount it. If the process does
//! not have that right, the tests pass, and print that they have checked nothing.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use clearlane_proto::etcdserverpb::{
    AlarmRequest, DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse,
};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::program::{Program, TIMEOUT, kv_with_timeout, members, short_pause};
use crate::support::{self, http_get};

/// Number of puts between two waits for a commit. If there were more puts, the result could depend
/// on timing. On a fast machine, the disk may have too little space for the next commit before a
/// thread checks the space. If a thread is paused, the member may later find that there was space
/// for more puts.
const BATCH: usize = 50;

struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(dir: &Path, megabytes: u64) -> Option<SmallDisk> {
        let disk = dir.join("disk");
        fs::create_dir(&disk).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={megabytes}m"), "tmpfs"]).arg(&disk);
        let output = mount.output();
        output.is_ok_and(|output| output.status.success()).then_some(SmallDisk(disk))
    }

    fn resize(&self, megabytes: u64) {
        let size = format!("remount,size={megabytes}m");
        let status = Command::new("mount").args(["-o", &size]).arg(&self.0).status();
        assert!(status.unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The unmount is lazy, because a killed member may not have closed everything yet.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Starts a member whose data is on a separate disk. Its log output is elsewhere. Returns `None` if
/// this user may not mount a disk.
async fn member_on(dir: &Path, megabytes: u64) -> Option<(SmallDisk, Program)> {
    let Some(disk) = SmallDisk::mount(dir, megabytes) else {
        // Writes directly to standard error, because the harness shows captured output only if the
        // test fails.
        let words = b"SKIPPED: this process may not mount a disk in memory; nothing was checked\n";
        std::io::stderr().write_all(words).unwrap();
        return None;
    };
    let mut member = members(dir, 1).remove(0);
    member.disk.clone_from(&disk.0);
    member.start();
    member.ready().await;
    Some((disk, member))
}

fn put(number: usize) -> PutRequest {
    support::put(format!("k{number:06}"), format!("{number:06}").repeat(10_000))
}

async fn count(
    client: &mut KvClient<Channel>,
    serializable: bool,
) -> Result<RangeResponse, Status> {
    let (key, range_end) = ("k".into(), "l".into());
    let range =
        RangeRequest { key, range_end, count_only: true, serializable, ..Default::default() };
    Ok(client.range(range).await?.into_inner())
}

/// Puts keys until a put fails. Returns the number of the failed put, and its error.
async fn put_all(client: &mut KvClient<Channel>, from: usize) -> (usize, Status) {
    for number in from.. {
        if let Err(status) = client.put(put(number)).await {
            return (number, status);
        }
    }
    unreachable!("the disk has an end")
}

/// Same as [`put_all`], but never more than [`BATCH`] puts are uncommitted.
async fn put_in_batches(member: &Program, client: &mut KvClient<Channel>) -> (usize, Status) {
    for number in 0.. {
        if let Err(status) = client.put(put(number)).await {
            return (number, status);
        }
        if number % BATCH == BATCH - 1 {
            settle(member, client).await;
        }
    }
    unreachable!("the disk has an end")
}

async fn has_alarm(member: &Program) -> bool {
    let endpoint = Endpoint::from_shared(member.url()).unwrap().timeout(TIMEOUT);
    let mut client = MaintenanceClient::new(endpoint.connect().await.unwrap());
    !client.alarm(AlarmRequest::default()).await.unwrap().into_inner().alarms.is_empty()
}

/// Returns the number of commits, from the member's metrics.
fn commits(member: &Program) -> u64 {
    let page = http_get(("127.0.0.1", member.client), "/metrics");
    let name = "\netcd_disk_backend_commit_duration_seconds_count ";
    let (_, rest) = page.split_once(name).unwrap_or_else(|| panic!("no commits in {page}"));
    rest.lines().next().unwrap().parse().unwrap()
}

/// Waits until the alarm is raised, or, if `raised` is false, until it is no longer raised.
async fn alarm_is(member: &Program, raised: bool) {
    let begin = Instant::now();
    while has_alarm(member).await != raised {
        let log = member.log();
        assert!(begin.elapsed() < TIMEOUT, "still not so that an alarm: {raised}: {log}");
        short_pause().await;
    }
}

/// Waits until everything is committed and no commit is in progress.
async fn settle(member: &Program, client: &mut KvClient<Channel>) {
    // The first of the two commits may have started before this call.
    for _ in 0..2 {
        let before = commits(member);
        let begin = Instant::now();
        let nothing = DeleteRangeRequest { key: "x".into(), ..Default::default() };
        client.delete_range(nothing).await.unwrap();
        while commits(member) == before {
            assert!(begin.elapsed() < TIMEOUT, "nothing is committed: {}", member.log());
            short_pause().await;
        }
    }
}

#[tokio::test]
async fn a_full_disk_refuses_writes_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let Some((disk, mut member)) = member_on(dir.path(), 150).await else { return };
    let mut client = kv_with_timeout(member.client).await;
    let (written, refusal) = put_in_batches(&member, &mut client).await;
    assert_eq!(refusal.code(), Code::ResourceExhausted, "{refusal}");
    assert_eq!(refusal.message(), "etcdserver: mvcc: database space exceeded");
    alarm_is(&member, true).await;
    println!("{written} puts of 60 kB on 150 MB, then: {}", refusal.message());

    // Another process takes all free space, but not during a commit.
    settle(&member, &mut client).await;
    let ballast = disk.0.join("ballast");
    let _ = fs::write(&ballast, vec![1; 150 << 20]);
    for serializable in [false, true] {
        assert_eq!(count(&mut client, serializable).await.unwrap().count, written as i64);
    }
    assert_eq!(client.put(put(written)).await.unwrap_err().code(), Code::ResourceExhausted);
    // Requests that free space are still accepted, because space is reserved for them in the log.
    for number in 0..written / 2 {
        let gone = DeleteRangeRequest { key: put(number).key, ..Default::default() };
        let deleted = client.delete_range(gone).await;
        let deleted = deleted.unwrap_or_else(|status| panic!("{status}: {}", member.log()));
        assert_eq!(deleted.into_inner().deleted, 1);
    }
    assert!(member.is_running());

    // Frees space on the disk. The member must then disarm the alarm and accept writes without a
    // request from the operator.
    fs::remove_file(ballast).unwrap();
    disk.resize(300);
    alarm_is(&member, false).await;
    client.put(put(written)).await.unwrap();
    member.kill();
    member.start();
    member.ready().await;
    let mut client = kv_with_timeout(member.client).await;
    assert_eq!(count(&mut client, false).await.unwrap().count, (written - written / 2 + 1) as i64);
}

/// The last free bytes are taken while clients write. The member may fail or continue, but it must
/// have all acknowledged writes.
#[tokio::test]
async fn a_disk_that_is_full_at_once_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let Some((disk, mut member)) = member_on(dir.path(), 250).await else { return };
    let mut client = kv_with_timeout(member.client).await;
    for number in 0..50 {
        client.put(put(number)).await.unwrap();
    }
    let path = disk.0.join("ballast");
    let ballast = std::thread::spawn(move || fs::write(path, vec![1; 250 << 20]));
    let (written, refusal) = put_all(&mut client, 50).await;
    let _ = ballast.join().unwrap();
    println!("{written} puts, then: {refusal}; it runs: {}", member.is_running());
    if !member.is_running() {
        assert!(member.log().contains("No space left"), "{}", member.log());
    }
    disk.resize(500);
    member.kill();
    member.start();
    member.ready().await;
    let mut client = kv_with_timeout(member.client).await;
    assert!(count(&mut client, false).await.unwrap().count >= written as i64);
}
