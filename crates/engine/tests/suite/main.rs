//! The suites that hold all engines to the guarantees of the crate.
//!
//! One binary, so that it is linked once. The crash test is another one: it starts processes, and
//! a process that is being started holds copies of all open files, locks included, for a moment.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

#[allow(dead_code, reason = "this suite uses a part of it")]
mod support;
mod conformance;
mod refusals;
mod model;
mod threads;
mod streams;
