//! Runs each row of the stall table with few keys, against a server in this process and against the
//! stub.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use clearlane_loadgen::connection::{endpoint, open};
use clearlane_loadgen::fill::fill;
use clearlane_loadgen::named::Named;
use clearlane_loadgen::process::Process;
use clearlane_loadgen::report::Report;
use clearlane_loadgen::run::{RunOptions, run};
use clearlane_loadgen::stall::{
    KEY_SIZE, Row, Stall, StallOptions, StallReport, StallTarget, VALUE_SIZE,
};
use clearlane_loadgen::stub::{self, StubSizes};
use clearlane_loadgen::target::OpenTarget;
use clearlane_loadgen::users::{self, User};
use clearlane_loadgen::workload::{Workload, key_space};
use clearlane_loadgen::{Error, Result};
use clearlane_proto::etcdserverpb::RangeRequest;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_test_server::TestServer;
use tonic::transport::Endpoint;

const KEYS: u64 = 2000;
const CLIENTS: u64 = 5;
/// How long a row sends requests. A request that takes longer is answered after the window.
const WINDOW: Duration = Duration::from_millis(200);

fn start_stub() -> Endpoint {
    let sizes = StubSizes { key: KEY_SIZE as usize, value: VALUE_SIZE as usize, snapshot: 100_000 };
    let address = stub::start("127.0.0.1:0".parse().unwrap(), sizes).unwrap();
    endpoint(&address.to_string()).unwrap()
}

async fn fill_all(endpoint: &Endpoint) {
    let rows = key_space(KEYS, KEY_SIZE, VALUE_SIZE).unwrap();
    for space in [rows, probes().space] {
        fill(&space, &endpoint.clone().into(), None, 2, 1, &mut |_| {}).await.unwrap();
    }
}

fn probes() -> Workload {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads/probes.toml");
    Workload::parse(&fs::read_to_string(path).unwrap()).unwrap()
}

async fn prepare(row: Row, endpoint: &Endpoint) -> Result<Stall> {
    let process = Some(Process::open(std::process::id()).unwrap());
    let target = StallTarget { endpoint: endpoint.clone().into(), seed: 1, process };
    let options = StallOptions { keys: KEYS, head_start: 0, clients: CLIENTS };
    Stall::prepare(row, target, options).await
}

/// Runs a row. Fails if there are errors or too few responses.
async fn run_row(row: Row, endpoint: &Endpoint) -> StallReport {
    let report = prepare(row, endpoint).await.unwrap().run(WINDOW).await.unwrap();
    let (line, answered) = (report.line(), report.metrics.answered());
    assert_eq!(report.metrics.failed(), 0, "{line}");
    assert!(!line.contains('\n'), "{line}");
    match row {
        Row::Calm => assert_eq!(answered, 0, "{line}"),
        Row::Delete | Row::Revoke => assert_eq!(answered, 1, "{line}"),
        Row::Connections => assert_eq!(answered, KEYS / 100, "{line}"),
        Row::Streams => assert_eq!(answered, KEYS / 20, "{line}"),
        Row::HalfOpen => assert_eq!(answered, KEYS / 10, "{line}"),
        Row::RangeOld | Row::LargeWriters => assert!(answered >= 4, "{line}"),
        Row::Watch20 => assert!(answered >= 20, "{line}"),
        // Without optimisation, bcrypt may take longer than the window. Then there is no response.
        Row::Authenticate => {}
        Row::SortCrowd => assert!(answered >= 8, "{line}"),
        _ => assert!(answered >= 1, "{line}"),
    }
    report
}

async fn run_probes(endpoint: &Endpoint, user: Option<User>) -> Result<Report> {
    let mut workload = probes();
    workload.seconds = 1;
    let target = OpenTarget::open(endpoint.clone().into(), user).await?;
    run(&workload, &RunOptions::new(target, 7), &mut |_| {}).await
}

/// Returns the number of keys with this prefix.
async fn count(endpoint: &Endpoint, prefix: &str) -> i64 {
    let mut end = prefix.as_bytes().to_vec();
    *end.last_mut().unwrap() += 1;
    let key = prefix.as_bytes().to_vec().into();
    let range =
        RangeRequest { key, range_end: end.into(), count_only: true, ..RangeRequest::default() };
    let channel = open(&endpoint.clone().into(), 1).await.unwrap().remove(0);
    KvClient::new(channel).range(range).await.unwrap().into_inner().count
}

/// Returns all rows in an order in which each row can run. The row that deletes keys follows the
/// rows that need them. The row that enables authentication is the last one.
fn rows() -> Vec<Row> {
    let last = [Row::Delete, Row::Authenticate];
    let others = Row::all().iter().copied().filter(|row| !last.contains(row));
    others.chain(last).collect()
}

