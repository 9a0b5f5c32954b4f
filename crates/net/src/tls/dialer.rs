//! Connections to members: a URL in, a channel out; with TLS if the URL has it, over a network or
//! over a socket in the file system.
//!
//! Without `--peer-trusted-ca-file` the authorities are those that the system trusts. Members that
//! make their certificates themselves trust any certificate.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};
use tower_service::Service;

use super::acceptor::{certificate_policy, server_certificate};
use super::config::{CertificateFiles, FlagPath, TlsInfo};
use super::protocol::ProtocolConfig;
use super::reload::FileBacked;
use super::verifiers::{CertificatePolicy, ServerVerifier};
use super::{Error, messages};
use crate::listener::ByteStream;

/// By default without TLS.
#[derive(Clone, Debug, Default)]
pub struct Dialer(Option<Arc<FileBacked<ClientConfig>>>);

impl Dialer {
    /// Creates the self-signed certificate, if one is wanted.
    pub fn new(side: &TlsInfo, protocol: &ProtocolConfig) -> Result<Dialer, Error> {
        let shown = match (&side.client_certificate, &side.server_certificate, &side.self_signed) {
            (Some(calling), ..) => Some(calling.clone()),
            (None, None, None) => None,
            (None, ..) => Some(server_certificate(side)?),
        };
        if side.trusted_ca.is_none() && side.self_signed.is_none() && system_roots().is_empty() {
            tracing::warn!(
                "the system trusts no authorities, and none are named: no connection is made"
            );
            return Ok(Dialer::default());
        }
        let own_files = shown.iter().flat_map(CertificateFiles::files);
        let files = own_files.chain(&side.trusted_ca).chain(&side.crl).cloned();
        let files: Vec<FlagPath> = files.collect();
        let (side, protocol) = (side.clone(), protocol.clone());
        let build = move || configuration(shown.as_ref(), &side, &protocol);
        Ok(Dialer(Some(Arc::new(FileBacked::new(files, build)?))))
    }

    pub fn without_verification(shown: Option<CertificateFiles>) -> Result<Dialer, Error> {
        let files: Vec<FlagPath> =
            shown.iter().flat_map(CertificateFiles::files).cloned().collect();
        let build = move || client(shown.as_ref(), None, &ProtocolConfig::default());
        Ok(Dialer(Some(Arc::new(FileBacked::new(files, build)?))))
    }

    /// An error does not contain the address.
    pub async fn connect(&self, url: &str) -> Result<Channel, String> {
        self.connect_with(url, |endpoint| endpoint).await
    }

    pub async fn connect_with(
        &self,
        url: &str,
        tune: impl FnOnce(Endpoint) -> Endpoint,
    ) -> Result<Channel, String> {
        let endpoint =
            |url: String| Endpoint::from_shared(url).map(tune).map_err(|error| error.to_string());
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        let tls = match (scheme, &self.0) {
            ("https" | "unixs", None) => {
                return Err("it wants TLS, and there is no certificate to check it by".into());
            }
            ("https" | "unixs", Some(config)) => Some(Arc::clone(config)),
            _ => None,
        };
        let connected = match scheme {
            "unix" | "unixs" => {
                let host = socket_server_name(rest).to_owned();
                let target = DialTarget::Socket { path: rest.into(), host };
                let endpoint = endpoint("http://localhost".into())?;
                endpoint.connect_with_connector(Connector { target, tls }).await
            }
            // For tonic it is a connection like any other. Asked for `https` it would want to do
            // the TLS itself, if any crate of the program has it built with that.
            "https" => {
                let endpoint = endpoint(format!("http://{rest}"))?;
                endpoint.connect_with_connector(Connector { target: DialTarget::Host, tls }).await
            }
            _ => endpoint(url.to_owned())?.connect().await,
        };
        connected.map_err(|error| {
            let why = std::error::Error::source(&error).map(ToString::to_string);
            why.unwrap_or_else(|| error.to_string())
        })
    }
}

/// For which host a certificate must be at a socket: the one in the URL, as in etcd. A path that
/// begins with `/` has none, and the socket is of this machine.
fn socket_server_name(rest: &str) -> &str {
    let host = rest.split('/').next().unwrap_or_default();
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    if host.is_empty() { "localhost" } else { host.trim_matches(['[', ']']) }
}

/// A socket has the host of its certificate.
#[derive(Clone)]
enum DialTarget {
    Host,
    Socket { path: PathBuf, host: String },
}

/// Opens connections that tonic does not open itself: with TLS, or to a socket.
struct Connector {
    target: DialTarget,
    tls: Option<Arc<FileBacked<ClientConfig>>>,
}

type ConnectFuture = Pin<Box<dyn Future<Output = io::Result<TokioIo<Box<dyn ByteStream>>>> + Send>>;

impl Service<Uri> for Connector {
    type Response = TokioIo<Box<dyn ByteStream>>;
    type Error = io::Error;
    type Future = ConnectFuture;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> ConnectFuture {
        let (target, tls) = (self.target.clone(), self.tls.clone());
        Box::pin(async move {
            let stream = match target {
                DialTarget::Host => {
                    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
                    let port = uri.port_u16().unwrap_or(443);
                    let stream = TcpStream::connect((host.as_str(), port)).await?;
                    stream.set_nodelay(true)?;
                    tls_handshake(stream, tls, host).await?
                }
                DialTarget::Socket { path, host } => {
                    tls_handshake(UnixStream::connect(path).await?, tls, host).await?
                }
            };
            Ok(TokioIo::new(stream))
        })
    }
}

/// Without TLS, the connection as it is.
async fn tls_handshake<S: ByteStream + 'static>(
    stream: S,
    tls: Option<Arc<FileBacked<ClientConfig>>>,
    host: String,
) -> io::Result<Box<dyn ByteStream>> {
    let Some(config) = tls else { return Ok(Box::new(stream)) };
    let name = ServerName::try_from(host).map_err(io::Error::other)?;
    let connected = TlsConnector::from(config.get().await?).connect(name, stream).await;
    match connected {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) => Err(io::Error::other(messages::handshake_error(&error))),
    }
}

fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

fn configuration(
    shown: Option<&CertificateFiles>,
    side: &TlsInfo,
    protocol: &ProtocolConfig,
) -> Result<ClientConfig, Error> {
    let roots = match &side.trusted_ca {
        Some(trusted) => trusted.authorities()?,
        None if side.self_signed.is_some() => return client(shown, None, protocol),
        None => system_roots(),
    };
    let library = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), protocol.provider())
        .build()?;
    client(shown, Some((library, certificate_policy(side)?)), protocol)
}

fn client(
    shown: Option<&CertificateFiles>,
    checks: Option<(Arc<dyn ServerCertVerifier>, CertificatePolicy)>,
    protocol: &ProtocolConfig,
) -> Result<ClientConfig, Error> {
    let provider = protocol.provider();
    let hosts = ServerVerifier { checks, provider: Arc::clone(&provider) };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&protocol.versions())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(hosts));
    let mut config = match shown {
        Some(pair) => {
            let pair = pair.load(protocol)?;
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair)))
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}
