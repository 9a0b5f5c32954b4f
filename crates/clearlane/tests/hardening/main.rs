//! Tests of the protection against hostile clients: limits on connections, modes of files, core
//! files, and secrets.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../tls/authority.rs"]
mod authority;
mod connections;
mod files;
mod floods;
#[path = "../support/frames.rs"]
mod frames;
mod member;
mod peer_port;
#[path = "../support/program.rs"]
mod program;
mod secrets;
