//! Who comes in? From a connection to a TLS stream, or to a line in the log.
//!
//! ```text
//!   connection ─▶ hello ─▶ handshake ─▶ address ─▶ stream, and the client's name
//!        └───────────┴─────────┴───────────┴─▶ "rejected connection on … endpoint"
//! ```
//!
//! All of it together has ten seconds. Whoever connects and says nothing costs a task and a file until
//! then, and nobody waits behind him. etcd sets no limit.
//!
//! # The address of a member
//!
//! A member's certificate says where it is at home. One that was stolen shall be of no use elsewhere:
//! a certificate with addresses must have the one from which its owner calls, and one with hosts must
//! have one that leads to it, by a look into the DNS in either direction. A certificate without any
//! is good everywhere, and `--peer-skip-client-san-verification` makes them all so. Clients are at
//! home anywhere: they are not asked.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::server::{Acceptor, NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use super::certificate::Facts;
use super::protocol::Protocol;
use super::rules::{Guests, Rules};
use super::settings::{Named, Pair, Side};
use super::watched::Watched;
use super::{Error, self_signed, words};

/// So long a handshake may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The common name in a client's certificate: among the extensions of its requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientName(pub Arc<str>);

/// TLS for those who come in.
#[derive(Debug)]
pub struct Incoming {
    endpoint: Endpoint,
    config: Arc<Watched<ServerConfig>>,
    checks_address: bool,
    patience: Duration,
}

/// Who comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Clients.
    Client,
    /// Members.
    Peer,
}

/// What is known of somebody who is not let in.
#[derive(Default)]
struct Seen {
    server_name: String,
    facts: Option<Facts>,
}

impl Incoming {
    /// With these files. A certificate that is to be made is made now.
    pub fn new(endpoint: Endpoint, side: &Side, protocol: &Protocol) -> Result<Incoming, Error> {
        let own = own(side)?;
        let files = own.paths().into_iter().chain(&side.trusted).chain(&side.revoked).cloned();
        let files: Vec<Named> = files.collect();
        let build = {
            let (side, protocol) = (side.clone(), protocol.clone());
            move || configuration(&own, &side, &protocol)
        };
        let (config, checks_address) = (Arc::new(Watched::new(files, build)?), side.checks_address);
        Ok(Incoming { endpoint, config, checks_address, patience: PATIENCE })
    }

    /// Lets somebody in, or says in the log why not.
    pub(crate) async fn greet<C>(
        &self,
        connection: C,
        remote: Option<SocketAddr>,
    ) -> Option<(TlsStream<C>, Option<ClientName>)>
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let mut seen = Seen::default();
        let greeted = timeout(self.patience, self.handshake(connection, remote, &mut seen)).await;
        let why = match greeted {
            Ok(Ok(stream)) => {
                let name = seen.facts.map(|facts| facts.common_name);
                let name = name.filter(|name| !name.is_empty());
                return Some((stream, name.map(|name| ClientName(name.into()))));
            }
            Ok(Err(error)) => words::of(&error),
            Err(_) => format!("no handshake within {:?}", self.patience),
        };
        self.reject(remote, &seen, &why);
        None
    }

    async fn handshake<C>(
        &self,
        connection: C,
        remote: Option<SocketAddr>,
        seen: &mut Seen,
    ) -> io::Result<TlsStream<C>>
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let hello = LazyConfigAcceptor::new(Acceptor::default(), connection).await?;
        hello.client_hello().server_name().unwrap_or_default().clone_into(&mut seen.server_name);
        let stream = hello.into_stream(self.config.get().await?).await?;
        if let Some([own, ..]) = stream.get_ref().1.peer_certificates() {
            let facts = Facts::of(own).map_err(io::Error::other)?;
            let facts = seen.facts.insert(facts);
            if let Some(remote) = remote.filter(|_| self.checks_address) {
                at_home(facts.clone(), remote.ip().to_canonical()).await?;
            }
        }
        Ok(stream)
    }

    fn reject(&self, remote: Option<SocketAddr>, seen: &Seen, why: &str) {
        let remote = remote.map_or_else(|| "unix".to_owned(), |remote| remote.to_string());
        let (endpoint, server_name) = (self.endpoint, &seen.server_name);
        // Without a certificate there is nothing more to tell.
        let facts = seen.facts.as_ref();
        tracing::warn!(
            "remote-addr" = remote,
            "server-name" = server_name,
            "ip-addresses" = facts.map(|facts| tracing::field::debug(&facts.addresses)),
            "dns-names" = facts.map(|facts| tracing::field::debug(&facts.hosts)),
            error = why,
            "rejected connection on {endpoint} endpoint"
        );
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Endpoint::Client => "client",
            Endpoint::Peer => "peer",
        })
    }
}

