//! Tests of the raft half and the apply half of members. The tests run the halves step by step, in
//! clusters of one or a few members.

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

use clearlane_replica::ReplicaConfig;

/// Returns settings with small numbers, so that the log is shortened even in a short test.
fn settings() -> ReplicaConfig {
    ReplicaConfig { snapshot_count: 20, catch_up_entries: 5, ..ReplicaConfig::new(7, 0) }
}
