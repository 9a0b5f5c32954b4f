//! The ports and sockets of clients, of members, and for metrics.
//!
//! All are bound first: a port in use is reported before a certificate is made, and that before
//! data is opened. No client is let in before all of it is there.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use clearlane_net::listener::{BindAddress, ListenAddress, Listener};
use clearlane_net::tls::acceptor::ListenerKind;
use clearlane_net::tls::{Dialer, Error, TlsAcceptor, TlsInfo};

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
        let mut clients = bind_listeners("listen-client-urls", &config.listen_clients)?;
        clients.extend(bind_listeners("listen-client-http-urls", &config.listen_clients_http)?);
        let peers = bind_listeners("listen-peer-urls", &config.listen_peers)?;
        let metrics = bind_ports("listen-metrics-urls", &config.http.listen_metrics)?;
        let entrances = config.listen_clients.iter().chain(&config.listen_clients_http);
        let entrances = entrances.chain(&config.http.listen_metrics);
        let for_clients = tls_acceptor(ListenerKind::Client, entrances, config)?;
        let for_peers = tls_acceptor(ListenerKind::Peer, config.listen_peers.iter(), config)?;
        Ok(Listeners {
            clients: add_tls(clients, &for_clients),
            peers: add_tls(peers, &for_peers),
            metrics: pair_with_tls(metrics, &config.http.listen_metrics, &for_clients),
            dialer: peer_dialer(config)?,
        })
    }
}

type BoundListener<'c> = (Listener, &'c ListenAddress);

fn bind_listeners<'c>(
    flag: &'static str,
    entrances: &'c [ListenAddress],
) -> Result<Vec<BoundListener<'c>>, BindError> {
    let bound = entrances.iter().map(|entrance| match Listener::bind(&entrance.address) {
        Ok(listener) => Ok((listener, entrance)),
        Err(error) => Err(BindError::Bind { flag, at: entrance.address.clone(), error }),
    });
    bound.collect()
}

fn add_tls(bound: Vec<BoundListener<'_>>, tls: &Option<Arc<TlsAcceptor>>) -> Vec<Listener> {
    let listeners = bound.into_iter().map(|(listener, entrance)| match tls_for(entrance, tls) {
        Some(tls) => listener.with_tls(tls, entrance.is_plain),
        None => listener,
    });
    listeners.collect()
}

fn bind_ports(
    flag: &'static str,
    entrances: &[ListenAddress],
) -> Result<Vec<TcpListener>, BindError> {
    let ports = entrances.iter().filter_map(|entrance| match entrance.address {
        BindAddress::Tcp(address) => Some((entrance, address)),
        BindAddress::Unix(_) => None,
    });
    let bound = ports.map(|(entrance, address)| {
        let listener = TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        listener.map_err(|error| BindError::Bind { flag, at: entrance.address.clone(), error })
    });
    bound.collect()
}

fn tls_for(entrance: &ListenAddress, tls: &Option<Arc<TlsAcceptor>>) -> Option<Arc<TlsAcceptor>> {
    tls.clone().filter(|_| entrance.is_secure)
}

fn pair_with_tls(
    listeners: Vec<TcpListener>,
    entrances: &[ListenAddress],
    tls: &Option<Arc<TlsAcceptor>>,
) -> Vec<MetricsListener> {
    let listeners = listeners.into_iter().zip(entrances);
    listeners.map(|(listener, entrance)| (listener, tls_for(entrance, tls))).collect()
}

/// `None` if no listener needs it.
fn tls_acceptor<'e>(
    endpoint: ListenerKind,
    mut entrances: impl Iterator<Item = &'e ListenAddress>,
    config: &Config,
) -> Result<Option<Arc<TlsAcceptor>>, Error> {
    let side = match endpoint {
        ListenerKind::Client => &config.tls.clients,
        ListenerKind::Peer => &config.tls.peers,
    };
    if !entrances.any(|entrance| entrance.is_secure) {
        return Ok(None);
    }
    let incoming = TlsAcceptor::new(endpoint, side, &config.tls.protocol)?;
    let path = |named: Option<&clearlane_net::tls::FlagPath>| {
        named.map(|named| named.path.display().to_string()).unwrap_or_default()
    };
    tracing::info!(
        cert = path(side.server_certificate.as_ref().map(|pair| &pair.certificate)),
        "trusted-ca" = path(side.trusted_ca.as_ref()),
        "crl-file" = path(side.crl.as_ref()),
        "client-cert-auth" = side.trusted_ca.is_some(),
        "auto-tls" = side.self_signed.is_some(),
        "starting with {endpoint} TLS"
    );
    Ok(Some(Arc::new(incoming)))
}

/// With TLS if another member's address may need it.
fn peer_dialer(config: &Config) -> Result<Dialer, Error> {
    let TlsInfo {
        server_certificate: own,
        client_certificate: calling,
        trusted_ca: trusted,
        self_signed: made,
        ..
    } = &config.tls.peers;
    let has_files = own.is_some() || calling.is_some() || trusted.is_some() || made.is_some();
    let members = config.bootstrap.initial_cluster.to_string();
    let is_secure = members.contains("https://") || members.contains("unixs://");
    if has_files || is_secure {
        Dialer::new(&config.tls.peers, &config.tls.protocol)
    } else {
        Ok(Dialer::default())
    }
}
