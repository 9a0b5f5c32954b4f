//! Tests that a leader transfers its leadership before it stops, so that writers wait only a short
//! time. As in etcd, requests in flight to the old leader are lost and time out. All other requests
//! succeed.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and reports"
)]

#[path = "support/program.rs"]
mod program;
mod support;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clearlane_net::free_ports;
use clearlane_proto::etcdserverpb::StatusRequest;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use nix::sys::signal::Signal;

use crate::program::{RunningProgram, TIMEOUT, member};
use crate::support::{connect, get, put};

/// The election timeout of the members. It is longer than the default, because on a busy machine
/// the syncs of a transfer take half a second, and the process may be paused for another half
/// second.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(4);
const NAMES: [&str; 3] = ["a", "b", "c"];

fn start(dir: &Path, name: &str, peer: &str, cluster: &str) -> RunningProgram {
    let flags = [
        format!("--name={name}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster={cluster}"),
        format!("--election-timeout={}", ELECTION_TIMEOUT.as_millis()),
    ];
    RunningProgram::start(member(&dir.join(name), &[]).args(flags))
}

fn cluster(dir: &Path) -> Vec<RunningProgram> {
    let ports = free_ports(NAMES.len()).unwrap();
    let urls: Vec<_> = ports.iter().map(|port| format!("http://127.0.0.1:{port}")).collect();
    let all: Vec<String> =
        NAMES.iter().zip(&urls).map(|(name, url)| format!("{name}={url}")).collect();
    let members = NAMES.iter().zip(&urls);
    members.map(|(name, url)| start(dir, name, url, &all.join(","))).collect()
}

#[derive(Default)]
struct WriterState {
    stopped: AtomicBool,
    written: AtomicU64,
}

/// Returns the number of acknowledged writes, and the longest time without an acknowledged write.
async fn write(address: String, key: String, seen: Arc<WriterState>) -> (u64, Duration) {
    let mut kv = KvClient::new(connect(&address).await);
    let (mut last, mut longest, mut written) = (Instant::now(), Duration::ZERO, 0_u64);
    while !seen.stopped.load(Ordering::Relaxed) {
        let put = put(&key, written.to_string());
        // A failed write was not applied and is tried again. It does not restart the measured time
        // since the last success.
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
    let mut addresses: Vec<String> = members.iter_mut().map(RunningProgram::ready).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let leads = leader(&addresses).await;
        let leaving = members.remove(leads);
        addresses.remove(leads);
        let seen = Arc::new(WriterState::default());
        // Several writers use each member, so that some writes are always in flight.
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
        leaving.signal(Signal::SIGTERM);
        let (status, _) = tokio::task::spawn_blocking(move || leaving.end()).await.unwrap();
        assert_eq!(status.signal(), Some(Signal::SIGTERM as i32));
        assert!(begun.elapsed() < TIMEOUT);
        // The writers continue during this sleep, so a gap of more than an election timeout is
        // measured.
        tokio::time::sleep(ELECTION_TIMEOUT).await;
        seen.stopped.store(true, Ordering::Relaxed);
        let mut kv = KvClient::new(connect(&addresses[0]).await);
        let mut hardly = 0;
        for (number, writer) in writers.into_iter().enumerate() {
            let (written, longest) = writer.await.unwrap();
            // A lost request times out after five seconds and two election timeouts.
            let lost_at_most = 2 * ELECTION_TIMEOUT + Duration::from_secs(5);
            assert!(written > 0 && longest < lost_at_most, "{number}: {longest:?}");
            hardly += usize::from(longest < ELECTION_TIMEOUT);
            let found =
                kv.range(get(format!("k{number}"))).await.unwrap().into_inner().kvs.remove(0);
            // No write was lost, and none was applied twice.
            assert_eq!(found.value, (written - 1).to_string());
            assert_eq!(found.version, written as i64, "{number}");
        }
        println!("{hardly} of 8 writers waited less than an election time-out");
    });
}
