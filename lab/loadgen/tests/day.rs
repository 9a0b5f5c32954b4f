//! Runs a day of two hours with few requests against a server in this process, and checks the
//! program's output.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(target_os = "linux")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use clearlane_loadgen::connection::{endpoint, open};
use clearlane_loadgen::day::{self, DayOptions, DayReport, DayTarget, REQUESTS_MIN};
use clearlane_loadgen::process::Process;
use clearlane_loadgen::{Error, Result};
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::{DeleteRangeRequest, RangeRequest};
use clearlane_test_server::TestServer;
use serde_json::Value;
use tokio::sync::oneshot;

const HOURS: u64 = 2;
const KEYS: u64 = 700;
const KEPT_LEASES: u64 = 50;
/// Number of keys that each period of [`REQUESTS_MIN`] requests creates.
const CREATED: u64 = 12;
/// The server shares this process with the driver and other tests, so its memory has no bound here.
/// The test in `day_leak.rs` checks the growth of memory.
const NO_BOUND: u64 = 10_000;

fn target(server: &TestServer) -> DayTarget {
    let process = Process::open(std::process::id()).unwrap();
    DayTarget { endpoint: endpoint(&server.endpoint()).unwrap(), process, seed: 5 }
}

fn options() -> DayOptions {
    DayOptions {
        data_dir: None,
        hours: HOURS,
        keys: KEYS,
        requests: REQUESTS_MIN,
        connections: 2,
        snapshots: true,
        defragment: Some(1),
        bound: NO_BOUND,
    }
}

async fn day(target: DayTarget) -> Result<(DayReport, Vec<String>)> {
    let mut lines = Vec::new();
    let report = day::run(target, options(), &mut |line| lines.push(line.to_owned())).await?;
    Ok((report, lines))
}

#[tokio::test]
async fn a_short_day_leaves_nothing() {
    let server = TestServer::start().await.unwrap();
    let (report, lines) = day(target(&server)).await.unwrap();
    assert_eq!(report.check(), Ok(()), "{lines:#?}");
    assert_eq!((report.samples.len() as u64, lines.len() as u64), (HOURS, HOURS + 1));
    for sample in &report.samples {
        let live = sample.live;
        // The expiring leases have been removed by now, and so have their keys.
        assert_eq!((live.keys, live.leases), (KEYS + CREATED, KEPT_LEASES), "{live}");
        // Each of the last three periods has two watches that nobody reads. Their watchers may be
        // canceled, but their streams stay open.
        assert!(live.watch_streams >= 6, "{live}");
        assert!(sample.resident_bytes > 0 && sample.db_bytes >= sample.db_in_use_bytes);
        assert!(sample.requests >= sample.hour * 12 * REQUESTS_MIN, "{}", sample.requests);
    }
    // All revisions older than a period have been compacted.
    let channel = open(&endpoint(&server.endpoint()).unwrap().into(), 1).await.unwrap().remove(0);
    let old = RangeRequest { key: "a".into(), revision: 2, ..RangeRequest::default() };
    let told = KvClient::new(channel).range(old).await.unwrap_err();
    assert!(told.message().contains("required revision has been compacted"), "{told}");
}

#[tokio::test]
async fn a_second_day_finds_the_keys_of_the_first() {
    let server = TestServer::start().await.unwrap();
    for seed in [1, 2] {
        let (report, _) = day(DayTarget { seed, ..target(&server) }).await.unwrap();
        assert_eq!(report.check(), Ok(()));
    }
}

#[tokio::test]
async fn a_server_that_is_gone_is_told() {
    let mut server = TestServer::start().await.unwrap();
    let target = target(&server);
    server.stop().await.unwrap();
    let told = day(target).await.map(drop).unwrap_err();
    assert!(matches!(&told, Error::Server(why) if why.starts_with("cannot connect to ")), "{told}");
}

