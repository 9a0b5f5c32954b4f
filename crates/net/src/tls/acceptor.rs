//! Incoming TLS connections. A connection becomes a TLS stream, or is closed with the log line
//! `rejected connection on … endpoint`.
//!
//! `--tls-handshake-timeout` limits the time for the hello, the handshake and the check of the
//! address together. etcd has the same limit. A client that sends nothing costs a task and a file
//! descriptor until the limit.
//!
//! A calling member's certificate is checked against the address that the call comes from. One of
//! the addresses in the certificate must be this address, or DNS must map one of the certificate's
//! hosts to this address, or this address to one of these hosts. A certificate without addresses
//! and hosts passes this check. `docs/tls.md` lists all checks.

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

use super::certificate::CertificateInfo;
use super::config::{CertificateFiles, FlagPath, TlsInfo};
use super::protocol::ProtocolConfig;
use super::reload::FileBacked;
use super::verifiers::{CertificatePolicy, ClientVerifier, Trust};
use super::{Error, messages, self_signed};
use crate::log_limiter::LogLimiter;

/// The default time limit of a handshake, as in etcd.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The common name of a client's certificate. Each request of the client has this name as an
/// extension. The name is empty if the certificate has no common name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientName(pub Arc<str>);

#[derive(Debug)]
pub struct TlsAcceptor {
    /// `client` or `peer`, for the log.
    endpoint: &'static str,
    config: Arc<FileBacked<ServerConfig>>,
    checks_address: bool,
    handshake_timeout: Duration,
    log: LogLimiter,
}

/// The details of a rejected connection that the log shows.
#[derive(Default)]
struct HandshakeInfo {
    server_name: String,
    certificate: Option<CertificateInfo>,
}

impl TlsAcceptor {
    /// Creates an acceptor. If a self-signed certificate is configured and no usable one exists,
    /// also creates the certificate.
    pub fn new(
        endpoint: &'static str,
        side: &TlsInfo,
        protocol: &ProtocolConfig,
    ) -> Result<TlsAcceptor, Error> {
        let own = server_certificate(side)?;
        let files = own.files().into_iter().chain(&side.trusted_ca).chain(&side.crl);
        let files: Vec<FlagPath> = files.cloned().collect();
        let (build_side, protocol) = (side.clone(), protocol.clone());
        let build = move || configuration(&own, &build_side, &protocol);
        Ok(TlsAcceptor {
            endpoint,
            config: Arc::new(FileBacked::new(files, build)?),
            checks_address: side.checks_address,
            handshake_timeout: HANDSHAKE_TIMEOUT,
            log: LogLimiter::default(),
        })
    }

    #[must_use]
    pub fn with_handshake_timeout(self, handshake_timeout: Duration) -> TlsAcceptor {
        TlsAcceptor { handshake_timeout, ..self }
    }

    /// Performs the handshake, and calls `on_hello` when the client's hello is complete. Returns
    /// the stream, and the name in the client's certificate if there is a certificate. If the
    /// connection is rejected or the time limit is reached, returns `None` and logs the reason.
    pub async fn accept<C>(
        &self,
        connection: C,
        remote: Option<SocketAddr>,
        on_hello: impl FnOnce(),
    ) -> Option<(TlsStream<C>, Option<ClientName>)>
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let mut seen = HandshakeInfo::default();
        let handshake = self.handshake(connection, remote, on_hello, &mut seen);
        let why = match timeout(self.handshake_timeout, handshake).await {
            Ok(Ok(stream)) => {
                let name = seen.certificate.map(|facts| facts.common_name);
                return Some((stream, name.map(|name| ClientName(name.into()))));
            }
            Ok(Err(error)) => messages::handshake_error(&error),
            Err(_) => format!("no handshake within {:?}", self.handshake_timeout),
        };
        self.reject(remote, &seen, &why);
        None
    }

    async fn handshake<C>(
        &self,
        connection: C,
        remote: Option<SocketAddr>,
        on_hello: impl FnOnce(),
        seen: &mut HandshakeInfo,
    ) -> io::Result<TlsStream<C>>
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let hello = LazyConfigAcceptor::new(Acceptor::default(), connection).await?;
        on_hello();
        hello.client_hello().server_name().unwrap_or_default().clone_into(&mut seen.server_name);
        let stream = hello.into_stream(self.config.get().await?).await?;
        if let Some([own, ..]) = stream.get_ref().1.peer_certificates() {
            let facts = CertificateInfo::parse(own).map_err(io::Error::other)?;
            let facts = seen.certificate.insert(facts);
            if let Some(remote) = remote.filter(|_| self.checks_address) {
                check_remote_address(facts.clone(), remote.ip().to_canonical()).await?;
            }
        }
        Ok(stream)
    }

    fn reject(&self, remote: Option<SocketAddr>, seen: &HandshakeInfo, why: &str) {
        let Some(left_out) = self.log.admit() else { return };
        let remote = remote.map_or_else(|| "unix".to_owned(), |remote| remote.to_string());
        let (endpoint, server_name) = (self.endpoint, &seen.server_name);
        // Without a certificate there are no addresses or hosts to log.
        let facts = seen.certificate.as_ref();
        tracing::warn!(
            "remote-addr" = remote,
            "server-name" = server_name,
            "ip-addresses" = facts.map(|facts| tracing::field::debug(&facts.addresses)),
            "dns-names" = facts.map(|facts| tracing::field::debug(&facts.hosts)),
            error = why,
            "lines-left-out" = (left_out > 0).then_some(left_out),
            "rejected connection on {endpoint} endpoint"
        );
    }
}

