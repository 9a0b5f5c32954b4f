//! Tests that readers are released, in every mode, when their member has applied enough entries.

use std::time::Duration;

use clearlane_raft::read_index::ReadMode;
use clearlane_replica::ReplicaConfig;

use crate::halves::replica_cluster::ReplicaCluster;
use crate::halves::settings;
use crate::halves::test_replica::ReadOutcome;

fn in_mode(read_mode: ReadMode) -> ReplicaCluster {
    let mut cluster = ReplicaCluster::new(3, ReplicaConfig { read_mode, ..settings() });
    cluster.leader();
    cluster
}

#[test]
fn every_mode_lets_readers_go_at_every_member() {
    for mode in ReadMode::ALL {
        let mut cluster = in_mode(mode);
        let leader = cluster.leader();
        cluster.put(leader, "a", "1");
        for id in 1..=3 {
            cluster.call(id, |core| core.read(id));
            cluster.deliver_all();
            cluster.tick(2);
            let reads = std::mem::take(&mut cluster.host(id).reads);
            assert_eq!(reads, [ReadOutcome::Ready(vec![id])], "{mode:?} at {id}");
            if mode != ReadMode::Serializable {
                assert_eq!(cluster.host(id).get("a").0.as_deref(), Some("1"), "{mode:?} at {id}");
            }
        }
    }
}

/// The member's store already has all entries of the cluster, and no further entry is written. So
/// the member must release its readers without applying an entry.
#[test]
fn readers_go_at_a_member_that_comes_back_with_everything() {
    for mode in [ReadMode::ReadIndex, ReadMode::Lease, ReadMode::Serializable] {
        let mut cluster = in_mode(mode);
        let leader = cluster.leader();
        let other = leader % 3 + 1;
        cluster.put(leader, "a", "1");
        cluster.tick(2);
        cluster.commit(other);
        cluster.crash(other);
        cluster.start(other);
        cluster.tick(2);
        cluster.call(other, |core| core.read(1));
        cluster.deliver_all();
        cluster.tick(2);
        let reads = std::mem::take(&mut cluster.host(other).reads);
        assert_eq!(reads, [ReadOutcome::Ready(vec![1])], "{mode:?}");
        assert_eq!(cluster.leader(), leader);
    }
}

/// Raft ends a transfer of leadership after some ticks. The other member can still be elected if it
/// receives the message of the transfer after the transfer has ended. So the leader must not read
/// under its lease, even if the transfer has started and ended between two polls.
#[test]
fn a_transfer_that_ends_before_the_next_poll_takes_the_lease() {
    let mut cluster = in_mode(ReadMode::Lease);
    let leader = cluster.leader();
    cluster.put(leader, "a", "1");
    cluster.call(leader, |core| core.read(1));
    cluster.deliver_all();
    cluster.call(leader, |core| core.read(2));
    let reads = std::mem::take(&mut cluster.host(leader).reads);
    assert_eq!(
        reads,
        [ReadOutcome::Ready(vec![1]), ReadOutcome::Ready(vec![2])],
        "the second under the lease"
    );
    let core = cluster.host(leader).replica();
    core.raft.transfer_leader(leader % 3 + 1);
    for _ in 0..10 {
        core.tick();
    }
    core.read(3);
    cluster.poll(leader);
    assert_eq!(cluster.host(leader).reads, [], "no read goes without a round");
    cluster.deliver_all();
    assert_ne!(cluster.leader(), leader, "it was told to be elected");
}

/// The outcome of a read shows how long the read has waited only for this member to apply entries.
#[test]
fn a_reader_that_waits_for_this_member_alone_is_told_since_when() {
    let mut cluster = in_mode(ReadMode::ReadIndex);
    let leader = cluster.leader();
    // The third member's read is confirmed before the member has received the entry that it missed.
    let other = (leader + 1) % 3 + 1;
    cluster.isolated.push(other);
    cluster.put(leader, "a", "1");
    cluster.isolated.clear();
    for id in [other, leader] {
        cluster.call(id, |core| core.read(1));
        cluster.deliver_all();
        assert_eq!(std::mem::take(&mut cluster.host(id).reads), [ReadOutcome::Ready(vec![1])]);
        // Time passes only by ticks in this test, and no tick passes while the read waits.
        assert_eq!(cluster.host(id).applying, Some(Duration::ZERO), "at {id}, {leader} leads");
    }
}

/// Reads that arrive together are released together, by one ReadIndex request.
#[test]
fn one_round_serves_all_waiting_reads() {
    let mut cluster = in_mode(ReadMode::ReadIndex);
    let leader = cluster.leader();
    for reader in 0..100 {
        cluster.host(leader).replica().read(reader);
    }
    cluster.poll(leader);
    cluster.deliver_all();
    let gone: usize = cluster.host(leader).reads.iter().map(readers).sum();
    assert_eq!(gone, 100);
    assert_eq!(cluster.host(leader).replica().raft.read_index_metrics().requests, 1);
}

fn readers(reads: &ReadOutcome) -> usize {
    match reads {
        ReadOutcome::Ready(readers) => readers.len(),
        ReadOutcome::Failed(error, _) => panic!("{error}"),
    }
}

/// A leader that is cut off does not know that the other members have elected another leader. The
/// old leader must not answer a read from a state that lacks the writes of the new leader.
#[test]
fn a_leader_that_is_cut_off_answers_no_reads() {
    for mode in [ReadMode::Log, ReadMode::ReadIndex, ReadMode::Lease] {
        let mut cluster = in_mode(mode);
        let old = cluster.leader();
        cluster.put(old, "a", "1");
        cluster.isolated.push(old);
        let new = cluster.leader();
        assert_ne!(old, new);
        cluster.put(new, "a", "2");
        cluster.call(old, |core| core.read(1));
        cluster.deliver_all();
        assert_eq!(cluster.host(old).reads, [], "{mode:?}");
        cluster.isolated.clear();
        cluster.tick(80);
        let reads = std::mem::take(&mut cluster.host(old).reads);
        assert_eq!(reads.len(), 1, "{mode:?}");
        if let [ReadOutcome::Ready(_)] = &reads[..] {
            assert_eq!(cluster.host(old).get("a").0.as_deref(), Some("2"), "{mode:?}");
        }
    }
}

#[test]
fn a_cancelled_read_gets_no_outcome() {
    let mut cluster = in_mode(ReadMode::ReadIndex);
    let leader = cluster.leader();
    cluster.host(leader).replica().read(1);
    cluster.host(leader).replica().cancel_read(1);
    cluster.poll(leader);
    cluster.deliver_all();
    assert_eq!(cluster.host(leader).reads, []);
}
