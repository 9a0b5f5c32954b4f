//! Tests of the program as a user runs it: it starts, serves, stops, is killed, and starts again.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::pin::pin;
use std::process::Command;
use std::thread;

use clearlane_contention::timeline;
use clearlane_contention::timeline::{Activity, Timeline};
use clearlane_proto::etcdserverpb::auth_client::AuthClient;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::{
    AuthEnableRequest, AuthRoleAddRequest, AuthUserAddRequest, AuthUserGrantRoleRequest,
    AuthenticateRequest, CompactionRequest, DeleteRangeRequest, RangeRequest,
};
use nix::sys::signal::Signal;
use serde_json::Value;
use tokio::sync::oneshot::Receiver;
use tokio::sync::oneshot::error::TryRecvError;
use tonic::transport::Endpoint;
use tonic::{Request, Status};

use crate::program::{RunningProgram, TIMEOUT, failure, member, program};
use crate::support::{block_on, connect, get, http_get, put, put_all};

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn start(data_dir: &Path, more: &[&str]) -> RunningProgram {
    RunningProgram::start(&mut member(data_dir, more))
}

/// Reads ranges of all keys, and at the same time puts and reads one key, until the sender of
/// `ends` is dropped.
async fn range_put_and_get(address: &str, mut ends: Receiver<()>) {
    let mut client = KvClient::new(connect(address).await);
    put_all(&mut client, (0..3000).map(|number| put(format!("k{number:04}"), "v"))).await;
    let all = RangeRequest { range_end: vec![0].into(), serializable: true, ..get("k") };
    let hot = RangeRequest { serializable: true, ..get("hot") };
    let mut others = [KvClient::new(connect(address).await), KvClient::new(connect(address).await)];
    let [putting, reading] = &mut others;
    while matches!(ends.try_recv(), Err(TryRecvError::Empty)) {
        let (ranged, done, read) = tokio::join!(
            client.range(all.clone()),
            putting.put(put("hot", "v")),
            reading.range(hot.clone()),
        );
        assert_eq!((ranged.is_ok(), done.is_ok(), read.is_ok()), (true, true, true));
    }
}

/// The log must name the lock for which a read of one key and a put have waited, and the holder of
/// this lock.
#[test]
fn a_slow_request_names_the_lock_and_its_holder_in_every_old_era() {
    for era in ["3.0", "3.1", "3.2"] {
        let dir = tempfile::tempdir().unwrap();
        let era = format!("--era={era}");
        let mut running = start(dir.path(), &[&era, "--warning-apply-duration=1ns"]);
        let address = running.ready();
        let (end, ends) = tokio::sync::oneshot::channel();
        let load = thread::spawn(move || block_on(range_put_and_get(&address, ends)));
        let (mut read, mut applied) = (None, None);
        while read.is_none() || applied.is_none() {
            let line = running.line("apply request took too long");
            let line: Value = serde_json::from_str(&line).unwrap();
            let (request, stages) = (line["request"].to_string(), line["stages"].to_string());
            if !request.contains("hot") || !stages.contains("longest for ") {
                continue;
            }
            match line["prefix"].as_str().unwrap() {
                "read-only range " if stages.contains("held by ") => read = Some(stages),
                "" if stages.contains("held by range)") => applied = Some(stages),
                _ => {}
            }
        }
        println!("{era}: get {read:?}, put {applied:?}");
        drop(end);
        load.join().unwrap();
    }
}

