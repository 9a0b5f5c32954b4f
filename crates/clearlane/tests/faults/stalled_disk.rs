//! Tests of disks that complete no sync for a while. Another member becomes the leader, and no
//! acknowledged write is lost.
//!
//! Disks stall in two ways. A preloaded [library](fsync_shim.c) blocks the syncs of a member, which
//! requires a C compiler. `fsfreeze` also blocks writes, which requires the right to mount a file
//! system. A test whose requirement is missing passes, and prints that it has checked nothing.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::StatusResponse;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use tonic::transport::Channel;

use crate::env_number;
use crate::program::{Program, TIMEOUT, kv, kv_with_timeout, leader_of, members, short_pause};
use crate::support::{get, http_get, put};
use crate::three::agree;
use crate::writers::{Writers, check_keys_present, value_of};

/// The default election timeout.
const ELECTION: Duration = Duration::from_secs(1);

enum Disk {
    /// A disk whose syncs the preloaded library can block. The path names the library's control
    /// file.
    Preloaded(PathBuf),
    /// A disk that `fsfreeze` can block. The path names the disk's mount point.
    Frozen(PathBuf),
}

fn run(program: &str, arguments: &[&str]) -> bool {
    let output = Command::new(program).args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}

fn skip(reason: &str) {
    // Writes directly to standard error, because the harness shows captured output only if the test
    // fails.
    let message = format!("SKIPPED: {reason}; nothing was checked\n");
    std::io::stderr().write_all(message.as_bytes()).unwrap();
}

/// Compiles the library. Returns `None` if there is no C compiler.
fn compile_library(dir: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/fsync_shim.c");
    let library = dir.join("fsync_shim.so");
    let (source, output) = (source.to_str().unwrap(), library.to_str().unwrap());
    let arguments = ["-shared", "-fPIC", "-O1", "-o", output, source, "-ldl"];
    run("cc", &arguments).then_some(library)
}

fn preloaded_disks(dir: &Path, members: &mut [Program]) -> Option<Vec<Disk>> {
    let Some(library) = compile_library(dir) else {
        skip("there is no C compiler for the library that holds up syncs");
        return None;
    };
    let disks = members.iter_mut().map(|member| {
        let control = dir.join(format!("{}.stall", member.name));
        let below = fs::canonicalize(dir).unwrap().join(&member.name);
        let paths = [("LD_PRELOAD", &library), ("STALL_CONTROL", &control), ("STALL_DIR", &below)];
        member.variables =
            paths.map(|(name, path)| (name.to_owned(), path.to_str().unwrap().to_owned())).to_vec();
        Disk::Preloaded(control)
    });
    Some(disks.collect())
}

fn frozen_disks(dir: &Path, members: &mut [Program]) -> Option<Vec<Disk>> {
    let mut disks = Vec::new();
    for member in members {
        let (image, mount) = (dir.join(format!("{}.ext4", member.name)), dir.join(&member.name));
        fs::create_dir(&mount).unwrap();
        fs::File::create(&image).unwrap().set_len(768 << 20).unwrap();
        let (image, path) = (image.to_str().unwrap(), mount.to_str().unwrap());
        if !run("mkfs.ext4", &["-q", "-F", image]) || !run("mount", &["-o", "loop", image, path]) {
            skip("this process may not mount a file system that it can freeze");
            return None;
        }
        member.disk = mount.clone();
        disks.push(Disk::Frozen(mount));
    }
    Some(disks)
}

impl Disk {
    fn stall(&self) {
        match self {
            Disk::Preloaded(control) => drop(fs::File::create(control).unwrap()),
            Disk::Frozen(mount) => assert!(run("fsfreeze", &["-f", mount.to_str().unwrap()])),
        }
    }

