//! Runs workloads against a server in this process.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clearlane::data::MemberConfig;
use clearlane_backend::Era;
use clearlane_loadgen::connection::endpoint;
use clearlane_loadgen::fill::fill;
use clearlane_loadgen::process::Process;
use clearlane_loadgen::report::Report;
use clearlane_loadgen::run::{RunOptions, run};
use clearlane_loadgen::target::OpenTarget;
use clearlane_loadgen::workload::Workload;
use clearlane_loadgen::{Error, Result};
use clearlane_replica::apply::Limits;
use clearlane_rpc::serve::RpcServer;
use clearlane_server::threads::ServerThreads;

const WORKLOAD: &str = "
    seconds = 1
    [keys]
    count = 2000
    size = 40
    value = { min = 1, max = 300 }
    [[class]]
    name = 'expensive'
    operation = 'range'
    keys = 1500
    rate = 5
    [[class]]
    name = 'cheap'
    operation = 'range'
    keys = 10
    rate = 60
    arrivals = 'poisson'
    connections = 3
    [[class]]
    name = 'page'
    operation = 'range'
    keys = 2000
    limit = 20
    consistency = 'serializable'
    rate = 20
    [[class]]
    name = 'put'
    operation = 'put'
    rate = 20
    [[class]]
    name = 'txn'
    operation = 'txn'
    keys = 5
    rate = 10
";

struct RunningServer {
    node: Arc<ServerThreads>,
    server: RpcServer,
}

impl RunningServer {
    fn start(dir: &Path, limits: Limits) -> RunningServer {
        let config = MemberConfig::new("default", dir, "http://localhost:2380", Era::Clearlane);
        let node = Arc::new(config.open_alone().unwrap());
        let address = "127.0.0.1:0".parse().unwrap();
        let server = RpcServer::start(&node, address, 2, limits).unwrap();
        RunningServer { node, server }
    }

    fn stop(self) {
        self.server.stop().unwrap();
        self.node.stop();
        assert!(self.node.failure().borrow().is_none());
    }
}

fn run_options(address: SocketAddr) -> RunOptions {
    let process = cfg!(target_os = "linux").then(|| Process::open(std::process::id()).unwrap());
    let endpoint = endpoint(&address.to_string()).unwrap();
    let target = block_on(OpenTarget::open(endpoint.into(), None)).unwrap();
    RunOptions { process, ..RunOptions::new(target, 5) }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(100), work).await.unwrap() })
}

async fn run_quietly(workload: &Workload, order: &RunOptions) -> Result<Report> {
    run(workload, order, &mut |_| {}).await
}

fn answered(report: &Report, class: &str) -> u64 {
    report.classes.iter().find(|line| line.name == class).unwrap().metrics.answered()
}

#[test]
fn every_request_is_answered_with_what_it_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let running = RunningServer::start(dir.path(), Limits::default());
    let workload = Workload::parse(WORKLOAD).unwrap();
    let order = run_options(running.server.address());
    block_on(async {
        let filled =
            fill(&workload.space, &order.target.endpoints, None, 2, 1, &mut |_| {}).await.unwrap();
        assert_eq!(filled.keys, 2000);
        let report = run_quietly(&workload, &order).await.unwrap();
        let table = report.table();
        for line in &report.classes {
            // The run checks the number of keys in each response. A wrong number is a failure.
            assert_eq!(line.metrics.failed(), 0, "{table}");
            let most = line.metrics.latency_ms(1.0).unwrap();
            assert!(line.metrics.latency_ms(0.5).unwrap() <= most && most < 60_000.0, "{table}");
        }
        assert_eq!((answered(&report, "expensive"), answered(&report, "put")), (5, 20), "{table}");
        assert_eq!((answered(&report, "page"), answered(&report, "txn")), (20, 10), "{table}");
        assert!((30..100).contains(&answered(&report, "cheap")), "{table}");
        assert_eq!(report.classes[0].metrics.keys_per_answer(), 1500.0, "{table}");
        assert!(report.classes[0].metrics.bytes_per_answer() > 1500.0 * 40.0, "{table}");
        assert_eq!(report.classes[2].metrics.keys_per_answer(), 20.0, "{table}");
        assert_eq!(report.usage.is_some(), cfg!(target_os = "linux"));

        let names = ["expensive", "page", "put", "txn"].map(str::to_owned);
        let alone = workload.without(&names).unwrap();
        let alone = run_quietly(&alone, &order).await.unwrap();
        assert_eq!(answered(&alone, "cheap"), answered(&report, "cheap"), "the times are its own");
    });
    running.stop();
}