/// The recording of a timeline is switched off and on while the member runs. The last recording
/// must be written when the member ends.
#[test]
fn it_records_a_timeline() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("timeline");
    let timeline = format!("--timeline={}", file.display());
    let mut running = start(dir.path(), &["--era=3.2", &timeline]);
    let address = running.ready();
    let ask = |key: &str| {
        block_on(async {
            let mut client = KvClient::new(connect(&address).await);
            client.put(put(key, "1")).await.unwrap();
            client.range(get(key)).await.unwrap();
        });
    };
    let lanes = || {
        let timeline: Timeline = std::fs::read_to_string(&file).unwrap().parse().unwrap();
        let lanes = timeline.lanes().into_iter();
        let classes: BTreeSet<String> =
            lanes.map(|(lane, _)| timeline::lane_class(lane).to_owned()).collect();
        let of = |wanted: &str| {
            let mut lanes = timeline.spans.iter().map(|span| &span.lane);
            lanes.find(|lane| timeline::lane_class(lane) == wanted).cloned()
        };
        (classes, of("put"))
    };
    ask("a");
    running.signal(Signal::SIGUSR1);
    running.line("wrote the timeline");
    let (classes, first) = lanes();
    for class in ["put", "get", "applier", "log"] {
        assert!(classes.contains(class), "no {class} in {classes:?}");
    }
    // Requests between two recordings are not written, and the file is replaced by the second
    // recording.
    ask("b");
    running.signal(Signal::SIGUSR1);
    running.line("recording a timeline");
    ask("c");
    running.signal(Signal::SIGTERM);
    let (status, said) = running.end();
    assert_eq!(status.signal(), Some(Signal::SIGTERM as i32), "{said:#?}");
    let (classes, second) = lanes();
    assert!(classes.contains("get") && second.is_some() && first < second, "{first:?} {second:?}");
}

/// Adds the users, each with the role root and so with all permissions, and enables authentication.
async fn enable_auth(address: &str, users: &[(&str, &str)]) {
    let mut client = AuthClient::new(connect(address).await);
    client.role_add(AuthRoleAddRequest { name: "root".to_owned() }).await.unwrap();
    for (name, password) in users {
        let (name, password) = ((*name).to_owned(), (*password).to_owned());
        let add = AuthUserAddRequest { name: name.clone(), password, ..Default::default() };
        client.user_add(add).await.unwrap();
        let grant = AuthUserGrantRoleRequest { user: name, role: "root".to_owned() };
        client.user_grant_role(grant).await.unwrap();
    }
    client.auth_enable(AuthEnableRequest {}).await.unwrap();
}

async fn authenticate(address: &str, name: &str, password: &str) -> Result<String, Status> {
    let (name, password) = (name.to_owned(), password.to_owned());
    let mut client = AuthClient::new(connect(address).await);
    let answer = client.authenticate(AuthenticateRequest { name, password }).await?;
    Ok(answer.into_inner().token)
}

#[test]
fn a_slow_authentication_is_logged_without_its_secrets() {
    for era in ["3.4", "clearlane"] {
        let dir = tempfile::tempdir().unwrap();
        let era = format!("--era={era}");
        let limits = ["--warning-unary-request-duration=1ns", "--bcrypt-cost=4"];
        let mut running = start(dir.path(), &[&era, limits[0], limits[1]]);
        let address = running.ready();
        let token = block_on(async {
            enable_auth(&address, &[("root", "root-word"), ("alice", "alices-word")]).await;
            authenticate(&address, "alice", "bobs-word").await.unwrap_err();
            authenticate(&address, "alice", "alices-word").await.unwrap()
        });
        for is_right in [false, true] {
            let text = running.line("/etcdserverpb.Auth/Authenticate");
            let line: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(line["msg"], "request stats", "{text}");
            assert_eq!(line["request content"], "name:\"alice\"", "{text}");
            assert!(line["remote"].as_str().unwrap().starts_with("127.0.0.1:"), "{text}");
            let stages = line["stages"].as_str().unwrap();
            assert!(stages.contains("password "), "{text}");
            assert_eq!(stages.contains("token "), is_right, "{text}");
        }
        running.signal(Signal::SIGTERM);
        let (_, said) = running.end();
        for secret in ["-word", &*token] {
            assert!(!said.iter().any(|line| line.contains(secret)), "{era}: {said:#?}");
        }
    }
}

