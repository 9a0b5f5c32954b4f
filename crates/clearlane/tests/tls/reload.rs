//! Tests of certificate files that change while a server runs.

use std::fs;

use rustls::pki_types::CertificateDer;

use crate::authority::Authority;
use crate::test_server::{TlsTestServer, block_on, put};

/// Returns the certificate that the server presents.
async fn shown(server: &TlsTestServer) -> CertificateDer<'static> {
    let stream = server.stream(&["h2"]).await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].clone()
}

#[test]
fn a_new_certificate_is_shown_to_new_connections() {
    let server = TlsTestServer::new(|_, _| {});
    block_on(async {
        let old = server.channel(&server.ca.believer()).await.unwrap();
        put(old.clone()).await.unwrap();
        let first = shown(&server).await;
        assert_eq!(shown(&server).await, first);
        server.ca.pair("server", &["127.0.0.1", "localhost"]);
        let second = shown(&server).await;
        assert_ne!(second, first);
        // A file with invalid content, or a missing file, changes nothing.
        let key = server.dir.path().join("server.key");
        fs::write(&key, "nonsense").unwrap();
        assert_eq!(shown(&server).await, second);
        fs::remove_file(&key).unwrap();
        assert_eq!(shown(&server).await, second);
        server.ca.pair("server", &["127.0.0.1", "localhost"]);
        assert_ne!(shown(&server).await, second);
        put(old).await.unwrap();
    });
}

#[test]
fn a_new_authority_counts_for_new_connections() {
    let server = TlsTestServer::new(|ca, side| side.trusted_ca = Some(ca.named()));
    let alice = server.ca.pair("alice", &[]);
    let other = Authority::new(server.dir.path(), "other");
    let bob = other.pair("bob", &[]);
    // The server keeps its certificate. Only the file with the authorities of its clients is
    // replaced. The clients use their own copy, which stays the same.
    let old = server.dir.path().join("old.crt");
    fs::copy(server.ca.certificate(), &old).unwrap();
    block_on(async {
        let believes_old = |pair| {
            let mut side = server.ca.caller(pair);
            side.trusted_ca.as_mut().unwrap().path.clone_from(&old);
            side
        };
        server.put(&believes_old(alice.clone())).await.unwrap();
        server.put(&believes_old(bob.clone())).await.unwrap_err();
        fs::copy(other.certificate(), server.ca.certificate()).unwrap();
        server.put(&believes_old(alice)).await.unwrap_err();
        server.put(&believes_old(bob)).await.unwrap();
    });
}
