//! Tests of one member: its threads, compares over many keys, a slow disk, raft snapshots, and the
//! results of requests.

#![allow(clippy::print_stdout, reason = "a test fails by panicking, and reports")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod node;
mod compares_ahead;
mod slow_disk;
mod copies;
mod requests_model;
