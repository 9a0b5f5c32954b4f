//! Errors that prevent the start of a member. Each error names its cause and, where possible, a
//! remedy.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clearlane_engine::EngineKind;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Member(clearlane_replica::Error),
    /// The log has lost acknowledged entries.
    #[error(
        "{0}; nothing was changed. Remove this member from its cluster, and add it again with an \
         empty data directory, or restore a backup. --unsafe-accept-log-loss starts this member \
         without the missing entries, though it has acknowledged them. If this directory is a copy of \
         a running member, stop the member and copy it again"
    )]
    LogLoss(clearlane_replica::Error),
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    #[error("the connections to other members: {0}")]
    Network(std::io::Error),
    #[error("{path}: the data is of format {found}, but this program knows formats up to {known}")]
    NewerFormat { path: PathBuf, found: String, known: u32 },
    #[error("{path}: the {name} is {found}, but this program knows up to 3.7; nothing was changed")]
    NewerStore { path: PathBuf, name: &'static str, found: String },
    #[error(
        "{path}: the cluster version is {found}: start etcd 3.6 with this data, and then this \
         program; nothing was changed"
    )]
    OlderStore { path: PathBuf, found: String },
    #[error("{path}: this is a store of engine bolt, but --engine is {kind}; nothing was changed")]
    OtherEngine { path: PathBuf, kind: EngineKind },
    #[error("{path}: {key} is {text:?}, which is not a version such as 3.7.0")]
    BadVersion { path: PathBuf, key: &'static str, text: String },
    #[error(
        "{0}: the store has entries of a log, but there is no log next to it; restore the file \
         with `etcdutl snapshot restore` or `clearlane snapshot restore`"
    )]
    NoLog(PathBuf),
    #[error("--force-new-cluster needs the data of a member, but {0} has none")]
    NoDataToForce(PathBuf),
    #[error("--{flag} needs at least one address, each http://host:port or https://host:port")]
    BadUrls { flag: &'static str },
    #[error("--initial-cluster: {0:?} is not name=http://host:port")]
    BadEntry(String),
    #[error("--initial-cluster-state: {0:?} is neither new nor existing")]
    BadState(String),
    #[error("--initial-cluster has no entry for --name {name}; it has: {has}")]
    NotListed { name: String, has: String },
    #[error("--initial-cluster: {url} belongs to both {one} and {other}")]
    DuplicateUrl { url: String, one: String, other: String },
    #[error(
        "--initial-cluster has {name}={listed} but missing from --initial-advertise-peer-urls, \
         which has {own}"
    )]
    UrlsMismatch { name: String, listed: String, own: String },
    #[error(
        "member {0:x} has already been bootstrapped: its data directory is empty, so it has lost \
         what it acknowledged; remove it with `member remove`, and add it again with `member add` and \
         --initial-cluster-state=existing. If too few other members are left for that, start one of \
         them with --force-new-cluster first"
    )]
    AlreadyBootstrapped(u64),
    #[error(
        "the cluster has this member as {0:x}, which was added and has not started yet: start it \
         with --initial-cluster-state=existing"
    )]
    AddedAs(u64),
    #[error(
        "the cluster of the members in --initial-cluster exists, and does not have this member: add \
         it with `etcdctl member add`, and start it with --initial-cluster-state=existing"
    )]
    NotOfCluster,
    #[error("cannot join: --initial-cluster names no other member of the existing cluster")]
    NoOtherMember,
    #[error("cannot join: no member of --initial-cluster returned the list of members: {0}")]
    NoPeerAnswered(String),
    #[error(
        "cannot join: no member of the cluster has the peer addresses {own}; it has {has}; add this \
         one first with `etcdctl member add`"
    )]
    NotAdded { own: String, has: String },
    #[error("cannot join: --initial-cluster has {listed}, but the cluster has {has}")]
    MembersMismatch { listed: String, has: String },
    #[error(
        "an election time-out of {election:?} must be at least five heartbeats, of {heartbeat:?} each"
    )]
    Timeouts { heartbeat: Duration, election: Duration },
}

impl From<clearlane_replica::Error> for Error {
    fn from(error: clearlane_replica::Error) -> Error {
        match error.is_log_loss() {
            true => Error::LogLoss(error),
            false => Error::Member(error),
        }
    }
}

pub type Result<T> = std::result::Result<T, Error>;

/// Adds the path of a file or directory to an error.
pub(super) fn at(path: &Path) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::File { path: path.to_owned(), source }
}
