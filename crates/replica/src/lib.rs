//! One member without its threads: raft, the queue of writes to the log, and the effect of each
//! entry on the store. In etcd: `raftNode`, `apply` and `membership` of `server/etcdserver`.
//!
//! The code has two halves, which exchange messages in order. [`Replica`] is the raft half and
//! [`Applier`] the apply half; both are state machines. The crate `server` runs them on two
//! threads. The cluster simulation (`lab/dst`) runs the same code as steps of one thread, in an
//! order that depends on a seed.
//!
//! * This crate starts no thread, reads no clock, draws no random number, and opens no socket. It
//!   opens files only through interfaces of the caller. The caller supplies the time and carries
//!   out the outputs of a state machine. `clippy.toml` forbids calls that break this rule, and the
//!   crate compiles to `wasm32-unknown-unknown`.
//! * The effect of an entry on the store depends only on the store and the entry ([`apply`]).
//! * An [`Error`] that one of the two halves returns stops the member. A client's mistake is an
//!   [`apply::RequestRejection`], which ends only the request.
//!
//! Start reading with [`apply`], then read `state_machines` with `docs/raft-and-apply.md`.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod applied_position;
pub mod apply;
pub mod walk_steps;
pub mod era_policy;
pub mod alarms;
pub mod quota;
pub mod membership;
pub mod downgrade;
mod proposal;
mod state_machines;
pub mod raft_snapshot;
mod request_error;
mod error;

pub use applied_position::AppliedPosition;
pub use era_policy::EraPolicy;
pub use error::{Error, Result};
pub use proposal::Proposal;
pub use request_error::RequestError;
pub use state_machines::{
    AppliedConfChange, Applier, ApplyReady, ApplyReadyHandler, ApplyReport, ApplyTimer,
    CompactionConfig, Completions, MemberChangeError, NO_DEADLINE, NewStore, Part, ROUND_LENGTH,
    Replica, ReplicaConfig, ReplicaInput, ReplicaReady, ReplicaReadyHandler, RequestId,
    RequestOutcome, RequestQueue, SlowEntry, StallEvent, StorageConfig, ToApply, Wait, bootstrap,
    bootstrap_admitted, force_new_cluster, start,
};