    /// Ends the stall. Does nothing if the disk is not stalled.
    fn release(&self) {
        match self {
            Disk::Preloaded(control) => drop(fs::remove_file(control)),
            Disk::Frozen(mount) => drop(run("fsfreeze", &["-u", mount.to_str().unwrap()])),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.release();
        if let Disk::Frozen(mount) = self {
            let _ = run("umount", &["-l", mount.to_str().unwrap()]);
        }
    }
}

/// Members whose disks can stall. The disks are dropped before the members, because a process that
/// waits for its disk cannot be killed.
struct Cluster {
    disks: Vec<Disk>,
    members: Vec<Program>,
}

impl Cluster {
    async fn start(
        dir: &Path,
        count: usize,
        make_disks: fn(&Path, &mut [Program]) -> Option<Vec<Disk>>,
    ) -> Option<Cluster> {
        let mut members = members(dir, count);
        let disks = make_disks(dir, &mut members)?;
        members.iter_mut().for_each(Program::start);
        for member in &mut members {
            member.ready().await;
        }
        Some(Cluster { disks, members })
    }

    fn ports(&self) -> Vec<u16> {
        self.members.iter().map(|member| member.client).collect()
    }

    /// Returns the indexes of all members except `at`.
    fn others(&self, at: usize) -> Vec<usize> {
        (0..self.members.len()).filter(|other| *other != at).collect()
    }

    /// Waits until `until` returns true for a member's status. Returns this status.
    async fn status(
        &mut self,
        at: usize,
        until: impl Fn(&StatusResponse) -> bool,
    ) -> StatusResponse {
        let begin = Instant::now();
        loop {
            let status = self.members[at].ready().await;
            if until(&status) {
                return status;
            }
            assert!(begin.elapsed() < TIMEOUT, "{status:?}: {}", self.members[at].log());
            short_pause().await;
        }
    }
}

fn page(member: &Program, path: &str) -> String {
    http_get(("127.0.0.1", member.client), path)
}

fn metric(member: &Program, name: &str) -> u64 {
    let page = page(member, "/metrics");
    let line = page.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim().parse().unwrap_or_else(|_| panic!("{name} in {page}"))
}

#[tokio::test]
async fn a_stalled_disk_preloaded_costs_the_leader_its_leadership() {
    lead_elsewhere(preloaded_disks, false).await;
}

#[tokio::test]
async fn a_stalled_disk_costs_the_leader_of_voters_that_lag_its_leadership() {
    lead_elsewhere(preloaded_disks, true).await;
}

#[tokio::test]
async fn a_stalled_disk_frozen_costs_the_leader_its_leadership() {
    lead_elsewhere(frozen_disks, false).await;
}

/// Stalls the leader's disk and waits for another leader. If `voters_lag` is true, the disks of the
/// other voters also stall, for half an election timeout. These voters then lack the leader's last
/// entries.
async fn lead_elsewhere(
    make_disks: fn(&Path, &mut [Program]) -> Option<Vec<Disk>>,
    voters_lag: bool,
) {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut cluster) = Cluster::start(dir.path(), 3, make_disks).await else { return };
    let long_run = env_number("CLEARLANE_ROUNDS");
    let (mut next_puts, mut times) = (Vec::new(), Vec::new());
    let mut keys = Vec::new();
    for round in 0..long_run.unwrap_or(2) {
        // A disk is considered to work only after two election timeouts without a stall.
        tokio::time::sleep(2 * ELECTION).await;
        let leader = leader_of(&mut cluster.members).await;
        let others = cluster.others(leader);
        let ports: Vec<u16> = others.iter().map(|at| cluster.members[*at].client).collect();
        let term = cluster.members[others[0]].ready().await.raft_term;
        let writers = Writers::start_at(&ports, 2, 1, &format!("{round}"));
        writers.progress.wait_for_recovery().await;

        let begin = Instant::now();
        cluster.disks[leader].stall();
        if voters_lag {
            others.iter().for_each(|at| cluster.disks[*at].stall());
            tokio::time::sleep(ELECTION / 2).await;
            others.iter().for_each(|at| cluster.disks[*at].release());
        }
        let is_next = |status: &StatusResponse| status.raft_term > term && status.leader != 0;
        let next_put = writers.progress.wait_for_recovery();
        let (next_put, next) = tokio::join!(next_put, cluster.status(others[0], is_next));
        let elected = begin.elapsed();
        writers.progress.wait_for_recovery().await;
        let wrote = begin.elapsed();
        println!(
            "round {round}: next put after {next_put:.2?}, another leader after {elected:.2?}, a put \
             begun under it after {wrote:.2?}"
        );
        next_puts.push(next_put);
        times.push(wrote);
        check_stalled_member(&cluster.members[leader]);

        // The stall continues, and the new leader keeps its leadership.
        let until = Instant::now() + 2 * ELECTION;
        while Instant::now() < until {
            let status = cluster.members[others[1]].ready().await;
            assert_eq!((status.raft_term, status.leader), (next.raft_term, next.leader));
            short_pause().await;
        }
        cluster.disks[leader].release();
        keys.extend(writers.end().await);
        agree(&mut cluster.members).await;
        let status = cluster.members[leader].ready().await;
        assert_eq!((status.raft_term, status.leader), (next.raft_term, next.leader));
        check_ready_again(&cluster.members[leader]).await;
    }
    for member in &cluster.members {
        check_keys_present(member.client, &keys, true).await;
    }
    times.sort();
    next_puts.sort();
    let (next_put, put) = (next_puts.last().unwrap(), times.last().unwrap());
    println!(
        "{} puts are there; longest of {} rounds: next put after {next_put:?}, a put begun under \
         another leader after {put:?}",
        keys.len(),
        times.len()
    );
    // Only a long run checks the times: a short run shares the machine with other tests.
    if long_run.is_some() {
        let bound = if voters_lag { ELECTION * 5 } else { ELECTION * 5 / 2 };
        assert!(*next_put <= bound, "{next_puts:?}");
        assert!(*put <= ELECTION * 5, "{times:?}");
    }
}

