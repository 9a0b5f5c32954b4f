//! From metrics to a scenario: recorded ones, those of a server that runs, and what else may
//! answer.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use clearlane_loadgen::workload::Operation;
use clearlane_simulator::costs::Costs;
use clearlane_simulator::era::Era;
use clearlane_simulator::metrics::delta::MetricsDeltaError;
use clearlane_simulator::metrics::scenario_file::scenario_toml;
use clearlane_simulator::metrics::{MetricsDelta, Page};
use clearlane_simulator::run::run;
use clearlane_simulator::scenario::Scenario;
use clearlane_simulator::server::Build;
use clearlane_test_server::TestServer;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

fn recorded(name: &str) -> String {
    fs::read_to_string(file(name)).unwrap()
}

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/metrics").join(name)
}

fn page(name: &str) -> Page {
    Page::parse(&recorded(name)).unwrap()
}

fn reading(version: &str, seconds: f64) -> MetricsDelta {
    let [first, second] =
        ["first", "second"].map(|part| page(&format!("etcd-{version}-{part}.txt")));
    MetricsDelta::between(&first, &second, seconds).unwrap()
}

/// As it was written when it was reviewed last: `UPDATE_GOLDENFILES=1` writes it anew.
fn as_before(name: &str, text: &str) {
    if std::env::var("UPDATE_GOLDENFILES").is_ok_and(|value| value == "1") {
        fs::write(file(name), text).unwrap();
    }
    assert_eq!(recorded(name), text, "{name}: UPDATE_GOLDENFILES=1 if that is right");
}

#[test]
fn recorded_metrics_of_every_version_make_scenarios_that_run() {
    for (version, seconds) in [("3.3", 10.0), ("3.4", 10.0), ("3.5", 20.0), ("3.7.1", 9.034)] {
        let text = scenario_toml(&reading(version, seconds), "http://127.0.0.1:2379/metrics");
        as_before(&format!("etcd-{version}.toml"), &text);
        let mut scenario = Scenario::parse(&text).unwrap();
        scenario.workload.seconds = 5;
        let results = run(&scenario, &Build::new(Era::V3_5, Costs::BY_HAND)).unwrap();
        for (class, load) in results.classes.iter().zip(&scenario.workload.classes) {
            assert!(class.answers() > 0 || load.rate < 1.0, "{version}, {}", class.name);
        }
    }
}

/// What the recording was made with: 60 puts of 544 bytes and 200 ranges of 10 and 50 of 1 key per
/// second.
#[test]
fn the_load_of_a_recording_is_found_again() {
    let reading = reading("3.7.1", 9.034);
    let scenario = Scenario::parse(&scenario_toml(&reading, "there")).unwrap();
    let class = |name| scenario.workload.classes.iter().find(|class| class.name == name).unwrap();
    assert!((59.0..61.0).contains(&class("put").rate), "{:?}", class("put"));
    assert!((240.0..255.0).contains(&class("range").rate), "{:?}", class("range"));
    let Operation::Range { keys: 8, limit: None, .. } = class("range").operation else {
        panic!("{:?}", class("range"))
    };
    let space = &scenario.workload.space;
    assert_eq!((space.count, space.key_size + space.value.max, scenario.cores), (5000, 544, 2));
    let sync = scenario.model.sync.unwrap();
    // (1.753 - 1.249) s of 540 syncs.
    assert!((0.93e6..0.94e6).contains(&sync.mean_ns), "{sync:?}");
    assert!(sync.p99_ns.unwrap() > 2.0 * sync.mean_ns, "{sync:?}");
}

#[test]
fn a_server_that_counts_no_requests_is_believed_what_its_store_did() {
    let without = |name| {
        let text = recorded(name);
        let lines = text.lines().filter(|line| !line.starts_with("grpc_server"));
        Page::parse(&lines.collect::<Vec<_>>().join("\n")).unwrap()
    };
    let [first, second] = ["etcd-3.3-first.txt", "etcd-3.3-second.txt"].map(without);
    let reading = MetricsDelta::between(&first, &second, 10.0).unwrap();
    let text = scenario_toml(&reading, "there");
    assert!(text.contains("rate = 200 ") && text.contains("rate = 50 "), "{text}");
    assert!(text.contains("# counted in the store: it does not count requests"), "{text}");
}

