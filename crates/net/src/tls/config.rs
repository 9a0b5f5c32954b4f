//! What the operator has set: files and rules, by the flags that name them.

use std::path::PathBuf;

use super::protocol::ProtocolConfig;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsConfig {
    pub clients: TlsInfo,
    pub peers: TlsInfo,
    pub protocol: ProtocolConfig,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlagPath {
    /// Without its dashes.
    pub flag: &'static str,
    pub path: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// With its intermediates.
    pub certificate: FlagPath,
    pub key: FlagPath,
}

/// For one kind of connections: clients', or those between members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsInfo {
    /// Shown to clients; and to servers, if there is no client certificate.
    pub server_certificate: Option<CertificateFiles>,
    pub client_certificate: Option<CertificateFiles>,
    /// If it is set, a client must show a certificate that it has signed.
    pub trusted_ca: Option<FlagPath>,
    pub crl: Option<FlagPath>,
    pub allowed: AllowedNames,
    /// Then the others' certificates are not checked.
    pub self_signed: Option<SelfSignedConfig>,
    /// Whether a certificate with addresses must name the one that its owner calls from.
    pub checks_address: bool,
}

/// Among those that have a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AllowedNames {
    #[default]
    Any,
    CommonNames(Vec<String>),
    Hosts(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelfSignedConfig {
    pub flag: &'static str,
    pub dir: PathBuf,
    pub hosts: Vec<String>,
    pub years: u64,
}

/// X.509 has four digits for the year.
pub const VALIDITY_YEARS_MAX: u64 = 1000;
