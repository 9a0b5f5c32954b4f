//! Deterministic simulation testing: a cluster in one thread, controlled by a seed.
//!
//! ```text
//!   seed ─▶ times, faults, requests
//!               │
//!               ▼
//!           event queue ──▶ cluster: real members, simulated disks, clocks and network
//!               ▲               │
//!               └─ new events ──┤
//!                               ▼
//!                  trace, effect hash, checkers
//! ```
//!
//! The members' code is real. Messages, disk operations, ticks and client requests are
//! [events](event_queue) in one queue, at times drawn from the seed. [`faults`] overlap, and
//! [`checkers`] compare the members' actions and the responses to clients with the rules. At the
//! end everything is repaired, and the cluster must work again. [`run()`] runs one seed.
//! [`cluster`] connects the parts.
//!
//! * There is no thread and no wall clock. Every random number comes from the seed, and nothing
//!   depends on the order of a hash map. So two runs of a seed have the same [`trace`].
//! * No member gets information that a real member could not get.
//! * [`effect_hash`] shows whether the members did the same as before a change of the code.
//!
//! `docs/dst.md` explains the idea, the faults, the rules, and the mistakes that this method cannot
//! find.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod rng;
pub mod event_queue;
pub mod trace;
pub mod effect_hash;
pub mod network;
pub mod history;
pub mod lease_model;
pub mod auth_model;
pub mod auth_proposals;
pub mod proposals;
pub mod replies;
pub mod clients;
pub mod faults;
pub mod checkers;
pub mod bugs;
pub mod auth_bugs;
pub mod invariant_checker;
pub mod run_config;
pub mod machine;
pub mod cluster;
mod run;

pub use run::{Report, run};
