//! A leader that is told to stop transfers its leadership first: writers wait for a short time.
//! What is on its way to it at that moment is lost, as in etcd, and times out; all others go on.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and reports"
)]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use clearlane_proto::etcdserverpb::{PutRequest, RangeRequest, StatusRequest};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tonic::transport::{Channel, Endpoint};

/// Nothing here takes nearly so long.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Longer than by default: on a busy machine the syncs of a hand-over alone take half a second,
/// and it may not run at all for another one.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(4);
const NAMES: [&str; 3] = ["a", "b", "c"];

struct Member {
    process: Child,
    lines: Receiver<String>,
}

impl Member {
    fn start(dir: &Path, name: &str, peer: &str, cluster: &str) -> Member {
        let mut program = Command::new(env!("CARGO_BIN_EXE_clearlane"));
        program.env_clear().stderr(Stdio::piped()).args([
            format!("--name={name}"),
            format!("--data-dir={}", dir.join(name).display()),
            "--listen-client-urls=http://127.0.0.1:0".to_owned(),
            "--advertise-client-urls=http://127.0.0.1:2379".to_owned(),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster={cluster}"),
            format!("--election-timeout={}", ELECTION_TIMEOUT.as_millis()),
        ]);
        let mut process = program.spawn().unwrap();
        let stderr = BufReader::new(process.stderr.take().unwrap());
        let (tell, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in stderr.lines() {
                // The test may have seen enough.
                let _ = tell.send(line.unwrap());
            }
        });
        Member { process, lines }
    }

    fn ready(&self) -> String {
        let end = Instant::now() + TIMEOUT;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).expect("a member that gets ready");
            if line.contains("serving client traffic") {
                let line: Value = serde_json::from_str(&line).unwrap();
                return format!("http://{}", line["address"].as_str().unwrap());
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // One that has ended cannot be killed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn cluster(dir: &Path) -> Vec<Member> {
    let ports = NAMES.map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let urls = ports.each_ref().map(|port| format!("http://{}", port.local_addr().unwrap()));
    let all: Vec<String> =
        NAMES.iter().zip(&urls).map(|(name, url)| format!("{name}={url}")).collect();
    drop(ports);
    let members = NAMES.iter().zip(&urls);
    members.map(|(name, url)| Member::start(dir, name, url, &all.join(","))).collect()
}

async fn connect(address: &str) -> Channel {
    Endpoint::from_shared(address.to_owned()).unwrap().connect().await.unwrap()
}

#[derive(Default)]
struct WriterState {
    stopped: AtomicBool,
    written: AtomicU64,
}

/// Returns how many writes were acknowledged, and the longest time between two.
/// time between two.
async fn write(address: String, key: String, seen: Arc<WriterState>) -> (u64, Duration) {
    let mut kv = KvClient::new(connect(&address).await);
    let (mut last, mut longest, mut written) = (Instant::now(), Duration::ZERO, 0_u64);
    while !seen.stopped.load(Ordering::Relaxed) {
        let (key, value) = (key.clone().into(), written.to_string().into());
        let put = PutRequest { key, value, ..PutRequest::default() };
        // One that is refused was not written, and is tried again; the gap counts on.
        let is_written = kv.put(put).await.is_ok();
        longest = longest.max(last.elapsed());
        if is_written {
            last = Instant::now();
            written += 1;
            seen.written.fetch_add(1, Ordering::Relaxed);
        }
    }
    (written, longest)
}

async fn leader(addresses: &[String]) -> usize {
    let begun = Instant::now();
    while begun.elapsed() < TIMEOUT {
        for (number, address) in addresses.iter().enumerate() {
            let mut maintenance = MaintenanceClient::new(connect(address).await);
            let status = maintenance.status(StatusRequest {}).await.unwrap().into_inner();
            if status.header.unwrap().member_id == status.leader {
                return number;
            }
        }
    }
    panic!("no member leads");
}

#[test]
fn writers_at_the_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut members = cluster(dir.path());
    let mut addresses: Vec<String> = members.iter().map(Member::ready).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let leads = leader(&addresses).await;
        let mut goes = members.remove(leads);
        addresses.remove(leads);
        let seen = Arc::new(WriterState::default());
        // Several at each: some of their writes are under way whenever it happens.
        let writers: Vec<_> = (0..8)
            .map(|number| {
                let address = addresses[number % 2].clone();
                tokio::spawn(write(address, format!("k{number}"), Arc::clone(&seen)))
            })
            .collect();
        let begun = Instant::now();
        while seen.written.load(Ordering::Relaxed) < 100 {
            assert!(begun.elapsed() < TIMEOUT, "no client writes");
            tokio::task::yield_now().await;
        }
        let begun = Instant::now();
        kill(Pid::from_raw(goes.process.id() as i32), Signal::SIGTERM).unwrap();
        let ended = tokio::task::spawn_blocking(move || goes.process.wait().unwrap());
        let status = ended.await.unwrap();
        assert_eq!(status.signal(), Some(Signal::SIGTERM as i32));
        assert!(begun.elapsed() < TIMEOUT);
        // A gap that is too long has to have the time to become so.
        tokio::time::sleep(ELECTION_TIMEOUT).await;
        seen.stopped.store(true, Ordering::Relaxed);
        let mut kv = KvClient::new(connect(&addresses[0]).await);
        let mut hardly = 0;
        for (number, writer) in writers.into_iter().enumerate() {
            let (written, longest) = writer.await.unwrap();
            // Twice an election time-out and five seconds is how long a lost one waits.
            let lost_at_most = 2 * ELECTION_TIMEOUT + Duration::from_secs(5);
            assert!(written > 0 && longest < lost_at_most, "{number}: {longest:?}");
            hardly += usize::from(longest < ELECTION_TIMEOUT);
            let get = RangeRequest { key: format!("k{number}").into(), ..Default::default() };
            let found = kv.range(get).await.unwrap().into_inner().kvs.remove(0);
            // Nothing was lost, and nothing came twice.
            assert_eq!(found.value, (written - 1).to_string());
            assert_eq!(found.version, written as i64, "{number}");
        }
        println!("{hardly} of 8 writers waited less than an election time-out");
    });
}
