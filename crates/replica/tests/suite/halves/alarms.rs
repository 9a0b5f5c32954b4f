//! Tests of the alarm that a member raises by itself. The member has at most one proposal of the
//! alarm in flight, and proposes the alarm again if the proposal was lost.

use clearlane_proto::etcdserverpb::AlarmType;
use clearlane_replica::alarms;
use clearlane_replica::membership::MemberChange;

use crate::halves::replica_cluster::ReplicaCluster;
use crate::halves::settings;
use crate::halves::test_replica::TestReplica;

/// Proposes the alarm several times, like a member that repeatedly finds the cause of the alarm.
fn propose_repeatedly(cluster: &mut ReplicaCluster, id: u64, times: usize) {
    for _ in 0..times {
        cluster.call(id, |core| core.raft.propose_alarm(alarms::no_space(id)));
    }
}

fn is_raised(cluster: &mut ReplicaCluster, at: u64, by: u64) -> bool {
    cluster.host(at).replica().alarms().is_raised_by(by, AlarmType::Nospace)
}

/// Returns the number of proposals in flight between members.
fn proposals_in_flight(cluster: &mut ReplicaCluster) -> usize {
    cluster.in_flight.iter().filter(|message| message.is_proposal()).count()
}

#[test]
fn one_that_is_lost_leaves_nothing_behind_and_is_proposed_again() {
    let mut cluster = ReplicaCluster::new(3, settings());
    let leader = cluster.leader();
    let follower = leader % 3 + 1;
    propose_repeatedly(&mut cluster, follower, 10);
    assert_eq!(proposals_in_flight(&mut cluster), 1, "one is under way, others would say the same");
    cluster.lose_proposal();
    assert_eq!(cluster.host(follower).replica().raft.wait.len(), 0);
    // A member does not know whether the proposal was lost. So it waits for an election time-out.
    let timeout = settings().raft.election_ticks as u32;
    cluster.tick(timeout / 2);
    propose_repeatedly(&mut cluster, follower, 10);
    assert_eq!(proposals_in_flight(&mut cluster), 0);
    cluster.tick(timeout - timeout / 2);
    propose_repeatedly(&mut cluster, follower, 10);
    assert_eq!(proposals_in_flight(&mut cluster), 1);
    cluster.deliver_all();
    cluster.tick(2);
    for id in 1..=3 {
        assert!(is_raised(&mut cluster, id, follower), "at {id}");
    }
}

#[test]
fn one_that_went_with_its_leader_goes_to_the_next() {
    let mut cluster = ReplicaCluster::new(3, settings());
    let leader = cluster.leader();
    // The leader appends the alarm, but the others do not receive it.
    cluster.isolated.push(leader);
    propose_repeatedly(&mut cluster, leader, 10);
    cluster.deliver_all();
    let next = cluster.leader();
    assert_ne!(next, leader);
    cluster.isolated.clear();
    cluster.tick(5);
    assert!(!is_raised(&mut cluster, next, leader), "the entry was overwritten");
    assert_eq!(cluster.host(leader).replica().raft.wait.len(), 0);
    propose_repeatedly(&mut cluster, leader, 10);
    assert_eq!(
        proposals_in_flight(&mut cluster),
        1,
        "another leader: it is proposed at once, and once"
    );
    cluster.deliver_all();
    cluster.tick(2);
    assert!(is_raised(&mut cluster, leader, leader) && is_raised(&mut cluster, next, leader));
}

/// The member raises the alarm again, because its cause still exists when an operator disarms it.
#[test]
fn one_that_was_taken_back_is_raised_again_at_once() {
    let mut cluster = ReplicaCluster::new(1, settings());
    cluster.leader();
    propose_repeatedly(&mut cluster, 1, 1);
    assert!(is_raised(&mut cluster, 1, 1));
    cluster.propose_and_wait(1, alarms::disarm_no_space(1));
    assert!(!is_raised(&mut cluster, 1, 1));
    propose_repeatedly(&mut cluster, 1, 1);
    assert!(is_raised(&mut cluster, 1, 1));
    assert_eq!(cluster.host(1).replica().raft.wait.len(), 0);
    cluster.call(1, TestReplica::tick);
}

#[test]
fn one_of_a_removed_member_goes_with_it() {
    let mut cluster = ReplicaCluster::new(3, settings());
    let leader = cluster.leader();
    let follower = leader % 3 + 1;
    propose_repeatedly(&mut cluster, follower, 1);
    cluster.deliver_all();
    cluster.tick(2);
    assert!(is_raised(&mut cluster, leader, follower));
    let removal = MemberChange::Remove { id: follower };
    cluster.call(leader, |core| core.change_members(&removal));
    cluster.deliver_all();
    cluster.tick(2);
    let others = (1..=3).filter(|id| *id != follower).collect::<Vec<_>>();
    for id in &others {
        assert!(!is_raised(&mut cluster, *id, follower));
    }
    // The alarm is also absent after a restart.
    cluster.commit(others[0]);
    cluster.crash(others[0]);
    cluster.start(others[0]);
    assert!(!is_raised(&mut cluster, others[0], follower));
}
