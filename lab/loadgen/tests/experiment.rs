//! Runs experiments against a server in this process, and against programs.
//!
//! The direction of the figures is not tested, because a test build is slow and other tests run at
//! the same time. The tests check that all steps work, that no acknowledged write is lost, and that
//! no process or file is left over.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "a test that is skipped says so")]

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use clearlane_loadgen::experiment::{Context, Experiment, ExperimentArguments, Findings, Outcome};
use clearlane_loadgen::servers::{Cluster, ClusterOptions, ServerProgram};
use clearlane_loadgen::stop::Stop;
use clearlane_proto::etcdserverpb::RangeRequest;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_test_server::TestServer;
use serde_json::Value;
use tonic::transport::Endpoint;

const LOAD: &str = env!("CARGO_BIN_EXE_clearlane-load");

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    arguments: ExperimentArguments,
}

fn arguments(line: &str) -> ExperimentArguments {
    let words = ["experiment"].into_iter().chain(line.split_whitespace());
    Line::try_parse_from(words).unwrap().arguments
}

fn tool(arguments: &[&str]) -> Output {
    Command::new(LOAD).arg("experiment").args(arguments).output().unwrap()
}

fn failure(arguments: &[&str], status: i32) -> String {
    let output = tool(arguments);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {told}");
    told
}

/// Returns the server's program, or `None` if its package was not built.
fn clearlane() -> Option<PathBuf> {
    let path = Path::new(LOAD).with_file_name("clearlane");
    if !path.is_file() {
        // Written directly to the standard error, because the test harness shows printed text only
        // if a test fails.
        let words = b"SKIPPED: no program `clearlane` was built; nothing was measured\n";
        std::io::stderr().write_all(words).unwrap();
        return None;
    }
    Some(path)
}

async fn measure(experiment: &str, line: &str) -> Findings {
    let context = Context::new(&arguments(line), |_| {}, Stop::default()).await.unwrap();
    match Experiment::named(experiment).unwrap().measure(&context).await.unwrap() {
        Outcome::Found(findings) => *findings,
        Outcome::Skipped(reason) => panic!("{reason}"),
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let seconds = Duration::from_secs(300);
        tokio::time::timeout(seconds, work).await.unwrap()
    })
}

