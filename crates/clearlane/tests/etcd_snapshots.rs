//! Tests of snapshots between etcd and Clearlane, with etcd's own programs. Each of the two servers
//! restores a snapshot that `etcdctl snapshot save` has saved from the other server, and then
//! serves the keys, leases and users in it. For the same file, Clearlane's tools must print the
//! same status and hashes as etcdutl, and create a directory with the same contents.
//!
//! `tests/compat/former/run` builds the programs and runs these tests.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/program.rs"]
mod program;
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clearlane_net::free_ports;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::program::{RunningProgram, TIMEOUT, program};
use crate::support::{block_on, connect, put};

const POLL_INTERVAL: Duration = Duration::from_millis(20);
const USER: &str = "--user=root:secret";

fn printed(output: Output, hint: &[&str]) -> String {
    let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, complaint) = (words(&output.stdout), words(&output.stderr));
    assert!(output.status.success(), "{hint:?}: {stdout}{complaint}");
    stdout
}

/// Runs one of etcd's programs. The environment variable `name` contains its path.
fn tool(name: &str, arguments: &[&str]) -> String {
    let program = std::env::var_os(name).unwrap_or_else(|| panic!("{name} names the program"));
    printed(Command::new(program).args(arguments).output().unwrap(), arguments)
}

fn etcdutl(arguments: &[&str]) -> String {
    tool("CLEARLANE_ETCDUTL", arguments)
}

fn etcdctl(endpoint: &str, arguments: &[&str]) -> String {
    // The timeout is long: in a development build on a busy machine, a login takes seconds.
    let options = ["--command-timeout=60s", "--endpoints", endpoint];
    tool("CLEARLANE_ETCDCTL", &[&options[..], arguments].concat())
}

