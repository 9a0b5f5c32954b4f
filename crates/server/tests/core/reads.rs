//! Readers go when this member has applied enough, in every mode.

use std::time::Duration;

use clearlane_raft::read_index::ReadMode;
use clearlane_server::replica::ReplicaConfig;

use crate::replica_cluster::ReplicaCluster;
use crate::settings;
use crate::test_replica::ReadOutcome;

fn in_mode(read_mode: ReadMode) -> ReplicaCluster {
    let mut lab = ReplicaCluster::new(3, ReplicaConfig { read_mode, ..settings() });
    lab.leader();
    lab
}

#[test]
fn every_mode_lets_readers_go_at_every_member() {
    for mode in ReadMode::ALL {
        let mut lab = in_mode(mode);
        let leader = lab.leader();
        lab.put(leader, "a", "1");
        for id in 1..=3 {
            lab.call(id, |core| core.read(id));
            lab.deliver_all();
            lab.tick(2);
            let reads = std::mem::take(&mut lab.host(id).reads);
            assert_eq!(reads, [ReadOutcome::Ready(vec![id])], "{mode:?} at {id}");
            if mode != ReadMode::Serializable {
                assert_eq!(lab.host(id).get("a").0.as_deref(), Some("1"), "{mode:?} at {id}");
            }
        }
    }
}

/// Its store is as far as the cluster, and nothing is written any more that it could apply.
#[test]
fn readers_go_at_a_member_that_comes_back_with_everything() {
    for mode in [ReadMode::ReadIndex, ReadMode::Lease, ReadMode::Serializable] {
        let mut lab = in_mode(mode);
        let leader = lab.leader();
        let other = leader % 3 + 1;
        lab.put(leader, "a", "1");
        lab.tick(2);
        lab.commit(other);
        lab.crash(other);
        lab.start(other);
        lab.tick(2);
        lab.call(other, |core| core.read(1));
        lab.deliver_all();
        lab.tick(2);
        let reads = std::mem::take(&mut lab.host(other).reads);
        assert_eq!(reads, [ReadOutcome::Ready(vec![1])], "{mode:?}");
        assert_eq!(lab.leader(), leader);
    }
}

/// Raft gives it up after some ticks, and the other is elected all the same if it gets the message
/// then.
#[test]
fn a_transfer_that_ends_before_the_next_poll_takes_the_lease() {
    let mut lab = in_mode(ReadMode::Lease);
    let leader = lab.leader();
    lab.put(leader, "a", "1");
    lab.call(leader, |core| core.read(1));
    lab.deliver_all();
    lab.call(leader, |core| core.read(2));
    let reads = std::mem::take(&mut lab.host(leader).reads);
    assert_eq!(
        reads,
        [ReadOutcome::Ready(vec![1]), ReadOutcome::Ready(vec![2])],
        "the second under the lease"
    );
    let core = lab.host(leader).replica();
    core.raft.transfer_leader(leader % 3 + 1);
    for _ in 0..10 {
        core.tick();
    }
    core.read(3);
    lab.poll(leader);
    assert_eq!(lab.host(leader).reads, [], "no read goes without a round");
    lab.deliver_all();
    assert_ne!(lab.leader(), leader, "it was told to be elected");
}

/// A waiting read reports what it waits for: other members, or this member.
#[test]
fn a_reader_that_waits_for_this_member_alone_is_told_since_when() {
    let mut lab = in_mode(ReadMode::ReadIndex);
    let leader = lab.leader();
    // The third member confirms before this one has what it missed.
    let other = (leader + 1) % 3 + 1;
    lab.isolated.push(other);
    lab.put(leader, "a", "1");
    lab.isolated.clear();
    for id in [other, leader] {
        lab.call(id, |core| core.read(1));
        lab.deliver_all();
        assert_eq!(std::mem::take(&mut lab.host(id).reads), [ReadOutcome::Ready(vec![1])]);
        // No time passes here but by ticks, and a follower hears with the next one what is
        // committed.
        assert_eq!(lab.host(id).applying, Some(Duration::ZERO), "at {id}, {leader} leads");
    }
}

/// Reads that come together go together, by one round.
#[test]
fn one_round_serves_all_waiting_reads() {
    let mut lab = in_mode(ReadMode::ReadIndex);
    let leader = lab.leader();
    for reader in 0..100 {
        lab.host(leader).replica().read(reader);
    }
    lab.poll(leader);
    lab.deliver_all();
    let gone: usize = lab.host(leader).reads.iter().map(readers).sum();
    assert_eq!(gone, 100);
    assert_eq!(lab.host(leader).replica().raft.read_index_metrics().requests, 1);
}

fn readers(reads: &ReadOutcome) -> usize {
    match reads {
        ReadOutcome::Ready(readers) => readers.len(),
        ReadOutcome::Failed(error, _) => panic!("{error}"),
    }
}

/// A leader that is cut off does not know that others have gone on.
#[test]
fn a_leader_that_is_cut_off_answers_no_reads() {
    for mode in [ReadMode::Log, ReadMode::ReadIndex, ReadMode::Lease] {
        let mut lab = in_mode(mode);
        let old = lab.leader();
        lab.put(old, "a", "1");
        lab.isolated.push(old);
        let new = lab.leader();
        assert_ne!(old, new);
        lab.put(new, "a", "2");
        lab.call(old, |core| core.read(1));
        lab.deliver_all();
        assert_eq!(lab.host(old).reads, [], "{mode:?}");
        lab.isolated.clear();
        lab.tick(80);
        let reads = std::mem::take(&mut lab.host(old).reads);
        assert_eq!(reads.len(), 1, "{mode:?}");
        if let [ReadOutcome::Ready(_)] = &reads[..] {
            assert_eq!(lab.host(old).get("a").0.as_deref(), Some("2"), "{mode:?}");
        }
    }
}

#[test]
fn a_cancelled_read_gets_no_outcome() {
    let mut lab = in_mode(ReadMode::ReadIndex);
    let leader = lab.leader();
    lab.host(leader).replica().read(1);
    lab.host(leader).replica().cancel_read(1);
    lab.poll(leader);
    lab.deliver_all();
    assert_eq!(lab.host(leader).reads, []);
}
