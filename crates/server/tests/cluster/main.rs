//! Several members that talk to each other over sockets, and clients of theirs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod alone;
mod behind;
mod lab;
mod leaders;
mod leases;
mod members;
mod strangers;
mod watched;
