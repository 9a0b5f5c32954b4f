//! Servers for tests, in the process of the test: a single one, or a cluster.
//!
//! A [`TestServer`] is the real server, with its log, its raft and its sockets, on a free port of
//! 127.0.0.1 and in a directory of its own; both go when the value is dropped. A [`TestCluster`] is
//! several that are one cluster: its members can be stopped, as if the power had failed, and
//! started again. Any client of etcd can talk to either.
//!
//! * `start` returns when there is a leader: the first request need not wait for one.
//! * A stopped member keeps its data, and starts again at the same address.
//! * Stopping is abrupt: requests are not finished, and leadership is not handed over.
//!
//! Elections are faster than in production, because tests wait for them; files are synced as there.
//! TLS and users are left out: they are tested with the program `clearlane`. See `docs/client.md`.

mod cluster;
mod member;
mod server;

pub use clearlane::data::MemberConfig;

pub use crate::cluster::TestCluster;
pub use crate::server::TestServer;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Start(#[from] clearlane::data::Error),
    /// There is no port or no directory for it.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Client(#[from] clearlane_client::Error),
    #[error("there is no leader")]
    NoLeader,
    /// The number of members that there are.
    #[error("there is no member {0}")]
    NoSuchMember(usize),
}
