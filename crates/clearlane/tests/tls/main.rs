//! TLS, as clients see it: who is let in, who is not, and whom that disturbs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod authority;
mod clients;
mod test_server;
mod program;
mod reload;
