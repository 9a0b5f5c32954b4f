//! Tests of different kinds of clients on one port.

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
    let server = TlsTestServer::new(|_, _| {});
    block_on(async {
        server.put(&server.ca.believer()).await.unwrap();
        let stream = server.stream(&["h2", "http/1.1"]).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let stream = server.stream(&["http/1.1"]).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        assert!(get(stream, "/version").await.contains("\"etcdserver\":\"3.7.1\""));
        // A client that names no protocol uses HTTP/1.1.
        let stream = server.stream(&[]).await.unwrap();
        assert!(get(stream, "/health").await.contains("\"health\":\"true\""));
        assert!(server.stream(&["gopher"]).await.is_err());
        // A request without TLS gets no response.
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        stream.write_all(b"GET /version HTTP/1.1\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        // If the server closes the connection with unread data, the read fails.
        let _ = stream.read_to_end(&mut answer).await;
        assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    });
}

#[test]
fn one_port_may_speak_with_tls_and_without() {
    let server = TlsTestServer::with(ProtocolConfig::default(), true, |_, _| {});
    block_on(async {
        server.put(&server.ca.believer()).await.unwrap();
        let plain = Endpoint::from_shared(format!("http://{}", server.address())).unwrap();
        put(plain.connect().await.unwrap()).await.unwrap();
        let stream = server.stream(&["http/1.1"]).await.unwrap();
        assert!(get(stream, "/version").await.starts_with("HTTP/1.1 200"));
        let stream = TcpStream::connect(server.address()).await.unwrap();
        assert!(get(stream, "/version").await.starts_with("HTTP/1.1 200"));
    });
}

#[test]
fn clients_are_asked_for_a_certificate() {
    let server = TlsTestServer::new(|ca, side| side.trusted_ca = Some(ca.named()));
    let other = Authority::new(server.dir.path(), "other");
    let alice = server.ca.pair("alice", &[]);
    let mallory = other.pair("mallory", &[]);
    block_on(async {
        server.put(&server.ca.believer()).await.unwrap_err();
        server.put(&server.ca.caller(mallory)).await.unwrap_err();
        server.put(&server.ca.caller(alice.clone())).await.unwrap();
        // A client that trusts another authority does not accept this server.
        let error = server.put(&other.caller(alice)).await.unwrap_err();
        assert!(error.contains("certificate signed by unknown authority"), "{error}");
    });
}

#[test]
fn a_certificate_must_be_for_the_host() {
    let server = TlsTestServer::new(|ca, side| {
        side.server_certificate = Some(ca.pair("server", &["elsewhere.example"]))
    });
    block_on(async {
        let error = server.put(&server.ca.believer()).await.unwrap_err();
        assert!(error.contains("127.0.0.1"), "{error}");
    });
}

/// Some tools mark the certificates of servers and clients as certificates of an authority
/// (CA:TRUE), and etcd accepts them. Clearlane must check them like other certificates: a trusted
/// authority must have signed them, and the certificate of a server must be for the host.
#[test]
fn a_certificate_of_an_authority_is_checked_like_others() {
    let server = TlsTestServer::new(|ca, side| {
        side.trusted_ca = Some(ca.named());
        side.server_certificate = Some(ca.authority_pair("server", &["127.0.0.1"]));
    });
    let other = Authority::new(server.dir.path(), "other");
    let alice = server.ca.authority_pair("alice", &[]);
    let mallory = other.authority_pair("mallory", &[]);
    block_on(async {
        server.put(&server.ca.caller(alice.clone())).await.unwrap();
        server.put(&server.ca.caller(mallory)).await.unwrap_err();
        let error = server.put(&other.caller(alice)).await.unwrap_err();
        assert!(error.contains("certificate signed by unknown authority"), "{error}");
    });
    let elsewhere = TlsTestServer::new(|ca, side| {
        side.server_certificate = Some(ca.authority_pair("server", &["elsewhere.example"]));
    });
    block_on(async {
        let error = elsewhere.put(&elsewhere.ca.believer()).await.unwrap_err();
        assert!(error.contains("127.0.0.1"), "{error}");
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
    let server = TlsTestServer::new(|ca, side| {
        side.trusted_ca = Some(ca.named());
        alice = Some(ca.pair("alice", &[]));
        side.crl = Some(ca.revoke_last());
    });
    let bob = server.ca.pair("bob", &[]);
    block_on(async {
        server.put(&server.ca.caller(alice.unwrap())).await.unwrap_err();
        server.put(&server.ca.caller(bob)).await.unwrap();
    });
}

#[test]
fn versions_are_those_that_were_asked_for() {
    let newest = ProtocolConfig { min: Some(TlsVersion::Tls13), ..ProtocolConfig::default() };
    let older = ProtocolConfig { max: Some(TlsVersion::Tls12), ..ProtocolConfig::default() };
    for (protocol, version) in
        [(newest, rustls::ProtocolVersion::TLSv1_3), (older, rustls::ProtocolVersion::TLSv1_2)]
    {
        let server = TlsTestServer::with(protocol, false, |_, _| {});
        block_on(async {
            let stream = server.stream(&["h2"]).await.unwrap();
            assert_eq!(stream.get_ref().1.protocol_version(), Some(version));
        });
    }
}

/// A client that connects and sends nothing, or half of a hello, delays no other client.
#[test]
fn half_open_handshakes_disturb_no_other() {
    let server = TlsTestServer::new(|_, _| {});
    block_on(async {
        let mut half_open = Vec::new();
        for number in 0..100 {
            let mut stream = TcpStream::connect(server.address()).await.unwrap();
            if number % 2 == 0 {
                stream.write_all(&[0x16, 3, 1, 2, 0, 1]).await.unwrap();
            }
            half_open.push(stream);
        }
        for _ in 0..10 {
            server.put(&server.ca.believer()).await.unwrap();
        }
        // All half-open connections must still be open, or the test would prove nothing.
        for stream in &half_open {
            let error = stream.try_read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
        }
    });
}
