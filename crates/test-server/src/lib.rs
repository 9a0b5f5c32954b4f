//! Does my program do the right thing with a store? Servers for other people's tests, in one process.
//!
//! ```
//! use clearlane_test_server::TestServer;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> clearlane_test_server::Result<()> {
//! let server = TestServer::start().await?;
//! let client = server.client().await?;
//! client.put("greeting", "hello").await?;
//! # Ok(())
//! # }
//! ```
//!
//! # The problem
//!
//! A program that keeps its state in etcd is tested either against a mock, which does what its author
//! believes that etcd does, or against a server that a developer has to install, start on a port that is
//! free, and clean up after.
//!
//! # The idea
//!
//! The server is a library, so a test starts one: the real one, with its log, its raft and its sockets,
//! on a free port of 127.0.0.1 and in a directory of its own. When the value goes, so do both. Tests in
//! parallel have a server each and cannot meet. Any client of etcd can talk to it, at
//! [`TestServer::endpoint`].
//!
//! ```text
//!   test ── client ── 127.0.0.1:port ── server, member ── /tmp/…   gone when the test is
//! ```
//!
//! A [`TestCluster`] is several of them that are one cluster. Its members can be stopped, as if the
//! power had failed, and started again: how does the program fare while there is no leader?
//!
//! # What holds
//!
//! * `start` returns when there is a leader: the first request need not wait for one.
//! * A member that is stopped keeps its data, and starts again at the same address.
//! * Stopping is abrupt. No request is let finish, and leadership is not handed over: a test that
//!   works here has seen the worse of two endings.
//!
//! # What is left out
//!
//! TLS and users: those are tested with the program `clearlane` and its flags. Members elect faster than
//! in life, since tests wait for it, and files are synced as in life, since they should be as right.

mod cluster;
mod member;
mod server;

pub use clearlane::data::MemberConfig;

pub use crate::cluster::TestCluster;
pub use crate::server::TestServer;

/// Either, or why not.
pub type Result<T> = std::result::Result<T, Error>;

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The member did not start.
    #[error(transparent)]
    Start(#[from] clearlane::data::Error),
    /// There is no port or no directory for it.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The client was not let in.
    #[error(transparent)]
    Client(#[from] clearlane_client::Error),
    /// The members have not agreed on a leader within a minute.
    #[error("there is no leader")]
    NoLeader,
    /// There are only so many members.
    #[error("there is no member {0}")]
    NoSuchMember(usize),
}