#[test]
fn pages_that_say_nothing_together_are_told_apart() {
    let between = |first: &str, second: &str| {
        let pages = [first, second].map(|text| Page::parse(text).unwrap());
        MetricsDelta::between(&pages[0], &pages[1], 2.0).unwrap_err()
    };
    let [first, second] = ["first", "second"].map(|part| recorded(&format!("etcd-3.4-{part}.txt")));
    assert_eq!(between(&second, &first), MetricsDeltaError::Restarted);
    assert_eq!(between(&first, &first), MetricsDeltaError::NoLoad(2.0));
    assert_eq!(
        between("etcd_server_has_leader 1\n", "etcd_server_has_leader 1\n"),
        MetricsDeltaError::NoCounts
    );
    // It has done more since its second start than it had after its first.
    let restarted = second
        .replace("process_start_time_seconds 1.65e+09", "process_start_time_seconds 1.66e+09");
    assert_eq!(between(&first, &restarted), MetricsDeltaError::Restarted);
}

fn from_metrics(arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_clearlane-sim");
    Command::new(program).arg("from-metrics").args(arguments).output().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_runs_makes_a_scenario_that_the_tool_takes() {
    let server = TestServer::start().await.unwrap();
    let client = server.client().await.unwrap();
    for number in 0..300 {
        client.put(format!("key-{number:04}"), vec![b'x'; 200]).await.unwrap();
    }
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("of-mine.toml").to_str().unwrap().to_owned();
    let arguments =
        [server.endpoint(), "--seconds".into(), "2".into(), "--out".into(), out.clone()];
    let is_done = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&is_done);
    let asked = thread::spawn(move || {
        let output = from_metrics(&arguments.each_ref().map(String::as_str));
        told.store(true, Ordering::Release);
        output
    });
    while !is_done.load(Ordering::Acquire) {
        client.put("key-0007", vec![b'y'; 200]).await.unwrap();
        client.get("key-0008").await.unwrap();
        client.get("key-0009").await.unwrap();
    }
    let output = asked.join().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = fs::read_to_string(&out).unwrap();
    assert!(
        text.contains("The load of Clearlane") && text.contains("--era 3.5,clearlane"),
        "{text}"
    );
    let scenario = Scenario::parse(&text).unwrap();
    let rate =
        |name| scenario.workload.classes.iter().find(|class| class.name == name).unwrap().rate;
    let twice = rate("range") / rate("put");
    assert!((1.8..2.2).contains(&twice), "two reads for each put: {twice}\n{text}");
    let space = &scenario.workload.space;
    assert_eq!((space.count, space.key_size + space.value.max), (300, 208), "{text}");
    assert!(scenario.model.sync.is_some_and(|sync| sync.mean_ns > 1000.0), "{text}");
    let program = Command::new(env!("CARGO_BIN_EXE_clearlane-sim"));
    let ran = { program }.args(["run", &out, "--seconds", "2", "--cores", "64"]).output().unwrap();
    assert!(ran.status.success(), "{}\n{text}", String::from_utf8_lossy(&ran.stderr));
}

/// Gives these answers, one after the other, each over a connection of its own.
fn answering(answers: Vec<Vec<u8>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for answer in answers {
            let (stream, _) = listener.accept().unwrap();
            give(stream, &answer);
        }
    });
    format!("http://{address}")
}

/// Answers the request that comes over it.
fn give(stream: impl Read + Write, answer: &[u8]) {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while stream.read_line(&mut line).is_ok_and(|length| length > 0) && line.trim() != "" {
        line.clear();
    }
    // A client that is not understood, or not trusted, may hang up early.
    let _ = stream.get_mut().write_all(answer);
}

fn http(status: &str, more: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{more}\r\n{body}").into_bytes()
}

