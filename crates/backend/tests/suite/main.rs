//! Tests that every era of the backend must pass.

// With the feature `shuttle` the pointer of era clearlane works only inside the model checker.
#![cfg(not(feature = "shuttle"))]
#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

#[path = "../support/mod.rs"]
mod support;
mod golden;
mod model;
mod blocking;
mod concurrent;
mod failure;
