//! Tests of calls that usual clients do not make: unusual paths, heads and frames.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod client;
mod compares_ahead;
mod compressed;
mod deadlines;
mod default_era;
mod deferred_reads;
mod heads;
mod large_json;
mod locks_held;
mod sizes;
mod streamed_txns;
mod unread_bodies;
#[path = "../support/mod.rs"]
mod support;