/// Makes gets with the token of root, while root authenticates again.
async fn authenticate_and_get(address: &str) {
    enable_auth(address, &[("root", "root-word")]).await;
    let token = authenticate(address, "root", "root-word").await.unwrap();
    let mut client = KvClient::new(connect(address).await);
    for _ in 0..3 {
        let mut authenticated = pin!(authenticate(address, "root", "root-word"));
        loop {
            let mut request = Request::new(get("a"));
            request.metadata_mut().insert("token", token.parse().unwrap());
            tokio::select! {
                biased;
                done = &mut authenticated => break drop(done.unwrap()),
                found = client.range(request) => drop(found.unwrap()),
            }
        }
    }
}

/// Up to era 3.4, a password is checked while `batchTx` is held. A get waits for `batchTx` as well,
/// because the server looks up the user of its token. The timeline must show this wait in era 3.4,
/// and not in later eras.
#[test]
fn a_timeline_shows_what_a_password_holds_up() {
    for (era, is_locked) in [("3.4", true), ("3.5", false), ("clearlane", false)] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("timeline");
        let (timeline, era) = (format!("--timeline={}", file.display()), format!("--era={era}"));
        let mut running = start(dir.path(), &[&era, &timeline, "--bcrypt-cost=8"]);
        let address = running.ready();
        block_on(authenticate_and_get(&address));
        running.signal(Signal::SIGUSR1);
        running.line("wrote the timeline");
        let timeline: Timeline = std::fs::read_to_string(&file).unwrap().parse().unwrap();
        let of = |lane: &str, is: &dyn Fn(&Activity) -> bool| {
            let mut spans = timeline.spans.iter();
            spans.any(|span| timeline::lane_class(&span.lane) == lane && is(&span.activity))
        };
        let runs = |activity: &Activity| *activity == Activity::Run;
        assert!(of("authenticate", &runs) && of("get", &runs), "{era}: {timeline}");
        let holds = |activity: &Activity| matches!(activity, Activity::Hold { resource } if resource == "batchTx");
        assert_eq!(of("authenticate", &holds), is_locked, "{era}: {timeline}");
        let waits_behind_it = |activity: &Activity| match activity {
            Activity::Wait { resource, blocker: Some(blocker) } => {
                resource == "batchTx" && timeline::lane_class(blocker) == "authenticate"
            }
            _ => false,
        };
        assert_eq!(of("get", &waits_behind_it), is_locked, "{era}: {timeline}");
    }
}

#[test]
fn a_timeline_that_cannot_be_written_is_told_first() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = dir.path().join("nowhere").join("timeline");
    let (timeline, data) = (format!("--timeline={}", nowhere.display()), dir.path().join("data"));
    let output = program(&[&timeline, &format!("--data-dir={}", data.display())]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains(&format!("{timeline}: No such file").replace('=', " ")), "{said}");
    assert!(!data.exists(), "no data is touched");
}

#[test]
fn without_a_timeline_its_signal_does_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = start(dir.path(), &[]);
    running.ready();
    running.signal(Signal::SIGUSR1);
    running.line("without --timeline there is nothing to record");
    running.signal(Signal::SIGTERM);
    let (status, said) = running.end();
    assert_eq!(status.signal(), Some(Signal::SIGTERM as i32), "{said:#?}");
}

#[test]
fn it_serves_stops_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = start(dir.path(), &[]);
    let address = running.ready();
    block_on(async {
        let mut client = KvClient::new(connect(&address).await);
        client.put(put("a", "1")).await.unwrap();
        client.put(put("b", "2")).await.unwrap();
    });
    running.signal(Signal::SIGTERM);
    let (status, said) = running.end();
    assert_eq!(status.signal(), Some(Signal::SIGTERM as i32), "{said:#?}");
    for line in &said {
        let line: Value = serde_json::from_str(line).unwrap();
        for key in ["level", "ts", "caller", "msg"] {
            assert!(line[key].is_string(), "{line}");
        }
        assert!(["info", "warn"].contains(&line["level"].as_str().unwrap()), "{line}");
    }
    let mut running = start(dir.path(), &[]);
    let address = running.ready();
    block_on(async {
        let read =
            KvClient::new(connect(&address).await).range(get("b")).await.unwrap().into_inner();
        assert_eq!(&read.kvs[0].value[..], b"2");
    });
    running.signal(Signal::SIGINT);
    assert_eq!(running.end().0.signal(), Some(Signal::SIGINT as i32));
}