#[test]
fn keys_that_are_missing_are_told_before_and_during_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let running = RunningServer::start(dir.path(), Limits::default());
    let workload = Workload::parse(WORKLOAD).unwrap();
    let order = run_options(running.server.address());
    block_on(async {
        let trouble = run_quietly(&workload, &order).await.map(drop).unwrap_err();
        let what = "the server has 0 of the workload's 2000 keys";
        let told = format!("{what}; `clearlane-load fill` puts them");
        assert_eq!(trouble, Error::Server(told));
        // If a class deletes keys, missing keys are not an error.
        let deleting = "\n[[class]]\nname = 'del'\noperation = 'delete'\nkeys = 3\nrate = 30\n";
        let workload = Workload::parse(&format!("{WORKLOAD}{deleting}")).unwrap();
        fill(&workload.space, &order.target.endpoints, None, 1, 1, &mut |_| {}).await.unwrap();
        let report = run_quietly(&workload, &order).await.unwrap();
        assert!(report.classes.iter().all(|line| line.metrics.failed() == 0), "{}", report.table());
        assert_eq!(answered(&report, "del"), 30);
        let without = workload.without(&["del".to_owned()]).unwrap();
        assert!(run_quietly(&without, &order).await.is_err(), "keys are gone now");
    });
    running.stop();
}

/// A workload whose classes need no fill.
const WRITES: &str = "
    seconds = 2
    [keys]
    count = 10
    size = 20
    value = 5
    [[class]]
    name = 'put'
    operation = 'put'
    rate = 50
    [[class]]
    name = 'txn'
    operation = 'txn'
    keys = 3
    rate = 20
";

#[test]
fn what_a_server_refuses_is_counted_by_its_words() {
    let dir = tempfile::tempdir().unwrap();
    let running = RunningServer::start(dir.path(), Limits { txn_ops_max: 2, ..Limits::default() });
    let mut workload = Workload::parse(WRITES).unwrap();
    workload.seconds = 1;
    let order = run_options(running.server.address());
    let report = block_on(run_quietly(&workload, &order)).unwrap();
    running.stop();
    let (put, txn) = (&report.classes[0].metrics, &report.classes[1].metrics);
    assert_eq!((put.answered(), put.failed()), (50, 0), "{}", report.table());
    let words = "InvalidArgument: etcdserver: too many operations in txn request";
    let expected = BTreeMap::from([(words.to_owned(), 20)]);
    assert_eq!((txn.answered(), txn.errors()), (0, &expected), "{}", report.table());
}

#[test]
fn a_warm_up_is_sent_and_not_counted() {
    let dir = tempfile::tempdir().unwrap();
    let running = RunningServer::start(dir.path(), Limits::default());
    // The transaction is omitted, because it writes only if its key exists.
    let mut workload = Workload::parse(WRITES).unwrap().without(&["txn".to_owned()]).unwrap();
    workload.seconds = 1;
    let warm_up = Duration::from_secs(2);
    let order = RunOptions { warm_up, ..run_options(running.server.address()) };
    let report = block_on(run_quietly(&workload, &order)).unwrap();
    let revision = running.node.store().begin_read().revision();
    running.stop();
    assert_eq!(answered(&report, "put"), 50);
    assert_eq!(revision, 1 + 3 * 50, "each of three seconds has written");
}

#[test]
fn a_server_that_stops_halfway_leaves_errors_and_the_rest_is_still_sent() {
    let dir = tempfile::tempdir().unwrap();
    let running = RunningServer::start(dir.path(), Limits::default());
    let mut workload = Workload::parse(WRITES).unwrap();
    // On a busy machine the server takes a while to stop, and some requests must be sent after
    // it has stopped.
    workload.seconds = 5;
    let order = run_options(running.server.address());
    let (mut running, mut stopping) = (Some(running), None);
    let mut seconds = 0;
    let mut stop_in_the_middle = |_: &str| {
        seconds += 1;
        // The first call is at the start of the run.
        if seconds == 2 {
            stopping = running.take().map(|running| thread::spawn(|| running.stop()));
        }
    };
    let report = block_on(run(&workload, &order, &mut stop_in_the_middle)).unwrap();
    stopping.unwrap().join().unwrap();
    for (line, due) in report.classes.iter().zip([250, 100]) {
        let (answered, failed) = (line.metrics.answered(), line.metrics.failed());
        assert_eq!(answered + failed, due, "{}", report.table());
        assert!(answered > 0 && failed > 0, "{}", report.table());
    }
    let trouble = block_on(run_quietly(&workload, &order)).map(drop).unwrap_err().to_string();
    let uri = order.target.endpoints.text();
    assert!(trouble.starts_with(&format!("cannot connect to {uri}: ")), "{trouble}");
    assert!(!trouble.contains('\n'), "{trouble}");
}
