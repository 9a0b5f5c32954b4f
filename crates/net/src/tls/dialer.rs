//! Connections to members: a URL in, a channel out; with TLS if the URL has it, over a network or
//! over a socket in the file system.
//!
//! Without `--peer-trusted-ca-file` the authorities are those that the system trusts. Members that
//! make their certificates themselves trust any certificate.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

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
use tower::service_fn;

use super::acceptor::{certificate_policy, server_certificate};
use super::config::{CertificateFiles, FlagPath, TlsInfo};
use super::protocol::ProtocolConfig;
use super::reload::FileBacked;
use super::verifiers::{CertificatePolicy, ServerVerifier};
use super::{Error, messages};
use crate::listener::ByteStream;

type TlsConfig = Arc<FileBacked<ClientConfig>>;
type ByteIo = TokioIo<Box<dyn ByteStream>>;

/// By default without TLS.
#[derive(Clone, Debug, Default)]
pub struct Dialer(Option<TlsConfig>);

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
        let files: Vec<FlagPath> =
            own_files.chain(&side.trusted_ca).chain(&side.crl).cloned().collect();
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
                let (path, host) = (PathBuf::from(rest), socket_server_name(rest).to_owned());
                let connector = service_fn(move |_: Uri| {
                    let (path, host, tls) = (path.clone(), host.clone(), tls.clone());
                    async move { tls_handshake(UnixStream::connect(path).await?, tls, host).await }
                });
                endpoint("http://localhost".into())?.connect_with_connector(connector).await
            }
            // For tonic it is a connection like any other. Asked for `https` it would want to do
            // the TLS itself, if any crate of the program has it built with that.
            "https" => {
                let connector = service_fn(move |uri: Uri| connect_tls(uri, tls.clone()));
                endpoint(format!("http://{rest}"))?.connect_with_connector(connector).await
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

async fn connect_tls(uri: Uri, tls: Option<TlsConfig>) -> io::Result<ByteIo> {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let stream = TcpStream::connect((host.as_str(), uri.port_u16().unwrap_or(443))).await?;
    stream.set_nodelay(true)?;
    tls_handshake(stream, tls, host).await
}

/// Without TLS, the connection as it is.
async fn tls_handshake<S: ByteStream + 'static>(
    stream: S,
    tls: Option<TlsConfig>,
    host: String,
) -> io::Result<ByteIo> {
    let Some(config) = tls else { return Ok(TokioIo::new(Box::new(stream))) };
    let name = ServerName::try_from(host).map_err(io::Error::other)?;
    match TlsConnector::from(config.get().await?).connect(name, stream).await {
        Ok(stream) => Ok(TokioIo::new(Box::new(stream))),
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
