//! How is a member called? A URL in, a channel out; with TLS if the URL says so.
//!
//! Whoever answers must show a certificate of an authority that is trusted, for the host or address
//! in the URL. Without `--peer-trusted-ca-file` those authorities are trusted that the system trusts.
//! Members that make their certificates themselves believe each other.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};
use tower_service::Service;

use super::incoming::{own, rules};
use super::protocol::Protocol;
use super::rules::Hosts;
use super::settings::{Named, Pair, Side};
use super::watched::Watched;
use super::{Error, words};

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
        let connected = match url.strip_prefix("https://") {
            Some(rest) => {
                let Some(config) = &self.0 else {
                    return Err("it wants TLS, and there is no certificate to check it by".into());
                };
                // For tonic it is a connection like any other. Asked for `https` it would want to do the
                // TLS itself, if anybody in the program has it built with that.
                let endpoint = endpoint(format!("http://{rest}"))?;
                endpoint.connect_with_connector(Secure(Arc::clone(config))).await
            }
            None => endpoint(url.to_owned())?.connect().await,
        };
        connected.map_err(|error| {
            let why = std::error::Error::source(&error).map(ToString::to_string);
            why.unwrap_or_else(|| error.to_string())
        })
    }
}

/// Opens a TLS connection to the host of a URL.
struct Secure(Arc<Watched<ClientConfig>>);

type Connecting = Pin<Box<dyn Future<Output = io::Result<TokioIo<TlsStream<TcpStream>>>> + Send>>;

impl Service<Uri> for Secure {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Connecting;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Connecting {
        let config = Arc::clone(&self.0);
        Box::pin(async move {
            let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
            let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
            let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(443))).await?;
            stream.set_nodelay(true)?;
            let connected = TlsConnector::from(config.get().await?).connect(name, stream).await;
            connected.map(TokioIo::new).map_err(|error| io::Error::other(words::of(&error)))
        })
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
