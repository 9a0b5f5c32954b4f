//! The operator's TLS settings: files and rules, with the flags that set them.

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
    /// The flag without its dashes.
    pub flag: &'static str,
    pub path: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate, followed by its intermediate certificates.
    pub certificate: FlagPath,
    pub key: FlagPath,
}

/// Settings for one kind of connection: connections of clients, or connections between members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsInfo {
    /// The certificate that is shown to clients. It is also shown to servers if there is no client
    /// certificate.
    pub server_certificate: Option<CertificateFiles>,
    pub client_certificate: Option<CertificateFiles>,
    /// The trusted authorities. If set, clients and servers must show a certificate that one of
    /// these authorities has signed.
    pub trusted_ca: Option<FlagPath>,
    pub crl: Option<FlagPath>,
    pub allowed: AllowedNames,
    /// If this is set and `server_certificate` is not set, the member makes its own certificate. If
    /// this is set and `trusted_ca` is not set, the member does not check the certificates of
    /// others.
    pub self_signed: Option<SelfSignedConfig>,
    /// If true, a certificate with addresses or hosts must match the address of the caller.
    pub checks_address: bool,
}

/// The names that are accepted: a certificate must contain one of these names, unless this is
/// `Any`.
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

/// Maximum validity of a self-signed certificate in years. The limit keeps the year of expiry below
/// 10000, because X.509 has four digits for the year.
pub const VALIDITY_YEARS_MAX: u64 = 1000;