/// What is shown to others.
pub(super) fn own(side: &Side) -> Result<Pair, Error> {
    match (&side.own, &side.made) {
        (Some(pair), _) => Ok(pair.clone()),
        (None, Some(made)) => self_signed::pair(made),
        (None, None) => Err(rustls::Error::General("there is no certificate".to_owned()).into()),
    }
}

/// What is asked of certificates, beside what rustls asks.
pub(super) fn rules(side: &Side) -> Result<Rules, Error> {
    let revoked = side.revoked.as_ref().map(Named::serials).transpose()?.unwrap_or_default();
    Ok(Rules { allowed: side.allowed.clone(), revoked })
}

fn configuration(own: &Pair, side: &Side, protocol: &Protocol) -> Result<ServerConfig, Error> {
    let pair = own.load(protocol)?;
    let provider = protocol.provider();
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&protocol.versions())?;
    let builder = match &side.trusted {
        None => builder.with_no_client_auth(),
        Some(trusted) => {
            let roots = Arc::new(trusted.authorities()?);
            let library = WebPkiClientVerifier::builder_with_provider(roots, provider).build()?;
            builder.with_client_cert_verifier(Arc::new(Guests { library, rules: rules(side)? }))
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // Each connection is looked at from the beginning.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Whether the owner of a certificate calls from where he is at home.
async fn at_home(facts: Facts, from: IpAddr) -> io::Result<()> {
    let Facts { hosts, addresses, .. } = facts;
    if addresses.contains(&from) || addresses.is_empty() && hosts.is_empty() {
        return Ok(());
    }
    if hosts.is_empty() {
        let valid: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let valid = valid.join(", ");
        return Err(io::Error::other(format!(
            "x509: certificate is valid for {valid}, not {from}"
        )));
    }
    let words = format!("tls: \"{from}\" does not match any of DNSNames {hosts:?}");
    match spawn_blocking(move || leads_to(&hosts, from)).await {
        Ok(true) => Ok(()),
        Ok(false) | Err(_) => Err(io::Error::other(words)),
    }
}

/// Whether one of the hosts is at this address. `*.example.com` is whatever ends so.
fn leads_to(hosts: &[String], address: IpAddr) -> bool {
    let found = dns_lookup::lookup_addr(&address).unwrap_or_default();
    let found = found.trim_end_matches('.');
    let is_called = |host: &String| match host.strip_prefix('*') {
        Some(end) => end.starts_with('.') && found.ends_with(end),
        None => found == host,
    };
    hosts.iter().any(is_called)
        || hosts.iter().filter(|host| !host.starts_with('*')).any(|host| {
            dns_lookup::lookup_host(host).is_ok_and(|mut found| found.any(|ip| ip == address))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::settings::Made;

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    }

    #[test]
    fn who_says_nothing_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let made = Made {
            flag: "auto-tls",
            dir: dir.path().to_owned(),
            hosts: vec!["localhost".to_owned()],
            years: 1,
        };
        let side = Side { made: Some(made), ..Side::default() };
        let mut incoming = Incoming::new(Endpoint::Client, &side, &Protocol::default()).unwrap();
        incoming.patience = Duration::from_millis(20);
        block_on(async {
            let (ours, theirs) = tokio::io::duplex(64);
            assert!(incoming.greet(ours, None).await.is_none());
            drop(theirs);
        });
    }

    #[test]
    fn a_member_calls_from_where_it_is_at_home() {
        let facts = |hosts: &[&str], addresses: &[&str]| Facts {
            common_name: String::new(),
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        };
        let asked = |facts| block_on(at_home(facts, "127.0.0.1".parse().unwrap()));
        asked(facts(&[], &[])).unwrap();
        asked(facts(&["elsewhere.invalid"], &["127.0.0.1"])).unwrap();
        asked(facts(&["localhost"], &[])).unwrap();
        asked(facts(&["localhost"], &["10.0.0.1"])).unwrap();
        let told = asked(facts(&[], &["10.0.0.1", "::1"])).unwrap_err().to_string();
        assert_eq!(told, "x509: certificate is valid for 10.0.0.1, ::1, not 127.0.0.1");
        let told = asked(facts(&["*.elsewhere.invalid"], &[])).unwrap_err().to_string();
        assert!(told.contains("does not match any of DNSNames"), "{told}");
    }
}
