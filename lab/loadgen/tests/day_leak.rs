//! A day in which memory grows. Alone in its process, whose memory is that of the server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(target_os = "linux")]

use clearlane_loadgen::connection::endpoint;
use clearlane_loadgen::day::{self, DayOptions, REQUESTS_MIN};
use clearlane_loadgen::process::Process;
use clearlane_test_server::TestServer;

const HOURS: u64 = 2;
/// With each line that is printed. Much beside the other memory of this process, of which 5 % are
/// allowed.
const LEAKED_BYTES: usize = 48 << 20;

#[tokio::test]
async fn a_day_fails_if_memory_grows() {
    let server = TestServer::start().await.unwrap();
    let options = DayOptions {
        endpoint: endpoint(&server.endpoint()).unwrap(),
        process: Process::open(std::process::id()).unwrap(),
        data_dir: None,
        seed: 5,
        hours: HOURS,
        keys: 100,
        requests: REQUESTS_MIN,
        connections: 2,
        takes_snapshots: false,
        defragment_hour: None,
        bound_percent: 5.0,
    };
    let mut leaked = Vec::new();
    // Written to, so that it is resident.
    let report = day::run(options, &mut |_| leaked.push(vec![1_u8; LEAKED_BYTES])).await.unwrap();
    let told = report.check().unwrap_err().to_string();
    assert!(told.starts_with("the resident set has grown by "), "{told}");
    assert_eq!(leaked.len() as u64, HOURS + 1);
}