/// A member is killed several times and must have all acknowledged writes after each restart. The
/// seed determines after how many writes the member is killed.
#[test]
fn what_was_acknowledged_survives_a_kill() {
    let seed = std::process::id();
    println!("seed {seed}");
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = 0;
    for round in 0..6_u32 {
        let mut running = start(dir.path(), &[]);
        let address = running.ready();
        let wanted = acknowledged + 1 + seed.wrapping_mul(round * 2_654_435 + 1) % 97;
        acknowledged = block_on(async {
            let mut client = KvClient::new(connect(&address).await);
            let all = RangeRequest { range_end: vec![0].into(), ..get("\0") };
            let found = client.range(all).await.unwrap().into_inner();
            assert!(found.count >= i64::from(acknowledged), "{} of {acknowledged}", found.count);
            for (number, found) in found.kvs.iter().enumerate().take(acknowledged as usize) {
                assert_eq!(text(&found.key), format!("{number:08}"), "round {round}");
            }
            let mut number = acknowledged;
            // The last requests are in flight when the process is killed.
            let mut under_way = tokio::task::JoinSet::new();
            while number < wanted {
                client.put(put(format!("{number:08}"), "v")).await.unwrap();
                number += 1;
            }
            for more in 0..20 {
                let mut client = client.clone();
                under_way.spawn(async move {
                    client.put(put(format!("{:08}", number + more), "v")).await
                });
            }
            tokio::task::yield_now().await;
            running.signal(Signal::SIGKILL);
            number
        });
        assert_eq!(running.end().0.signal(), Some(Signal::SIGKILL as i32));
    }
}

#[test]
fn clients_come_through_several_doors() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let urls = format!("--listen-client-urls=http://127.0.0.1:0,unix://{}", socket.display());
    let log = format!("--log-outputs=stderr,{}", dir.path().join("log").display());
    let mut running = start(&dir.path().join("data"), &[&urls, &log, "--era=3.2"]);
    let first = running.ready();
    assert_eq!(running.ready(), socket.display().to_string());
    block_on(async {
        KvClient::new(connect(&first).await).put(put("a", "1")).await.unwrap();
        let at = Endpoint::from_shared(format!("unix:{}", socket.display())).unwrap();
        let mut through_socket = KvClient::new(at.connect().await.unwrap());
        let read = through_socket.range(get("a")).await.unwrap().into_inner();
        assert_eq!(read.count, 1);
    });
    running.signal(Signal::SIGTERM);
    let (status, said) = running.end();
    assert_eq!(status.signal(), Some(Signal::SIGTERM as i32));
    assert!(!socket.exists());
    let log = std::fs::read_to_string(dir.path().join("log")).unwrap();
    assert_eq!(log.lines().collect::<Vec<_>>(), said);
}

#[test]
fn metrics_have_a_port_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = start(dir.path(), &["--listen-metrics-urls=http://127.0.0.1:0"]);
    let line = running.json("serving metrics");
    running.ready();
    for (path, words) in [("/metrics", "etcd_server_has_leader 1"), ("/health", "\"true\"")] {
        let answer = http_get(line["address"].as_str().unwrap(), path);
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(words), "{answer}");
    }
}

fn counted(address: &str, puts: u32) -> i64 {
    block_on(async {
        let mut client = KvClient::new(connect(address).await);
        let all = RangeRequest { range_end: vec![0].into(), ..get("\0") };
        let found = client.range(all).await.unwrap().into_inner().count;
        for number in 0..puts {
            client.put(put(format!("{found:08}-{number:08}"), "v".repeat(100))).await.unwrap();
        }
        found
    })
}

