//! How is a member called? A URL in, a channel out; with TLS if the URL says so, over a network or
//! over a socket in the file system.
//!
//! Whoever answers must show a certificate of an authority that is trusted, for the host or address
//! in the URL. Without `--peer-trusted-ca-file` those authorities are trusted that the system trusts.
//! Members that make their certificates themselves believe each other.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};
use tower_service::Service;

use super::incoming::{own, rules};
use super::protocol::Protocol;
use super::rules::Hosts;
use super::settings::{Named, Pair, Side};
use super::watched::Watched;
use super::{Error, words};
use crate::listen::Stream;

/// TLS for connections that are opened here. By default there is none.
#[derive(Clone, Debug, Default)]
pub struct Outgoing(Option<Arc<Watched<ClientConfig>>>);

impl Outgoing {
    /// With these files. A certificate that is to be made is made now.
    pub fn new(side: &Side, protocol: &Protocol) -> Result<Outgoing, Error> {
        let shown = match (&side.calling, &side.own, &side.made) {
            (Some(calling), ..) => Some(calling.clone()),
            (None, None, None) => None,
            (None, ..) => Some(own(side)?),
        };
        if side.trusted.is_none() && side.made.is_none() && system().is_empty() {
            tracing::warn!(
                "the system trusts no authorities, and none are named: nobody is called"
            );
            return Ok(Outgoing::default());
        }
        let own_files = shown.iter().flat_map(Pair::paths);
        let files = own_files.chain(&side.trusted).chain(&side.revoked).cloned();
        let files: Vec<Named> = files.collect();
        let (side, protocol) = (side.clone(), protocol.clone());
        let build = move || configuration(shown.as_ref(), &side, &protocol);
        Ok(Outgoing(Some(Arc::new(Watched::new(files, build)?))))
    }

    /// Whoever answers is believed.
    pub(crate) fn unchecked(shown: Option<Pair>) -> Result<Outgoing, Error> {
        let files: Vec<Named> = shown.iter().flat_map(Pair::paths).cloned().collect();
        let build = move || client(shown.as_ref(), None, &Protocol::default());
        Ok(Outgoing(Some(Arc::new(Watched::new(files, build)?))))
    }

    /// Connects. What goes wrong is told without the address.
    pub async fn connect(&self, url: &str) -> Result<Channel, String> {
        self.connect_as(url, |endpoint| endpoint).await
    }

    /// Connects in a certain way.
    pub async fn connect_as(
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
                let to = To::Socket { path: rest.into(), host: host_of_socket(rest).to_owned() };
                endpoint("http://localhost".into())?.connect_with_connector(Dial { to, tls }).await
            }
            // For tonic it is a connection like any other. Asked for `https` it would want to do the
            // TLS itself, if anybody in the program has it built with that.
            "https" => {
                let endpoint = endpoint(format!("http://{rest}"))?;
                endpoint.connect_with_connector(Dial { to: To::Host, tls }).await
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
fn host_of_socket(rest: &str) -> &str {
    let host = rest.split('/').next().unwrap_or_default();
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    if host.is_empty() { "localhost" } else { host.trim_matches(['[', ']']) }
}

/// What is dialled.
#[derive(Clone)]
enum To {
    /// The host and port of the URL.
    Host,
    /// A socket in the file system, and the host of its certificate.
    Socket { path: PathBuf, host: String },
}

/// Opens connections that tonic does not open itself: with TLS, or to a socket.
struct Dial {
    to: To,
    tls: Option<Arc<Watched<ClientConfig>>>,
}

type Connecting = Pin<Box<dyn Future<Output = io::Result<TokioIo<Box<dyn Stream>>>> + Send>>;

impl Service<Uri> for Dial {
    type Response = TokioIo<Box<dyn Stream>>;
    type Error = io::Error;
    type Future = Connecting;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Connecting {
        let (to, tls) = (self.to.clone(), self.tls.clone());
        Box::pin(async move {
            let stream = match to {
                To::Host => {
                    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
                    let port = uri.port_u16().unwrap_or(443);
                    let stream = TcpStream::connect((host.as_str(), port)).await?;
                    stream.set_nodelay(true)?;
                    secured(stream, tls, host).await?
                }
                To::Socket { path, host } => {
                    secured(UnixStream::connect(path).await?, tls, host).await?
                }
            };
            Ok(TokioIo::new(stream))
        })
    }
}

/// After the handshake, if there is to be one.
async fn secured<S: Stream + 'static>(
    stream: S,
    tls: Option<Arc<Watched<ClientConfig>>>,
    host: String,
) -> io::Result<Box<dyn Stream>> {
    let Some(config) = tls else { return Ok(Box::new(stream)) };
    let name = ServerName::try_from(host).map_err(io::Error::other)?;
    let connected = TlsConnector::from(config.get().await?).connect(name, stream).await;
    match connected {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) => Err(io::Error::other(words::of(&error))),
    }
}

/// Whom the system trusts.
fn system() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

fn configuration(
    shown: Option<&Pair>,
    side: &Side,
    protocol: &Protocol,
) -> Result<ClientConfig, Error> {
    let roots = match &side.trusted {
        Some(trusted) => Some(trusted.authorities()?),
        None if side.made.is_some() => None,
        None => Some(system()),
    };
    let Some(roots) = roots else { return client(shown, None, protocol) };
    let library = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), protocol.provider())
        .build()?;
    client(shown, Some((library, rules(side)?)), protocol)
}

fn client(
    shown: Option<&Pair>,
    checks: Option<(Arc<WebPkiServerVerifier>, super::rules::Rules)>,
    protocol: &Protocol,
) -> Result<ClientConfig, Error> {
    let provider = protocol.provider();
    let checks = checks.map(|(library, rules)| (library as _, rules));
    let hosts = Hosts { checks, provider: Arc::clone(&provider) };
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
