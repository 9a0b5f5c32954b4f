//! Leases in a cluster: all members have the same, only the leader knows when they end, and a
//! change of leaders takes nothing from them.

use clearlane_lease::{LeaseState, Renewal};
use clearlane_proto::etcdserverpb::{InternalRaftRequest, LeaseGrantRequest, LeaseRevokeRequest};
use clearlane_server::apply::{AppliedResponse, RequestRejection};
use clearlane_server::replica::RequestOutcome;

use crate::replica_cluster::{ReplicaCluster, put};
use crate::settings;
use crate::test_replica::TestReplica;

fn grant(id: i64, ttl: i64) -> InternalRaftRequest {
    let lease_grant = Some(LeaseGrantRequest { id, ttl });
    InternalRaftRequest { lease_grant, ..InternalRaftRequest::default() }
}

fn revoke(id: i64) -> InternalRaftRequest {
    let lease_revoke = Some(LeaseRevokeRequest { id });
    InternalRaftRequest { lease_revoke, ..InternalRaftRequest::default() }
}

fn put_on(key: &str, lease: i64) -> InternalRaftRequest {
    let mut request = put(key, "v");
    request.put.as_mut().unwrap().lease = lease;
    request
}

fn contents(lab: &mut ReplicaCluster, id: u64) -> Vec<LeaseState> {
    lab.host(id).replica().leases().lease_states()
}

fn propose_and_apply(
    lab: &mut ReplicaCluster,
    id: u64,
    request: InternalRaftRequest,
) -> AppliedResponse {
    match lab.propose_and_wait(id, request) {
        RequestOutcome::Applied(Ok(reply)) => reply,
        answer => panic!("{answer:?}"),
    }
}

/// How many seconds are left of a lease at the leader.
fn remaining_ttl(lab: &mut ReplicaCluster, leader: u64, lease: i64) -> Option<i64> {
    let now = lab.now;
    lab.host(leader)
        .replica()
        .leases()
        .time_to_live(lease, now)
        .and_then(|standing| standing.remaining)
}

fn renew(lab: &mut ReplicaCluster, at: u64, lease: i64) -> Renewal {
    let now = lab.now;
    lab.host(at).replica().leases().renew(lease, now)
}

#[test]
fn a_lease_from_any_member_is_the_same_everywhere() {
    let mut lab = ReplicaCluster::new(3, settings());
    lab.leader();
    let AppliedResponse::LeaseGrant(granted) = propose_and_apply(&mut lab, 1, grant(0, 60)) else {
        panic!()
    };
    assert!(granted.id > 0, "the member has chosen {}", granted.id);
    propose_and_apply(&mut lab, 2, grant(7, 1));
    propose_and_apply(&mut lab, 3, put_on("a", 7));
    propose_and_apply(&mut lab, 1, put_on("b", granted.id));
    assert!(matches!(
        lab.propose_and_wait(2, grant(7, 60)),
        RequestOutcome::Applied(Err(RequestRejection::LeaseExists))
    ));
    assert!(matches!(
        lab.propose_and_wait(2, put_on("c", 8)),
        RequestOutcome::Applied(Err(RequestRejection::LeaseNotFound))
    ));
    lab.tick(1);
    let expected = contents(&mut lab, 1);
    let keys: Vec<_> =
        expected.iter().map(|lease| (lease.id, lease.ttl, &lease.keys[..])).collect();
    assert_eq!(keys, [(7, 2, &["a".into()][..]), (granted.id, 60, &["b".into()][..])]);
    for id in 2..=3 {
        assert_eq!(contents(&mut lab, id), expected, "at {id}");
    }
}

#[test]
fn an_expired_lease_goes_everywhere_at_one_revision() {
    let mut lab = ReplicaCluster::new(3, settings());
    let leader = lab.leader();
    propose_and_apply(&mut lab, leader, grant(7, 3));
    for key in ["b", "a", "c"] {
        propose_and_apply(&mut lab, leader, put_on(key, 7));
    }
    lab.tick(15);
    assert_eq!(renew(&mut lab, leader, 7), Renewal::Renewed(3));
    lab.tick(25);
    assert_eq!(lab.host(leader).get("a").0.as_deref(), Some("v"), "it was renewed");
    lab.tick(12);
    for id in 1..=3 {
        assert_eq!(lab.host(id).get("a"), (None, 5), "at {id}");
        let (revision, changes) = lab.host(id).changes.last().unwrap().clone();
        assert_eq!((revision, changes.len()), (5, 3), "at {id}");
        assert_eq!(contents(&mut lab, id), []);
    }
    let applied = lab.host(leader).replica().applied_position().index;
    lab.tick(50);
    assert_eq!(
        lab.host(leader).replica().applied_position().index,
        applied,
        "nothing is proposed twice"
    );
}

#[test]
fn a_new_leader_gives_it_its_time_again() {
    let mut lab = ReplicaCluster::new(3, settings());
    let first = lab.leader();
    propose_and_apply(&mut lab, first, grant(7, 5));
    propose_and_apply(&mut lab, first, put_on("a", 7));
    lab.tick(40);
    assert_eq!(remaining_ttl(&mut lab, first, 7), Some(1));
    lab.crash(first);
    let second = lab.leader();
    let has = remaining_ttl(&mut lab, second, 7);
    assert!(has >= Some(5), "an election time-out more than its 5 s, but {has:?}");
    lab.start(first);
    lab.tick(40);
    assert_eq!(lab.host(second).get("a").0.as_deref(), Some("v"));
    assert_eq!(renew(&mut lab, first, 7), Renewal::NotLeading);
    lab.tick(30);
    for id in 1..=3 {
        assert_eq!((lab.host(id).get("a").0, contents(&mut lab, id)), (None, vec![]), "at {id}");
    }
}

