//! The whole of the crate `etcd-client`, used on real servers.
//!
//! One module for each service of etcd, and then what is between a client and several servers. A
//! test says what etcd 3.7.1 does, and was seen to hold there.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod auth;
mod auth_on;
mod cluster;
mod connect;
mod election;
mod kv;
mod lease;
mod lock;
mod maintenance;
mod members;
mod namespace;
mod txn;
mod watch;
