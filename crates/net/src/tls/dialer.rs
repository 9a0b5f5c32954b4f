//! Opens connections from a member to other members or to a discovery service, and from a tool to a
//! member. The caller passes a URL and gets a channel. The URL decides whether the connection uses
//! TLS, and whether it goes over TCP or over a socket in the file system.
//!
//! If no authority is configured (for members: `--peer-trusted-ca-file`), the authorities of the
//! system are trusted. If the system has none, connections with TLS fail. Members that make their
//! own certificates, and have no `--peer-trusted-ca-file`, trust any certificate.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpSocket, TcpStream, UnixStream, lookup_host};
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};
use tower::{Service, service_fn};

use super::acceptor::{certificate_policy, server_certificate};
use super::config::{CertificateFiles, FlagPath, TlsInfo};
use super::protocol::ProtocolConfig;
use super::reload::FileBacked;
use super::verifiers::{ServerChecks, ServerVerifier, Trust};
use super::{Error, messages};
use crate::listener::{ByteStream, set_write_timeout};

type TlsConfig = Arc<FileBacked<ClientConfig>>;
type ByteIo = TokioIo<Box<dyn ByteStream>>;

/// Opens connections to servers. The default value has no TLS.
#[derive(Clone, Debug, Default)]
pub struct Dialer {
    tls: Option<TlsConfig>,
    rules: ConnectionRules,
}

/// The timeouts of connections between members, and their local address.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionRules {
    /// After this time without data, the other end is pinged. The other end has the same time to
    /// answer.
    pub read_timeout: Duration,
    /// Maximum time for the other end to acknowledge data.
    pub write_timeout: Duration,
    /// The local address of connections to addresses of the same family (IPv4 or IPv6). For all
    /// other connections, and if this is `None`, the system chooses the local address.
    pub local_address: Option<IpAddr>,
}

impl Default for ConnectionRules {
    fn default() -> ConnectionRules {
        let etcds = Duration::from_secs(5);
        ConnectionRules { read_timeout: etcds, write_timeout: etcds, local_address: None }
    }
}

impl Dialer {
    /// Creates a dialer. If the dialer shows a self-signed certificate and no usable one exists,
    /// also creates the certificate. If there is no authority that could verify a server, logs a
    /// warning and returns a dialer without TLS.
    pub fn new(side: &TlsInfo, protocol: &ProtocolConfig) -> Result<Dialer, Error> {
        let shown = match (&side.client_certificate, &side.server_certificate, &side.self_signed) {
            (Some(calling), ..) => Some(calling.clone()),
            (None, None, None) => None,
            (None, ..) => Some(server_certificate(side)?),
        };
        if side.trusted_ca.is_none() && side.self_signed.is_none() && system_roots().is_empty() {
            tracing::warn!(
                "no certificate authority is configured, and the system has none: TLS connections \
                 will fail"
            );
            return Ok(Dialer::default());
        }
        let own_files = shown.iter().flat_map(CertificateFiles::files);
        let files: Vec<FlagPath> =
            own_files.chain(&side.trusted_ca).chain(&side.crl).cloned().collect();
        let (side, protocol) = (side.clone(), protocol.clone());
        let build = move || configuration(shown.as_ref(), &side, &protocol);
        Ok(Dialer::with_tls(Arc::new(FileBacked::new(files, build)?)))
    }

    fn with_tls(tls: TlsConfig) -> Dialer {
        Dialer { tls: Some(tls), rules: ConnectionRules::default() }
    }

    pub fn with_rules(self, rules: ConnectionRules) -> Dialer {
        Dialer { rules, ..self }
    }

    pub fn rules(&self) -> ConnectionRules {
        self.rules
    }

    pub fn without_verification(shown: Option<CertificateFiles>) -> Result<Dialer, Error> {
        let files: Vec<FlagPath> =
            shown.iter().flat_map(CertificateFiles::files).cloned().collect();
        let build = move || client(shown.as_ref(), None, &ProtocolConfig::default());
        Ok(Dialer::with_tls(Arc::new(FileBacked::new(files, build)?)))
    }

    /// Opens a connection, without a time limit. An error does not contain the address.
    pub async fn connect(&self, url: &str) -> Result<Channel, String> {
        self.connect_with(url, |endpoint| endpoint).await
    }