#[test]
fn a_log_that_has_lost_its_end_starts_with_a_flag_only() {
    const SEGMENT: u64 = 64_000_000;
    let words = "last segment is shorter than when it was created";
    // The store makes no commit, so that it is not ahead of the damaged log.
    let flags = ["--backend-batch-interval=1h", "--backend-batch-limit=1000000"];
    for lost in [4096, 1 << 20, SEGMENT - 10_000] {
        let dir = tempfile::tempdir().unwrap();
        let segment = dir.path().join("member/wal/0000000000000000-0000000000000000.wal");
        let mut running = start(dir.path(), &flags);
        assert_eq!(counted(&running.ready(), 100), 0);
        running.signal(Signal::SIGKILL);
        running.end();
        let file = std::fs::File::options().write(true).open(&segment).unwrap();
        file.set_len(SEGMENT - lost).unwrap();

        let (status, said) = start(dir.path(), &flags).end();
        let said = said.join("\n");
        assert!(!status.success() && said.contains("--unsafe-accept-log-loss"), "{said}");
        let accepting = [&flags[..], &["--unsafe-accept-log-loss"]].concat();
        let mut running = start(dir.path(), &accepting);
        let line = running.json(words);
        assert_eq!(line["level"], "warn");
        assert_eq!(line["segment"], segment.to_str().unwrap());
        assert_eq!(
            (&line["expected-bytes"], &line["found-bytes"]),
            (&SEGMENT.into(), &(SEGMENT - lost).into())
        );
        let address = running.ready();
        let found = counted(&address, 1);
        assert!(found == 100 || lost > 1 << 20 && (10..90).contains(&found), "{found}");
        let last = line["last-index"].as_i64().unwrap();
        assert!((found..found + 10).contains(&last), "{last}, and {found} keys");
        let metric = format!("\nclearlane_wal_missing_bytes {lost}\n");
        assert!(http_get(&address, "/metrics").contains(&metric), "{metric}");
        running.signal(Signal::SIGKILL);
        running.end();

        let mut running = start(dir.path(), &flags);
        let address = running.ready();
        assert_eq!(counted(&address, 0), found + 1);
        assert!(http_get(&address, "/metrics").contains("\nclearlane_wal_missing_bytes 0\n"));
        running.signal(Signal::SIGKILL);
        let said = running.end().1;
        assert!(!said.iter().any(|line| line.contains(words)), "{said:#?}");
    }
}

#[test]
fn a_wrong_command_line_is_told() {
    let output = program(&["--bogus"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr)
            .starts_with("clearlane: flag provided but not defined: -bogus\nUsage:")
    );
    let output = program(&["surplus"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let wanted = "clearlane: \"surplus\" is not a valid flag or command\nUsage:";
    assert!(text(&output.stderr).starts_with(wanted));
    let output = program(&["--election-timeout=1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stderr).lines().count(), 1);
    for arguments in [["--version"], ["version"]] {
        let output = program(&arguments).output().unwrap();
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
        assert!(text(&output.stdout).starts_with("etcd Version: 3.7.1\n"));
        assert_eq!(text(&output.stdout).lines().count(), 4);
    }
    let output = program(&["--help"]).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
    assert!(text(&output.stdout).contains("--initial-cluster-token <text>"));
}

/// Returns the last line of standard error.
fn last_line(said: &[String]) -> &str {
    said.last().unwrap()
}

#[test]
fn data_in_use_and_newer_data_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = start(dir.path(), &[]);
    first.ready();
    let (status, said) = start(dir.path(), &[]).end();
    assert_eq!(status.code(), Some(1));
    let words = "in use by another process or another part of this one";
    assert!(last_line(&said).contains(words), "{said:#?}");
    first.signal(Signal::SIGTERM);
    first.end();
    let newer = dir.path().join("newer");
    std::fs::create_dir_all(newer.join("member")).unwrap();
    std::fs::write(newer.join("member/format"), "7\n").unwrap();
    let (status, said) = start(&newer, &["--engine=sled"]).end();
    assert_eq!(status.code(), Some(1));
    assert!(last_line(&said).contains("the data is of format 7"), "{said:#?}");
}

#[test]
fn a_port_in_use_is_told_before_data_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("--listen-client-urls=http://{}", taken.local_addr().unwrap());
    let (status, said) = start(&dir.path().join("data"), &[&url]).end();
    assert_eq!(status.code(), Some(1));
    assert!(last_line(&said).contains("--listen-client-urls: 127.0.0.1:"), "{said:#?}");
    assert!(!dir.path().join("data").exists());
}

#[test]
fn systemd_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let data = dir.path().join("data");
    let _running = RunningProgram::start(member(&data, &[]).env("NOTIFY_SOCKET", &path));
    let mut words = [0; 64];
    let length = socket.recv(&mut words).unwrap();
    assert_eq!(&words[..length], b"READY=1");
}

/// The flag `--auto-compaction-retention=1s` makes the member compact revisions that are older than
/// a second. A read of an old revision must then fail.
#[test]
fn the_past_is_forgotten_by_the_clock() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = start(dir.path(), &["--auto-compaction-retention=1s"]);
    let address = running.ready();
    block_on(async {
        let mut client = KvClient::new(connect(&address).await);
        for number in 0..10 {
            client.put(put("a", number.to_string())).await.unwrap();
        }
        // The first compaction may run before the puts are a second old.
        let refused = loop {
            running.line("completed auto compaction");
            let old = RangeRequest { revision: 2, ..get("a") };
            if let Err(refused) = client.range(old).await {
                break refused;
            }
        };
        assert!(refused.message().contains("compacted"), "{refused}");
        let now = client.range(get("a")).await.unwrap().into_inner();
        assert_eq!(now.kvs[0].value, "9");
    });
}

