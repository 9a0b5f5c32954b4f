//! In what order do things happen? From a proposal to its answer, and from a question to the moment
//! at which it may be answered.
//!
//! # The problem
//!
//! Below this crate lie a log that members agree on, a store, and a ReadIndex queue that says how fresh a
//! read is. Each keeps its own promises. That a client is answered "done" only when a quorum has its write
//! on disk and this member has applied it, that a crash between any two steps loses nothing and does
//! nothing twice, that a member which was away for long comes back: these are promises about the
//! order of steps, and the order is made here.
//!
//! # The parts, in reading order
//!
//! | module | its question |
//! |---|---|
//! | [`applied_position`] | how far has the store come in the log? |
//! | [`requests`] | what does a request do to the store, and what is answered? |
//! | [`membership`] | which members belong to the cluster, and how does that change? |
//! | [`alarms`] | which requests are refused for the time being? |
//! | [`quota`] | how large may the store become? |
//! | [`raft_snapshot`] | how does the store of one member get to another, whole? |
//! | [`replica`] | in what order does all of it happen? |
//! | [`auth_store`] | which users are there, and with which permissions? |
//! | [`downgrade`] | is the cluster to go back to an older version? |
//! | [`checksums`] | do two members have the same? has this disk what it had? |
//! | [`corruption`] | and if not, which of them is wrong? |
//! | [`snapshot_file`] | the store as one file |
//! | [`range`] | the whole path of a read |
//! | [`streamed_range`] | an answer that is too long to be in memory at once |
//! | [`response_memory`] | how much may be read before anybody takes it? |
//! | [`request_trace`] | where has a slow request spent its time? |
//! | [`task_labels`] | under which names are locks taken? |
//! | [`trace`] | what happened when? |
//!
//! # What holds
//!
//! * Nothing here starts a thread, reads a clock or draws a random number: the simulated cluster
//!   runs the same lines as a server.
//! * What an entry does to the store depends on the store and the entry alone, so that all members
//!   come to the same state.
//! * An [`Error`] ends the member. What a client did wrong is a [`requests::RequestRejection`], and ends
//!   nothing.

pub mod applied_position;
pub mod alarms;
pub mod quota;
pub mod raft_snapshot;
pub mod replica;
pub mod membership;
pub mod requests;
pub mod threads;
pub mod downgrade;
pub mod auth_store;
pub mod checksums;
pub mod corruption;
pub mod snapshot_file;
pub mod range;
pub mod deadline;
pub mod streamed_range;
pub mod response_memory;
mod leases;
pub mod range_stream;
pub mod watch;
pub mod request_trace;
pub mod task_labels;
pub mod trace;
mod handle;
mod publish;
mod request_error;
mod error;

pub use applied_position::AppliedPosition;
pub use error::{Error, Result};
pub use handle::Server;
pub use request_error::RequestError;
