//! The suites that test all engines against the guarantees of the crate.
//!
//! All suites are one binary, so that it is linked once. The tests in `tests/processes` are a
//! separate binary, because they start processes. A process that is just starting holds copies of
//! all open files and their locks for a short time. Such a copy would keep the store of another
//! test locked after that test has closed the store.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

#[allow(dead_code, reason = "this suite uses a part of it")]
mod support;
mod conformance;
mod refusals;
mod model;
mod threads;
mod streams;
