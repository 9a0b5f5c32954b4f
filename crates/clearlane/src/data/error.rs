//! Why a member does not begin: what is wrong, and what would be right.

use std::path::PathBuf;
use std::time::Duration;

/// Why a member does not begin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What is on disk makes no sense, or cannot be read or written.
    #[error(transparent)]
    Member(#[from] clearlane_server::Error),
    /// A directory cannot be made or read.
    #[error("the data directory: {0}")]
    Directory(#[from] std::io::Error),
    /// The system has nothing left for connections.
    #[error("the connections to other members: {0}")]
    Network(std::io::Error),
    /// It was written by a newer program.
    #[error("{path}: the data is of format {found}, and this program knows formats up to {known}")]
    NewerFormat {
        /// The file with the version.
        path: PathBuf,
        /// The version in it.
        found: String,
        /// The newest version that is known.
        known: u32,
    },
    /// It was written by etcd.
    #[error(
        "{dir}: this is data of etcd ({found}), which Clearlane does not read; nothing in it was \
         changed. Start etcd with it, start Clearlane with an empty --data-dir, and copy the keys: \
         `etcdctl --endpoints=ETCD make-mirror CLEARLANE`"
    )]
    Etcd {
        /// The data directory.
        dir: PathBuf,
        /// The file that shows it.
        found: String,
    },
    /// The same, as one file.
    #[error(
        "{path}: this is a snapshot of etcd (a bbolt database), which Clearlane does not read. Make \
         etcd's data of it with `etcdutl snapshot restore`, start etcd with that, and copy the keys: \
         `etcdctl --endpoints=ETCD make-mirror CLEARLANE`"
    )]
    EtcdSnapshot {
        /// The file.
        path: PathBuf,
    },
    /// There is no data to go on with.
    #[error("--force-new-cluster goes on with a member's data, and in {0} there is none")]
    NoDataToForce(PathBuf),
    /// Addresses that are none.
    #[error("--{flag}: each address is http://host:port or https://host:port, and there is one")]
    BadUrls {
        /// The flag.
        flag: &'static str,
    },
    /// The list of members cannot be read.
    #[error("--initial-cluster: {0:?} is not name=http://host:port")]
    BadEntry(String),
    /// Neither of the two words.
    #[error("--initial-cluster-state: {0:?} is neither new nor existing")]
    BadState(String),
    /// It has no entry for this member.
    #[error("--initial-cluster has no entry for --name {name}; it has: {has}")]
    NotListed {
        /// The name.
        name: String,
        /// The members that are there.
        has: String,
    },
    /// Two members have one address.
    #[error("--initial-cluster: {url} belongs to both {one} and {other}")]
    DuplicateUrl {
        /// The address.
        url: String,
        /// One member.
        one: String,
        /// The other.
        other: String,
    },
    /// Its own entry differs from its own flag.
    #[error(
        "--initial-cluster has {name}={listed} but missing from --initial-advertise-peer-urls, \
         which has {own}"
    )]
    UrlsMismatch {
        /// The name.
        name: String,
        /// In the list.
        listed: String,
        /// In the flag.
        own: String,
    },
    /// None of the others has answered.
    #[error("cannot join: no member of --initial-cluster answers with the members: {0}")]
    NoPeerAnswered(String),
    /// The cluster does not know it.
    #[error(
        "cannot join: no member of the cluster has the peer addresses {own}; it has {has}; add this \
         one first with `etcdctl member add`"
    )]
    NotAdded {
        /// Its addresses.
        own: String,
        /// The members that are there.
        has: String,
    },
    /// The list and the cluster differ.
    #[error("cannot join: --initial-cluster has {listed}, and the cluster has {has}")]
    MembersMismatch {
        /// In the list.
        listed: String,
        /// In the cluster.
        has: String,
    },
    /// Too few heartbeats in an election time-out.
    #[error(
        "an election time-out of {election:?} must be at least five heartbeats, of {heartbeat:?} each"
    )]
    Timeouts {
        /// Between two heartbeats.
        heartbeat: Duration,
        /// The time-out.
        election: Duration,
    },
}

/// A result of this module.
pub type Result<T> = std::result::Result<T, Error>;
