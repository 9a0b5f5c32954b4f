//! A member that is too far behind gets a copy of the store.

use crate::replica_cluster::ReplicaCluster;
use crate::settings;

/// Member 3 of three is down while the others write so much that the log forgets it.
fn one_far_behind() -> (ReplicaCluster, u64) {
    let mut lab = ReplicaCluster::new(3, settings());
    lab.leader();
    lab.crash(3);
    let leader = lab.leader();
    for number in 0..100 {
        lab.put(leader, &format!("k{number}"), "v");
    }
    lab.commit(leader);
    lab.start(3);
    lab.tick(20);
    (lab, leader)
}

#[test]
fn it_has_what_the_others_have_and_goes_on() {
    let (mut lab, _) = one_far_behind();
    let leader = lab.leader();
    let message = lab.raft_snapshots.pop().expect("a copy is wanted");
    // The leader goes on, and what it writes now is not lost on the way.
    lab.put(leader, "meanwhile", "v");
    assert!(lab.send_raft_snapshot(message, usize::MAX));
    lab.tick(2);
    assert_eq!(lab.host(3).stores_replaced, 1);
    lab.put(leader, "after", "v");
    lab.tick(2);
    for key in ["k0", "k99", "meanwhile", "after"] {
        assert_eq!(lab.host(3).get(key), (Some("v".to_owned()), 103), "{key}");
    }
    assert!(lab.raft_snapshots.is_empty(), "one is enough");
    lab.crash(3);
    lab.start(3);
    lab.tick(3);
    assert_eq!(lab.host(3).get("after"), (Some("v".to_owned()), 103));
}

#[test]
fn a_broken_transfer_leaves_nothing_and_is_tried_again() {
    let (mut lab, _) = one_far_behind();
    lab.leader();
    let message = lab.raft_snapshots.pop().expect("a copy is wanted");
    assert!(!lab.send_raft_snapshot(message, 2));
    assert_eq!(lab.host(3).stores_replaced, 0);
    lab.tick(5);
    let message = lab.raft_snapshots.pop().expect("another is wanted");
    assert!(lab.send_raft_snapshot(message, usize::MAX));
    lab.tick(2);
    assert_eq!(lab.host(3).get("k99").0.as_deref(), Some("v"));
}

/// The copy is there and on record in the log, but not in its place yet: the start puts it there.
#[test]
fn a_crash_in_the_middle_of_an_installation_is_finished_at_the_start() {
    let (mut lab, _) = one_far_behind();
    lab.leader();
    let message = lab.raft_snapshots.pop().expect("a copy is wanted");
    let stopped = lab.receive_and_stop(message);
    assert_eq!(lab.host(3).stores_replaced, 0, "the record is written, nothing more");
    lab.start(3);
    assert!(lab.host(3).replica().applied_position().index >= stopped);
    lab.tick(5);
    lab.leader();
    lab.tick(5);
    assert_eq!(lab.host(3).get("k99").0.as_deref(), Some("v"));
}

/// The copy is there, and the log knows nothing of it.
#[test]
fn a_copy_that_is_not_on_record_is_not_used() {
    let (mut lab, _) = one_far_behind();
    lab.leader();
    let message = lab.raft_snapshots.pop().expect("a copy is wanted");
    lab.keep_raft_snapshot(message);
    assert_eq!(lab.host(3).kept_indexes().len(), 1);
    lab.crash(3);
    lab.start(3);
    assert_eq!(lab.host(3).kept_indexes(), [0; 0]);
    assert_eq!(lab.host(3).get("k99").0, None);
}

/// It comes again while the first is on its way to its place, which must not be pulled away.
#[test]
fn the_same_copy_may_come_twice() {
    let (mut lab, _) = one_far_behind();
    lab.leader();
    let message = lab.raft_snapshots.pop().expect("a copy is wanted");
    let (first, second) =
        (lab.keep_raft_snapshot(message.clone()), lab.keep_raft_snapshot(message));
    assert_eq!(first.index, second.index);
    lab.host(3).replica().receive_raft_snapshot(first);
    let batch = lab.poll_without_writing(3);
    lab.call(3, |core| core.receive_raft_snapshot(second));
    lab.write(3, batch);
    lab.deliver_all();
    lab.tick(3);
    assert_eq!(lab.host(3).stores_replaced, 1);
    assert_eq!(lab.host(3).get("k99").0.as_deref(), Some("v"));
    assert_eq!(lab.host(3).kept_indexes(), [0; 0]);
}

#[test]
fn a_snapshot_without_its_copy_is_refused() {
    let (mut lab, _) = one_far_behind();
    let message = lab.raft_snapshots.pop().expect("a copy is wanted");
    let before = lab.host(3).replica().applied_position().clone();
    let refused = lab.call(3, |core| core.receive(message)).unwrap_err().to_string();
    assert!(refused.contains("its copy did not come with it"), "{refused}");
    lab.tick(3);
    assert_eq!(*lab.host(3).replica().applied_position(), before);
}

/// Two leaders send copies of one index. Raft refuses the first, of a leader that was replaced, and
/// with it goes what both have in the store directory.
#[test]
fn a_copy_that_went_with_another_is_not_installed() {
    let (mut lab, old) = one_far_behind();
    lab.commit(3 - old);
    let message = lab.raft_snapshots.pop().expect("a copy is wanted");
    let first = lab.keep_raft_snapshot(message);
    lab.isolated.push(old);
    let new = lab.leader();
    assert_ne!(new, old);
    lab.tick(3);
    let message = lab.raft_snapshots.pop().expect("the new leader wants to send one, too");
    assert_eq!(message.from(), new);
    let second = lab.keep_raft_snapshot(message);
    assert_eq!(first.index, second.index);
    for copy in [first, second] {
        lab.call(3, |core| core.receive_raft_snapshot(copy));
    }
    lab.crash(3);
    lab.start(3);
    lab.call(new, |core| core.report_raft_snapshot(3, true));
    lab.tick(20);
    let message = lab.raft_snapshots.pop().expect("it is tried again");
    assert!(lab.send_raft_snapshot(message, usize::MAX));
    lab.tick(3);
    assert_eq!(lab.host(3).get("k99").0.as_deref(), Some("v"));
}

/// The process was killed when the record of an installation was written and not synced. At the
/// next start something fails, step by step later, and then the power.
#[test]
fn an_installation_is_not_finished_because_of_a_record_that_may_be_lost() {
    for step in 1.. {
        let (mut lab, leader) = one_far_behind();
        let message = lab.raft_snapshots.pop().expect("a copy is wanted");
        lab.receive_and_kill(message);
        lab.call(leader, |core| core.report_raft_snapshot(3, false));
        let (starts, _) = lab.start_that_fails_at(3, step);
        lab.crash(3);
        lab.start(3);
        lab.tick(20);
        if let Some(message) = lab.raft_snapshots.pop() {
            assert!(lab.send_raft_snapshot(message, usize::MAX));
        }
        lab.put(leader, "after", "v");
        lab.tick(3);
        assert_eq!(lab.host(3).get("after").0.as_deref(), Some("v"), "step {step}");
        if starts {
            return;
        }
    }
}
