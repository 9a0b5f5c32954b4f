//! Tests of `--enable-pprof`: profiles name functions and threads, and only one recording runs at a
//! time.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::thread;

use clearlane_proto::etcdserverpb::kv_client::KvClient;
use flate2::read::GzDecoder;
use tokio::sync::oneshot::Receiver;
use tokio::sync::oneshot::error::TryRecvError;

use crate::program::{RunningProgram, member};
use crate::support::{block_on, connect, http_get, http_get_bytes, put};

fn start(data_dir: &Path, more: &[&str]) -> RunningProgram {
    RunningProgram::start(&mut member(data_dir, more))
}

/// Returns the decompressed profile as text. Only its strings can be read.
fn profile(address: &str, page: &str) -> String {
    let answer = http_get_bytes(address, &format!("/debug/pprof/{page}"));
    let head = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
    let is_ok = answer.starts_with(b"HTTP/1.1 200");
    assert!(is_ok, "{page}: {}", String::from_utf8_lossy(&answer));
    let mut profile = Vec::new();
    GzDecoder::new(&answer[head..]).read_to_end(&mut profile).unwrap();
    String::from_utf8_lossy(&profile).into_owned()
}

/// Puts values as a client until the sender of `ends` is dropped.
async fn put_until(address: &str, mut ends: Receiver<()>) {
    let mut client = KvClient::new(connect(address).await);
    let value = "v".repeat(10_000);
    while matches!(ends.try_recv(), Err(TryRecvError::Empty)) {
        client.put(put("a", &value)).await.unwrap();
    }
}

#[test]
fn profiles_name_functions_and_threads() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = start(dir.path(), &["--enable-pprof"]);
    running.line("pprof is enabled");
    let address = running.ready();
    let (end, ends) = tokio::sync::oneshot::channel();
    let load = thread::spawn({
        let address = address.clone();
        move || block_on(put_until(&address, ends))
    });
    let cpu = profile(&address, "profile?seconds=2");
    let heap = profile(&address, "heap");
    let all = profile(&address, "allocs");
    drop(end);
    load.join().unwrap();
    for wanted in ["nanoseconds", "samples", "thread", "raft", "clearlane_server::"] {
        assert!(cpu.contains(wanted), "{wanted} is not in the profile of processor time");
    }
    for wanted in ["inuse_space", "alloc_objects", "clearlane_server::"] {
        assert!(heap.contains(wanted), "{wanted} is not in the profile of memory");
        assert!(all.contains(wanted), "{wanted} is not in the profile of allocations");
    }
    for (page, status) in [
        ("/debug/pprof/", "200"),
        ("/debug/pprof/goroutine", "404"),
        ("/debug/pprof/profile?seconds=0", "400"),
        ("/debug/pprof/profile?seconds=soon", "400"),
        ("/debug/pprof/heap?debug=1", "400"),
    ] {
        let answer = http_get(&address, page);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{page}: {answer}");
    }
}

/// A second recording is rejected. A recording ends when its client closes the connection.
#[test]
fn one_recording_of_processor_time_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = start(dir.path(), &["--enable-pprof"]);
    let address = running.ready();
    let mut first = TcpStream::connect(&address).unwrap();
    first.write_all(b"GET /debug/pprof/profile?seconds=3600 HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let page = "/debug/pprof/profile?seconds=1";
    let is_refused = || {
        let answer = http_get_bytes(&address, page);
        let answer = String::from_utf8_lossy(&answer);
        let is_ok = answer.starts_with("HTTP/1.1 200");
        assert!(is_ok || answer.contains("cpu profiling already in use"), "{answer}");
        !is_ok
    };
    while !is_refused() {}
    drop(first);
    while is_refused() {}
}
