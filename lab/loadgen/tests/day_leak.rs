//! A day in which memory grows. The test runs alone in its process, because it measures the memory
//! of the whole process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(target_os = "linux")]

use clearlane_loadgen::connection::endpoint;
use clearlane_loadgen::day::{self, DayOptions, DayTarget, REQUESTS_MIN};
use clearlane_loadgen::process::Process;
use clearlane_test_server::TestServer;

const HOURS: u64 = 2;
/// Memory that leaks with each printed line. It is large compared with the other memory of this
/// process, so the growth is more than the allowed 5 %.
const LEAKED_BYTES: usize = 48 << 20;

#[tokio::test]
async fn a_day_fails_if_memory_grows() {
    let server = TestServer::start().await.unwrap();
    let process = Process::open(std::process::id()).unwrap();
    let target = DayTarget { endpoint: endpoint(&server.endpoint()).unwrap(), process, seed: 5 };
    let options = DayOptions {
        data_dir: None,
        hours: HOURS,
        keys: 100,
        requests: REQUESTS_MIN,
        connections: 2,
        snapshots: false,
        defragment: None,
        bound: 5,
    };
    let mut leaked = Vec::new();
    // The memory is written, so that it becomes resident.
    let tell = &mut |_: &str| leaked.push(vec![1_u8; LEAKED_BYTES]);
    let report = day::run(target, options, tell).await.unwrap();
    let told = report.check().unwrap_err().to_string();
    assert!(told.starts_with("the resident set has grown by "), "{told}");
    assert_eq!(leaked.len() as u64, HOURS + 1);
}
