//! Tests of TLS: which servers a client trusts, and which clients a server trusts.

use std::net::SocketAddr;

use clearlane_client::proto::etcdserverpb::kv_server::KvServer;
use clearlane_client::{Client, ClientTlsConfig, Error, Options};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};

use crate::stub::Stub;

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }
}

/// Starts a server with a certificate for `name`. If `clients` is given, the server accepts only
/// clients whose certificate this authority has signed.
async fn serve(authority: &Authority, name: &str, clients: Option<&Authority>) -> SocketAddr {
    let (certificate, key) = authority.sign(name);
    let mut tls = ServerTlsConfig::new().identity(Identity::from_pem(certificate, key));
    if let Some(clients) = clients {
        tls = tls.client_ca_root(Certificate::from_pem(clients.pem()));
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut server = Server::builder().tls_config(tls).unwrap();
    let server = server.add_service(KvServer::new(Stub::default()));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    address
}

fn is_accepted(connected: Result<Client, Error>) -> bool {
    match connected {
        Ok(_) => true,
        Err(Error::Unavailable(_)) => false,
        Err(error) => panic!("{error:?}"),
    }
}

#[tokio::test]
async fn a_server_is_trusted_by_its_authority_and_its_name() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let address = serve(&ours, "etcd.test", None).await;
    let connect = async |authority: &Authority, name: &str| {
        let trusted = Certificate::from_pem(authority.pem());
        let tls = ClientTlsConfig::new().ca_certificate(trusted).domain_name(name);
        Client::connect([format!("https://{address}")], Options::new().tls(tls)).await
    };
    assert!(is_accepted(connect(&ours, "etcd.test").await));
    assert!(!is_accepted(connect(&theirs, "etcd.test").await));
    assert!(!is_accepted(connect(&ours, "other.test").await));
}

#[tokio::test]
async fn a_client_is_trusted_by_its_certificate() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let address = serve(&ours, "127.0.0.1", Some(&ours)).await;
    let connect = async |signed: Option<(String, String)>| {
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ours.pem()));
        if let Some((certificate, key)) = signed {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        Client::connect([address.to_string()], Options::new().tls(tls)).await
    };
    assert!(is_accepted(connect(Some(ours.sign("me"))).await));
    assert!(!is_accepted(connect(Some(theirs.sign("me"))).await));
    assert!(!is_accepted(connect(None).await));
}
