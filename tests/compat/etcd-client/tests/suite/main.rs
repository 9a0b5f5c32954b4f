//! Tests the whole crate `etcd-client` with real servers.
//!
//! There is a module for each service of etcd, and there are modules for connecting, for key
//! prefixes, for enabled authentication, and for one client with several servers. A test
//! describes the behaviour of etcd 3.7.1, and has passed with it.

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
