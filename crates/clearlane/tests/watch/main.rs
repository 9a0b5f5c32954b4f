//! Watching over real sockets: what a stream sends, in every era, and what many streams cost
//! others.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod client;
mod crowds;
mod streams;
#[path = "../support/mod.rs"]
mod support;