    pub async fn connect_with(
        &self,
        url: &str,
        tune: impl FnOnce(Endpoint) -> Endpoint,
    ) -> Result<Channel, String> {
        let (endpoint, connector) = self.prepare(url, tune)?;
        endpoint.connect_with_connector(connector).await.map_err(|error| {
            let why = std::error::Error::source(&error).map(ToString::to_string);
            why.unwrap_or_else(|| error.to_string())
        })
    }

    /// Returns a channel that connects with its first call. Must be called on the runtime that
    /// shall run the connection.
    pub fn connect_lazily(
        &self,
        url: &str,
        tune: impl FnOnce(Endpoint) -> Endpoint,
    ) -> Result<Channel, String> {
        let (endpoint, connector) = self.prepare(url, tune)?;
        Ok(endpoint.connect_with_connector_lazy(connector))
    }

    fn prepare(
        &self,
        url: &str,
        tune: impl FnOnce(Endpoint) -> Endpoint,
    ) -> Result<
        (
            Endpoint,
            impl Service<Uri, Response = ByteIo, Error = io::Error, Future: Send> + Send + 'static,
        ),
        String,
    > {
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        let tls = match (scheme, &self.tls) {
            ("https" | "unixs", None) => {
                return Err(
                    "it needs TLS, but there is no certificate authority to verify it".into()
                );
            }
            ("https" | "unixs", Some(config)) => Some(Arc::clone(config)),
            _ => None,
        };
        let socket = matches!(scheme, "unix" | "unixs")
            .then(|| (PathBuf::from(rest), socket_server_name(rest).to_owned()));
        // For tonic this is a connection without TLS. With `https` in the URL, tonic would do the
        // TLS itself if any crate of the program has enabled tonic's TLS feature.
        let plain = if socket.is_some() { "localhost" } else { rest };
        let endpoint =
            Endpoint::from_shared(format!("http://{plain}")).map_err(|error| error.to_string())?;
        let (default_port, rules) = (if scheme == "https" { 443 } else { 80 }, self.rules);
        let connector = service_fn(move |uri: Uri| {
            let (socket, tls) = (socket.clone(), tls.clone());
            async move {
                if let Some((path, host)) = socket {
                    return tls_handshake(UnixStream::connect(path).await?, tls, host).await;
                }
                let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
                let port = uri.port_u16().unwrap_or(default_port);
                tls_handshake(connect_tcp(host, port, rules).await?, tls, host.to_owned()).await
            }
        });
        Ok((tune(endpoint), connector))
    }
}

/// Returns the host that must be in the certificate of a server at a Unix socket. It is the host in
/// the URL, as in etcd. A URL such as `unixs:///path` has no host. The result is then `localhost`,
/// because the socket is on this machine.
fn socket_server_name(rest: &str) -> &str {
    let host = rest.split('/').next().unwrap_or_default();
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    if host.is_empty() { "localhost" } else { host.trim_matches(['[', ']']) }
}

/// Tries the addresses of the host one after the other. Returns the first connection, or the last
/// error.
async fn connect_tcp(host: &str, port: u16, rules: ConnectionRules) -> io::Result<TcpStream> {
    let mut failure = io::Error::other("the host has no address");
    for address in lookup_host((host, port)).await? {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        if let Some(local) = rules.local_address.filter(|at| at.is_ipv4() == address.is_ipv4()) {
            socket.bind((local, 0).into())?;
        }
        match socket.connect(address).await {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                set_write_timeout(SockRef::from(&stream), rules.write_timeout)?;
                // The other end may vanish while this end waits for it and sends nothing.
                let pings = TcpKeepalive::new().with_time(rules.read_timeout);
                SockRef::from(&stream)
                    .set_tcp_keepalive(&pings.with_interval(rules.read_timeout))?;
                return Ok(stream);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Performs the TLS handshake. If `tls` is `None`, returns the connection unchanged.
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
    let roots = Arc::new(roots);
    let trust = Trust { roots: Arc::clone(&roots), provider: protocol.provider() };
    let library =
        WebPkiServerVerifier::builder_with_provider(roots, protocol.provider()).build()?;
    let checks = ServerChecks { library, trust, policy: certificate_policy(side)? };
    client(shown, Some(checks), protocol)
}

fn client(
    shown: Option<&CertificateFiles>,
    checks: Option<ServerChecks>,
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
