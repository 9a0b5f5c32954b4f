//! Histories of keys and the two tree indexes, against plain models and golden scripts; and which
//! threads wait beside a walk.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

mod plain;
mod subject;
#[allow(dead_code, reason = "shared with the tests of the backend, which use all of it")]
#[path = "../../../backend/tests/support/blocked_threads.rs"]
mod blocked_threads;
mod key_index;
mod golden;
mod model;
mod blocked_walk;
