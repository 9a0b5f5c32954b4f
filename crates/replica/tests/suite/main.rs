//! Tests of one member without threads: its raft half and its apply half, its table of members, and
//! the requests that it rejects.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod halves;
mod oracle;
mod membership;
mod requests_refused;
