//! Leases in a cluster: all members have the same leases, only the leader knows when they expire,
//! and they survive a change of leaders.

use clearlane_lease::{LeaseState, Renewal};
use clearlane_proto::etcdserverpb::{InternalRaftRequest, LeaseGrantRequest, LeaseRevokeRequest};
use clearlane_replica::RequestOutcome;
use clearlane_replica::apply::{AppliedResponse, RequestRejection};

use crate::halves::replica_cluster::{ReplicaCluster, put};
use crate::halves::settings;
use crate::halves::test_replica::TestReplica;

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

fn contents(cluster: &mut ReplicaCluster, id: u64) -> Vec<LeaseState> {
    cluster.host(id).replica().leases().lease_states()
}

fn propose_and_apply(
    cluster: &mut ReplicaCluster,
    id: u64,
    request: InternalRaftRequest,
) -> AppliedResponse {
    match cluster.propose_and_wait(id, request) {
        RequestOutcome::Applied(Ok(reply)) => reply,
        answer => panic!("{answer:?}"),
    }
}

/// Returns the remaining seconds of a lease at the leader, or `None` if the lease or its time is
/// not known.
fn remaining_ttl(cluster: &mut ReplicaCluster, leader: u64, lease: i64) -> Option<i64> {
    let now = cluster.now;
    cluster
        .host(leader)
        .replica()
        .leases()
        .time_to_live(lease, now)
        .and_then(|standing| standing.remaining)
}

fn renew(cluster: &mut ReplicaCluster, at: u64, lease: i64) -> Renewal {
    let now = cluster.now;
    cluster.host(at).replica().leases().renew(lease, now)
}

#[test]
fn a_lease_from_any_member_is_the_same_everywhere() {
    let mut cluster = ReplicaCluster::new(3, settings());
    cluster.leader();
    let AppliedResponse::LeaseGrant(granted) = propose_and_apply(&mut cluster, 1, grant(0, 60))
    else {
        panic!()
    };
    assert!(granted.id > 0, "the member has chosen {}", granted.id);
    propose_and_apply(&mut cluster, 2, grant(7, 1));
    propose_and_apply(&mut cluster, 3, put_on("a", 7));
    propose_and_apply(&mut cluster, 1, put_on("b", granted.id));
    assert!(matches!(
        cluster.propose_and_wait(2, grant(7, 60)),
        RequestOutcome::Applied(Err(RequestRejection::LeaseExists))
    ));
    assert!(matches!(
        cluster.propose_and_wait(2, put_on("c", 8)),
        RequestOutcome::Applied(Err(RequestRejection::LeaseNotFound))
    ));
    cluster.tick(1);
    let expected = contents(&mut cluster, 1);
    let keys: Vec<_> =
        expected.iter().map(|lease| (lease.id, lease.ttl, &lease.keys[..])).collect();
    assert_eq!(keys, [(7, 2, &["a".into()][..]), (granted.id, 60, &["b".into()][..])]);
    for id in 2..=3 {
        assert_eq!(contents(&mut cluster, id), expected, "at {id}");
    }
}

#[test]
fn an_expired_lease_goes_everywhere_at_one_revision() {
    let mut cluster = ReplicaCluster::new(3, settings());
    let leader = cluster.leader();
    propose_and_apply(&mut cluster, leader, grant(7, 3));
    for key in ["b", "a", "c"] {
        propose_and_apply(&mut cluster, leader, put_on(key, 7));
    }
    cluster.tick(15);
    assert_eq!(renew(&mut cluster, leader, 7), Renewal::Renewed(3));
    cluster.tick(25);
    assert_eq!(cluster.host(leader).get("a").0.as_deref(), Some("v"), "it was renewed");
    cluster.tick(12);
    for id in 1..=3 {
        assert_eq!(cluster.host(id).get("a"), (None, 5), "at {id}");
        let (revision, changes) = cluster.host(id).changes.last().unwrap().clone();
        assert_eq!((revision, changes.len()), (5, 3), "at {id}");
        assert_eq!(contents(&mut cluster, id), []);
    }
    let applied = cluster.host(leader).replica().applied_position().index;
    cluster.tick(50);
    assert_eq!(
        cluster.host(leader).replica().applied_position().index,
        applied,
        "nothing is proposed twice"
    );
}

#[test]
fn a_new_leader_gives_it_its_time_again() {
    let mut cluster = ReplicaCluster::new(3, settings());
    let first = cluster.leader();
    propose_and_apply(&mut cluster, first, grant(7, 5));
    propose_and_apply(&mut cluster, first, put_on("a", 7));
    cluster.tick(40);
    assert_eq!(remaining_ttl(&mut cluster, first, 7), Some(1));
    cluster.crash(first);
    let second = cluster.leader();
    let has = remaining_ttl(&mut cluster, second, 7);
    assert!(has >= Some(5), "an election time-out more than its 5 s, but {has:?}");
    cluster.start(first);
    cluster.tick(40);
    assert_eq!(cluster.host(second).get("a").0.as_deref(), Some("v"));
    assert_eq!(renew(&mut cluster, first, 7), Renewal::NotLeading);
    cluster.tick(30);
    for id in 1..=3 {
        assert_eq!(
            (cluster.host(id).get("a").0, contents(&mut cluster, id)),
            (None, vec![]),
            "at {id}"
        );
    }
}