fn clearlane(arguments: &[&str]) -> String {
    printed(program(arguments).output().unwrap(), arguments)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns URLs whose ports were free when this function checked them.
fn free_urls<const N: usize>() -> [String; N] {
    let ports: [u16; N] = free_ports(N).unwrap().try_into().unwrap();
    ports.map(|port| format!("http://127.0.0.1:{port}"))
}

struct Etcd {
    process: Child,
    client_url: String,
}

impl Etcd {
    /// Starts etcd with this data directory. Returns once etcd serves clients.
    fn start(data: &Path, peer_url: &str) -> Etcd {
        let [client_url] = free_urls();
        let etcd = std::env::var_os("CLEARLANE_ETCD").expect("CLEARLANE_ETCD names etcd");
        let log = data.with_added_extension("log");
        let process = Command::new(etcd)
            .arg(format!("--data-dir={}", data.display()))
            .args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url])
            .args(["--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url])
            .args(["--initial-cluster", &format!("default={peer_url}")])
            .stdin(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn();
        let mut etcd = Etcd { process: process.unwrap(), client_url };
        let begin = Instant::now();
        while !fs::read_to_string(&log).unwrap().contains("ready to serve client requests") {
            let said = fs::read_to_string(&log).unwrap();
            let has_ended = etcd.process.try_wait().unwrap().is_some();
            assert!(!has_ended && begin.elapsed() < TIMEOUT, "{said}");
            thread::sleep(POLL_INTERVAL);
        }
        etcd
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // The process may have ended already, so the result is ignored.
        let _ = kill(Pid::from_raw(self.process.id() as i32), Signal::SIGTERM);
        let _ = self.process.wait();
    }
}

/// A running member of Clearlane. Its process is killed when this value is dropped.
struct Clearlane {
    _program: RunningProgram,
    client_url: String,
}

impl Clearlane {
    fn start(data: &Path, more: &[&str]) -> Clearlane {
        let mut started = Clearlane::begin(data, more);
        let client_url = format!("http://{}", started.ready());
        Clearlane { _program: started, client_url }
    }

    fn begin(data: &Path, more: &[&str]) -> RunningProgram {
        let mut command = program(&["--listen-client-urls=http://127.0.0.1:0"]);
        command.arg("--advertise-client-urls=http://127.0.0.1:2379").args(more);
        if !more.iter().any(|flag| flag.starts_with("--listen-peer-urls")) {
            command.arg("--listen-peer-urls=http://127.0.0.1:0");
        }
        command.arg(format!("--data-dir={}", data.display()));
        RunningProgram::start(&mut command)
    }
}

/// Puts keys with a history, a lease with a key, and a user with a role. At the end it enables
/// authentication.
fn fill(endpoint: &str) {
    let ctl = |arguments: &[&str]| etcdctl(endpoint, arguments);
    for number in 0..30 {
        ctl(&["put", &format!("key{:02}", number % 20), &format!("value{number}")]);
    }
    ctl(&["del", "key03"]);
    ctl(&["compact", "12"]);
    ctl(&["put", "large", &"v".repeat(100_000)]);
    let lease = ctl(&["lease", "grant", "5000"]);
    let id = lease.split_whitespace().nth(1).unwrap();
    ctl(&["put", "leased", "value", "--lease", id]);
    ctl(&["user", "add", "root:secret"]);
    ctl(&["role", "add", "reader"]);
    ctl(&["role", "grant-permission", "reader", "read", "key", "kez"]);
    ctl(&["user", "add", "guest:secret"]);
    ctl(&["user", "grant-role", "guest", "reader"]);
    ctl(&["user", "grant-role", "root", "root"]);
    ctl(&["auth", "enable"]);
}

/// Checks the data of [`fill`] on a server that may have more keys.
fn check(endpoint: &str) {
    let ctl = |arguments: &[&str]| etcdctl(endpoint, &[arguments, &[USER]].concat());
    let keys = ctl(&["get", "--prefix", "key", "--print-value-only"]);
    let keys: Vec<&str> = keys.lines().collect();
    assert_eq!((keys.len(), keys[0], keys[18]), (19, "value20", "value19"));
    assert_eq!(ctl(&["get", "large", "--print-value-only"]).trim().len(), 100_000);
    let leases = ctl(&["lease", "list"]);
    let id = leases.lines().last().unwrap();
    let lease = ctl(&["lease", "timetolive", id, "--keys"]);
    assert!(lease.contains("granted with TTL(5000s)") && lease.contains("[leased]"), "{lease}");
    assert_eq!(ctl(&["user", "list"]), "guest\nroot\n");
    assert!(ctl(&["user", "get", "guest"]).contains("Roles: reader"));
    let guest = "--user=guest:secret";
    assert_eq!(etcdctl(endpoint, &["get", "key01", guest]), "key01\nvalue21\n");
    // The restored server accepts more writes.
    ctl(&["put", "after", "the restore"]);
    assert_eq!(ctl(&["get", "after"]), "after\nthe restore\n");
}

fn hash_kv(endpoint: &str, revision: i64) -> (Value, Value) {
    let revision = format!("--rev={revision}");
    let output = etcdctl(endpoint, &["endpoint", "hashkv", &revision, USER, "-w", "json"]);
    let output: Value = serde_json::from_str(&output).unwrap();
    let hash = &output[0]["HashKV"];
    (hash["hash"].clone(), hash["compact_revision"].clone())
}

fn save(endpoint: &str, file: &Path) {
    etcdctl(endpoint, &["snapshot", "save", text(file), USER]);
}

/// Checks that both programs print the same status of a file. Returns the revision in the status.
fn compare_status(file: &Path) -> i64 {
    for format in ["simple", "json", "table", "fields"] {
        let arguments = ["snapshot", "status", text(file), "-w", format];
        assert_eq!(clearlane(&arguments), etcdutl(&arguments), "{format}");
    }
    let status = clearlane(&["snapshot", "status", text(file), "-w", "json"]);
    serde_json::from_str::<Value>(&status).unwrap()["revision"].as_i64().unwrap()
}

/// Puts keys until `work` returns.
fn while_it_is_written(endpoint: &str, work: impl FnOnce()) {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            block_on(async {
                let mut kv = KvClient::new(connect(endpoint.trim_start_matches("http://")).await);
                let mut puts = 0_u64;
                while !is_done.load(Ordering::Relaxed) {
                    kv.put(put(format!("written{}", puts % 500), vec![b'v'; 700])).await.unwrap();
                    puts += 1;
                }
                puts
            })
        });
        work();
        is_done.store(true, Ordering::Relaxed);
        assert!(writer.join().unwrap() > 0);
    });
}

