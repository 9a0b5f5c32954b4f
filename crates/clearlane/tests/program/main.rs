//! Tests of the program as a user runs it: its flags, config file, sockets and pages. Tests that
//! open stores in this process are in other test programs, because a process that is being started
//! briefly holds copies of all open files, including their locks.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../tls/authority.rs"]
mod authority;
#[path = "../support/program.rs"]
mod program;
#[path = "../support/mod.rs"]
mod support;
mod command_line;
mod config;
mod binary;
mod sockets;
mod discovery;
mod gateway;
mod proxy_timeline;
mod profiles;
