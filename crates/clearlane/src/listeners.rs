//! The ports and sockets for clients, for members, and for metrics.
//!
//! All ports and sockets are bound first. So a port in use is reported before certificates are
//! created, and a certificate error is reported before data is opened. Connections are accepted
//! only after all of these steps have succeeded. There is one exception: while a member without
//! data waits for its identity, its peer port replies to other members.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use clearlane_net::listener::{BindAddress, ListenAddress, Listener, bind_tcp};
use clearlane_net::tls::{Dialer, Error, FlagPath, TlsAcceptor, TlsInfo};

use crate::config::Config;

pub(crate) type MetricsListener = (TcpListener, Option<Arc<TlsAcceptor>>);

pub(crate) struct Listeners {
    pub(crate) clients: Vec<Listener>,
    pub(crate) peers: Vec<Listener>,
    pub(crate) metrics: Vec<MetricsListener>,
    pub(crate) dialer: Dialer,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum BindError {
    #[error("--{flag}: {at}: {error}")]
    Bind { flag: &'static str, at: BindAddress, error: io::Error },
    #[error(transparent)]
    Tls(#[from] Error),
}

impl Listeners {
    pub(crate) fn bind(config: &Config) -> Result<Listeners, BindError> {
        let listen = |at: &BindAddress| Listener::bind_port(at, config.shares_ports);
        let mut clients = bind("listen-client-urls", &config.listen_clients, listen)?;
        let more = &config.listen_clients_http;
        clients.extend(bind("listen-client-http-urls", more, listen)?);
        let peers = bind("listen-peer-urls", &config.listen_peers, listen)?;
        let bind_port = |at: &BindAddress| bind_port(at, config.shares_ports);
        let metrics = bind("listen-metrics-urls", &config.http.listen_metrics, bind_port)?;
        let addresses = config.listen_clients.iter().chain(more).chain(&config.http.listen_metrics);
        let for_clients = tls_acceptor("client", &config.tls.clients, addresses, config)?;
        let for_peers =
            tls_acceptor("peer", &config.tls.peers, config.listen_peers.iter(), config)?;
        check_own_certificate(config)?;
        let with_tls = |bound: Vec<(Listener, &ListenAddress)>, tls: &Option<Arc<TlsAcceptor>>| {
            let listeners = bound.into_iter().map(|(listener, at)| match tls {
                Some(tls) if at.is_secure => listener.with_tls(Arc::clone(tls), at.is_plain),
                _ => listener,
            });
            listeners.collect()
        };
        let metrics = metrics
            .into_iter()
            .map(|(listener, at)| (listener, for_clients.clone().filter(|_| at.is_secure)));
        Ok(Listeners {
            clients: with_tls(clients, &for_clients),
            peers: with_tls(peers, &for_peers),
            metrics: metrics.collect(),
            dialer: peer_dialer(config)?.with_rules(config.peer_connections),
        })
    }
}

fn bind<'c, L>(
    flag: &'static str,
    addresses: &'c [ListenAddress],
    bind: impl Fn(&BindAddress) -> io::Result<L>,
) -> Result<Vec<(L, &'c ListenAddress)>, BindError> {
    let bound = addresses.iter().map(|at| match bind(&at.address) {
        Ok(listener) => Ok((listener, at)),
        Err(error) => Err(BindError::Bind { flag, at: at.address.clone(), error }),
    });
    bound.collect()
}

fn bind_port(address: &BindAddress, is_shared: bool) -> io::Result<TcpListener> {
    let BindAddress::Tcp(address) = address else {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "it must be a port, not a socket"));
    };
    let listener = bind_tcp(*address, is_shared)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Creates the TLS acceptor of an endpoint. Returns `None` if no listener of the endpoint uses TLS.
fn tls_acceptor<'e>(
    endpoint: &'static str,
    info: &TlsInfo,
    mut addresses: impl Iterator<Item = &'e ListenAddress>,
    config: &Config,
) -> Result<Option<Arc<TlsAcceptor>>, Error> {
    if !addresses.any(|at| at.is_secure) {
        return Ok(None);
    }
    let acceptor = TlsAcceptor::new(endpoint, info, &config.tls.protocol)?
        .with_handshake_timeout(config.tls_handshake_timeout);
    let path = |named: Option<&FlagPath>| {
        named.map(|named| named.path.display().to_string()).unwrap_or_default()
    };
    tracing::info!(
        cert = path(info.server_certificate.as_ref().map(|pair| &pair.certificate)),
        "trusted-ca" = path(info.trusted_ca.as_ref()),
        "crl-file" = path(info.crl.as_ref()),
        "client-cert-auth" = info.trusted_ca.is_some(),
        "auto-tls" = info.self_signed.is_some(),
        "starting with {endpoint} TLS"
    );
    Ok(Some(Arc::new(acceptor)))
}

/// Checks the certificate of `--client-cert-file`, which is not used later. In etcd, the gateway
/// for HTTP requests uses this certificate for calls to its own member. Clearlane makes no such
/// calls. The check exists so that Clearlane rejects the same files as etcd.
fn check_own_certificate(config: &Config) -> Result<(), Error> {
    let client_certificate = config.tls.clients.client_certificate.clone();
    if client_certificate.is_some() {
        let info = TlsInfo { client_certificate, ..TlsInfo::default() };
        Dialer::new(&info, &config.tls.protocol)?;
    }
    Ok(())
}

/// Creates the dialer for other members. It has TLS if a certificate, a self-signed certificate or
/// an authority is configured for members, or if `--initial-cluster` has an address with TLS.
fn peer_dialer(config: &Config) -> Result<Dialer, Error> {
    let info = &config.tls.peers;
    let has_files = info.server_certificate.is_some()
        || info.client_certificate.is_some()
        || info.trusted_ca.is_some()
        || info.self_signed.is_some();
    let members = config.member.initial_cluster.to_string();
    if has_files || members.contains("https://") || members.contains("unixs://") {
        Dialer::new(info, &config.tls.protocol)
    } else {
        Ok(Dialer::default())
    }
}