#[test]
#[ignore = "needs etcd: run tests/compat/former/run"]
fn etcd_goes_on_with_what_clearlane_has_saved() {
    for engine in ["bolt", "sled", "memory"] {
        let dir = tempfile::tempdir().unwrap();
        let files: Vec<PathBuf> = (0..3).map(|n| dir.path().join(format!("saved{n}"))).collect();
        let flag = format!("--engine={engine}");
        let member = Clearlane::start(&dir.path().join("ours"), &[&flag]);
        let endpoint = &member.client_url;
        // `fill` enables authentication at its end, and the writer has no user. So the writer runs
        // before `fill`.
        while_it_is_written(endpoint, || {
            files[..2].iter().for_each(|file| {
                etcdctl(endpoint, &["snapshot", "save", text(file)]);
            });
        });
        fill(endpoint);
        save(endpoint, &files[2]);
        files.iter().for_each(|file| {
            compare_status(file);
        });
        for file in &files {
            let [peer_url] = free_urls();
            let data = file.with_added_extension("etcd");
            let cluster = format!("default={peer_url}");
            etcdutl(&[
                "snapshot",
                "restore",
                text(file),
                "--data-dir",
                text(&data),
                "--initial-cluster",
                &cluster,
                "--initial-advertise-peer-urls",
                &peer_url,
            ]);
            let etcd = Etcd::start(&data, &peer_url);
            if *file == files[2] {
                let revision = compare_status(file);
                assert_eq!(hash_kv(endpoint, revision), hash_kv(&etcd.client_url, revision));
                check(&etcd.client_url);
            }
        }
        drop(member);
        let left: Vec<_> = fs::read_dir(dir.path().join("ours/member/snap")).unwrap().collect();
        let is_temporary = |name: String| name.starts_with("tmp");
        let names = left.into_iter().map(|entry| entry.unwrap().file_name());
        assert!(!names.map(|name| name.into_string().unwrap()).any(is_temporary));
    }
}

#[test]
#[ignore = "needs etcd: run tests/compat/former/run"]
fn clearlane_goes_on_with_what_etcd_has_saved() {
    let dir = tempfile::tempdir().unwrap();
    let [peer_url] = free_urls();
    let data = dir.path().join("etcd");
    let etcd = Etcd::start(&data, &peer_url);
    fill(&etcd.client_url);
    // Between the two files there is one commit. So if the newer meta page is page 0 in one file,
    // it is page 1 in the other.
    let saved = ["saved0", "saved1"].map(|name| dir.path().join(name));
    let mut hash = None;
    for file in &saved {
        etcdctl(&etcd.client_url, &["put", "one", "more", USER]);
        save(&etcd.client_url, file);
        hash = Some(hash_kv(&etcd.client_url, compare_status(file)));
    }
    drop(etcd);
    let copied = dir.path().join("copied");
    fs::copy(data.join("member/snap/db"), &copied).unwrap();
    let revision = compare_status(&copied);
    for (file, engine, more) in [
        (&saved[0], "bolt", &[][..]),
        (&saved[1], "bolt", &[]),
        (&saved[1], "sled", &[]),
        (&copied, "bolt", &["--skip-hash-check"]),
        (&copied, "bolt", &["--skip-hash-check", "--bump-revision=1000", "--mark-compacted"]),
    ] {
        let ours = dir.path().join(format!("{engine}{}", more.len()));
        let ours = ours.with_added_extension(file.file_name().unwrap());
        let flags = ["--data-dir", text(&ours), "--engine", engine];
        let output = clearlane(&[&["snapshot", "restore", text(file)][..], &flags, more].concat());
        let is_bumped = more.len() > 1;
        let last = compare_status(file) + if is_bumped { 1_000 } else { 0 };
        assert_eq!(output, format!("restored {} at revision {last}\n", ours.display()));
        let member = Clearlane::start(&ours, &[&format!("--engine={engine}")]);
        if last == revision {
            assert_eq!(Some(hash_kv(&member.client_url, last)), hash);
        }
        check(&member.client_url);
        // A snapshot that the restored member saves is intact.
        let again = ours.with_added_extension("again");
        save(&member.client_url, &again);
        compare_status(&again);
    }
}

/// Runs `hashkv` of both programs on a file, at revisions that exist and at revisions that do not.
/// Compares the exit codes, and the outputs or the last lines of the errors.
fn compare_hashes(file: &Path) {
    let run = |mut program: Command, arguments: &[&str]| {
        let Output { status, stdout, stderr } = program.args(arguments).output().unwrap();
        let output = String::from_utf8(if status.success() { stdout } else { stderr }).unwrap();
        (status.code(), output)
    };
    let etcdutl = std::env::var_os("CLEARLANE_ETCDUTL").unwrap();
    let compact_revision = 12;
    let revision = compare_status(file);
    for rev in [-7, 0, 1].into_iter().chain(compact_revision - 1..=revision + 1) {
        let rev_flag = format!("--rev={rev}");
        for format in ["simple", "json", "table", "fields"] {
            let arguments = ["hashkv", text(file), &rev_flag, "-w", format];
            let ours = run(program(&[]), &arguments);
            let theirs = run(Command::new(&etcdutl), &arguments);
            if rev <= 0 || (compact_revision..=revision).contains(&rev) {
                assert_eq!((ours.0, &ours), (Some(0), &theirs));
                continue;
            }
            let (our_words, their_words) = match rev > revision {
                true => ("is a future revision; allowed are 12 to", "is a future revision\n"),
                false => ("has been compacted; allowed are 12 to", "has been compacted\n"),
            };
            assert_eq!((ours.0, theirs.0), (Some(1), Some(1)));
            assert!(ours.1.contains(our_words) && theirs.1.ends_with(their_words), "{theirs:?}");
        }
    }
}