#[tokio::test]
async fn a_cluster_that_is_given_is_measured_and_keeps_no_key() {
    // The server has its own threads, so it answers while this thread waits for the program.
    let server = TestServer::start().await.unwrap();
    let endpoint = server.endpoint();
    let out = tempfile::tempdir().unwrap();
    let dir = out.path().to_str().unwrap();
    let line = ["write-batching", "--era", "none", "--endpoints", &endpoint, "--out", dir];
    let output = tool(&line);
    let told = String::from_utf8(output.stdout).unwrap();
    // While other tests run, the curve may be flat. Then the check fails and the status is 1.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{told}");
    assert!(told.contains("| clients | given puts/s |"), "{told}");
    let report = fs::read_to_string(out.path().join("write-batching.json")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    let puts = report["figures"]["given"]["puts/per second"].as_array().unwrap();
    assert!(puts.len() == 4 && puts.iter().all(|at| at[1].as_f64().unwrap() > 0.0), "{puts:?}");
    for (file, part) in [
        ("write-batching.html", "<svg"),
        ("write-batching.md", "experiment write-batching --scale small"),
        ("write-batching.svg", "<svg"),
        ("index.html", "write-batching.html"),
    ] {
        let text = fs::read_to_string(out.path().join(file)).unwrap();
        assert!(text.contains(part), "{file}");
    }
    let channel = Endpoint::from_shared(endpoint).unwrap().connect().await.unwrap();
    let all: &[u8] = &[0];
    let (key, range_end) = (all.into(), all.into());
    let count = RangeRequest { key, range_end, count_only: true, ..RangeRequest::default() };
    let answer = KvClient::new(channel).range(count).await.unwrap();
    assert_eq!(answer.into_inner().count, 0);
}

#[test]
fn nothing_that_was_acknowledged_is_lost_with_a_member() {
    let Some(clearlane) = clearlane() else { return };
    let line = format!("failover --era clearlane --clearlane {}", clearlane.display());
    let findings = block_on(measure("failover", &line));
    let measured = findings.measured();
    for victim in ["follower", "leader"] {
        let figure =
            |name: &str| measured.median("clearlane", &format!("{victim}/{name}")).unwrap();
        assert_eq!(figure("lost"), 0.0, "{measured:?}");
        assert!(figure("acknowledged") > 0.0, "{measured:?}");
    }
}

#[test]
fn watchers_at_a_proxy_share_a_watch_and_get_each_event_once() {
    let Some(clearlane) = clearlane() else { return };
    let line = format!("proxy-watchers --clearlane {}", clearlane.display());
    let findings = block_on(measure("proxy-watchers", &line));
    let measured = findings.measured();
    assert_eq!(measured.servers(), ["direct", "clearlane"]);
    for watchers in [1.0, 100.0, 1000.0] {
        for route in measured.servers() {
            let figure = |name: &str| measured.median_at(route, name, watchers).unwrap();
            assert_eq!((figure("lost"), figure("doubled")), (0.0, 0.0), "{measured:?}");
            assert!(figure("delivery/max") > 0.0, "{measured:?}");
            let watches = if route == "direct" { watchers } else { 1.0 };
            assert_eq!(figure("watches"), watches, "{route}: {measured:?}");
        }
    }
    let sent = |watchers| measured.median_at("clearlane", "sent KB", watchers).unwrap();
    assert!(sent(1000.0) < 1.5 * sent(1.0), "{measured:?}");
    assert!(measured.median_at("clearlane", "proxy MB", 1.0).unwrap() > 0.0, "{measured:?}");
}

#[test]
fn a_proxy_answers_no_read_with_an_older_value_than_it_may() {
    let Some(clearlane) = clearlane() else { return };
    let line = format!("proxy-reads --clearlane {}", clearlane.display());
    let findings = block_on(measure("proxy-reads", &line));
    let measured = findings.measured();
    for route in ["direct", "clearlane"] {
        let figure = |name: &str| measured.median(route, name).unwrap();
        assert_eq!(figure("linearizable/stale"), 0.0, "{route}: {measured:?}");
        assert!(figure("serializable/staleness max") <= 1000.0, "{route}: {measured:?}");
        for loop_name in ["linearizable", "serializable"] {
            for name in ["checked", "per second", "members µs"] {
                assert!(figure(&format!("{loop_name}/{name}")) > 0.0, "{route}: {measured:?}");
            }
        }
    }
}

#[test]
fn members_are_killed_and_start_again_and_leave_nothing() {
    let Some(clearlane) = clearlane() else { return };
    let program = ServerProgram::clearlane(&clearlane, "3.4").unwrap();
    assert!(program.version().unwrap().contains("clearlane"), "{:?}", program.version());
    let options = ClusterOptions { members: 3, ..ClusterOptions::default() };
    let (data, pids) = block_on(async {
        let mut cluster = Cluster::start(&program, options).await.unwrap();
        let leader = cluster.leader().await.unwrap();
        cluster.kill(leader);
        assert_eq!(cluster.pid(leader), None);
        cluster.restart(leader).await.unwrap();
        assert_eq!(cluster.proxy_usage().unwrap(), None);
        cluster.start_grpc_proxy(&program).await.unwrap();
        assert!(cluster.proxy_usage().unwrap().unwrap().resident_bytes > 0);
        assert_eq!(servers_below(cluster.data_dir(0).parent().unwrap().parent().unwrap()).len(), 4);
        let learner = cluster.add_learner().await.unwrap();
        assert_eq!((learner, cluster.len()), (3, 4));
        assert!(cluster.usage().unwrap().resident_bytes > 0);
        let pids = (0..4).map(|member| cluster.pid(member).unwrap()).collect::<Vec<_>>();
        (cluster.data_dir(0), pids)
    });
    assert!(!data.exists() && !data.parent().unwrap().exists(), "{}", data.display());
    assert_eq!(servers_below(data.parent().unwrap().parent().unwrap()), [""; 0]);
    for pid in pids {
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "{pid} runs");
    }
}

#[test]
fn a_member_that_ends_at_once_is_told_with_its_log() {
    let Some(clearlane) = clearlane() else { return };
    let program = ServerProgram::clearlane(&clearlane, "clearlane").unwrap();
    let flags = vec!["--no-such-flag".to_owned()];
    let options = ClusterOptions { flags, ..ClusterOptions::default() };
    let told = block_on(Cluster::start(&program, options)).map(drop).unwrap_err().to_string();
    assert!(told.starts_with("clearlane, member m0, ended before it answered"), "{told}");
    assert!(told.contains("no-such-flag") && !told.contains('\n'), "{told}");
}

/// Returns the command lines of the servers whose data is below this directory.
fn servers_below(dir: &Path) -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    // A process may end during this loop.
    let lines = processes.filter_map(|process| fs::read_to_string(process.join("cmdline")).ok());
    let data = format!("--data-dir\0{}/", dir.display());
    lines.filter(|line| line.contains(&data)).collect()
}

/// Maximum time from a signal until all processes have ended. On a busy machine three servers take
/// some seconds.
const SIGNAL_MAX: Duration = Duration::from_secs(60);

