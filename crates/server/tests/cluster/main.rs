//! Several members that talk to each other over sockets, and clients of theirs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod alone;
#[path = "../tls/authority.rs"]
mod authority;
mod behind;
mod corruption;
mod figures;
mod lab;
mod leaders;
mod leases;
mod members;
mod patience;
mod pings;
mod secured;
mod strangers;
mod watched;