#[test]
fn who_answers_something_else_is_told_from_a_server() {
    let ok = |body: &str| http("200 OK", "", body);
    let first = recorded("etcd-3.4-first.txt");
    for (answers, expected) in [
        (vec![ok("<!DOCTYPE html>\n<html></html>")], "a web page is there, and no metrics"),
        (vec![ok("")], "the page is empty"),
        (vec![ok("node_load1 0.5\n")], "not of etcd"),
        (vec![ok("{\"health\":\"true\"}")], "line 1 is none of metrics: {\"health\""),
        (
            vec![http("404 Not Found", "", "404 page not found\n")],
            "it answers 404 Not Found; metrics of etcd",
        ),
        (
            vec![http("301 Moved", "Location: https://there/metrics\r\n", "")],
            "sends us to https://there/metrics",
        ),
        (vec![b"SSH-2.0-OpenSSH_9.2\r\n".to_vec()], "no HTTP is spoken there: "),
        (vec![b"\x15\x03\x01\x00\x02\x02\x16".to_vec()], "is it a port for https?"),
        (
            vec![b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\netcd_a 1".to_vec()],
            "the page broke off",
        ),
        (vec![b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n\xff".to_vec()], "is no text"),
        (vec![ok(&first), ok(&first)], "it had no requests in"),
        (
            vec![ok(&recorded("etcd-3.4-second.txt")), ok(&first)],
            "was started anew between the two",
        ),
    ] {
        let url = answering(answers);
        let output = from_metrics(&[&url, "--seconds", "1"]);
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && told.contains(expected), "{expected}: {told}");
        assert!(told.contains(&format!("{url}/metrics: ")), "{told}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn pages_in_chunks_are_put_together() {
    let in_chunks = |body: &str| {
        let (one, other) = body.split_at(1000);
        let chunk = |part: &str| format!("{:x}\r\n{part}\r\n", part.len());
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        format!("{head}{}{}0\r\n\r\n", chunk(one), chunk(other)).into_bytes()
    };
    let pages =
        ["etcd-3.4-first.txt", "etcd-3.4-second.txt"].map(|name| in_chunks(&recorded(name)));
    let output = from_metrics(&[&answering(pages.to_vec()), "--seconds", "1"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("# The load of etcd 3.4.30 at http://127.0.0.1:"), "{text}");
    assert!(Scenario::parse(&text).is_ok());
}

/// An authority that signs, and a certificate for 127.0.0.1 with its key, as files.
struct Signed {
    directory: tempfile::TempDir,
    authority: String,
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Signed {
    fn new() -> Signed {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &authority).unwrap();
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("ca.pem", authority.pem()),
            ("cert.pem", certificate.pem()),
            ("key.pem", key.serialize_pem()),
        ] {
            fs::write(directory.path().join(name), text).unwrap();
        }
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        let (authority, certificate) = (authority.pem(), certificate.der().clone());
        Signed { directory, authority, certificate, key }
    }

    fn file(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    /// A server with this certificate, which wants one of the same authority, and gives these
    /// answers.
    fn answering(&self, answers: Vec<Vec<u8>>) -> String {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.authority.as_bytes()).unwrap()).unwrap();
        let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build().unwrap();
        let rules = ServerConfig::builder().with_client_cert_verifier(verifier);
        let own = (vec![self.certificate.clone()], self.key.clone_key());
        let rules = Arc::new(rules.with_single_cert(own.0, own.1).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for answer in answers {
                let (stream, _) = listener.accept().unwrap();
                let connection = ServerConnection::new(Arc::clone(&rules)).unwrap();
                let mut stream = StreamOwned::new(connection, stream);
                give(&mut stream, &answer);
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        });
        format!("https://{address}")
    }
}

#[test]
fn who_wants_certificates_is_shown_them() {
    let signed = Signed::new();
    let pages = ["etcd-3.4-first.txt", "etcd-3.4-second.txt"];
    let answers = pages.map(|name| http("200 OK", "", &recorded(name))).to_vec();
    let [ca, cert, key] = ["ca.pem", "cert.pem", "key.pem"].map(|name| signed.file(name));
    let files = ["--cacert", &ca, "--cert", &cert, "--key", &key, "--seconds", "1"];
    let output =
        from_metrics(&[[signed.answering(answers.clone()).as_str()].as_slice(), &files].concat());
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("# The load of etcd 3.4.30 at https://127.0.0.1:"), "{text}");

    let missing = signed.file("missing.pem");
    for (files, expected) in [
        (vec!["--cacert", &ca], "does it want a certificate (--cert, --key)?"),
        (vec!["--cacert", &key], "there is no certificate in it"),
        (vec!["--cacert", &missing], "missing.pem: No such file"),
        (vec!["--cacert", &ca, "--cert", &cert, "--key", &cert], "cert.pem: "),
    ] {
        let url = signed.answering(answers.clone());
        let output = from_metrics(&[[url.as_str()].as_slice(), &files].concat());
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && told.contains(expected), "{expected}: {told}");
    }
    let stranger = Signed::new();
    let url = signed.answering(answers);
    let output = from_metrics(&[&url, "--cacert", &stranger.file("ca.pem")]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("TLS fails: ") && told.contains("there are --cacert"), "{told}");
}

#[test]
fn who_is_asked_must_be_a_server() {
    let closed_port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for (arguments, expected) in [
        (vec![], "<URL>"),
        (
            vec!["ftp://there/metrics"],
            "read over http or https, not ftp; say one such as http://127.0.0.1:2379",
        ),
        (vec!["http://"], "it is no URL"),
        (vec![closed_port.as_str()], "no server can be reached there: Connection refused"),
        (vec!["there", "--seconds", "0"], "0 is not in 1..=3600"),
        (vec!["there", "--cert", "a.pem"], "--key <FILE>"),
    ] {
        let output = from_metrics(&arguments);
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && told.contains(expected), "{expected}: {told}");
    }
}
