//! How the members of a new cluster find each other without `--initial-cluster`.
//!
//! | flags | the members are |
//! |---|---|
//! | `--discovery-token`, `--discovery-endpoints` | registered at [another cluster](service) |
//! | `--discovery-srv` | the targets of [SRV records](dns) |
//!
//! A member with data knows its cluster, and uses no discovery.

pub mod dns;
pub mod service;

use clearlane_net::tls::protocol::ProtocolConfig;
use clearlane_net::tls::{CertificateFiles, Dialer, FlagPath, TlsInfo};

use crate::data::InitialCluster;
use dns::{DnsDiscovery, DnsError};
use service::{DiscoveryError, DiscoveryService};

#[derive(Clone, Debug)]
pub enum Discovery {
    Service(Box<DiscoveryService>),
    Dns(DnsDiscovery),
}

/// The TLS settings for calls to the discovery service. The files are read before the first call,
/// and again for a later connection if they have changed.
#[derive(Clone, Debug)]
pub struct ServiceTls {
    pub certificate: Option<CertificateFiles>,
    pub trusted_ca: Option<FlagPath>,
    pub skips_verification: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Service(#[from] DiscoveryError),
    #[error(transparent)]
    Dns(#[from] DnsError),
    #[error(transparent)]
    Tls(#[from] clearlane_net::tls::Error),
}

/// The member that looks for the other members.
#[derive(Clone, Copy, Debug)]
pub struct NewMember<'m> {
    pub id: u64,
    pub name: &'m str,
    pub peer_urls: &'m [String],
}

impl Discovery {
    /// Finds all members of the new cluster. With the discovery service, waits until all of them
    /// have registered.
    pub async fn find_cluster(&self, member: NewMember<'_>) -> Result<InitialCluster, Error> {
        match self {
            Discovery::Service(service) => {
                let dialer = service.tls.as_ref().map(ServiceTls::dialer).transpose()?;
                let own = InitialCluster::single(member.name, member.peer_urls).to_string();
                Ok(service.join(&dialer.unwrap_or_default(), member.id, &own).await?)
            }
            Discovery::Dns(dns) => Ok(dns.find_cluster(member.name, member.peer_urls).await?),
        }
    }
}

impl ServiceTls {
    fn dialer(&self) -> Result<Dialer, clearlane_net::tls::Error> {
        let ServiceTls { certificate, trusted_ca, skips_verification } = self.clone();
        if skips_verification {
            return Dialer::without_verification(certificate);
        }
        let info = TlsInfo { client_certificate: certificate, trusted_ca, ..TlsInfo::default() };
        Dialer::new(&info, &ProtocolConfig::default())
    }
}
