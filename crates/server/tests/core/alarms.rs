//! The alarm that a member raises by itself: proposed once at a time, and again if it got lost.

use clearlane_proto::etcdserverpb::AlarmType;
use clearlane_server::alarms;
use clearlane_server::membership::MemberChange;

use crate::replica_cluster::ReplicaCluster;
use crate::settings;
use crate::test_replica::TestReplica;

/// A member looks at the cause of its alarm again and again.
fn propose_repeatedly(lab: &mut ReplicaCluster, id: u64, times: usize) {
    for _ in 0..times {
        lab.call(id, |core| core.raft.propose_alarm(alarms::no_space(id)));
    }
}

fn is_raised(lab: &mut ReplicaCluster, at: u64, by: u64) -> bool {
    lab.host(at).replica().alarms().is_raised_by(by, AlarmType::Nospace)
}

/// Proposals that are on their way between members.
fn proposals_in_flight(lab: &mut ReplicaCluster) -> usize {
    lab.in_flight.iter().filter(|message| message.is_proposal()).count()
}

#[test]
fn one_that_is_lost_leaves_nothing_behind_and_is_proposed_again() {
    let mut lab = ReplicaCluster::new(3, settings());
    let leader = lab.leader();
    let follower = leader % 3 + 1;
    propose_repeatedly(&mut lab, follower, 10);
    assert_eq!(proposals_in_flight(&mut lab), 1, "one is under way, others would say the same");
    lab.lose_proposal();
    assert_eq!(lab.host(follower).replica().raft.wait.len(), 0);
    // Lost or not, which a member cannot tell: it waits for an election time-out.
    let timeout = settings().raft.election_ticks as u32;
    lab.tick(timeout / 2);
    propose_repeatedly(&mut lab, follower, 10);
    assert_eq!(proposals_in_flight(&mut lab), 0);
    lab.tick(timeout - timeout / 2);
    propose_repeatedly(&mut lab, follower, 10);
    assert_eq!(proposals_in_flight(&mut lab), 1);
    lab.deliver_all();
    lab.tick(2);
    for id in 1..=3 {
        assert!(is_raised(&mut lab, id, follower), "at {id}");
    }
}

#[test]
fn one_that_went_with_its_leader_goes_to_the_next() {
    let mut lab = ReplicaCluster::new(3, settings());
    let leader = lab.leader();
    // It appends the alarm, which the others do not get.
    lab.isolated.push(leader);
    propose_repeatedly(&mut lab, leader, 10);
    lab.deliver_all();
    let next = lab.leader();
    assert_ne!(next, leader);
    lab.isolated.clear();
    lab.tick(5);
    assert!(!is_raised(&mut lab, next, leader), "the entry was overwritten");
    assert_eq!(lab.host(leader).replica().raft.wait.len(), 0);
    propose_repeatedly(&mut lab, leader, 10);
    assert_eq!(
        proposals_in_flight(&mut lab),
        1,
        "another leader: it is proposed at once, and once"
    );
    lab.deliver_all();
    lab.tick(2);
    assert!(is_raised(&mut lab, leader, leader) && is_raised(&mut lab, next, leader));
}

/// An operator has disarmed the alarm, and its cause is still there.
#[test]
fn one_that_was_taken_back_is_raised_again_at_once() {
    let mut lab = ReplicaCluster::new(1, settings());
    lab.leader();
    propose_repeatedly(&mut lab, 1, 1);
    assert!(is_raised(&mut lab, 1, 1));
    lab.propose_and_wait(1, alarms::disarm_no_space(1));
    assert!(!is_raised(&mut lab, 1, 1));
    propose_repeatedly(&mut lab, 1, 1);
    assert!(is_raised(&mut lab, 1, 1));
    assert_eq!(lab.host(1).replica().raft.wait.len(), 0);
    lab.call(1, TestReplica::tick);
}

#[test]
fn one_of_a_removed_member_goes_with_it() {
    let mut lab = ReplicaCluster::new(3, settings());
    let leader = lab.leader();
    let follower = leader % 3 + 1;
    propose_repeatedly(&mut lab, follower, 1);
    lab.deliver_all();
    lab.tick(2);
    assert!(is_raised(&mut lab, leader, follower));
    let removal = MemberChange::Remove { id: follower };
    lab.call(leader, |core| core.change_members(&removal));
    lab.deliver_all();
    lab.tick(2);
    let others = (1..=3).filter(|id| *id != follower).collect::<Vec<_>>();
    for id in &others {
        assert!(!is_raised(&mut lab, *id, follower));
    }
    // It is also gone after a restart.
    lab.commit(others[0]);
    lab.crash(others[0]);
    lab.start(others[0]);
    assert!(!is_raised(&mut lab, others[0], follower));
}