/// Checks the pages and metrics of a former leader while its disk is stalled.
fn check_stalled_member(member: &Program) {
    let ready = page(member, "/readyz?exclude=linearizable_read");
    let report = "[-]progress failed: the disk of the write-ahead log has made no progress for ";
    assert!(ready.starts_with("HTTP/1.1 503") && ready.contains(report), "{ready}");
    assert!(page(member, "/livez").ends_with("ok\n"));
    assert!(metric(member, "clearlane_stalls_total{part=\"log\"}") >= 1);
    assert!(metric(member, "clearlane_stall_leader_transfers_total") >= 1);
    assert!(member.log().contains("this leader makes no progress"), "{}", member.log());
}

async fn check_ready_again(member: &Program) {
    let begin = Instant::now();
    loop {
        let ready = page(member, "/readyz");
        if ready.ends_with("ok\n") {
            return;
        }
        assert!(begin.elapsed() < TIMEOUT, "{ready}");
        short_pause().await;
    }
}

#[tokio::test]
async fn a_slow_disk_costs_no_leader_its_leadership() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut cluster) = Cluster::start(dir.path(), 3, preloaded_disks).await else { return };
    let leader = leader_of(&mut cluster.members).await;
    let term = cluster.members[leader].ready().await.raft_term;
    for disk in &cluster.disks {
        let Disk::Preloaded(control) = disk else { unreachable!("of another kind") };
        // The file is renamed into place with its content, because an empty file would block all
        // syncs.
        let new = control.with_extension("new");
        fs::write(&new, "300").unwrap();
        fs::rename(new, control).unwrap();
    }
    let until = Instant::now() + Duration::from_secs(env_number("CLEARLANE_SECONDS").unwrap_or(8));
    let mut writers = tokio::task::JoinSet::new();
    for number in 0..8 {
        // Two syncs in a row take longer than the timeout of `Writers`, so these writers have a
        // longer one.
        let client = kv_with_timeout(cluster.members[number % 3].client).await;
        writers.spawn(put_until(client, format!("w{number:02}"), until));
    }
    while Instant::now() < until {
        short_pause().await;
        let status = cluster.members[leader].ready().await;
        assert_eq!(status.raft_term, term, "{}", cluster.members[leader].log());
    }
    cluster.disks.iter().for_each(Disk::release);
    let keys = writers.join_all().await.concat();
    println!("{} puts were acknowledged in term {term}", keys.len());
    assert!(!keys.is_empty());
    check_keys_present(cluster.members[leader].client, &keys, false).await;
}

