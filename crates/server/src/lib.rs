//! The server of one member: requests become entries of the log, and entries become states of the
//! store and answers. etcd's counterpart is `server/etcdserver`. Below are the crates `raft`,
//! `wal`, `mvcc`, `lease` and `auth`, above `rpc` and `peer`.
//!
//! Begin with [`apply`] (what an entry does to the store), [`replica`] (one member as two state
//! machines) and [`threads`] (which thread runs what), beside `docs/raft-and-apply.md`.
//!
//! * A write is answered after a quorum has it on disk and this member has applied it.
//! * What an entry does to the store depends on the store and the entry alone.
//! * [`replica`] starts no thread and reads no clock: the simulated cluster (`dst`) runs it, too.
//! * An [`Error`] ends the member. What a client did wrong is a [`apply::RequestRejection`].

pub mod applied_position;
pub mod alarms;
pub mod quota;
pub mod raft_snapshot;
pub mod replica;
pub mod membership;
pub mod apply;
pub mod threads;
pub mod downgrade;
mod auth;
pub mod credentials;
pub mod checksums;
pub mod corruption;
pub mod snapshot_file;
pub mod range;
pub mod read_executor;
pub mod deadline;
pub mod streamed_range;
mod compares_ahead;
pub mod streamed_response;
mod txn;
mod walk_steps;
pub mod response_memory;
mod leases;
pub mod range_stream;
pub mod watch;
mod watch_calls;
pub mod request_trace;
pub mod task_labels;
pub mod trace;
mod handle;
mod proposal;
mod request_error;
mod error;

pub use applied_position::AppliedPosition;
pub use auth::PasswordError;
pub use credentials::Credentials;
pub use error::{Error, Result};
pub use handle::Server;
pub use proposal::Proposal;
pub use request_error::RequestError;