/// Returns whether this process ignores SIGHUP, as under `nohup`.
fn is_hangup_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & 1 == 1
}

#[test]
fn each_signal_ends_the_servers() {
    let Some(clearlane) = clearlane() else { return };
    for signal in ["INT", "TERM", "HUP"] {
        if signal == "HUP" && is_hangup_ignored() {
            println!("skipped: this test's own parent ignores SIGHUP, and so does what it starts");
            continue;
        }
        let (data, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut load = Command::new(LOAD)
            .args(["experiment", "failover", "--rounds", "100", "--era", "clearlane"])
            .args(["--clearlane".as_ref(), clearlane.as_os_str()])
            .args(["--out".as_ref(), out.path().as_os_str()])
            .env("TMPDIR", data.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        while servers_below(data.path()).len() < 3 {
            assert_eq!(load.try_wait().unwrap(), None, "{signal}");
            std::thread::sleep(Duration::from_millis(5));
        }
        let sent = Command::new("kill").args(["-s", signal, &load.id().to_string()]).status();
        assert!(sent.unwrap().success());
        let deadline = Instant::now() + SIGNAL_MAX;
        while load.try_wait().unwrap().is_none() {
            if Instant::now() >= deadline {
                load.kill().unwrap();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let ended = load.wait_with_output().unwrap();
        let told = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(1), "{signal}: {told}");
        assert!(
            told.contains("interrupted; the reports of completed experiments"),
            "{signal}: {told}"
        );
        assert_eq!(servers_below(data.path()), [""; 0], "{signal}");
        assert_eq!(fs::read_dir(data.path()).unwrap().count(), 0, "{signal}");
        let report = fs::read_to_string(out.path().join("failover.md")).unwrap();
        assert!(report.contains("interrupted in round 1, at clearlane"), "{report}");
    }
}

#[tokio::test]
async fn a_given_cluster_does_not_do_where_servers_are_started() {
    let server = TestServer::start().await.unwrap();
    let endpoint = server.endpoint();
    let out = tempfile::tempdir().unwrap();
    let dir = out.path().to_str().unwrap();
    let output = tool(&["failover", "--era", "none", "--endpoints", &endpoint, "--out", dir]);
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{told}");
    assert!(told.starts_with("failover: skipped: it starts its servers itself"), "{told}");
    // If no server is named at all, the experiment cannot be measured.
    let told =
        String::from_utf8(tool(&["failover", "--era", "none", "--out", dir]).stdout).unwrap();
    assert!(
        told.starts_with("failover: COULD NOT BE MADE: there is no server to measure"),
        "{told}"
    );
}

#[test]
fn what_cannot_be_made_is_told_in_one_line() {
    let out = tempfile::tempdir().unwrap();
    let dir = out.path().to_str().unwrap();
    for (line, told) in [
        (
            &["failover", "--clearlane", "/gone/clearlane"][..],
            "clearlane-load: --clearlane /gone/clearlane: the program does not exist; ",
        ),
        (
            &["failover", "--era", "none", "--etcd", "/gone/etcd"],
            "clearlane-load: --etcd /gone/etcd: the program does not exist; ",
        ),
        (
            &["write-batching", "--era", "none", "--endpoints", "http://127.0.0.1:1"],
            "clearlane-load: cannot connect to http://127.0.0.1:1/: ",
        ),
    ] {
        let error = failure(&[line, &["--out", dir]].concat(), 1);
        assert!(error.starts_with(told) && error.lines().count() == 1, "{error}");
    }
    let error = failure(&["fly", "--out", dir], 2);
    assert!(error.contains("unknown experiment; known are all, list, "), "{error}");
    let error = failure(&["failover", "--era", "4.0", "--out", dir], 2);
    assert!(error.contains("unknown era; known are 3.0, "), "{error}");
}

#[test]
fn the_list_has_each_and_redis_is_skipped_without_one() {
    let listed = String::from_utf8(tool(&["list", "--era", "none"]).stdout).unwrap();
    assert_eq!(listed.lines().count(), Experiment::all().len(), "{listed}");
    assert!(listed.contains("failover                     a member is killed"), "{listed}");
    let out = tempfile::tempdir().unwrap();
    let output = tool(&["redis", "--era", "none", "--out", out.path().to_str().unwrap()]);
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{told}");
    assert_eq!(
        told.lines().next(),
        Some("redis: skipped: it needs a running Redis, which --redis HOST:PORT names")
    );
}

#[test]
fn the_chapter_has_a_row_for_each() {
    let chapter = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/experiments.md");
    let chapter = fs::read_to_string(chapter).unwrap();
    for experiment in Experiment::all() {
        let row = format!("\n| `{}` | ", experiment.name);
        assert!(chapter.contains(&row), "{row}");
    }
}
