//! Clearlane's raft as a state machine, and linearizable reads on top of it.
//!
//! [`RaftNode`] wraps tikv's crate `raft`. Its owner calls methods to pass in ticks, messages,
//! proposals and reads. [`RaftNode::ready`] returns the entries to append, the messages to send and
//! the entries to apply. [`read_index`] decides when a read may see the store. The server runs this
//! code with threads, a network and a disk. A deterministic simulation runs it in one thread, in an
//! order that depends on a seed.
//!
//! This crate starts no thread, reads no clock, touches no disk, and uses no random number that
//! the caller did not seed. A message from a peer cannot cause a panic, because `check.rs` rejects
//! invalid messages first. tikv's types do not appear in the public interface.
//!
//! In etcd: `server/etcdserver/raft.go`, and the read loop of `v3_server.go`.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

#[cfg(all(target_family = "wasm", target_os = "unknown"))]
mod no_randomness;
mod convert;
mod log;
mod node;
pub mod read_index;

pub use log::LogPosition;
pub use node::{
    Error, Leadership, LostLog, LostLogReports, Message, RaftNode, RaftNodeConfig, ReadState,
    Ready, ReadyAppend, RecoveredState, Result, Role, VoterProgress,
};