/// Deletes the updated keys after the first hour, so that a period of the second hour fails. Checks
/// that the report has the first hour and the reason.
#[tokio::test]
async fn a_day_that_fails_keeps_the_hours_before() {
    let server = TestServer::start().await.unwrap();
    let target = target(&server);
    let channel = open(&target.endpoint.clone().into(), 1).await.unwrap().remove(0);
    let (hour_is_over, is_over) = oneshot::channel();
    let mut hour_is_over = Some(hour_is_over);
    let tell = &mut |line: &str| {
        if line.trim_start().starts_with("1 ") {
            hour_is_over.take().unwrap().send(()).unwrap();
        }
    };
    let deletion = async {
        is_over.await.unwrap();
        let (key, range_end) = ("/day/nodes/".into(), "/day/nodes0".into());
        let all = DeleteRangeRequest { key, range_end, prev_kv: false };
        KvClient::new(channel).delete_range(all).await.unwrap();
    };
    let (report, ()) = tokio::join!(day::run(target, options(), tell), deletion);
    let report = report.unwrap();
    assert_eq!(report.samples.len(), 1);
    let told = report.check().unwrap_err().to_string();
    assert!(told.starts_with("the day ended early, after 1 of 2 hours: a "), "{told}");
    assert_eq!(DayReport::from_json(&report.json()), Ok(report));
}

fn program(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_clearlane-load")).args(arguments).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Writes a file in the format of `day --json`, for a server that grows by `mb_per_hour` MB each
/// hour.
fn write_day(path: &Path, mb_per_hour: u64) {
    let sample = |hour: u64| {
        serde_json::json!({
            "hour": hour, "requests": hour, "elapsed_ms": hour, "open_files": 9,
            "resident_bytes": (100 + mb_per_hour * hour) * 1_000_000,
            "db_bytes": 1, "db_in_use_bytes": 1, "disk_bytes": Value::Null,
            "keys": 0, "leases": 0, "watchers": 0, "watch_streams": 0,
        })
    };
    let samples: Vec<Value> = (1..=24).map(sample).collect();
    let day = serde_json::json!({
        "hours": 24, "keys": 1, "requests": 100, "seed": 1, "bound_percent": 5.0,
        "left_over": Value::Null, "samples": samples,
    });
    fs::write(path, day.to_string()).unwrap();
}

#[test]
fn curves_tell_which_server_has_grown() {
    let dir = tempfile::tempdir().unwrap();
    let (steady, grows) = (dir.path().join("steady.json"), dir.path().join("grows.json"));
    write_day(&steady, 0);
    write_day(&grows, 1);
    let svg = dir.path().join("day.svg");
    let [steady, grows, svg] = [&steady, &grows, &svg].map(|path| path.to_str().unwrap());
    let both = program(&["curves", steady, grows, "--svg", svg]);
    let table = String::from_utf8(both.stdout.clone()).unwrap();
    assert!(both.status.success(), "{}", stderr(&both));
    assert!(table.contains("\nsteady: the resident set stays within 5 %"), "{table}");
    assert!(
        table.contains("\ngrows: the resident set has grown by 14.6 %; at most 5 % is"),
        "{table}"
    );
    let curves = r#"<polyline class="curve""#;
    assert_eq!(fs::read_to_string(svg).unwrap().matches(curves).count(), 2);

    let nowhere = dir.path().join("gone/day.svg");
    let told = program(&["curves", steady, "--svg", nowhere.to_str().unwrap()]);
    assert_eq!(told.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&told.stdout).contains("steady: the resident set"), "{told:?}");

    fs::write(grows, "{").unwrap();
    let told = program(&["curves", grows]);
    assert_eq!(told.status.code(), Some(1));
    assert!(stderr(&told).starts_with(&format!("clearlane-load: {grows}: EOF")), "{told:?}");
}

#[test]
fn what_cannot_be_meant_is_told() {
    let pid = std::process::id().to_string();
    let late = program(&["day", "--pid", &pid, "--hours", "3", "--defragment", "4"]);
    assert_eq!(late.status.code(), Some(1));
    let told = "clearlane-load: --defragment 4: must be at most 3, the value of --hours\n";
    assert_eq!(stderr(&late), told);
    let gone = program(&["day", "--pid", "4294967295"]);
    assert!(stderr(&gone).contains("--pid 4294967295: no such process"), "{gone:?}");
    assert_eq!(program(&["day"]).status.code(), Some(2));
}
