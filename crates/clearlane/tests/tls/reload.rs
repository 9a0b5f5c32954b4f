//! Files that change while a server runs.

use std::fs;

use rustls::pki_types::CertificateDer;

use crate::authority::Authority;
use crate::test_server::{TlsTestServer, block_on, put};

/// The server's certificate.
async fn shown(lab: &TlsTestServer) -> CertificateDer<'static> {
    let stream = lab.stream(&["h2"]).await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].clone()
}

#[test]
fn a_new_certificate_is_shown_to_new_connections() {
    let lab = TlsTestServer::new(|_, _| {});
    block_on(async {
        let old = lab.channel(&lab.ca.believer()).await.unwrap();
        put(old.clone()).await.unwrap();
        let first = shown(&lab).await;
        assert_eq!(shown(&lab).await, first);
        lab.ca.pair("server", &["127.0.0.1", "localhost"]);
        let second = shown(&lab).await;
        assert_ne!(second, first);
        // A file that makes no sense changes nothing, and neither does one that is gone.
        let key = lab.dir.path().join("server.key");
        fs::write(&key, "nonsense").unwrap();
        assert_eq!(shown(&lab).await, second);
        fs::remove_file(&key).unwrap();
        assert_eq!(shown(&lab).await, second);
        lab.ca.pair("server", &["127.0.0.1", "localhost"]);
        assert_ne!(shown(&lab).await, second);
        put(old).await.unwrap();
    });
}

#[test]
fn a_new_authority_counts_for_new_connections() {
    let lab = TlsTestServer::new(|ca, side| side.trusted_ca = Some(ca.named()));
    let alice = lab.ca.pair("alice", &[]);
    let other = Authority::new(lab.dir.path(), "other");
    let bob = other.pair("bob", &[]);
    // The server's identity is the same: its file of clients' authorities is replaced, not theirs.
    let old = lab.dir.path().join("old.crt");
    fs::copy(lab.ca.certificate(), &old).unwrap();
    block_on(async {
        let believes_old = |pair| {
            let mut side = lab.ca.caller(pair);
            side.trusted_ca.as_mut().unwrap().path.clone_from(&old);
            side
        };
        lab.put(&believes_old(alice.clone())).await.unwrap();
        lab.put(&believes_old(bob.clone())).await.unwrap_err();
        fs::copy(other.certificate(), lab.ca.certificate()).unwrap();
        lab.put(&believes_old(alice)).await.unwrap_err();
        lab.put(&believes_old(bob)).await.unwrap();
    });
}