pub(super) fn server_certificate(side: &TlsInfo) -> Result<CertificateFiles, Error> {
    match (&side.server_certificate, &side.self_signed) {
        (Some(pair), _) => Ok(pair.clone()),
        (None, Some(made)) => self_signed::load_or_create(made),
        (None, None) => Err(rustls::Error::General("there is no certificate".to_owned()).into()),
    }
}

pub(super) fn certificate_policy(side: &TlsInfo) -> Result<CertificatePolicy, Error> {
    let revoked = side.crl.as_ref().map(FlagPath::revoked_serials).transpose()?.unwrap_or_default();
    Ok(CertificatePolicy { allowed: side.allowed.clone(), revoked })
}

fn configuration(
    own: &CertificateFiles,
    side: &TlsInfo,
    protocol: &ProtocolConfig,
) -> Result<ServerConfig, Error> {
    let pair = own.load(protocol)?;
    let provider = protocol.provider();
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&protocol.versions())?;
    let builder = match &side.trusted_ca {
        None => builder.with_no_client_auth(),
        Some(trusted) => {
            let roots = Arc::new(trusted.authorities()?);
            let trust = Trust { roots: Arc::clone(&roots), provider: Arc::clone(&provider) };
            let library = WebPkiClientVerifier::builder_with_provider(roots, provider).build()?;
            builder.with_client_cert_verifier(Arc::new(ClientVerifier {
                library,
                trust,
                policy: certificate_policy(side)?,
            }))
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // TLS resumption is disabled, so that the client's certificate is checked for each connection.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Fails if the certificate has addresses or hosts, and none of them matches the caller's address.
async fn check_remote_address(facts: CertificateInfo, from: IpAddr) -> io::Result<()> {
    let CertificateInfo { hosts, addresses, .. } = facts;
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
    match spawn_blocking(move || resolves_to(&hosts, from)).await {
        Ok(true) => Ok(()),
        Ok(false) | Err(_) => Err(io::Error::other(words)),
    }
}

/// Returns true if DNS maps one of the hosts to the address, or the address to one of the hosts. In
/// the second case, `*.example.com` matches if the name of the address is below `example.com`.
fn resolves_to(hosts: &[String], address: IpAddr) -> bool {
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
    use crate::tls::config::SelfSignedConfig;

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    }

    #[test]
    fn a_silent_client_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let made = SelfSignedConfig {
            flag: "auto-tls",
            dir: dir.path().to_owned(),
            hosts: vec!["localhost".to_owned()],
            years: 1,
        };
        let side = TlsInfo { self_signed: Some(made), ..TlsInfo::default() };
        let mut incoming = TlsAcceptor::new("client", &side, &ProtocolConfig::default()).unwrap();
        incoming.handshake_timeout = Duration::from_millis(20);
        block_on(async {
            let (ours, theirs) = tokio::io::duplex(64);
            assert!(incoming.accept(ours, None, || ()).await.is_none());
            drop(theirs);
        });
    }

    #[test]
    fn a_member_calls_from_where_it_is_at_home() {
        let facts = |hosts: &[&str], addresses: &[&str]| CertificateInfo {
            common_name: String::new(),
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        };
        let asked = |facts| block_on(check_remote_address(facts, "127.0.0.1".parse().unwrap()));
        asked(facts(&[], &[])).unwrap();
        asked(facts(&["elsewhere.invalid"], &["127.0.0.1"])).unwrap();
        asked(facts(&["localhost"], &[])).unwrap();
        asked(facts(&["localhost"], &["10.0.0.1"])).unwrap();
        let message = asked(facts(&[], &["10.0.0.1", "::1"])).unwrap_err().to_string();
        assert_eq!(message, "x509: certificate is valid for 10.0.0.1, ::1, not 127.0.0.1");
        let message = asked(facts(&["*.elsewhere.invalid"], &[])).unwrap_err().to_string();
        assert!(message.contains("does not match any of DNSNames"), "{message}");
    }
}
