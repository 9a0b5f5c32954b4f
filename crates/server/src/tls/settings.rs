//! What did the owner say? Files and rules, by the flags that name them.

use std::path::PathBuf;

use super::protocol::Protocol;

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// For connections of clients.
    pub clients: Side,
    /// For connections between members.
    pub peers: Side,
    /// For both.
    pub protocol: Protocol,
}

/// A file, and the flag that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Without its dashes.
    pub flag: &'static str,
    /// Where it lies.
    pub path: PathBuf,
}

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// What is shown: the certificate, and those between it and the authority.
    pub certificate: Named,
    /// What proves that it is ours.
    pub key: Named,
}

/// For one kind of connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Side {
    /// Shown to whoever comes, and, if there is no other, to whomever we call.
    pub own: Option<Pair>,
    /// Shown to whomever we call.
    pub calling: Option<Pair>,
    /// Who signs the certificates of the others. Then nobody comes in without one.
    pub trusted: Option<Named>,
    /// Certificates that hold no more.
    pub revoked: Option<Named>,
    /// Who may come, of those that have a certificate.
    pub allowed: Allowed,
    /// Certificates that are made here; then those of others are not looked at.
    pub made: Option<Made>,
    /// Whether a certificate that names addresses must name the one that its owner calls from.
    pub checks_address: bool,
}

/// Who may come, of those that have a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Allowed {
    /// All of them.
    #[default]
    All,
    /// Those of one of these common names.
    CommonNames(Vec<String>),
    /// Those whose certificate holds for one of these hosts.
    Hosts(Vec<String>),
}

/// A certificate that is made here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// The flag that wants it.
    pub flag: &'static str,
    /// Where it is kept.
    pub dir: PathBuf,
    /// For which hosts and addresses.
    pub hosts: Vec<String>,
    /// So long it holds.
    pub years: u64,
}

/// A certificate holds no longer: X.509 has four digits for the year.
pub(crate) const YEARS_MAX: u64 = 1000;