/// No sync of these disks ever completes. Members with `--unsafe-no-fsync` must not wait for a
/// sync.
#[tokio::test]
async fn without_syncs_a_disk_that_completes_none_stalls_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut members = members(dir.path(), 3);
    let Some(disks) = preloaded_disks(dir.path(), &mut members) else { return };
    disks.iter().for_each(Disk::stall);
    for member in &mut members {
        member.flags.push("--unsafe-no-fsync".to_owned());
        member.start();
    }
    let leader = leader_of(&mut members).await;
    let until = Instant::now() + ELECTION;
    let client = kv_with_timeout(members[leader].client).await;
    let keys = put_until(client, "w".to_owned(), until).await;
    assert!(!keys.is_empty());
    // The processes are killed, but not the machine. So no data is lost: the operating system keeps
    // everything that the processes have written.
    members.iter_mut().for_each(Program::kill);
    members.iter_mut().for_each(Program::start);
    agree(&mut members).await;
    check_keys_present(members[leader].client, &keys, true).await;
    drop(disks);
}

/// Puts keys until a given time. Returns the acknowledged keys.
async fn put_until(mut client: KvClient<Channel>, prefix: String, until: Instant) -> Vec<String> {
    let mut keys = Vec::new();
    while Instant::now() < until {
        let key = format!("{prefix}/{:010}", keys.len());
        client.put(put(&key, value_of(&key))).await.unwrap();
        keys.push(key);
    }
    keys
}

#[tokio::test]
async fn if_all_disks_stall_leadership_stays() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut cluster) = Cluster::start(dir.path(), 3, preloaded_disks).await else { return };
    let leader = leader_of(&mut cluster.members).await;
    let term = cluster.members[leader].ready().await.raft_term;
    let writers = Writers::start(&cluster.ports(), 3, 0);
    writers.progress.wait_for_recovery().await;
    tokio::time::sleep(2 * ELECTION).await;
    cluster.disks.iter().for_each(Disk::stall);
    let timeouts = env_number("CLEARLANE_SECONDS").map_or(6, |seconds| seconds as u32);
    let until = Instant::now() + timeouts * ELECTION;
    let mut terms = std::collections::BTreeSet::new();
    while Instant::now() < until {
        terms.insert(cluster.members[leader].ready().await.raft_term);
        short_pause().await;
    }
    let allowed = timeouts.div_ceil(10) as usize;
    assert!(
        terms.len() <= 1 + allowed,
        "from {term}: {terms:?}: {}",
        cluster.members[leader].log()
    );
    println!("in {timeouts} election time-outs: terms {terms:?}, from {term}");
    cluster.disks.iter().for_each(Disk::release);
    writers.progress.wait_for_recovery().await;
    let keys = writers.end().await;
    check_keys_present(cluster.members[leader].client, &keys, false).await;
}

#[tokio::test]
async fn a_sole_voter_serves_reads_while_its_disk_is_stalled() {
    let dir = tempfile::tempdir().unwrap();
    let Some(cluster) = Cluster::start(dir.path(), 1, preloaded_disks).await else { return };
    let member = &cluster.members[0];
    let mut client = kv_with_timeout(member.client).await;
    client.put(put("before", "1")).await.unwrap();
    cluster.disks[0].stall();
    let mut writer = kv(member.client).await.unwrap();
    let begin = Instant::now();
    while !member.log().contains("keeps leading") {
        // While the disk is stalled, the put times out and is not acknowledged.
        writer.put(put("during", "2")).await.unwrap_err();
        assert!(begin.elapsed() < TIMEOUT, "{}", member.log());
        let found = client.range(get("before")).await.unwrap().into_inner();
        assert_eq!(found.kvs.len(), 1);
    }
    cluster.disks[0].release();
    client.put(put("after", "3")).await.unwrap();
    assert_eq!(client.range(get("after")).await.unwrap().into_inner().kvs.len(), 1);
}
