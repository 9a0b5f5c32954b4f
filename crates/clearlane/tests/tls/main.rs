//! Tests of TLS as clients see it: which clients are accepted, which are rejected, and that others
//! are served at the same time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod authority;
mod clients;
mod test_server;
mod program;
#[path = "../support/program.rs"]
mod program_process;
mod reload;
mod users;
