//! TLS, as clients see it: which client is let in, which is not, and that others are served
//! meanwhile.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod authority;
mod clients;
mod test_server;
mod program;
#[path = "../support/program.rs"]
mod program_process;
mod reload;
mod users;
