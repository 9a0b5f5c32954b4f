//! One member and a few, step by step: what the two halves guarantee, each on its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod alarms;
mod compares;
mod damaged_log;
mod test_replica;
mod raft_snapshots;
mod replica_cluster;
mod leases;
mod reads;
mod stalls;
mod starts;
mod writes;

use clearlane_server::replica::ReplicaConfig;

/// Small numbers, so that a short test sees the log shortened.
fn settings() -> ReplicaConfig {
    ReplicaConfig { snapshot_count: 20, catch_up_entries: 5, ..ReplicaConfig::new(7, 0) }
}
