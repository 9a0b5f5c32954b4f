//! Tests of `RaftNode` and of linearizable reads.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../cluster_support/mod.rs"]
mod cluster_support;
#[path = "../read_index_cluster/mod.rs"]
mod read_index_cluster;
#[path = "../read_index_plain/mod.rs"]
mod read_index_plain;
mod node;
mod node_hostile;
mod node_schedules;
mod read_index_golden;
mod read_index_lease;
mod read_index_model;
mod read_index_stale;
