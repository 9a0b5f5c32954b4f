//! Clients of several kinds at one port.

use std::io::ErrorKind;

use clearlane_net::tls::config::AllowedNames;
use clearlane_net::tls::protocol::{ProtocolConfig, TlsVersion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::transport::Endpoint;

use crate::authority::{Authority, only};
use crate::test_server::{TlsTestServer, block_on, get, put};

#[test]
fn both_protocols_come_through_one_port() {
    let lab = TlsTestServer::new(|_, _| {});
    block_on(async {
        lab.put(&lab.ca.believer()).await.unwrap();
        let stream = lab.stream(&["h2", "http/1.1"]).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let stream = lab.stream(&["http/1.1"]).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        assert!(get(stream, "/version").await.contains("\"etcdserver\":\"3.7.1\""));
        // One that names no protocols speaks HTTP/1.1.
        let stream = lab.stream(&[]).await.unwrap();
        assert!(get(stream, "/health").await.contains("\"health\":\"true\""));
        assert!(lab.stream(&["gopher"]).await.is_err());
        // Without TLS there is no answer.
        let mut stream = TcpStream::connect(lab.address()).await.unwrap();
        stream.write_all(b"GET /version HTTP/1.1\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        // What it has not read when it closes is lost with an error.
        let _ = stream.read_to_end(&mut answer).await;
        assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    });
}

#[test]
fn one_port_may_speak_with_tls_and_without() {
    let lab = TlsTestServer::with(ProtocolConfig::default(), true, |_, _| {});
    block_on(async {
        lab.put(&lab.ca.believer()).await.unwrap();
        let plain = Endpoint::from_shared(format!("http://{}", lab.address())).unwrap();
        put(plain.connect().await.unwrap()).await.unwrap();
        let stream = lab.stream(&["http/1.1"]).await.unwrap();
        assert!(get(stream, "/version").await.starts_with("HTTP/1.1 200"));
        let stream = TcpStream::connect(lab.address()).await.unwrap();
        assert!(get(stream, "/version").await.starts_with("HTTP/1.1 200"));
    });
}

#[test]
fn clients_are_asked_for_a_certificate() {
    let lab = TlsTestServer::new(|ca, side| side.trusted_ca = Some(ca.named()));
    let other = Authority::new(lab.dir.path(), "other");
    let alice = lab.ca.pair("alice", &[]);
    let mallory = other.pair("mallory", &[]);
    block_on(async {
        lab.put(&lab.ca.believer()).await.unwrap_err();
        lab.put(&lab.ca.caller(mallory)).await.unwrap_err();
        lab.put(&lab.ca.caller(alice.clone())).await.unwrap();
        // And a client that trusts another authority does not talk to this server.
        let told = lab.put(&other.caller(alice)).await.unwrap_err();
        assert!(told.contains("certificate signed by unknown authority"), "{told}");
    });
}

#[test]
fn a_certificate_must_be_for_the_host() {
    let lab = TlsTestServer::new(|ca, side| {
        side.server_certificate = Some(ca.pair("server", &["elsewhere.example"]))
    });
    block_on(async {
        let told = lab.put(&lab.ca.believer()).await.unwrap_err();
        assert!(told.contains("127.0.0.1"), "{told}");
    });
}

#[test]
fn only_some_are_allowed() {
    let by_name = TlsTestServer::new(|ca, side| {
        (side.trusted_ca, side.allowed) = (Some(ca.named()), only(&["alice", "carol"]));
    });
    block_on(async {
        for (name, is_allowed) in [("alice", true), ("bob", false), ("carol", true)] {
            let caller = by_name.ca.caller(by_name.ca.pair(name, &[]));
            assert_eq!(by_name.put(&caller).await.is_ok(), is_allowed, "{name}");
        }
    });
    let by_host = TlsTestServer::new(|ca, side| {
        side.trusted_ca = Some(ca.named());
        side.allowed = AllowedNames::Hosts(vec!["one.hosts.example".to_owned()]);
    });
    block_on(async {
        for (host, is_allowed) in
            [("one.hosts.example", true), ("*.hosts.example", true), ("two.hosts.example", false)]
        {
            let caller = by_host.ca.caller(by_host.ca.pair("client", &[host]));
            assert_eq!(by_host.put(&caller).await.is_ok(), is_allowed, "{host}");
        }
    });
}

#[test]
fn what_is_revoked_is_refused() {
    let mut alice = None;
    let lab = TlsTestServer::new(|ca, side| {
        side.trusted_ca = Some(ca.named());
        alice = Some(ca.pair("alice", &[]));
        side.crl = Some(ca.revoke_last());
    });
    let bob = lab.ca.pair("bob", &[]);
    block_on(async {
        lab.put(&lab.ca.caller(alice.unwrap())).await.unwrap_err();
        lab.put(&lab.ca.caller(bob)).await.unwrap();
    });
}

#[test]
fn versions_are_those_that_were_asked_for() {
    let newest = ProtocolConfig { min: Some(TlsVersion::Tls13), ..ProtocolConfig::default() };
    let older = ProtocolConfig { max: Some(TlsVersion::Tls12), ..ProtocolConfig::default() };
    for (protocol, version) in
        [(newest, rustls::ProtocolVersion::TLSv1_3), (older, rustls::ProtocolVersion::TLSv1_2)]
    {
        let lab = TlsTestServer::with(protocol, false, |_, _| {});
        block_on(async {
            let stream = lab.stream(&["h2"]).await.unwrap();
            assert_eq!(stream.get_ref().1.protocol_version(), Some(version));
        });
    }
}

/// A client that connects and sends nothing, or half of a hello, holds up no other client.
#[test]
fn half_open_handshakes_disturb_no_other() {
    let lab = TlsTestServer::new(|_, _| {});
    block_on(async {
        let mut half_open = Vec::new();
        for number in 0..100 {
            let mut stream = TcpStream::connect(lab.address()).await.unwrap();
            if number % 2 == 0 {
                stream.write_all(&[0x16, 3, 1, 2, 0, 1]).await.unwrap();
            }
            half_open.push(stream);
        }
        for _ in 0..10 {
            lab.put(&lab.ca.believer()).await.unwrap();
        }
        // They were all open meanwhile: otherwise nothing was shown.
        for stream in &half_open {
            let told = stream.try_read(&mut [0]).unwrap_err();
            assert_eq!(told.kind(), ErrorKind::WouldBlock);
        }
    });
}
