//! Servers for tests, in the process of the test: a single server, or a cluster.
//!
//! A [`TestServer`] is the real server, with its log, raft and sockets, on a free port of 127.0.0.1
//! and with its own directory. The port and the directory are released when the value is dropped. A
//! [`TestCluster`] consists of several servers. Its members can be stopped and started again. Any
//! client of etcd can use both.
//!
//! * `start` returns when there is a leader, so the first request does not have to wait.
//! * A stopped member keeps its data, and starts again with the same address.
//! * A stop is abrupt for clients: open requests are not completed, and leadership is not
//!   transferred. But a stopped member has written its log and committed its store.
//!
//! Elections are faster than in production, because tests wait for them. Files are not synced,
//! because a test needs no data after a power failure. TLS and users are not supported here: they
//! are tested with the program `clearlane`. See `docs/client.md`.
#![doc = ""]
#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

mod cluster;
mod member;
mod server;

pub use clearlane::data::MemberConfig;

pub use crate::cluster::TestCluster;
pub use crate::server::TestServer;

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why a server could not be started, stopped or reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server does not start with this configuration or this data.
    #[error(transparent)]
    Start(#[from] clearlane::data::Error),
    /// A port could not be bound, or a directory could not be created.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The client could not connect to the server.
    #[error(transparent)]
    Client(#[from] clearlane_client::Error),
    /// No leader was elected within a minute, or a member did not stop within a minute.
    #[error("no leader was elected, or a member did not stop, in time")]
    NoLeader,
    /// The cluster has no member with this index.
    #[error("the cluster has no member with index {0}")]
    NoSuchMember(usize),
}