#[tokio::test]
async fn each_row_is_answered_and_the_stub_sends_as_many_bytes() {
    let running = TestServer::start().await.unwrap();
    let (server, stub) = (endpoint(&running.endpoint()).unwrap(), start_stub());
    fill_all(&server).await;
    for row in rows() {
        let report = run_row(row, &server).await;
        let of_stub = run_row(row, &stub).await;
        let (bytes, stubs) =
            (report.metrics.bytes_per_answer(), of_stub.metrics.bytes_per_answer());
        // The length of the stub's snapshot is set by this test, so it is not compared.
        if row != Row::Snapshot && bytes > 10_000.0 {
            let ratio = stubs / bytes;
            assert!((0.8..1.25).contains(&ratio), "{row:?}: {bytes} bytes, the stub's {stubs}");
        }
        let whole = (KEYS * (KEY_SIZE + VALUE_SIZE)) as f64;
        match row {
            Row::RangeOld | Row::RangeStream | Row::TxnPutRange | Row::Watch | Row::Watch20 => {
                assert!(bytes > whole, "{row:?}: {bytes}");
            }
            Row::KeysOnly => assert!((whole / 4.0..whole).contains(&bytes), "{bytes}"),
            Row::Snapshot => assert!(bytes > 10_000.0 && stubs > 100_000.0, "{bytes}, {stubs}"),
            _ => {}
        }
    }
}

#[tokio::test]
async fn rows_do_at_the_server_what_they_say() {
    let running = TestServer::start().await.unwrap();
    let server = endpoint(&running.endpoint()).unwrap();
    fill_all(&server).await;
    run_row(Row::TxnCompare, &server).await;
    assert_eq!(count(&server, "/stall/txn").await, 1, "the comparisons hold");
    run_row(Row::LargeWriters, &server).await;
    assert_eq!(count(&server, "/stall/large/").await, 4);
    let revoke = prepare(Row::Revoke, &server).await.unwrap();
    assert_eq!(count(&server, "/stall/lease/").await, KEYS as i64 / 10);
    revoke.run(WINDOW).await.unwrap();
    assert_eq!(count(&server, "/stall/lease/").await, 0);
    run_row(Row::HalfOpen, &server).await;
    assert_eq!(count(&server, "/stall/half").await, 0, "no put has come to its end");
    run_row(Row::Delete, &server).await;
    assert_eq!(count(&server, "/keys/").await, KEYS as i64 / 2);
    let probed = run_probes(&server, None).await.unwrap();
    assert!(probed.classes.iter().all(|line| line.metrics.failed() == 0), "{}", probed.table());

    let told = prepare(Row::Watch, &server).await.map(drop).unwrap_err();
    let remedy = "`clearlane-load keys --count 2000 --key-size 32 --value-size 64` puts them";
    let what = format!("the server has 1000 of the row's 2000 keys; {remedy}");
    assert_eq!(told, Error::Server(what));
}

#[tokio::test]
async fn the_stub_answers_the_probes() {
    let stub = start_stub();
    fill_all(&stub).await;
    let report = run_probes(&stub, None).await.unwrap();
    for line in &report.classes {
        assert_eq!(line.metrics.failed(), 0, "{}", report.table());
        assert!(line.metrics.answered() > 0, "{}", report.table());
    }
    let medium = report.classes.iter().find(|line| line.name == "medium").unwrap();
    assert_eq!(medium.metrics.keys_per_answer(), 1000.0);
    let taken = stub.uri().authority().unwrap().as_str().parse().unwrap();
    let sizes = StubSizes { key: 1, value: 1, snapshot: 1 };
    let told = stub::start(taken, sizes).unwrap_err().to_string();
    assert!(told.starts_with(&format!("--listen {taken}: ")), "{told}");
}

#[tokio::test]
async fn a_server_that_is_gone_is_told() {
    let mut running = TestServer::start().await.unwrap();
    let server = endpoint(&running.endpoint()).unwrap();
    fill_all(&server).await;
    let repeated = prepare(Row::CountOld, &server).await.unwrap();
    let held = prepare(Row::Streams, &server).await.unwrap();
    running.stop().await.unwrap();
    for stall in [repeated, held] {
        let report = stall.run(WINDOW).await.unwrap();
        let metrics = &report.metrics;
        assert!(metrics.answered() == 0 && metrics.failed() > 0, "{}", report.line());
    }
    let told = prepare(Row::Calm, &server).await.map(drop).unwrap_err().to_string();
    assert!(told.starts_with(&format!("cannot connect to {}: ", server.uri())), "{told}");
}

#[tokio::test]
async fn the_probes_go_on_beside_users_that_authenticate() {
    let running = TestServer::start().await.unwrap();
    let server = endpoint(&running.endpoint()).unwrap();
    fill_all(&server).await;
    let storm = prepare(Row::Authenticate, &server).await.unwrap();
    let channel = || async { open(&server.clone().into(), 1).await.unwrap().remove(0) };
    users::enable(channel().await).await.unwrap();
    let storm = tokio::spawn(storm.run(Duration::from_secs(3)));
    let probed = run_probes(&server, Some(User::of_load())).await.unwrap();
    assert!(probed.classes.iter().all(|line| line.metrics.failed() == 0), "{}", probed.table());
    let storm = storm.await.unwrap().unwrap();
    let line = storm.line();
    assert!(storm.metrics.answered() > 0 && storm.metrics.failed() == 0, "{line}");
    assert!(
        line.contains("/s), 0 errors") && line.contains(" ms of processor time each"),
        "{line}"
    );

    let told = run_probes(&server, None).await.map(drop).unwrap_err().to_string();
    assert!(told.ends_with("its status: etcdserver: user name is empty"), "{told}");
    users::disable(channel().await).await.unwrap();
    let probed = run_probes(&server, None).await.unwrap();
    assert!(probed.classes.iter().all(|line| line.metrics.failed() == 0), "{}", probed.table());
}