#[test]
#[ignore = "needs etcd: run tests/compat/former/run"]
fn hashes_of_files_are_those_of_etcdutl() {
    let dir = tempfile::tempdir().unwrap();
    let [peer_url] = free_urls();
    let (of_etcd, ours) = (dir.path().join("etcd"), dir.path().join("ours"));
    {
        let etcd = Etcd::start(&of_etcd, &peer_url);
        fill(&etcd.client_url);
        save(&etcd.client_url, &dir.path().join("saved by etcd"));
        let member = Clearlane::start(&ours, &[]);
        fill(&member.client_url);
        save(&member.client_url, &dir.path().join("saved by us"));
    }
    for name in ["saved by etcd", "saved by us"] {
        compare_hashes(&dir.path().join(name));
    }
    for data in [of_etcd, ours] {
        compare_hashes(&data.join("member/snap/db"));
    }
}

#[test]
#[ignore = "needs etcd: run tests/compat/former/run"]
fn clearlane_goes_on_with_a_revision_that_etcdutl_has_bumped() {
    let dir = tempfile::tempdir().unwrap();
    let [peer_url] = free_urls();
    let saved = dir.path().join("saved");
    let first = dir.path().join("etcd");
    {
        let etcd = Etcd::start(&first, &peer_url);
        fill(&etcd.client_url);
        save(&etcd.client_url, &saved);
    }
    let mut saved = saved;
    // In the second round, the file already contains the record that raised the revision in the
    // first round.
    for round in 1..=2 {
        let bumped = compare_status(&saved) + 1_000;
        let data = dir.path().join(format!("bumped{round}"));
        let bump = ["--bump-revision=1000", "--mark-compacted", "--data-dir", text(&data)];
        etcdutl(&[&["snapshot", "restore", text(&saved)][..], &bump].concat());
        let file = data.join("member/snap/db");
        for rev in ["--rev=0", &format!("--rev={bumped}")] {
            let arguments = ["hashkv", text(&file), rev];
            let output = clearlane(&arguments);
            assert_eq!(output, etcdutl(&arguments));
            assert!(output.ends_with(&format!(", {bumped}, {bumped}\n")), "{output}");
        }
        let member = Clearlane::start(&data, &[]);
        check(&member.client_url);
        saved = data.with_added_extension("saved");
        save(&member.client_url, &saved);
    }
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_dir(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
}

/// Returns hash, revision, number of keys and version of a member's store. The sizes are omitted
/// because they differ: Clearlane adds checksums.
fn contents(data: &Path) -> [Value; 4] {
    let file = data.join("member/snap/db");
    let status = etcdutl(&["snapshot", "status", text(&file), "-w", "json"]);
    let status: Value = serde_json::from_str(&status).unwrap();
    ["hash", "revision", "totalKey", "version"].map(|field| status[field].clone())
}

#[test]
#[ignore = "needs etcd: run tests/compat/former/run"]
fn a_migration_is_that_of_etcdutl() {
    let dir = tempfile::tempdir().unwrap();
    let [peer_url] = free_urls();
    let (of_etcd, ours) = (dir.path().join("etcd"), dir.path().join("ours"));
    fill(&Etcd::start(&of_etcd, &peer_url).client_url);
    fill(&Clearlane::start(&ours, &[]).client_url);
    for made in [of_etcd, ours] {
        let copies = ["theirs", "ours"].map(|name| made.with_added_extension(name));
        copies.iter().for_each(|copy| copy_dir(&made, copy));
        let [by_them, by_us] = &copies;
        for (to, version) in
            [("3.7", "3.7.0"), ("3.6", "3.6.0"), ("3.5", ""), ("3.7", "3.7.0"), ("3.5", "")]
        {
            let flags = |data| ["migrate", "--data-dir", data, "--target-version", to];
            assert_eq!(etcdutl(&flags(text(by_them))), "");
            let output = clearlane(&flags(text(by_us)));
            assert_eq!(output.lines().count(), 1, "{output}");
            assert_eq!(contents(by_us), contents(by_them), "{to}");
            assert_eq!(contents(by_us)[3], version);
        }
        // Both programs reject version 3.8, and leave the directory unchanged.
        let etcdutl = std::env::var_os("CLEARLANE_ETCDUTL").unwrap();
        for (mut tool, data) in [(Command::new(etcdutl), by_them), (program(&[]), by_us)] {
            let before = contents(data);
            tool.args(["migrate", "--data-dir", text(data), "--target-version=3.8"]);
            assert!(!tool.output().unwrap().status.success());
            assert_eq!(contents(data), before);
        }
    }
}

#[test]
#[ignore = "needs etcd: run tests/compat/former/run"]
fn both_serve_a_bumped_revision_of_either() {
    let dir = tempfile::tempdir().unwrap();
    let [peer_url] = free_urls();
    let data = dir.path().join("etcd");
    let etcd = Etcd::start(&data, &peer_url);
    fill(&etcd.client_url);
    let file = dir.path().join("saved");
    save(&etcd.client_url, &file);
    drop(etcd);
    let last = compare_status(&file) + 1_000;
    let cluster = format!("default={peer_url}");
    // Without `--mark-compacted`, etcdutl does not raise the revision. So in the second round only
    // Clearlane restores the file.
    for (marks, restorers) in [("--mark-compacted=true", 0..2), ("--mark-compacted=false", 1..2)] {
        let mut hashes = Vec::new();
        for (restores, serves) in restorers.flat_map(|restores| [(restores, 0), (restores, 1)]) {
            let data = dir.path().join(format!("{restores}{serves}{marks}"));
            let flags = ["--data-dir", text(&data), "--initial-cluster", &cluster];
            let peer = ["--initial-advertise-peer-urls", &peer_url, "--bump-revision=1000", marks];
            let restore = [&["snapshot", "restore", text(&file)][..], &flags, &peer].concat();
            [etcdutl, clearlane][restores](&restore);
            let (etcd, ours);
            let endpoint = if serves == 0 {
                etcd = Etcd::start(&data, &peer_url);
                &etcd.client_url
            } else {
                ours = Clearlane::start(&data, &[]);
                &ours.client_url
            };
            hashes.push(hash_kv(endpoint, last));
            if restores != serves {
                check(endpoint);
            }
        }
        assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{marks}: {hashes:?}");
    }
}

#[test]
#[ignore = "needs etcd: run tests/compat/former/run"]
fn three_members_begin_with_one_file_of_etcd() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("saved");
    {
        let [peer_url] = free_urls();
        let etcd = Etcd::start(&dir.path().join("etcd"), &peer_url);
        fill(&etcd.client_url);
        save(&etcd.client_url, &file);
    }
    let urls = free_urls::<3>();
    let cluster: Vec<String> = (0..3).map(|n| format!("m{n}={}", urls[n])).collect();
    let cluster = format!("--initial-cluster={}", cluster.join(","));
    let members: Vec<RunningProgram> = (0..3)
        .map(|n| {
            let data = dir.path().join(format!("member{n}"));
            let (name, peers) = (format!("--name=m{n}"), &urls[n]);
            let own = format!("--initial-advertise-peer-urls={peers}");
            let flags = [&name, &cluster, &own, "--data-dir", text(&data)];
            clearlane(&[&["snapshot", "restore", text(&file)][..], &flags].concat());
            let listen = format!("--listen-peer-urls={peers}");
            Clearlane::begin(&data, &[&name, &cluster, &own, &listen])
        })
        .collect();
    let mut endpoints = Vec::new();
    let mut members = members;
    for member in &mut members {
        endpoints.push(format!("http://{}", member.ready()));
    }
    check(&endpoints[0]);
    for endpoint in &endpoints {
        let all = etcdctl(endpoint, &["member", "list", USER]);
        assert_eq!(all.lines().count(), 3, "{all}");
        assert_eq!(etcdctl(endpoint, &["get", "after", USER]), "after\nthe restore\n");
    }
    let revision = compare_status(&file) + 1;
    let hashes: Vec<_> = endpoints.iter().map(|endpoint| hash_kv(endpoint, revision)).collect();
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
}
