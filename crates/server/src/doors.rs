//! Through which doors does one come in? Ports and sockets of clients, of members, and for metrics.
//!
//! All are bound first: a port in use is told before a certificate is made, and that before data is
//! opened. Nobody is let in before all of it is there.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use crate::config::Config;
use crate::config::address::{Entrance, Listen};
use crate::listen::Listener;
use crate::tls::incoming::Endpoint;
use crate::tls::{Error, Incoming, Outgoing, Side};

/// A port, and TLS if it is spoken there.
pub(crate) type Port = (TcpListener, Option<Arc<Incoming>>);

/// All doors.
pub(crate) struct Doors {
    pub(crate) clients: Vec<Listener>,
    pub(crate) peers: Vec<Listener>,
    pub(crate) metrics: Vec<Port>,
    /// And how other members' doors are opened.
    pub(crate) outgoing: Outgoing,
}

/// Why one stays shut.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Shut {
    #[error("--{flag}: {at}: {error}")]
    Place { flag: &'static str, at: Listen, error: io::Error },
    #[error(transparent)]
    Tls(#[from] Error),
}

impl Doors {
    pub(crate) fn bind(config: &Config) -> Result<Doors, Shut> {
        let mut clients = listeners("listen-client-urls", &config.listen_clients)?;
        clients.extend(listeners("listen-client-http-urls", &config.listen_clients_http)?);
        let peers = listeners("listen-peer-urls", &config.listen_peers)?;
        let metrics = ports("listen-metrics-urls", &config.http.listen_metrics)?;
        let entrances = config.listen_clients.iter().chain(&config.listen_clients_http);
        let entrances = entrances.chain(&config.http.listen_metrics);
        let for_clients = incoming(Endpoint::Client, entrances, config)?;
        let for_peers = incoming(Endpoint::Peer, config.listen_peers.iter(), config)?;
        Ok(Doors {
            clients: secured(clients, &for_clients),
            peers: secured(peers, &for_peers),
            metrics: with_tls(metrics, &config.http.listen_metrics, &for_clients),
            outgoing: outgoing(config)?,
        })
    }
}

/// A listener, and how it is to speak.
type Bound<'c> = (Listener, &'c Entrance);

fn listeners<'c>(flag: &'static str, entrances: &'c [Entrance]) -> Result<Vec<Bound<'c>>, Shut> {
    let bound = entrances.iter().map(|entrance| match Listener::bind(&entrance.at) {
        Ok(listener) => Ok((listener, entrance)),
        Err(error) => Err(Shut::Place { flag, at: entrance.at.clone(), error }),
    });
    bound.collect()
}

fn secured(bound: Vec<Bound<'_>>, tls: &Option<Arc<Incoming>>) -> Vec<Listener> {
    let listeners = bound.into_iter().map(|(listener, entrance)| match tls_at(entrance, tls) {
        Some(tls) => listener.secured(tls, entrance.is_plain),
        None => listener,
    });
    listeners.collect()
}

fn ports(flag: &'static str, entrances: &[Entrance]) -> Result<Vec<TcpListener>, Shut> {
    let ports = entrances.iter().filter_map(|entrance| match entrance.at {
        Listen::Tcp(address) => Some((entrance, address)),
        Listen::Unix(_) => None,
    });
    let bound = ports.map(|(entrance, address)| {
        let listener = TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        listener.map_err(|error| Shut::Place { flag, at: entrance.at.clone(), error })
    });
    bound.collect()
}

fn tls_at(entrance: &Entrance, tls: &Option<Arc<Incoming>>) -> Option<Arc<Incoming>> {
    tls.clone().filter(|_| entrance.is_secure)
}

fn with_tls(
    listeners: Vec<TcpListener>,
    entrances: &[Entrance],
    tls: &Option<Arc<Incoming>>,
) -> Vec<Port> {
    let listeners = listeners.into_iter().zip(entrances);
    listeners.map(|(listener, entrance)| (listener, tls_at(entrance, tls))).collect()
}

/// TLS for those who come in, if anybody may come in with it.
fn incoming<'e>(
    endpoint: Endpoint,
    mut entrances: impl Iterator<Item = &'e Entrance>,
    config: &Config,
) -> Result<Option<Arc<Incoming>>, Error> {
    let side = match endpoint {
        Endpoint::Client => &config.tls.clients,
        Endpoint::Peer => &config.tls.peers,
    };
    if !entrances.any(|entrance| entrance.is_secure) {
        return Ok(None);
    }
    let incoming = Incoming::new(endpoint, side, &config.tls.protocol)?;
    let path = |named: Option<&crate::tls::Named>| {
        named.map(|named| named.path.display().to_string()).unwrap_or_default()
    };
    tracing::info!(
        cert = path(side.own.as_ref().map(|pair| &pair.certificate)),
        "trusted-ca" = path(side.trusted.as_ref()),
        "crl-file" = path(side.revoked.as_ref()),
        "client-cert-auth" = side.trusted.is_some(),
        "auto-tls" = side.made.is_some(),
        "starting with {endpoint} TLS"
    );
    Ok(Some(Arc::new(incoming)))
}

/// TLS for members that are called, if any of them may want it.
fn outgoing(config: &Config) -> Result<Outgoing, Error> {
    let Side { own, calling, trusted, made, .. } = &config.tls.peers;
    let has_files = own.is_some() || calling.is_some() || trusted.is_some() || made.is_some();
    let members = config.bootstrap.members.to_string();
    let is_secure = members.contains("https://") || members.contains("unixs://");
    match has_files || is_secure {
        true => Outgoing::new(&config.tls.peers, &config.tls.protocol),
        false => Ok(Outgoing::default()),
    }
}
