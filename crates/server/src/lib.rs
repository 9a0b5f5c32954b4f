//! The server of one member: the threads that run the state machines of
//! [`replica`](clearlane_replica), and the calls that serve requests. In etcd: `server/etcdserver`.
//!
//! Start reading with [`Server`], the handle that the crate `rpc` calls. [`read`] and
//! [`write`](mod@write) follow a request. [`threads`] shows what each thread runs, and what it may
//! wait for.
//!
//! * A write succeeds for its client after a quorum and this member have it on disk, and after this
//!   member has applied it.
//! * In the default era a read of keys waits for no lock of the store, and for the disk only on a
//!   separate thread.
//! * The state machines of `replica` start no thread and read no clock. This crate has the threads,
//!   channels and clocks that run them.
//!
//! `docs/read-path.md` and `docs/write-path.md` follow a request through the folders of this crate.

mod handle;
pub mod deadline;
pub mod read;
pub mod write;
pub mod watch;
mod lease;
pub mod auth;
pub mod threads;
pub mod snapshot;
pub mod observe;

pub use auth::PasswordError;
pub use auth::credentials::Credentials;
pub use handle::Server;