#[test]
fn what_takes_long_says_where_its_time_went() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = start(dir.path(), &["--warning-unary-request-duration=0s"]);
    let address = running.ready();
    block_on(async {
        let mut client = KvClient::new(connect(&address).await);
        client.put(put("slow", "secret")).await.unwrap();
    });
    let line = running.json("request stats");
    assert_eq!(line["response type"], "/etcdserverpb.KV/Put");
    assert_eq!(line["request content"], "key:\"slow\" value_size:6");
    assert!(line["stages"].as_str().unwrap().starts_with("apply "), "{line}");
    assert!(line["remote"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
}

#[test]
fn what_takes_long_to_apply_or_to_read_is_told_as_etcd_does() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = start(dir.path(), &["--warning-apply-duration=0s"]);
    let address = running.ready();
    // The member itself also writes some entries during the test, so other lines are skipped.
    let next = |running: &mut RunningProgram, words: &str| -> Value {
        loop {
            let line = running.line("apply request took too long");
            if line.contains(words) {
                return serde_json::from_str(&line).unwrap();
            }
        }
    };
    block_on(async {
        let mut client = KvClient::new(connect(&address).await);
        client.put(put("slow", "secret")).await.unwrap();
        let written = next(&mut running, " put:");
        assert!(written["took"].is_string() && written["response"] == "size:4", "{written}");
        assert_eq!(
            (&written["prefix"], &written["expected-duration"]),
            (&"".into(), &"0ns".into())
        );
        client.range(get("slow")).await.unwrap();
        let read = next(&mut running, "read-only range ");
        assert_eq!(read["prefix"], "read-only range ", "{read}");
        assert_eq!(read["request"], "key:\"slow\"");
        assert!(read["response"].as_str().unwrap().starts_with("range_response_count:1 size:"));
        client.range(RangeRequest { revision: 99, ..get("slow") }).await.unwrap_err();
        let failed = next(&mut running, "read-only range ");
        assert_eq!(failed["error"], "etcdserver: mvcc: required revision is a future revision");
    });
}

#[test]
fn a_member_looks_at_the_others_before_it_serves() {
    let dir = tempfile::tempdir().unwrap();
    let gate = "--feature-gates=InitialCorruptCheck=true,CompactHashCheck=true";
    let mut running = start(dir.path(), &[gate]);
    running.ready();
    running.signal(Signal::SIGTERM);
    let (_, said) = running.end();
    assert!(!said.iter().any(|line| line.contains("initial corruption")), "there was nothing");
    let mut running = start(dir.path(), &[gate]);
    running.line("initial corruption checking passed");
    running.ready();
}

