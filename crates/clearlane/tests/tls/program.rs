//! Tests of the program with TLS flags.

use std::fs;
use std::net::{TcpListener, TcpStream as Tcp};
use std::path::Path;

use clearlane_net::tls::protocol::ProtocolConfig;
use clearlane_net::tls::{Dialer, FlagPath, TlsInfo};
use tokio::net::TcpStream;

use crate::authority::Authority;
use crate::program_process::{RunningProgram, failure, member, program};
use crate::test_server::{block_on, get, handshake, put};

const HTTPS: [&str; 2] =
    ["--listen-client-urls=https://127.0.0.1:0", "--advertise-client-urls=https://127.0.0.1:2379"];

fn start(data_dir: &Path, more: &[&str]) -> RunningProgram {
    RunningProgram::start(member(data_dir, &HTTPS).args(more))
}

fn refused(data_dir: &Path, more: &[&str]) -> String {
    failure(member(data_dir, &HTTPS).args(more))
}

fn flag(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

#[test]
fn a_certificate_is_made_and_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let made = data.join("fixtures/client/cert.pem");
    let mut certificates = Vec::new();
    for _ in 0..2 {
        let mut running = start(&data, &["--auto-tls"]);
        let address = running.address("serving client traffic securely");
        certificates.push(fs::read(&made).unwrap());
        // A self-signed certificate is its own authority.
        let trusted = Some(FlagPath { flag: "cacert", path: made.clone() });
        let side = TlsInfo { trusted_ca: trusted, ..TlsInfo::default() };
        let outgoing = Dialer::new(&side, &ProtocolConfig::default()).unwrap();
        block_on(async {
            let url = format!("https://{address}");
            let channel = outgoing.connect(&url).await.unwrap();
            put(channel).await.unwrap();
        });
        let copy = dir.path().join("copy");
        let save = ["snapshot", "save", &address, copy.to_str().unwrap()];
        let output = program(&save).arg("--insecure-skip-tls-verify").output().unwrap();
        assert!(output.status.success() && copy.exists(), "{output:?}");
        let output = program(&save).arg(flag("cacert", &made)).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let output = program(&save).arg("--insecure-skip-tls-verify=false").output().unwrap();
        assert!(!output.status.success(), "{output:?}");
    }
    assert_eq!(certificates[0], certificates[1]);
}

#[test]
fn a_refused_client_is_logged() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Authority::new(dir.path(), "ca");
    let pair = ca.pair("server", &["127.0.0.1", "localhost"]);
    let flags = [
        flag("cert-file", &pair.certificate.path),
        flag("key-file", &pair.key.path),
        flag("trusted-ca-file", ca.certificate()),
        "--client-cert-auth".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut running = start(&dir.path().join("data"), &flags);
    let address = running.address("serving client traffic securely");
    block_on(async {
        let stream = TcpStream::connect(&address).await.unwrap();
        let own = stream.local_addr().unwrap().to_string();
        // In TLS 1.3, a client completes its handshake before the server checks the client's
        // certificate.
        let stream = handshake(stream, ca.certificate(), &["h2"]).await.unwrap();
        let line = running.json("rejected connection on client endpoint");
        assert_eq!(line["level"], "warn");
        assert_eq!(line["remote-addr"], own);
        assert_eq!(line["server-name"], "localhost");
        assert_eq!(line["error"], "tls: client didn't provide a certificate");
        drop(stream);
    });
    drop(Tcp::connect(&address).unwrap());
    assert_eq!(running.json("rejected connection on client endpoint")["error"], "EOF");
}

#[test]
fn slow_requests_are_told_with_their_clients_name() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Authority::new(dir.path(), "ca");
    let trusted = flag("trusted-ca-file", ca.certificate());
    let slow = "--warning-unary-request-duration=0s";
    let mut running = start(&dir.path().join("data"), &["--auto-tls", slow, &trusted]);
    let address = running.address("serving client traffic securely");
    let made = dir.path().join("data/fixtures/client/cert.pem");
    let trusted = Some(FlagPath { flag: "cacert", path: made });
    let side = TlsInfo { trusted_ca: trusted, ..ca.caller(ca.pair("alice", &[])) };
    let outgoing = Dialer::new(&side, &ProtocolConfig::default()).unwrap();
    block_on(async {
        let url = format!("https://{address}");
        let channel = outgoing.connect(&url).await.unwrap();
        put(channel).await.unwrap();
    });
    let line = running.json("request stats");
    assert!(line["remote"].as_str().unwrap().ends_with(" (CN alice)"), "{line}");
}

#[test]
fn metrics_may_have_tls_too() {
    let dir = tempfile::tempdir().unwrap();
    let metrics = "--listen-metrics-urls=https://localhost:0,http://127.0.0.1:0";
    let mut running = start(dir.path(), &["--auto-tls", metrics]);
    let (secure, plain) = (running.address("serving metrics"), running.address("serving metrics"));
    running.line("serving client traffic securely");
    block_on(async {
        let stream = TcpStream::connect(secure).await.unwrap();
        let made = dir.path().join("fixtures/client/cert.pem");
        let stream = handshake(stream, &made, &["http/1.1"]).await.unwrap();
        assert!(get(stream, "/metrics").await.contains("etcd_server_has_leader 1"));
        let stream = TcpStream::connect(plain).await.unwrap();
        assert!(get(stream, "/metrics").await.contains("etcd_server_has_leader 1"));
    });
}

#[test]
fn wrong_files_are_told_before_data_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let ca = Authority::new(dir.path(), "ca");
    let (one, two) = (ca.pair("one", &["127.0.0.1"]), ca.pair("two", &["127.0.0.1"]));
    let (one, two, missing) = (&one.certificate.path, &two.key.path, dir.path().join("missing"));
    let (own_key, nonsense) = (dir.path().join("one.key"), dir.path().join("nonsense"));
    fs::write(&nonsense, "nonsense").unwrap();
    let good = [flag("cert-file", one), flag("key-file", &own_key)];
    let with = |more: &[String]| {
        let all: Vec<&str> = good.iter().chain(more).map(String::as_str).collect();
        refused(&data, &all)
    };
    for (more, words) in [
        (vec![flag("cert-file", &missing)], "--cert-file: "),
        (vec![flag("cert-file", &nonsense)], "it has no certificate"),
        (vec![flag("key-file", two)], "private key does not match public key in --cert-file"),
        (vec![flag("key-file", one)], "it has no unencrypted private key"),
        (vec![flag("trusted-ca-file", &missing)], "--trusted-ca-file: "),
        (
            vec![flag("trusted-ca-file", ca.certificate()), flag("client-crl-file", &nonsense)],
            "--client-crl-file: ",
        ),
    ] {
        let error = with(&more);
        assert!(error.contains(words), "{more:?}: {error}");
    }
    let error = refused(&data, &[]);
    assert!(error.contains("TLS key/cert (--cert-file, --key-file) must be provided"), "{error}");
    let error = with(&["--cipher-suites=TLS_RSA_WITH_AES_128_CBC_SHA".to_owned()]);
    assert!(error.contains("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"), "{error}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("--listen-client-urls=https://{}", taken.local_addr().unwrap());
    assert!(refused(&data, &["--auto-tls", &url]).contains("--listen-client-urls: 127.0.0.1:"));
    assert!(!data.exists());
}
