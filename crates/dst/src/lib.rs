//! Deterministic simulation testing: a cluster in one thread, under a seed.
//!
//! The members are real; messages, disks, ticks and clients are [events](event_queue) in one queue,
//! at moments drawn from the seed. [`faults`] come one upon the other, and [`checkers`] compare
//! what clients are answered and what members do with the rules. At the end everything is repaired,
//! and the cluster has to work again. [`run()`] runs one seed; [`cluster`] is where the parts meet.
//!
//! * No thread, no wall clock, no random number but from the seed, no order of a hash map: two runs
//!   of a seed have the same [`trace`].
//! * No member gets information that a real one could not get.
//! * [`effect_hash`] says whether members did the same as before a change.
//!
//! `docs/dst.md` has the idea, the faults, the rules, and what this cannot find.

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