/// Each of the two meta pages of a bolt file contains two copies of its data. Flips a bit in the
/// first copy on the newest meta page, so that a start must repair it from the second copy.
fn damage_newest_meta(file: &Path) {
    let mut bytes = std::fs::read(file).unwrap();
    let txid = |page: usize| {
        let at = page * 4096 + 16 + 48;
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    };
    let newest = usize::from(txid(1) > txid(0));
    bytes[newest * 4096 + 16 + 20] ^= 4;
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn a_repair_of_a_bolt_file_is_logged() {
    let dir = tempfile::tempdir().unwrap();
    let engine = "--engine=bolt";
    let stop = |mut running: RunningProgram| {
        running.ready();
        running.signal(Signal::SIGTERM);
        running.end().1
    };
    let file = dir.path().join("member/snap/db");
    let words = "the store was repaired when it was opened";
    let said = stop(start(dir.path(), &[engine]));
    assert!(!said.iter().any(|line| line.contains(words)), "{said:#?}");
    damage_newest_meta(&file);
    let said = stop(start(dir.path(), &[engine]));
    let repair_line = said.iter().find(|line| line.contains(words));
    assert!(
        repair_line.is_some_and(|line| line.contains("was damaged and is repaired")),
        "{said:#?}"
    );
}

/// Starts a member whose standard error is a terminal.
fn start_on_terminal(data_dir: &Path, more: &[&str]) -> RunningProgram {
    let member = member(data_dir, more);
    let words: Vec<String> = std::iter::once(member.get_program())
        .chain(member.get_args())
        .map(|word| format!("'{}'", word.to_str().unwrap()))
        .collect();
    // `script` copies the terminal to its standard output. When `script` ends, the member gets
    // SIGHUP. `timeout` ends a member that ignores this signal, as all programs do under `nohup`.
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec script --quiet --flush --return --command \"$0\" /dev/null 1>&2"]);
    RunningProgram::start(shell.arg(format!("timeout --foreground 120 {}", words.join(" "))))
}

#[test]
fn a_log_of_json_has_no_other_lines_on_a_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = start_on_terminal(dir.path(), &["--era=3.7"]);
    let opened = running.json("opened the member's data");
    assert_eq!(opened["era"], "3.5");
    running.line("now serving peer/client/metrics");
    for line in running.said() {
        assert!(serde_json::from_str::<Value>(line.trim_end()).is_ok(), "{line}");
    }
}

#[test]
fn a_log_for_people_says_on_a_terminal_where_clients_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = start_on_terminal(dir.path(), &["--log-format=console"]);
    running.line("Clearlane serves etcd's API at http://127.0.0.1:");
}

#[test]
fn an_error_of_a_directory_has_its_path() {
    // No user can create a directory in `/proc`.
    let said = failure(&mut member(Path::new("/proc/clearlane"), &[]));
    assert!(said.starts_with("clearlane: /proc/clearlane/member: "), "{said}");
}

#[test]
fn too_few_open_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let script = r#"ulimit -n 150; exec "$0" --data-dir="$1""#;
    let mut program = Command::new("sh");
    program.args(["-c", script, env!("CARGO_BIN_EXE_clearlane")]).arg(dir.path().join("new"));
    let error = failure(&mut program);
    let words =
        "the limit of open files is 150, and must be more than 150: raise it with `ulimit -n`";
    assert!(error.contains(words), "{error}");
    assert!(!dir.path().join("new").exists());
}

#[test]
fn the_gateway_can_be_switched_off() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = start(dir.path(), &["--enable-grpc-gateway=false"]);
    let address = running.ready();
    for (path, status) in [("/v3/kv/range", "404"), ("/health", "200"), ("/version", "200")] {
        let answer = http_get(&address, path);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
    }
    block_on(async {
        KvClient::new(connect(&address).await).put(put("a", "1")).await.unwrap();
    });
}

