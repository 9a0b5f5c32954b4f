//! Tests of a member that lags so far behind that it receives a raft snapshot.

use crate::halves::replica_cluster::ReplicaCluster;
use crate::halves::settings;

/// Returns a cluster of three, and its leader. While member 3 was down, the others have written so
/// many entries that their logs no longer have all entries that member 3 needs.
fn one_far_behind() -> (ReplicaCluster, u64) {
    let mut cluster = ReplicaCluster::new(3, settings());
    cluster.leader();
    cluster.crash(3);
    let leader = cluster.leader();
    for number in 0..100 {
        cluster.put(leader, &format!("k{number}"), "v");
    }
    cluster.commit(leader);
    cluster.start(3);
    cluster.tick(20);
    (cluster, leader)
}

#[test]
fn it_has_what_the_others_have_and_goes_on() {
    let (mut cluster, _) = one_far_behind();
    let leader = cluster.leader();
    let message = cluster.raft_snapshots.pop().expect("a copy is wanted");
    // The leader continues, and a write made during the transfer is not lost.
    cluster.put(leader, "meanwhile", "v");
    assert!(cluster.send_raft_snapshot(message, usize::MAX));
    cluster.tick(2);
    assert_eq!(cluster.host(3).stores_replaced, 1);
    cluster.put(leader, "after", "v");
    cluster.tick(2);
    for key in ["k0", "k99", "meanwhile", "after"] {
        assert_eq!(cluster.host(3).get(key), (Some("v".to_owned()), 103), "{key}");
    }
    assert!(cluster.raft_snapshots.is_empty(), "one is enough");
    cluster.crash(3);
    cluster.start(3);
    cluster.tick(3);
    assert_eq!(cluster.host(3).get("after"), (Some("v".to_owned()), 103));
}

#[test]
fn a_broken_transfer_leaves_nothing_and_is_tried_again() {
    let (mut cluster, _) = one_far_behind();
    cluster.leader();
    let message = cluster.raft_snapshots.pop().expect("a copy is wanted");
    assert!(!cluster.send_raft_snapshot(message, 2));
    assert_eq!(cluster.host(3).stores_replaced, 0);
    cluster.tick(5);
    let message = cluster.raft_snapshots.pop().expect("another is wanted");
    assert!(cluster.send_raft_snapshot(message, usize::MAX));
    cluster.tick(2);
    assert_eq!(cluster.host(3).get("k99").0.as_deref(), Some("v"));
}

/// Member 3 crashes when the raft snapshot is complete and recorded in the log, but not installed.
/// The next start must install it.
#[test]
fn a_crash_in_the_middle_of_an_installation_is_finished_at_the_start() {
    let (mut cluster, _) = one_far_behind();
    cluster.leader();
    let message = cluster.raft_snapshots.pop().expect("a copy is wanted");
    let stopped = cluster.receive_and_stop(message);
    assert_eq!(cluster.host(3).stores_replaced, 0, "the record is written, nothing more");
    cluster.start(3);
    assert!(cluster.host(3).replica().applied_position().index >= stopped);
    cluster.tick(5);
    cluster.leader();
    cluster.tick(5);
    assert_eq!(cluster.host(3).get("k99").0.as_deref(), Some("v"));
}

/// Member 3 crashes when the raft snapshot is complete, but the log has no record of it. The next
/// start must discard the received store.
#[test]
fn a_copy_that_is_not_on_record_is_not_used() {
    let (mut cluster, _) = one_far_behind();
    cluster.leader();
    let message = cluster.raft_snapshots.pop().expect("a copy is wanted");
    cluster.keep_raft_snapshot(message);
    assert_eq!(cluster.host(3).kept_indexes().len(), 1);
    cluster.crash(3);
    cluster.start(3);
    assert_eq!(cluster.host(3).kept_indexes(), [0; 0]);
    assert_eq!(cluster.host(3).get("k99").0, None);
}

