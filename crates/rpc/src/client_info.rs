//! The client at the other end of a connection: its address, and the name in its certificate. Log
//! lines show a client as `ADDRESS`, or as `ADDRESS (CN NAME)` if the certificate has a name.

use std::fmt;
use std::net::SocketAddr;

use clearlane_net::coalescing_writer::{ActiveLargeResponses, LargeResponseGuard};
use clearlane_net::tls::ClientName;
use tokio_stream::{Stream, StreamExt as _};
use tonic::Extensions;

#[derive(Clone, Copy, Debug)]
pub(crate) enum RemoteAddress {
    Tcp(SocketAddr),
    Unix,
    /// The JSON gateway, on behalf of an HTTP client.
    Gateway,
}

impl fmt::Display for RemoteAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RemoteAddress::Tcp(address) => write!(f, "{address}"),
            RemoteAddress::Unix => f.write_str("unix"),
            RemoteAddress::Gateway => f.write_str("gateway"),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ClientInfo {
    pub(crate) remote: RemoteAddress,
    pub(crate) is_secure: bool,
    /// The common name in the client's certificate. It is empty if the certificate has no common
    /// name, and `None` if the client has shown no certificate.
    pub(crate) name: Option<ClientName>,
    /// If true, `name` is the name of a user.
    pub(crate) is_user: bool,
    pub(crate) large_responses: ActiveLargeResponses,
}

impl ClientInfo {
    pub(crate) fn without_tls(remote: RemoteAddress) -> ClientInfo {
        ClientInfo {
            remote,
            is_secure: false,
            name: None,
            is_user: false,
            large_responses: ActiveLargeResponses::default(),
        }
    }
}

impl ClientInfo {
    /// Returns the client's name if it is the name of a user. The router adds this name to the
    /// extensions of each request, where the services that tonic serves read it.
    pub(crate) fn user_name(&self) -> Option<&ClientName> {
        self.name.as_ref().filter(|_| self.is_user)
    }
}

impl fmt::Display for ClientInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(ClientName(name)) if !name.is_empty() => write!(f, "{} (CN {name})", self.remote),
            _ => self.remote.fmt(f),
        }
    }
}

/// Returns the client of a call that tonic serves. A call of the gateway has no client information;
/// its client is [`RemoteAddress::Gateway`].
pub(crate) fn client_of(request: &Extensions) -> ClientInfo {
    let gateway = || ClientInfo::without_tls(RemoteAddress::Gateway);
    request.get().cloned().unwrap_or_else(gateway)
}

/// Wraps a stream, so that its connection counts the stream as a large response until the stream is
/// dropped. A stream that the gateway reads is not counted.
pub(crate) fn as_large_response<S: Stream>(
    stream: S,
    request: &Extensions,
) -> impl Stream<Item = S::Item> + use<S> {
    let active = request.get::<ActiveLargeResponses>().map(ActiveLargeResponses::start);
    stream.map(move |message| {
        let _: &Option<LargeResponseGuard> = &active;
        message
    })
}
