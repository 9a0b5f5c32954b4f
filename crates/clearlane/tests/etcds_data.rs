//! Data of etcd's: it is recognised, and stays as it is.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/program.rs"]
mod program;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sha2::{Digest as _, Sha256};

use crate::program::{RunningProgram, TIMEOUT, failure, member, program};

const POLL_INTERVAL: Duration = Duration::from_millis(20);
const SEGMENT: &str = "member/wal/0000000000000000-0000000000000000.wal";

/// A page as bbolt has it at the beginning of its file: of which number, with this at its
/// beginning.
fn meta_page(number: u64, magic: u32) -> Vec<u8> {
    let mut page = number.to_ne_bytes().to_vec();
    // The kind of page, how many elements it has, and how many pages more.
    page.extend(4_u16.to_ne_bytes());
    page.extend([0; 6]);
    page.extend(magic.to_ne_bytes());
    page.extend(2_u32.to_ne_bytes());
    page.resize(4096, 0);
    page
}

const MAGIC: u32 = 0xED0C_DAED;

fn database() -> Vec<u8> {
    [meta_page(0, MAGIC), meta_page(1, MAGIC)].concat()
}

fn write(data: &Path, name: &str, bytes: &[u8]) {
    let path = data.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// Names, lengths and times.
fn all_of(dir: &Path) -> Vec<(PathBuf, u64, SystemTime)> {
    let facts = fs::metadata(dir).unwrap();
    let mut all = vec![(dir.to_owned(), facts.len(), facts.modified().unwrap())];
    for entry in fs::read_dir(dir).unwrap() {
        let (path, facts) = entry.map(|entry| (entry.path(), entry.metadata().unwrap())).unwrap();
        match facts.is_dir() {
            true => all.extend(all_of(&path)),
            false => all.push((path, facts.len(), facts.modified().unwrap())),
        }
    }
    all.sort();
    all
}

fn member_with_tls(data: &Path) -> Command {
    let urls = ["--listen-client-urls=https://127.0.0.1:0", "--advertise-client-urls=https://a:1"];
    let mut program = member(data, &urls);
    program.arg("--auto-tls");
    program
}

fn refused(data: &Path) -> String {
    let before = all_of(data);
    let told = failure(&mut member_with_tls(data));
    assert_eq!(all_of(data), before, "{told}");
    told
}

#[test]
fn a_directory_of_etcd_is_left_alone() {
    type Files<'a> = &'a [(&'a str, &'a [u8])];
    let log: (&str, &[u8]) = (SEGMENT, b"records");
    let (good, second) = (database(), [vec![0; 4096], meta_page(1, MAGIC)].concat());
    let far = [vec![0; 64 << 10], meta_page(1, MAGIC)].concat();
    let snapshot = "member/snap/0000000000000002-000000000000000a.snap";
    let cases: [(Files<'_>, &str); 9] = [
        (&[log, ("member/snap/db", &good)], "member/snap/db is a bbolt database"),
        (&[("member/snap/db", &good)], "member/snap/db is a bbolt database"),
        (&[log, ("member/snap/db", &second)], "member/snap/db is a bbolt database"),
        (&[log, ("member/snap/db", &far)], "member/snap/db is a bbolt database"),
        (&[log, ("member/snap/db", b"")], "member/snap/db, which is empty, cut off or damaged"),
        (
            &[log, ("member/snap/db", &good[..18])],
            "member/snap/db, which is empty, cut off or damaged",
        ),
        (&[log], "a log in member/wal, and neither a database nor member/format"),
        (&[log, (snapshot, b"snapshot")], ".snap, and no database"),
        // An earlier version had begun to write there.
        (
            &[
                log,
                ("member/snap/db", &good),
                ("member/format", b"1\n"),
                ("member/snap/current", b""),
            ],
            "beside files of Clearlane (member/format)",
        ),
    ];
    for (files, words) in cases {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            write(dir.path(), name, bytes);
        }
        let told = refused(dir.path());
        assert!(told.contains("this is data of etcd (") && told.contains(words), "{told}");
        assert!(told.contains("make-mirror"), "{told}");
    }
}

/// Also if a file of etcd's name is beside it, and if the file with the format is lost.
#[test]
fn a_directory_of_ours_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let data = dir.path().join("data");
        let mut running = RunningProgram::start(&mut member_with_tls(&data));
        running.line("now serving peer/client/metrics");
        drop(running);
        write(&data, "member/snap/db", b"");
        fs::remove_file(data.join("member/format")).unwrap();
    }
}

#[test]
fn tools_recognise_etcds_files() {
    let dir = tempfile::tempdir().unwrap();
    let tool = |arguments: &[&str]| {
        let before = all_of(dir.path());
        let told = failure(program(arguments).current_dir(dir.path()));
        assert_eq!(all_of(dir.path()), before, "{told}");
        told
    };
    write(dir.path(), "data/member/snap/db", &database());
    let told = tool(&["defrag", "--data-dir=data"]);
    assert!(told.contains("data: this is data of etcd ("), "{told}");
    // As `etcdctl snapshot save` writes it, with a sum; and copied from the disk.
    let sum = Sha256::digest(database()).to_vec();
    write(dir.path(), "saved", &[database(), sum].concat());
    for file in ["saved", "data/member/snap/db"] {
        let commands: [&[&str]; 3] = [
            &["snapshot", "status", file],
            &["snapshot", "restore", file, "--data-dir=new"],
            &["snapshot", "restore", file, "--data-dir=new", "--skip-hash-check"],
        ];
        for command in commands {
            let told = tool(command);
            // It is etcd's, and damaged.
            let words = format!("{file}: damaged: no meta page is valid");
            assert!(told.contains(&words), "{told}");
        }
    }
}

struct Etcd(Child);

impl Drop for Etcd {
    fn drop(&mut self) {
        // One that has ended cannot be told.
        let _ = kill(Pid::from_raw(self.0.id() as i32), Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

/// Returns when etcd has elected itself, and so has written its data.
fn etcd(data: &Path) {
    let ports = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let ports = ports.map(|port| format!("http://{}", port.local_addr().unwrap()));
    let etcd = std::env::var_os("CLEARLANE_ETCD").expect("CLEARLANE_ETCD must name etcd");
    let log = data.with_extension("log");
    let process = Command::new(etcd)
        .arg(format!("--data-dir={}", data.display()))
        .args(["--listen-client-urls", &ports[0], "--advertise-client-urls", &ports[0]])
        .args(["--listen-peer-urls", &ports[1], "--initial-advertise-peer-urls", &ports[1]])
        .args(["--initial-cluster", &format!("default={}", ports[1])])
        .stdin(Stdio::null())
        .stderr(fs::File::create(&log).unwrap())
        .spawn();
    let mut etcd = Etcd(process.unwrap());
    let begin = Instant::now();
    while !fs::read_to_string(&log).unwrap().contains("ready to serve client requests") {
        let said = fs::read_to_string(&log).unwrap();
        assert!(etcd.0.try_wait().unwrap().is_none() && begin.elapsed() < TIMEOUT, "{said}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[test]
#[ignore = "needs etcd: run .ci/etcd-dump-logs"]
fn what_etcd_has_written_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    etcd(&data);
    let told = refused(&data);
    assert!(told.contains("member/snap/db is a bbolt database"), "{told}");
    fs::remove_file(data.join("member/snap/db")).unwrap();
    let told = refused(&data);
    assert!(told.contains("a log in member/wal, and neither a database"), "{told}");
}