/// Its clock says that the lease is over, and it does not know yet that another leads.
#[test]
fn a_leader_that_is_cut_off_takes_nothing_away() {
    let mut lab = ReplicaCluster::new(3, settings());
    let first = lab.leader();
    propose_and_apply(&mut lab, first, grant(7, 2));
    propose_and_apply(&mut lab, first, put_on("a", 7));
    lab.tick(16);
    lab.isolated = vec![first];
    let before = lab.host(first).replica().raft.raft().kept_indexes().1;
    lab.tick(5);
    assert!(
        lab.host(first).replica().raft.raft().kept_indexes().1 > before,
        "it has proposed the revocation"
    );
    let second = lab.leader();
    assert_ne!(first, second);
    lab.tick(10);
    lab.isolated.clear();
    for _ in 0..10 {
        assert_eq!(renew(&mut lab, second, 7), Renewal::Renewed(2));
        lab.tick(10);
    }
    for id in 1..=3 {
        assert_eq!(lab.host(id).get("a").0.as_deref(), Some("v"), "at {id}");
        assert_eq!(contents(&mut lab, id).len(), 1, "at {id}");
    }
}

/// Whenever the store was committed, the log brings the rest, and each entry once.
#[test]
fn a_crash_between_any_two_entries_loses_nothing() {
    for commit_behind in 0..8 {
        let mut lab = ReplicaCluster::new(1, settings());
        lab.leader();
        let requests = [
            grant(1, 600),
            grant(2, 600),
            put_on("a", 1),
            put_on("b", 1),
            put_on("b", 2),
            revoke(1),
            grant(1, 700),
            put_on("c", 1),
        ];
        for (number, request) in requests.into_iter().enumerate() {
            propose_and_apply(&mut lab, 1, request);
            if number == commit_behind {
                lab.commit(1);
            }
        }
        let expected = contents(&mut lab, 1);
        assert_eq!(expected.len(), 2);
        lab.crash(1);
        lab.start(1);
        lab.leader();
        lab.tick(1);
        assert_eq!(contents(&mut lab, 1), expected, "commit behind {commit_behind}");
        assert_eq!(lab.host(1).get("a"), (None, 6), "commit behind {commit_behind}");
        assert_eq!(remaining_ttl(&mut lab, 1, 1), Some(700));
    }
}

#[test]
fn a_copy_of_the_store_brings_the_leases() {
    let mut lab = ReplicaCluster::new(3, settings());
    let leader = lab.leader();
    propose_and_apply(&mut lab, leader, grant(6, 600));
    lab.tick(2);
    lab.crash(3);
    let leader = lab.leader();
    propose_and_apply(&mut lab, leader, grant(7, 600));
    propose_and_apply(&mut lab, leader, revoke(6));
    for number in 0..60 {
        propose_and_apply(&mut lab, leader, put_on(&format!("k{number}"), 7));
    }
    lab.commit(leader);
    lab.start(3);
    lab.tick(20);
    let leader = lab.leader();
    let message = lab.raft_snapshots.pop().expect("a copy is wanted");
    assert!(lab.send_raft_snapshot(message, usize::MAX));
    lab.tick(2);
    assert_eq!(lab.host(3).stores_replaced, 1);
    let expected = contents(&mut lab, leader);
    assert_eq!((expected.len(), expected[0].keys.len()), (1, 60));
    assert_eq!(contents(&mut lab, 3), expected);
    propose_and_apply(&mut lab, leader, revoke(7));
    lab.tick(2);
    assert_eq!(lab.host(3).get("k0").0, None);
    assert_eq!(lab.host(3).get("k0").1, lab.host(leader).get("k0").1);
}

/// A put behind thousands of leases that have ended together waits for a handful of them.
#[test]
fn a_put_overtakes_those_that_end() {
    let mut lab = ReplicaCluster::new(1, settings());
    lab.leader();
    for id in 1..=5_000 {
        propose_and_apply(&mut lab, 1, grant(id, 600));
    }
    lab.now += std::time::Duration::from_secs(600);
    lab.poll_once(1);
    let mut puts = 0;
    while !contents(&mut lab, 1).is_empty() {
        let before = lab.host(1).replica().applied_position().index;
        let id = lab.host(1).replica().propose(put("key", "v"));
        while !lab.host(1).results.contains_key(&id) {
            lab.poll_once(1);
        }
        let waited = lab.host(1).replica().applied_position().index - before;
        // Those that were on their way, and those that were proposed when these were done.
        assert!(waited <= 2 * 16 + 1, "{waited} entries");
        puts += 1;
        lab.now += std::time::Duration::from_millis(5);
    }
    assert!(puts > 300, "{puts} puts");
}

/// Long leases do not begin anew with each leader, if members are told how much is left.
#[test]
fn with_checkpoints_the_next_leader_goes_on() {
    let interval = Some(std::time::Duration::from_secs(10));
    let settings = clearlane_server::replica::ReplicaConfig {
        lease_checkpoint_interval: interval,
        ..settings()
    };
    let mut lab = ReplicaCluster::new(3, settings);
    let first = lab.leader();
    propose_and_apply(&mut lab, first, grant(7, 100));
    lab.tick(250);
    let told: Vec<i64> = (1..=3).map(|id| contents(&mut lab, id)[0].remaining_ttl).collect();
    assert!(told.iter().all(|left| *left == told[0] && (80..=81).contains(left)), "{told:?}");
    lab.call(first, |core: &mut TestReplica| core.raft.transfer_leader(first % 3 + 1));
    lab.deliver_all();
    lab.tick(5);
    let second = lab.leader();
    assert_ne!(first, second);
    let has = remaining_ttl(&mut lab, second, 7).unwrap();
    assert!((80..=81).contains(&has), "{has}");
}
