//! Tests of workload files, and of loads against servers in this process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod closed_loop;
mod server;
mod workload;
