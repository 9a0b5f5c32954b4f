//! Raft as a state machine, and linearizable reads on top of it.
//!
//! [`RaftNode`] wraps tikv's `raft`: ticks, messages, proposals and reads go in by calls, and
//! [`RaftNode::ready`] says what its owner has to append, send and apply. [`read_index`] says when
//! a read may see the store. The server runs this code with threads, a network and a disk; a
//! deterministic simulation runs it in one thread, under a seed.
//!
//! Nothing here starts a thread, reads a clock, touches a disk, or draws a random number that the
//! caller did not seed. What a peer sends cannot cause a panic: `check.rs` refuses it first. tikv's
//! types stay inside this crate.
//!
//! Counterpart in etcd: `server/etcdserver/raft.go`, and the read loop of `v3_server.go`.

mod convert;
mod log;
mod node;
pub mod read_index;

pub use log::LogPosition;
pub use node::{
    Error, Leadership, LostLog, LostLogReports, Message, RaftNode, RaftNodeConfig, ReadState,
    Ready, ReadyAppend, RecoveredState, Result, Role, VoterProgress,
};