#[test]
fn a_store_with_much_free_space_is_defragmented_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = start(dir.path(), &[]);
    let address = running.ready();
    block_on(async {
        let mut client = KvClient::new(connect(&address).await);
        let value = "v".repeat(64 << 10);
        for number in 0..64 {
            client.put(put(format!("k{number:04}"), &value)).await.unwrap();
        }
        let all = DeleteRangeRequest { key: "k".into(), range_end: "l".into(), prev_kv: false };
        let deleted = client.delete_range(all).await.unwrap().into_inner();
        let revision = deleted.header.unwrap().revision;
        client.compact(CompactionRequest { revision, physical: true }).await.unwrap();
    });
    running.signal(Signal::SIGTERM);
    running.end();
    let file = dir.path().join("member/snap/db");
    let before = file.metadata().unwrap().len();
    let restart = |threshold: &str, words: &str| {
        let mut running = start(dir.path(), &[threshold]);
        let line = running.json(words);
        running.ready();
        running.signal(Signal::SIGTERM);
        running.end();
        line
    };
    restart("--bootstrap-defrag-threshold-megabytes=100", "Skipping defragmentation");
    assert_eq!(file.metadata().unwrap().len(), before);
    restart("--bootstrap-defrag-threshold-megabytes=2", "finished defragmenting the store");
    let after = file.metadata().unwrap().len();
    assert!(after < before / 4, "{before} bytes, and then {after}");
}

#[test]
fn log_files_are_rotated() {
    let dir = tempfile::tempdir().unwrap();
    let log = format!("--log-outputs=stderr,{}", dir.path().join("etcd.log").display());
    let rotation = r#"--log-rotation-config-json={"maxsize": 1, "maxbackups": 2}"#;
    let data = dir.path().join("data");
    std::fs::write(dir.path().join("etcd.log"), "x".repeat(1 << 20)).unwrap();
    let mut running = start(&data, &[&log, "--enable-log-rotation", rotation]);
    running.ready();
    let names = std::fs::read_dir(dir.path()).unwrap();
    let names: Vec<String> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let rotated = names.iter().filter(|name| name.starts_with("etcd-20") && name.ends_with(".log"));
    assert_eq!(rotated.count(), 1, "{names:?}");
    let newest = std::fs::read_to_string(dir.path().join("etcd.log")).unwrap();
    assert!(newest.contains("ready to serve client requests"), "{newest}");
}

#[test]
fn memory_is_locked_or_the_start_is_refused() {
    const IPC_LOCK: u64 = 1 << 14;
    // The capability that a process needs to drop `IPC_LOCK`.
    const SETPCAP: u64 = 1 << 8;
    let dir = tempfile::tempdir().unwrap();
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let effective = own.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    let effective = u64::from_str_radix(effective.trim(), 16).unwrap();
    let may_lock_all = effective & IPC_LOCK != 0;
    if may_lock_all && effective & SETPCAP == 0 {
        println!("SKIPPED: this process cannot start another without its right to lock memory");
        return;
    }
    let member = || member(dir.path(), &["--memory-mlock"]);
    let script = match may_lock_all {
        true => r#"ulimit -l 64; exec setpriv --bounding-set=-ipc_lock "$0" "$@""#,
        false => r#"ulimit -l 64; exec "$0" "$@""#,
    };
    let mut limited = Command::new("sh");
    limited.args(["-c", script]).arg(member().get_program()).args(member().get_args());
    let said = failure(&mut limited);
    assert!(said.contains("--memory-mlock: the limit of locked memory is 65536 bytes"), "{said}");
    if !may_lock_all {
        println!("SKIPPED: this process may not lock memory without a limit");
        return;
    }
    let mut running = RunningProgram::start(&mut member());
    running.ready();
    let status = std::fs::read_to_string(format!("/proc/{}/status", running.id())).unwrap();
    let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
    assert_ne!(locked.trim(), "0 kB");
}
