//! What could possibly go wrong? A cluster in one thread, under a seed.
//!
//! # The problem
//!
//! What consensus is for happens seldom: two members lose their power while a third is cut off with a
//! vote on its way. A test with threads, sockets and sleeps gets there once in a thousand runs, and
//! a second occurrence takes another thousand.
//!
//! # The idea
//!
//! The members are real, and everything around them is not. Messages, disks, ticks and clients are
//! events in one queue, at moments that are drawn from a seed; the clock jumps from one to the next. The
//! same seed is the same story, to the byte, and half a minute of it takes a quarter of a second. While
//! faults come one upon the other, checkers watch what clients are told and what members do. At the
//! end everything is repaired, and the cluster has to come right.
//!
//! ```text
//!   seed ──▶ terms, faults, weather, clients
//!                       │
//!      ┌────────────────▼────────────────┐
//!      │  events: one queue, one clock   │◀─────┐
//!      └──┬───────────┬───────────┬──────┘      │ sent, to be written,
//!         ▼           ▼           ▼             │ to be answered
//!      Core 1      Core 2      Core 3 ──────────┤
//!                                               ▼
//!                                    judge: one file for each rule
//! ```
//!
//! # Reading order
//!
//! | module | its question |
//! |---|---|
//! | [`event_queue`] | what happens next, and what time is it? |
//! | [`rng`] | where do all the numbers come from? |
//! | [`network`] | what becomes of a message? |
//! | [`faults`] | what goes wrong, and when? |
//! | [`run_config`] | what does a seed decide beforehand? |
//! | [`machine`] | what does a member run on, and what does a crash leave? |
//! | [`history`], [`clients`] | what do people want, and what are they told? |
//! | [`lease_model`] | what must become of leases? |
//! | [`proposals`], [`replies`] | how does etcd say that? |
//! | [`cluster`] | how do all of these meet? |
//! | [`checkers`], [`invariant_checker`] | what must never happen? |
//! | [`trace`] | what has happened? |
//! | [`effect_hash`] | has the product done the same as before? |
//!
//! # What holds
//!
//! * No thread, no wall clock, no random number but from the seed, no order of a hash map: two runs of
//!   a seed have the same [`trace`].
//! * No member is told what a real one could not be told.
//!
//! # What is left out
//!
//! The list is at the end of the chapter, `docs/dst.md`.

pub mod rng;
pub mod event_queue;
pub mod trace;
pub mod effect_hash;
pub mod network;
pub mod history;
pub mod lease_model;
pub mod proposals;
pub mod replies;
pub mod clients;
pub mod faults;
pub mod checkers;
pub mod invariant_checker;
pub mod run_config;
pub mod machine;
pub mod cluster;
mod run;

pub use run::{Report, run};
