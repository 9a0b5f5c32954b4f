//! TLS, as clients see it: which client is let in, which is not, and which clients that disturbs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod authority;
mod clients;
mod test_server;
mod program;
mod reload;
