//! Tests of members whose log makes no progress: which member leads, and what happens to proposals.

use std::time::Duration;

use clearlane_raft::{Message, Role};
use clearlane_replica::{Part, RequestOutcome};
use clearlane_wal::group_commit::Batch;

use crate::halves::replica_cluster::{ReplicaCluster, put};
use crate::halves::settings;
use crate::halves::test_replica::TestReplica;

const ELECTION_TICKS: u32 = 10;

fn role(cluster: &mut ReplicaCluster, id: u64) -> Role {
    cluster.host(id).replica().raft.raft().leadership().role
}

/// Returns a cluster, and its leader. The leader has led long enough for its voters to be prompt.
fn settled_cluster(voters: u64) -> (ReplicaCluster, u64) {
    let mut cluster = ReplicaCluster::new(voters, settings());
    let leader = cluster.leader();
    cluster.put(leader, "before", "1");
    cluster.tick(2 * ELECTION_TICKS);
    assert_eq!(role(&mut cluster, leader), Role::Leader);
    (cluster, leader)
}

/// Stalls the leader's disk while a put is in flight. Returns the batch that the disk has not
/// written.
fn stall(cluster: &mut ReplicaCluster, leader: u64) -> Batch {
    cluster.host(leader).replica().propose(put("during", "2"));
    let batch = cluster.poll_without_writing(leader);
    cluster.deliver_all();
    batch
}

fn is_timeout_now(message: &Message) -> bool {
    message.to_string().contains("TimeoutNow")
}

/// Lets one tick pass, and drops every `TimeoutNow` message that is sent in this tick.
fn tick_without_timeout_now(cluster: &mut ReplicaCluster) {
    cluster.now += Duration::from_millis(100);
    for id in cluster.hosts.keys().copied().collect::<Vec<_>>() {
        cluster.call(id, TestReplica::tick);
    }
    cluster.in_flight.retain(|message| !is_timeout_now(message));
    cluster.deliver_all();
}

fn is_applied(outcome: Option<RequestOutcome>) -> bool {
    matches!(outcome, Some(RequestOutcome::Applied(Ok(_)) | RequestOutcome::AppliedInPart(_)))
}

#[test]
fn a_stalled_leader_transfers_leadership_and_recovers() {
    let (mut cluster, old) = settled_cluster(3);
    let term = cluster.host(old).replica().raft.raft().leadership().term;
    let batch = stall(&mut cluster, old);
    cluster.tick(ELECTION_TICKS - 1);
    assert_eq!(role(&mut cluster, old), Role::Leader);
    cluster.tick(1);
    assert_eq!(role(&mut cluster, old), Role::Follower);
    let new = cluster.leader();
    assert_ne!(new, old);
    let outcome = cluster.put(new, "after", "3");
    assert!(is_applied(Some(outcome)));
    // The old leader does not lead again while its disk is stalled, and nothing else changes.
    cluster.tick(5 * ELECTION_TICKS);
    assert_eq!(cluster.leader(), new);
    cluster.write(old, batch);
    cluster.tick(2);
    for id in 1..=3 {
        assert_eq!(cluster.host(id).get("during").0.as_deref(), Some("2"), "member {id}");
        assert_eq!(cluster.host(id).get("after").0.as_deref(), Some("3"), "member {id}");
    }
    let leadership = cluster.host(old).replica().raft.raft().leadership();
    assert_eq!((leadership.leader, leadership.term), (new, term + 1));
    // After the old leader's disk has recovered, the old leader may lead again.
    cluster.call(new, |core| core.raft.transfer_leader(old));
    cluster.deliver_all();
    cluster.tick(1);
    assert_eq!(role(&mut cluster, old), Role::Leader);
}

#[test]
fn a_stalled_leader_steps_down_if_the_transfer_does_not_complete() {
    let (mut cluster, old) = settled_cluster(3);
    let other = 1 + old % 3;
    let _batch = stall(&mut cluster, old);
    for _ in 0..ELECTION_TICKS {
        tick_without_timeout_now(&mut cluster);
    }
    assert_eq!(role(&mut cluster, old), Role::Leader);
    // If the old leader gave the proposal to raft, raft would drop it, because leadership is being
    // transferred. So the old leader holds the proposal until it knows the next leader.
    let request = cluster.call(other, |core| core.propose(put("held", "3")));
    cluster.deliver_all();
    let outcome = |cluster: &mut ReplicaCluster| cluster.host(other).results.remove(&request);
    for _ in 0..ELECTION_TICKS / 2 - 1 {
        tick_without_timeout_now(&mut cluster);
        assert_eq!(role(&mut cluster, old), Role::Leader);
    }
    assert!(outcome(&mut cluster).is_none());
    cluster.tick(1);
    assert_eq!(role(&mut cluster, old), Role::Follower);
    cluster.tick(2);
    assert_ne!(cluster.leader(), old);
    assert!(is_applied(outcome(&mut cluster)));
}

#[test]
fn a_leader_that_steps_down_sends_no_heartbeats() {
    let (mut cluster, old) = settled_cluster(3);
    let _batch = stall(&mut cluster, old);
    for _ in 0..ELECTION_TICKS * 3 / 2 {
        tick_without_timeout_now(&mut cluster);
    }
    assert_eq!(role(&mut cluster, old), Role::Follower);
    // No member has received a request to campaign, so the others wait for an election time-out.
    // That time-out would not pass if the old leader still sent heartbeats.
    for _ in 0..4 * ELECTION_TICKS {
        tick_without_timeout_now(&mut cluster);
    }
    assert_ne!(cluster.leader(), old);
}

#[test]
fn a_leader_that_nobody_can_replace_keeps_leading() {
    for voters in [1, 2] {
        let (mut cluster, leader) = settled_cluster(voters);
        let _batch = stall(&mut cluster, leader);
        cluster.tick(5 * ELECTION_TICKS);
        assert_eq!(role(&mut cluster, leader), Role::Leader, "of {voters}");
    }
}

#[test]
fn a_slow_log_does_not_stall() {
    let (mut cluster, leader) = settled_cluster(3);
    let mut batch = stall(&mut cluster, leader);
    for _ in 0..10 {
        cluster.tick(ELECTION_TICKS / 2);
        cluster.host(leader).replica().propose(put("during", "2"));
        let (core, wal) = cluster.host(leader).running.as_mut().unwrap();
        core.written(batch.write(wal)).unwrap();
        batch = cluster.poll_without_writing(leader);
        cluster.deliver_all();
    }
    // If a batch has many long operations, each operation counts as progress.
    for _ in 0..10 {
        cluster.tick(ELECTION_TICKS / 2);
        cluster.call(leader, |core| core.raft.record_progress(Part::Log));
    }
    assert_eq!(role(&mut cluster, leader), Role::Leader);
}
