//! Tests of watching over real sockets: the messages of a stream in every era, and the effect of
//! many streams on others.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod client;
mod crowds;
mod streams;
#[path = "../support/mod.rs"]
mod support;
