//! Runs the closed loops from their command lines, against servers in this process.

use clap::Parser as _;
use clearlane_loadgen::arguments::Subcommand;
use clearlane_loadgen::closed_loop;
use clearlane_loadgen::connection::endpoint;
use clearlane_loadgen::report::Report;
use clearlane_loadgen::stop::Stop;
use clearlane_loadgen::{Error, Result};
use clearlane_test_server::{TestCluster, TestServer};
use tokio::net::TcpListener;

async fn run_line(endpoints: &str, line: &str, stop: Stop) -> Result<Report> {
    let line = format!("clearlane-load {line} --endpoints {endpoints}");
    let Ok(Subcommand::ClosedLoop(asked)) = Subcommand::try_parse_from(line.split_whitespace())
    else {
        panic!("{line} is no closed loop")
    };
    let target = asked.common().target.open().await?;
    closed_loop::run(&asked, target, stop, &mut |_| {}).await
}

fn counts(report: &Report) -> Vec<(&str, u64, u64)> {
    let count = |class: &clearlane_loadgen::report::ClassReport| {
        (class.metrics.answered(), class.metrics.failed())
    };
    let classes = report.classes.iter();
    classes.map(|class| (class.name.as_str(), count(class).0, count(class).1)).collect()
}

#[tokio::test]
async fn each_command_sends_as_many_requests_as_were_asked_for() {
    let server = TestServer::start().await.unwrap();
    let endpoint = server.endpoint();
    let keys = "--key-size 4 --key-space-size 100";
    for (line, expected) in [
        (
            &*format!("put --sequential-keys --total 100 --clients 7 --conns 3 {keys}"),
            vec![("put", 100, 0)],
        ),
        ("range 0000 0100 --total 20 --clients 2 --threads 2", vec![("range", 20, 0)]),
        ("range 0000 0100 --total 3 --stream", vec![("range", 3, 0)]),
        ("range --prefix 00 --total 3 --paginate", vec![("range", 3, 0)]),
        ("range 0007 --total 3 --consistency s", vec![("range", 3, 0)]),
        (&*format!("txn-put --txn-ops 5 --total 10 {keys}"), vec![("txn-put", 10, 0)]),
        ("lease-keepalive --total 20 --clients 4", vec![("lease-keepalive", 20, 0)]),
        (
            "watch --streams 3 --watch-per-stream 4 --watched-key-total 5 --put-total 10",
            vec![("create", 12, 0), ("put", 10, 0), ("event", 24, 0)],
        ),
        (
            "watch-latency --streams 2 --watchers-per-stream 3 --put-total 5 --put-rate 1000",
            vec![("create", 6, 0), ("put", 5, 0), ("event", 30, 0)],
        ),
    ] {
        let report = run_line(&endpoint, line, Stop::default()).await.unwrap();
        assert_eq!(counts(&report), expected, "{line}\n{}", report.table());
        let is_range = line.starts_with("range 0000 ") || line.contains("--prefix");
        if is_range {
            let keys = report.classes[0].metrics.keys_per_answer();
            assert_eq!(keys, 100.0, "{line}");
        }
    }
    let line = format!("txn-mixed --total 200 --rw-ratio 3 {keys}");
    let report = run_line(&endpoint, &line, Stop::default()).await.unwrap();
    let (reads, writes) =
        (report.classes[0].metrics.answered(), report.classes[1].metrics.answered());
    assert_eq!(reads + writes, 200);
    // Five standard deviations around the expected 150 reads.
    assert!((119..=181).contains(&reads), "{reads}");
}

#[tokio::test]
async fn a_rate_is_kept_and_a_stop_ends_with_the_results_so_far() {
    let server = TestServer::start().await.unwrap();
    let line = "put --total 40 --rate 100 --clients 5";
    let report = run_line(&server.endpoint(), line, Stop::default()).await.unwrap();
    assert!(report.window.as_secs_f64() >= 0.39, "{:?}", report.window);
    let stop = Stop::default();
    stop.set();
    let line = "put --total 1000000000";
    let report = run_line(&server.endpoint(), line, stop).await.unwrap();
    assert_eq!(counts(&report), [("put", 0, 0)]);
}

/// Accepts connections and never answers.
async fn take_all(listener: TcpListener) {
    let mut taken = Vec::new();
    while let Ok((connection, _)) = listener.accept().await {
        taken.push(connection);
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_holds_up_no_end() {
    let server = TestServer::start().await.unwrap();
    let line = "clearlane-load put --total 100 --clients 3 --endpoints";
    let line = format!("{line} {}", server.endpoint());
    let Ok(Subcommand::ClosedLoop(asked)) = Subcommand::try_parse_from(line.split_whitespace())
    else {
        panic!("{line} is no closed loop")
    };
    let mut target = asked.common().target.open().await.unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    target.endpoints = endpoint(&silent.local_addr().unwrap().to_string()).unwrap().into();
    tokio::spawn(take_all(silent));
    let stop = Stop::default();
    let mut stop_it = |_: &str| stop.set();
    let report = closed_loop::run(&asked, target, stop.clone(), &mut stop_it).await.unwrap();
    assert_eq!(counts(&report), [("put", 0, 3)]);
    let errors = report.classes[0].metrics.errors();
    assert_eq!(
        errors.keys().next().map(String::as_str),
        Some("no response within 2 s after the end")
    );
}

#[tokio::test]
async fn members_are_used_in_turn_and_the_leader_alone_if_asked() {
    let cluster = TestCluster::start(3).await.unwrap();
    let endpoints = cluster.endpoints().join(",");
    let line = "put --total 60 --clients 6 --conns 6 --check-hashkv";
    let report = run_line(&endpoints, line, Stop::default()).await.unwrap();
    assert_eq!(counts(&report), [("put", 60, 0)]);
    assert_eq!(report.servers.len(), 3);
    assert!(report.servers.iter().all(|server| server.members == 3), "{:?}", report.servers);
    let leaders = report.servers.iter().filter(|server| server.is_leader).count();
    assert_eq!(leaders, 1);
    let line = "range a --total 5 --target-leader";
    let report = run_line(&endpoints, line, Stop::default()).await.unwrap();
    assert!(report.servers.len() == 1 && report.servers[0].is_leader, "{:?}", report.servers);
}

#[tokio::test]
async fn what_cannot_work_is_told_in_one_line() {
    let server = TestServer::start().await.unwrap();
    let endpoint = server.endpoint();
    for (endpoints, line, told) in [
        ("127.0.0.1:1", "put", "cannot connect to http://127.0.0.1:1/: "),
        (&*endpoint, "put --user a:b", "cannot log in as user a: "),
        (
            &*endpoint,
            "put --key-size 2 --key-space-size 1000",
            "--key-size 2: 1000 different keys need at",
        ),
        (&*endpoint, "txn-put --txn-ops 2", "--txn-ops 2: must be at most --key-space-size"),
        ("https://a:1", "put --cacert /nowhere", "--cacert /nowhere: "),
        (&*endpoint, "put --cacert /nowhere", "--cacert and --cert have no effect: "),
        (&*endpoint, "put --check-hashkv", "--check-hashkv: it compares members, but "),
        (
            "https://a:1",
            "put",
            "--endpoints https://a:1: the server's certificate cannot be checked; ",
        ),
    ] {
        let trouble = run_line(endpoints, line, Stop::default()).await.map(drop).unwrap_err();
        let trouble: Error = trouble;
        let text = trouble.to_string();
        assert!(text.starts_with(told) && !text.contains('\n'), "{line}: {text}");
    }
}
