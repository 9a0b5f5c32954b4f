//! What the operator has set: files and rules, by the flags that name them.

use std::path::PathBuf;

use super::protocol::ProtocolConfig;

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsConfig {
    /// For connections of clients.
    pub clients: TlsInfo,
    /// For connections between members.
    pub peers: TlsInfo,
    /// For both.
    pub protocol: ProtocolConfig,
}

/// A file, and the flag that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlagPath {
    /// Without its dashes.
    pub flag: &'static str,
    /// Where it lies.
    pub path: PathBuf,
}

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// What is shown: the certificate, and those between it and the authority.
    pub certificate: FlagPath,
    /// What proves that it is ours.
    pub key: FlagPath,
}

/// For one kind of connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsInfo {
    /// Shown to each client, and, if there is no other, to each server we call.
    pub server_certificate: Option<CertificateFiles>,
    /// Shown to each server we call.
    pub client_certificate: Option<CertificateFiles>,
    /// The authority that signs the others' certificates. Then no client connects without one.
    pub trusted_ca: Option<FlagPath>,
    /// Certificates that hold no more.
    pub crl: Option<FlagPath>,
    /// Which clients may connect, of those that have a certificate.
    pub allowed: AllowedNames,
    /// Certificates that are made here; then those of others are not looked at.
    pub self_signed: Option<SelfSignedConfig>,
    /// Whether a certificate that names addresses must name the one that its owner calls from.
    pub checks_address: bool,
}

/// Which clients may connect, of those that have a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AllowedNames {
    /// All of them.
    #[default]
    Any,
    /// Those of one of these common names.
    CommonNames(Vec<String>),
    /// Those whose certificate holds for one of these hosts.
    Hosts(Vec<String>),
}

/// A certificate that is made here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelfSignedConfig {
    /// The flag that wants it.
    pub flag: &'static str,
    /// Where it is kept.
    pub dir: PathBuf,
    /// For which hosts and addresses.
    pub hosts: Vec<String>,
    /// How long it holds.
    pub years: u64,
}

/// A certificate holds no longer: X.509 has four digits for the year.
pub const VALIDITY_YEARS_MAX: u64 = 1000;
