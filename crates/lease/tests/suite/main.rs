//! Tests of leases through the public interface.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;
mod many;
mod model;
mod scripts;