/// The same raft snapshot arrives again while it is being installed, and raft does not accept it a
/// second time. The received store must not be removed, because the installation needs it.
#[test]
fn the_same_copy_may_come_twice() {
    let (mut cluster, _) = one_far_behind();
    cluster.leader();
    let message = cluster.raft_snapshots.pop().expect("a copy is wanted");
    let (first, second) =
        (cluster.keep_raft_snapshot(message.clone()), cluster.keep_raft_snapshot(message));
    assert_eq!(first.index, second.index);
    cluster.host(3).replica().receive_raft_snapshot(first);
    let batch = cluster.poll_without_writing(3);
    cluster.call(3, |core| core.receive_raft_snapshot(second));
    cluster.write(3, batch);
    cluster.deliver_all();
    cluster.tick(3);
    assert_eq!(cluster.host(3).stores_replaced, 1);
    assert_eq!(cluster.host(3).get("k99").0.as_deref(), Some("v"));
    assert_eq!(cluster.host(3).kept_indexes(), [0; 0]);
}

#[test]
fn a_snapshot_without_its_copy_is_refused() {
    let (mut cluster, _) = one_far_behind();
    let message = cluster.raft_snapshots.pop().expect("a copy is wanted");
    let before = cluster.host(3).replica().applied_position().clone();
    let refused = cluster.call(3, |core| core.receive(message)).unwrap_err().to_string();
    assert!(refused.contains("it arrived without its store"), "{refused}");
    cluster.tick(3);
    assert_eq!(*cluster.host(3).replica().applied_position(), before);
}

/// Two leaders send raft snapshots of the same index, which share a store in the store directory.
/// Raft rejects the raft snapshot from the replaced leader, and the shared store is removed with
/// it. So the raft snapshot from the new leader must not be offered to raft. The new leader later
/// sends another raft snapshot.
#[test]
fn a_copy_that_went_with_another_is_not_installed() {
    let (mut cluster, old) = one_far_behind();
    cluster.commit(3 - old);
    let message = cluster.raft_snapshots.pop().expect("a copy is wanted");
    let first = cluster.keep_raft_snapshot(message);
    cluster.isolated.push(old);
    let new = cluster.leader();
    assert_ne!(new, old);
    cluster.tick(3);
    let message = cluster.raft_snapshots.pop().expect("the new leader wants to send one, too");
    assert_eq!(message.from(), new);
    let second = cluster.keep_raft_snapshot(message);
    assert_eq!(first.index, second.index);
    for copy in [first, second] {
        cluster.call(3, |core| core.receive_raft_snapshot(copy));
    }
    cluster.crash(3);
    cluster.start(3);
    cluster.call(new, |core| core.report_raft_snapshot(3, true));
    cluster.tick(20);
    let message = cluster.raft_snapshots.pop().expect("it is tried again");
    assert!(cluster.send_raft_snapshot(message, usize::MAX));
    cluster.tick(3);
    assert_eq!(cluster.host(3).get("k99").0.as_deref(), Some("v"));
}

/// The process was killed after it wrote the record of an installation, and before it synced the
/// record. Then the member starts again, and one disk operation fails: operation 1 in the first
/// round, operation 2 in the second, and so on. After that the power fails, and the record may be
/// lost. So the failed start must not have replaced the store: the next start must still work.
#[test]
fn an_installation_is_not_finished_because_of_a_record_that_may_be_lost() {
    for step in 1.. {
        let (mut cluster, leader) = one_far_behind();
        let message = cluster.raft_snapshots.pop().expect("a copy is wanted");
        cluster.receive_and_kill(message);
        cluster.call(leader, |core| core.report_raft_snapshot(3, false));
        let (starts, _) = cluster.start_that_fails_at(3, step);
        cluster.crash(3);
        cluster.start(3);
        cluster.tick(20);
        if let Some(message) = cluster.raft_snapshots.pop() {
            assert!(cluster.send_raft_snapshot(message, usize::MAX));
        }
        cluster.put(leader, "after", "v");
        cluster.tick(3);
        assert_eq!(cluster.host(3).get("after").0.as_deref(), Some("v"), "step {step}");
        if starts {
            return;
        }
    }
}