/// A leader that is cut off does not know yet that another member leads. It proposes to revoke a
/// lease that has expired by its clock, but this proposal must have no effect.
#[test]
fn a_leader_that_is_cut_off_takes_nothing_away() {
    let mut cluster = ReplicaCluster::new(3, settings());
    let first = cluster.leader();
    propose_and_apply(&mut cluster, first, grant(7, 2));
    propose_and_apply(&mut cluster, first, put_on("a", 7));
    cluster.tick(16);
    cluster.isolated = vec![first];
    let before = cluster.host(first).replica().raft.raft().kept_indexes().1;
    cluster.tick(5);
    assert!(
        cluster.host(first).replica().raft.raft().kept_indexes().1 > before,
        "it has proposed the revocation"
    );
    let second = cluster.leader();
    assert_ne!(first, second);
    cluster.tick(10);
    cluster.isolated.clear();
    for _ in 0..10 {
        assert_eq!(renew(&mut cluster, second, 7), Renewal::Renewed(2));
        cluster.tick(10);
    }
    for id in 1..=3 {
        assert_eq!(cluster.host(id).get("a").0.as_deref(), Some("v"), "at {id}");
        assert_eq!(contents(&mut cluster, id).len(), 1, "at {id}");
    }
}

/// After a crash, the entries after the last commit of the store are applied again from the log,
/// each once. The store is committed after each of the eight entries in turn, and after the crash
/// the leases must be the same as before.
#[test]
fn a_crash_between_any_two_entries_loses_nothing() {
    for commit_behind in 0..8 {
        let mut cluster = ReplicaCluster::new(1, settings());
        cluster.leader();
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
            propose_and_apply(&mut cluster, 1, request);
            if number == commit_behind {
                cluster.commit(1);
            }
        }
        let expected = contents(&mut cluster, 1);
        assert_eq!(expected.len(), 2);
        cluster.crash(1);
        cluster.start(1);
        cluster.leader();
        cluster.tick(1);
        assert_eq!(contents(&mut cluster, 1), expected, "commit behind {commit_behind}");
        assert_eq!(cluster.host(1).get("a"), (None, 6), "commit behind {commit_behind}");
        assert_eq!(remaining_ttl(&mut cluster, 1, 1), Some(700));
    }
}

#[test]
fn a_copy_of_the_store_brings_the_leases() {
    let mut cluster = ReplicaCluster::new(3, settings());
    let leader = cluster.leader();
    propose_and_apply(&mut cluster, leader, grant(6, 600));
    cluster.tick(2);
    cluster.crash(3);
    let leader = cluster.leader();
    propose_and_apply(&mut cluster, leader, grant(7, 600));
    propose_and_apply(&mut cluster, leader, revoke(6));
    for number in 0..60 {
        propose_and_apply(&mut cluster, leader, put_on(&format!("k{number}"), 7));
    }
    cluster.commit(leader);
    cluster.start(3);
    cluster.tick(20);
    let leader = cluster.leader();
    let message = cluster.raft_snapshots.pop().expect("a copy is wanted");
    assert!(cluster.send_raft_snapshot(message, usize::MAX));
    cluster.tick(2);
    assert_eq!(cluster.host(3).stores_replaced, 1);
    let expected = contents(&mut cluster, leader);
    assert_eq!((expected.len(), expected[0].keys.len()), (1, 60));
    assert_eq!(contents(&mut cluster, 3), expected);
    propose_and_apply(&mut cluster, leader, revoke(7));
    cluster.tick(2);
    assert_eq!(cluster.host(3).get("k0").0, None);
    assert_eq!(cluster.host(3).get("k0").1, cluster.host(leader).get("k0").1);
}

/// While thousands of leases expire together, a put waits for only a few of the revocations.
#[test]
fn a_put_overtakes_those_that_end() {
    let mut cluster = ReplicaCluster::new(1, settings());
    cluster.leader();
    for id in 1..=5_000 {
        propose_and_apply(&mut cluster, 1, grant(id, 600));
    }
    cluster.now += std::time::Duration::from_secs(600);
    cluster.poll_once(1);
    let mut puts = 0;
    while !contents(&mut cluster, 1).is_empty() {
        let before = cluster.host(1).replica().applied_position().index;
        let id = cluster.host(1).replica().propose(put("key", "v"));
        while !cluster.host(1).results.contains_key(&id) {
            cluster.poll_once(1);
        }
        let waited = cluster.host(1).replica().applied_position().index - before;
        // A put waits for the revocations in flight, and for the revocations that are proposed when
        // these are applied.
        assert!(waited <= 2 * 16 + 1, "{waited} entries");
        puts += 1;
        cluster.now += std::time::Duration::from_millis(5);
    }
    assert!(puts > 300, "{puts} puts");
}

/// With checkpoints, a change of the leader does not restart the time of long leases, because all
/// members know the remaining time.
#[test]
fn with_checkpoints_the_next_leader_goes_on() {
    let interval = Some(std::time::Duration::from_secs(10));
    let settings =
        clearlane_replica::ReplicaConfig { lease_checkpoint_interval: interval, ..settings() };
    let mut cluster = ReplicaCluster::new(3, settings);
    let first = cluster.leader();
    propose_and_apply(&mut cluster, first, grant(7, 100));
    cluster.tick(250);
    let remaining: Vec<i64> =
        (1..=3).map(|id| contents(&mut cluster, id)[0].remaining_ttl).collect();
    assert!(
        remaining.iter().all(|left| *left == remaining[0] && (80..=81).contains(left)),
        "{remaining:?}"
    );
    cluster.call(first, |core: &mut TestReplica| core.raft.transfer_leader(first % 3 + 1));
    cluster.deliver_all();
    cluster.tick(5);
    let second = cluster.leader();
    assert_ne!(first, second);
    let has = remaining_ttl(&mut cluster, second, 7).unwrap();
    assert!((80..=81).contains(&has), "{has}");
}
