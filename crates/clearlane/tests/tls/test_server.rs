//! A member with a TLS port, and clients of several kinds.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clearlane::data::MemberConfig;
use clearlane_backend::Era;
use clearlane_net::listener::BindAddress;
use clearlane_net::listener::Listener;
use clearlane_net::tls::protocol::ProtocolConfig;
use clearlane_net::tls::{Dialer, TlsAcceptor, TlsInfo};
use clearlane_proto::etcdserverpb::PutRequest;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_replica::apply::Limits;
use clearlane_rpc::serve::{RpcConfig, RpcServer};
use clearlane_server::threads::ServerThreads;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::Status;
use tonic::transport::Channel;

use crate::authority::Authority;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct TlsTestServer {
    pub(crate) dir: TempDir,
    pub(crate) ca: Authority,
    _node: Arc<ServerThreads>,
    server: Option<RpcServer>,
}

impl TlsTestServer {
    /// Starts a server with a certificate of its authority. `change` changes its other settings.
    pub(crate) fn new(change: impl FnOnce(&Authority, &mut TlsInfo)) -> TlsTestServer {
        TlsTestServer::with(ProtocolConfig::default(), false, change)
    }

    pub(crate) fn with(
        protocol: ProtocolConfig,
        is_plain_too: bool,
        change: impl FnOnce(&Authority, &mut TlsInfo),
    ) -> TlsTestServer {
        let dir = tempfile::tempdir().unwrap();
        let ca = Authority::new(dir.path(), "ca");
        let own = ca.pair("server", &["127.0.0.1", "localhost"]);
        let mut side = TlsInfo { server_certificate: Some(own), ..TlsInfo::default() };
        change(&ca, &mut side);
        let tls = Arc::new(TlsAcceptor::new("client", &side, &protocol).unwrap());
        let data = dir.path().join("data");
        let config = MemberConfig::new("a", &data, "http://a:1", Era::Clearlane);
        let node = Arc::new(config.open_alone().unwrap());
        let at = BindAddress::Tcp("127.0.0.1:0".parse().unwrap());
        let listener = Listener::bind(&at).unwrap().with_tls(tls, is_plain_too);
        let (limits, common) = (Limits::default(), RpcConfig::default());
        let server =
            RpcServer::start_on_listeners(&node, vec![listener], 1, limits, common).unwrap();
        TlsTestServer { dir, ca, _node: node, server: Some(server) }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.as_ref().unwrap().address()
    }

    pub(crate) async fn channel(&self, side: &TlsInfo) -> Result<Channel, String> {
        let outgoing = Dialer::new(side, &ProtocolConfig::default()).unwrap();
        let url = format!("https://{}", self.address());
        outgoing.connect(&url).await
    }

    /// Puts a key. If the server rejects the client, the connection or the put fails.
    pub(crate) async fn put(&self, side: &TlsInfo) -> Result<(), String> {
        let channel = self.channel(side).await?;
        put(channel).await.map_err(|status| status.to_string())
    }

    /// Connects with TLS, and offers these protocols.
    pub(crate) async fn stream(&self, protocols: &[&str]) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address()).await?;
        handshake(stream, self.ca.certificate(), protocols).await
    }
}

impl Drop for TlsTestServer {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop().unwrap();
        }
    }
}

/// Makes a handshake without Clearlane's code, like any client that trusts the authority `ca`.
pub(crate) async fn handshake(
    stream: TcpStream,
    ca: &Path,
    protocols: &[&str],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

pub(crate) async fn put(channel: Channel) -> Result<(), Status> {
    let (key, value) = ("k".into(), "v".into());
    let request = PutRequest { key, value, ..PutRequest::default() };
    KvClient::new(channel).put(request).await.map(drop)
}

/// Sends a GET request and returns everything that is received.
pub(crate) async fn get<C>(mut stream: C, path: &str) -> String
where
    C: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(TIMEOUT, work).await.unwrap() })
}
