//! Tests of several members that are connected by sockets, with their clients.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod force_new_cluster;
#[path = "../tls/authority.rs"]
mod authority;
mod lagging_follower;
mod corruption;
mod metrics;
mod test_cluster;
mod leaders;
mod leases;
mod members;
mod deadlines;
mod deferred_reads;
mod pings;
mod secured;
#[path = "../support/mod.rs"]
mod support;
mod unknown_members;
mod watchers;
#[path = "../wire/client.rs"]
mod wire_client;
