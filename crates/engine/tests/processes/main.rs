//! Tests that start processes: writers that are killed, and bbolt itself.
//!
//! These tests are a separate test program. A process that is just starting holds copies of all
//! open files and their locks for a short time. So the other tests that open stores are in another
//! program, and the tests here wait until a store is no longer locked.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]
#![allow(clippy::print_stdout, reason = "the seed of a failure is printed with it")]

#[allow(dead_code, reason = "these tests use a part of it")]
#[path = "../suite/support.rs"]
mod support;
mod crash;
mod bbolt;
