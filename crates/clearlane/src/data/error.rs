//! Why a member does not begin: what is wrong, and what would be right.

use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Member(#[from] clearlane_server::Error),
    #[error("the data directory: {0}")]
    Directory(#[from] std::io::Error),
    #[error("the connections to other members: {0}")]
    Network(std::io::Error),
    #[error("{path}: the data is of format {found}, and this program knows formats up to {known}")]
    NewerFormat { path: PathBuf, found: String, known: u32 },
    #[error(
        "{dir}: this is data of etcd ({found}), which Clearlane does not read; nothing in it was \
         changed. Start etcd with it, start Clearlane with an empty --data-dir, and copy the keys: \
         `etcdctl --endpoints=ETCD make-mirror CLEARLANE`"
    )]
    Etcd { dir: PathBuf, found: String },
    #[error("--force-new-cluster goes on with a member's data, and in {0} there is none")]
    NoDataToForce(PathBuf),
    #[error("--{flag}: each address is http://host:port or https://host:port, and there is one")]
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
    #[error("cannot join: no member of --initial-cluster answers with the members: {0}")]
    NoPeerAnswered(String),
    #[error(
        "cannot join: no member of the cluster has the peer addresses {own}; it has {has}; add this \
         one first with `etcdctl member add`"
    )]
    NotAdded { own: String, has: String },
    #[error("cannot join: --initial-cluster has {listed}, and the cluster has {has}")]
    MembersMismatch { listed: String, has: String },
    #[error(
        "an election time-out of {election:?} must be at least five heartbeats, of {heartbeat:?} each"
    )]
    Timeouts { heartbeat: Duration, election: Duration },
}

pub type Result<T> = std::result::Result<T, Error>;
