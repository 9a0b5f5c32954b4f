//! The client at the other end of a connection, as logs name it.

use std::fmt;
use std::net::SocketAddr;

use clearlane_net::coalescing_writer::ActiveLargeResponses;
use clearlane_net::tls::ClientName;

/// From where a connection comes.
#[derive(Clone, Copy, Debug)]
pub enum RemoteAddress {
    /// Over the network.
    Tcp(SocketAddr),
    /// From a process of this machine.
    Unix,
    /// From the JSON gateway, the client that has asked there.
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

/// The client at the other end of a connection.
#[derive(Clone, Debug)]
pub struct ClientInfo {
    /// The address that the client calls from.
    pub remote: RemoteAddress,
    /// Whether the connection is encrypted.
    pub is_secure: bool,
    /// The client's name, by the certificate that it has shown. Calls that tonic answers have it
    /// among their extensions.
    pub name: Option<ClientName>,
    /// What else the connection carries.
    pub large_responses: ActiveLargeResponses,
}

impl ClientInfo {
    /// A client without TLS.
    pub fn without_tls(remote: RemoteAddress) -> ClientInfo {
        ClientInfo {
            remote,
            is_secure: false,
            name: None,
            large_responses: ActiveLargeResponses::default(),
        }
    }
}

impl fmt::Display for ClientInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(ClientName(name)) => write!(f, "{} (CN {name})", self.remote),
            None => self.remote.fmt(f),
        }
    }
}
