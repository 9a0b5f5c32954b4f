//! Tests that proposals are answered after they are applied, and that all members apply the same
//! entries.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clearlane_backend::Era;
use clearlane_mvcc as mvcc;
use clearlane_proto::etcdserverpb::{CompactionRequest, InternalRaftRequest, LeaseRevokeRequest};
use clearlane_raft as raft;
use clearlane_replica::apply::{self, AppliedResponse};
use clearlane_replica::membership::{Member, MemberChange, MembershipRejection};
use clearlane_replica::{ApplyTimer, MemberChangeError, ReplicaConfig, RequestOutcome};

use crate::halves::replica_cluster::{ReplicaCluster, member, put};
use crate::halves::settings;

#[test]
fn the_only_member_answers_itself() {
    let mut cluster = ReplicaCluster::new(1, settings());
    assert_eq!(cluster.leader(), 1);
    assert!(matches!(cluster.put(1, "a", "1"), RequestOutcome::Applied(Ok(_))));
    assert_eq!(cluster.host(1).get("a"), (Some("1".to_owned()), 2));
    let (revision, changes) = cluster.host(1).changes.pop().unwrap();
    assert_eq!(revision, 2);
    let changes: Vec<mvcc::Change> = changes.into_changes().collect();
    assert!(matches!(&changes[..], [mvcc::Change::Put(kv)] if kv.value == "1"));
}

#[test]
fn a_write_at_any_member_is_the_same_everywhere() {
    let mut cluster = ReplicaCluster::new(3, settings());
    let leader = cluster.leader();
    for id in 1..=3 {
        assert!(matches!(cluster.put(id, &format!("k{id}"), "v"), RequestOutcome::Applied(Ok(_))));
    }
    cluster.tick(2);
    for id in 1..=3 {
        let host = cluster.host(id);
        assert_eq!(host.get("k2"), (Some("v".to_owned()), 4), "at {id}, {leader} leads");
        assert!(host.results.is_empty(), "no result without a proposal");
        assert_eq!(host.replica().applied_position().conf_state.voters, [1, 2, 3]);
    }
}

/// Proposes more puts in a row than can share a transaction of the store. One of the puts is
/// rejected, and there is a compaction between two of the puts. Each accepted put must still get
/// its own revision and response.
#[test]
fn puts_in_a_row_are_as_any_others() {
    let mut cluster = ReplicaCluster::new(1, settings());
    cluster.leader();
    let request = |number: usize| {
        let mut request = put(&format!("k{:02}", number % 50), &number.to_string());
        if number == 70 {
            request.put.as_mut().unwrap().lease = 77;
        }
        if number == 100 {
            let compaction = CompactionRequest { revision: 50, ..CompactionRequest::default() };
            (request.put, request.compaction) = (None, Some(compaction));
        }
        request
    };
    let host = cluster.host(1);
    let propose = |number| host.replica().propose(request(number));
    let ids: Vec<u64> = (0..200).map(propose).collect();
    cluster.poll(1);
    let (host, mut revision) = (cluster.host(1), 1);
    for (number, id) in ids.iter().enumerate() {
        match (number, host.results.remove(id)) {
            (70, Some(RequestOutcome::Applied(Err(apply::RequestRejection::LeaseNotFound)))) => {}
            (100, Some(RequestOutcome::Applied(Ok(AppliedResponse::Compact(_))))) => {}
            (_, Some(RequestOutcome::Applied(Ok(AppliedResponse::Put(response))))) => {
                revision += 1;
                assert_eq!(response.header.unwrap().revision, revision, "put {number}");
            }
            (_, other) => panic!("{number} is answered by {other:?}"),
        }
    }
    let revisions: Vec<i64> = host.changes.iter().map(|(revision, _)| *revision).collect();
    assert_eq!(revisions, (2..=199).collect::<Vec<_>>());
    for _ in 0..2 {
        assert_eq!(cluster.host(1).get("k49"), (Some("199".to_owned()), 199));
        // After the restart, entries whose changes the store had not committed before the crash
        // are applied again, in other batches.
        cluster.crash(1);
        cluster.start(1);
        cluster.leader();
    }
}

/// Two large puts together have more than a megabyte, so the second one waits until the first one
/// is written. A small put overtakes the waiting large put. A large put that is cancelled while it
/// waits is not proposed.
#[test]
fn large_values_go_to_the_log_a_megabyte_at_a_time() {
    let mut cluster = ReplicaCluster::new(1, settings());
    cluster.leader();
    let large = "x".repeat(900_000);
    let replica = cluster.host(1).replica();
    let [first, second, cancelled] =
        ["first", "second", "cancelled"].map(|key| replica.propose(put(key, &large)));
    let small = replica.propose(put("small", "1"));
    replica.cancel(cancelled);
    let (mut polls, mut answered) = (0, BTreeMap::new());
    let mut is_done = false;
    while !is_done {
        is_done = cluster.poll_once(1);
        for id in cluster.host(1).results.keys() {
            answered.entry(*id).or_insert(polls);
        }
        polls += 1;
    }
    assert_eq!(answered[&first], answered[&small]);
    assert!(answered[&first] < answered[&second], "{answered:?}");
    assert!(!answered.contains_key(&cancelled));
    assert_eq!(cluster.host(1).get("cancelled").0, None);
    assert_eq!(cluster.host(1).get("second").0, Some(large));
}

/// After 16 large puts, which have about 16 MB, the next large put waits until the store has
/// committed. While large puts wait, small puts continue, and a commit of the store is requested.
#[test]
fn large_values_wait_for_the_store() {
    let mut cluster = ReplicaCluster::new(1, settings());
    cluster.leader();
    let large = "x".repeat(1_000_000);
    let replica = cluster.host(1).replica();
    let ids: Vec<u64> = (0..40).map(|_| replica.propose(put("k", &large))).collect();
    for applied in [16, 32, 40] {
        cluster.poll(1);
        let host = cluster.host(1);
        assert_eq!(ids.iter().filter(|id| host.results.contains_key(id)).count(), applied);
        assert!(host.is_commit_due);
        assert!(matches!(cluster.put(1, "small", "1"), RequestOutcome::Applied(Ok(_))));
        cluster.commit(1);
    }
}

/// Large entries that the store has not committed may have up to 16 MB. A value of 3 MB is applied
/// and not committed, and with a value of 14 MB it would exceed the limit. The second value must
/// wait only until the store has committed the first one.
#[test]
fn a_very_large_value_is_not_kept_waiting() {
    let config = ReplicaConfig { snapshot_bytes: 1 << 30, ..settings() };
    let mut cluster = ReplicaCluster::new(1, config);
    cluster.leader();
    let replica = cluster.host(1).replica();
    let small = replica.propose(put("k", &"x".repeat(3 << 20)));
    cluster.poll(1);
    let large = cluster.host(1).replica().propose(put("k", &"x".repeat(14 << 20)));
    cluster.poll(1);
    let host = cluster.host(1);
    assert!(host.results.contains_key(&small) && !host.results.contains_key(&large));
    assert!(host.is_commit_due);
    cluster.commit(1);
    cluster.poll(1);
    assert!(matches!(cluster.host(1).results[&large], RequestOutcome::Applied(Ok(_))));
}

/// The leader appends a large entry, which the next leader replaces. A later large value must not
/// wait until the store has committed the index of the lost entry.
#[test]
fn a_large_value_waits_for_no_entry_that_was_lost() {
    let mut cluster = ReplicaCluster::new(3, settings());
    let leader = cluster.leader();
    let large = "x".repeat(900_000);
    cluster.isolated.push(leader);
    let replica = cluster.host(leader).replica();
    for number in 0..50 {
        replica.propose(put("lost", &number.to_string()));
    }
    replica.propose(put("lost", &large));
    cluster.poll(leader);
    let successor = cluster.leader();
    assert_ne!(successor, leader);
    cluster.isolated.clear();
    cluster.tick(5);
    cluster.call(successor, |replica| replica.raft.transfer_leader(leader));
    cluster.deliver_all();
    assert_eq!(cluster.leader(), leader);
    for key in ["first", "second"] {
        let outcome = cluster.put(leader, key, &large);
        assert!(matches!(outcome, RequestOutcome::Applied(Ok(_))), "{key}: {outcome:?}");
    }
}

/// At most 64 MB of large proposals may wait, and a further one is rejected. Cancelled proposals no
/// longer count towards the limit.
#[test]
fn more_large_values_than_may_wait_are_refused() {
    let mut cluster = ReplicaCluster::new(1, settings());
    cluster.leader();
    let large = "x".repeat(1_000_000);
    let replica = cluster.host(1).replica();
    let ids: Vec<u64> = (0..80).map(|_| replica.propose(put("k", &large))).collect();
    ids.iter().skip(1).take(10).for_each(|id| replica.cancel(*id));
    let last = replica.propose(put("last", &large));
    for _ in 0..5 {
        cluster.poll(1);
        cluster.commit(1);
    }
    let host = cluster.host(1);
    let applied = |id: &u64| matches!(host.results.get(id), Some(RequestOutcome::Applied(Ok(_))));
    // One put is in flight and 67 wait. Ten of the waiting puts are cancelled.
    assert_eq!(ids.iter().filter(|id| applied(id)).count(), 58);
    assert!(applied(&last));
    let refused = cluster.host(1).replica().take_rejection(ids[79]);
    let is_full = matches!(refused, Some(RequestOutcome::NotProposed(raft::Error::QueueFull)));
    assert!(is_full, "{refused:?}");
}

/// All large values arrive: proposals of the member's own clients and forwarded ones, even if
/// leadership moves while they wait.
#[test]
fn large_values_of_all_members_arrive() {
    let mut cluster = ReplicaCluster::new(3, settings());
    let leader = cluster.leader();
    let large = "x".repeat(100_000);
    let mut ids = Vec::new();
    for id in 1..=3 {
        for number in 0..4 {
            let request = put(&format!("{id} {number}"), &large);
            ids.push((id, cluster.host(id).replica().propose(request)));
        }
    }
    for id in 1..=3 {
        cluster.poll(id);
    }
    cluster.deliver_all();
    let heir = leader % 3 + 1;
    cluster.call(leader, |replica| replica.raft.transfer_leader(heir));
    cluster.deliver_all();
    cluster.tick(30);
    for (id, request) in ids {
        let outcome = cluster.host(id).results.remove(&request);
        assert!(matches!(outcome, Some(RequestOutcome::Applied(Ok(_)))), "at {id}: {outcome:?}");
    }
    for id in 1..=3 {
        assert_eq!(cluster.host(id).get("1 3").0.as_ref(), Some(&large), "at {id}");
    }
}

/// etcd's limit: up to 5,000 entries may be committed and not applied. Above the limit, the leader
/// rejects proposals of its clients and proposals that other members forward, until the apply loop
/// has applied more entries.
#[test]
fn too_many_requests_while_the_apply_loop_is_behind() {
    let mut cluster = ReplicaCluster::new(3, settings());
    let leader = cluster.leader();
    let follower = if leader == 1 { 2 } else { 1 };
    cluster.host(leader).replica().holds_apply = true;
    for round in 0..6 {
        for number in 0..1000 {
            let request = put("k", &format!("{round} {number}"));
            cluster.host(leader).replica().propose(request);
        }
        cluster.poll(leader);
        cluster.deliver_all();
        cluster.tick(1);
    }
    let (own, forwarded) = (put("own", "1"), put("forwarded", "1"));
    let refused = cluster.call(leader, |replica| replica.propose(own));
    let outcome = cluster.host(leader).replica().take_rejection(refused);
    let queue_full = matches!(outcome, Some(RequestOutcome::NotProposed(raft::Error::QueueFull)));
    assert!(queue_full, "{outcome:?}");
    cluster.call(follower, |replica| replica.propose(forwarded));
    let message = cluster.lose_proposal();
    let received = cluster.host(leader).replica().receive(message);
    assert_eq!(received, Err(raft::Error::QueueFull), "a forwarded proposal counts as well");

    assert_eq!(cluster.leader(), leader, "the raft loop goes on meanwhile");
    cluster.host(leader).replica().holds_apply = false;
    cluster.poll(leader);
    assert_eq!(cluster.host(leader).get("own").0, None);
    assert!(matches!(cluster.put(leader, "own", "2"), RequestOutcome::Applied(Ok(_))));
    assert!(matches!(cluster.put(follower, "forwarded", "2"), RequestOutcome::Applied(Ok(_))));
    for id in 1..=3 {
        assert_eq!(cluster.host(id).get("k").0, Some("5 999".to_owned()), "every put at {id}");
    }
}

/// etcd's gate `PriorityRequest`: a lease can still be revoked if up to 5,500 entries are committed
/// and not applied.
#[test]
fn revocations_get_more_room_while_the_apply_loop_is_behind() {
    // In each case: whether revocations are preferred, the number of committed entries, and whether
    // a revocation is rejected.
    for (prefers, entries, is_refused) in
        [(false, 5_200, true), (true, 5_200, false), (true, 5_700, true)]
    {
        let config = ReplicaConfig { prefers_revocations: prefers, ..settings() };
        let mut cluster = ReplicaCluster::new(3, config);
        let leader = cluster.leader();
        let follower = if leader == 1 { 2 } else { 1 };
        cluster.host(leader).replica().holds_apply = true;
        for number in 0..entries {
            cluster.host(leader).replica().propose(put("k", &number.to_string()));
            if number % 1000 == 999 || number + 1 == entries {
                cluster.poll(leader);
                cluster.deliver_all();
                cluster.tick(1);
            }
        }
        let revocation = || InternalRaftRequest {
            lease_revoke: Some(LeaseRevokeRequest { id: 7 }),
            ..Default::default()
        };
        let is_queue_full =
            |outcome| matches!(outcome, Some(RequestOutcome::NotProposed(raft::Error::QueueFull)));
        let case = format!("{prefers}, {entries} entries");
        let other = cluster.call(leader, |replica| replica.propose(put("own", "1")));
        assert!(is_queue_full(cluster.host(leader).replica().take_rejection(other)), "{case}");
        let revoked = cluster.call(leader, |replica| replica.propose(revocation()));
        let outcome = cluster.host(leader).replica().take_rejection(revoked);
        assert_eq!(is_queue_full(outcome), is_refused, "{case}");
        cluster.call(follower, |replica| replica.propose(revocation()));
        let message = cluster.lose_proposal();
        let received = cluster.host(leader).replica().receive(message);
        assert_eq!(received == Err(raft::Error::QueueFull), is_refused, "forwarded, {case}");
    }
}

/// In an old era each put waits for the locks of the era, and its outcome must not wait for the
/// locks of later puts. In the default era the three puts are answered together.
#[test]
fn puts_of_an_old_era_are_answered_one_by_one() {
    for (era, expected) in [(Era::Clearlane, vec![3]), (Era::V3_2, vec![1, 1, 1])] {
        let mut cluster = ReplicaCluster::new(1, settings());
        cluster.host(1).era = era;
        cluster.crash(1);
        cluster.start(1);
        cluster.leader();
        cluster.host(1).steps.clear();
        for key in ["a", "b", "c"] {
            cluster.host(1).replica().propose(put(key, "1"));
        }
        cluster.poll(1);
        cluster.host(1).steps.retain(|outcomes| *outcomes > 0);
        assert_eq!(cluster.host(1).steps, expected, "{era}");
    }
}

#[test]
fn a_cancelled_write_is_not_answered() {
    let mut cluster = ReplicaCluster::new(1, settings());
    cluster.leader();
    let host = cluster.host(1);
    let id = host.replica().propose(put("a", "1"));
    host.replica().cancel(id);
    cluster.poll(1);
    assert_eq!(cluster.host(1).get("a").1, 2);
    assert!(cluster.host(1).results.is_empty());
}

/// A leader that transfers leadership accepts no proposal. Proposals that arrive during the
/// transfer wait for the next leader, and are proposed once.
#[test]
fn a_proposal_waits_while_leadership_is_handed_over() {
    let mut cluster = ReplicaCluster::new(3, settings());
    let leader = cluster.leader();
    let other = (leader + 1) % 3 + 1;
    cluster.host(leader).replica().raft.transfer_leader(other);
    assert!(!cluster.host(leader).replica().raft.can_propose());
    let id = cluster.call(leader, |core| core.propose(put("a", "1")));
    assert!(cluster.host(leader).results.is_empty());
    cluster.deliver_all();
    cluster.tick(2);
    assert!(matches!(
        cluster.host(leader).results.remove(&id),
        Some(RequestOutcome::Applied(Ok(_)))
    ));
    assert_eq!(cluster.host(other).get("a"), (Some("1".to_owned()), 2));
}

/// A clock that advances by 60 ms at each reading.
fn slow_clock() -> u64 {
    static NOW_NS: AtomicU64 = AtomicU64::new(0);
    NOW_NS.fetch_add(60_000_000, Ordering::Relaxed)
}

#[test]
fn what_takes_long_to_apply_is_told() {
    for (limit_ms, count) in [(59, 2), (60, 0)] {
        let limit = Duration::from_millis(limit_ms);
        let stopwatch = Some(ApplyTimer { limit, now_ns: slow_clock });
        let mut cluster =
            ReplicaCluster::new(1, ReplicaConfig { apply_timer: stopwatch, ..settings() });
        cluster.leader();
        cluster.host(1).slow_entries.clear();
        cluster.put(1, "a", "secret");
        let compaction = Some(CompactionRequest { revision: 9, physical: false });
        cluster.propose_and_wait(1, InternalRaftRequest { compaction, ..Default::default() });
        let slow = std::mem::take(&mut cluster.host(1).slow_entries);
        assert_eq!(slow.len(), count, "{slow:?}");
        let [put, compaction] = &slow[..] else { continue };
        assert_eq!(put.took, Duration::from_millis(60));
        assert!(put.request.ends_with("put:<key:\"a\" value_size:6 >"), "{put:?}");
        assert!(matches!(put.outcome, Some(Ok(1..))), "{put:?}");
        let error = "etcdserver: mvcc: required revision is a future revision";
        assert_eq!(compaction.outcome, Some(Err(error.to_owned())));
    }
}

#[test]
fn without_a_leader_a_proposal_waits_for_one() {
    let mut cluster = ReplicaCluster::new(3, settings());
    let waits = cluster.call(1, |core| core.propose(put("a", "1")));
    let gone = cluster.call(1, |core| core.propose(put("a", "2")));
    cluster.call(1, |core| core.cancel(gone));
    assert!(cluster.host(1).replica().take_rejection(waits).is_none());
    cluster.leader();
    cluster.deliver_all();
    cluster.tick(2);
    assert!(matches!(cluster.host(1).results.remove(&waits), Some(RequestOutcome::Applied(Ok(_)))));
    assert_eq!(cluster.host(1).get("a"), (Some("1".to_owned()), 2), "its request had gone");
}

/// Without a leader, up to 4,096 proposals wait. The next one is rejected.
#[test]
fn without_a_leader_not_all_wait() {
    let mut cluster = ReplicaCluster::new(3, settings());
    let last = (0..=4096).map(|_| cluster.host(1).replica().propose(put("a", "1"))).last().unwrap();
    cluster.poll(1);
    let refused = cluster.host(1).replica().take_rejection(last);
    assert!(
        matches!(refused, Some(RequestOutcome::NotProposed(raft::Error::QueueFull))),
        "{refused:?}"
    );
    assert!(cluster.host(1).replica().take_rejection(last - 1).is_none());
}

#[test]
fn members_come_and_go() {
    let mut cluster = ReplicaCluster::new(1, settings());
    cluster.leader();
    let joins = MemberChange::Add(Member { name: String::new(), ..member(2) });
    let asked = cluster.call(1, |core| core.change_members(&joins));
    cluster.add(2, &[]);
    cluster.tick(20);
    let answer = cluster.host(1).results.remove(&asked);
    assert!(
        matches!(answer, Some(RequestOutcome::MembersChanged(Ok(members))) if members.len() == 2)
    );
    assert_eq!(cluster.host(2).replica().applied_position().conf_state.voters, [1, 2]);
    let again = cluster.call(1, |core| core.change_members(&joins));
    let again = cluster.host(1).replica().take_change_error(again);
    assert_eq!(again, MemberChangeError::Rejected(MembershipRejection::Exists));

    let leaves = MemberChange::Remove { id: 2 };
    cluster.call(1, |core| core.change_members(&leaves));
    cluster.deliver_all();
    cluster.tick(3);
    assert_eq!(cluster.host(1).replica().applied_position().conf_state.voters, [1]);
    assert!(!cluster.host(2).is_stopping, "it may have to tell the others");
    cluster.tick(10);
    assert!(cluster.host(2).is_stopping);
    assert!(!cluster.host(1).is_stopping);
    let again = cluster.call(1, |core| core.change_members(&joins));
    let again = cluster.host(1).replica().take_change_error(again);
    assert_eq!(again, MemberChangeError::Rejected(MembershipRejection::Removed));
}

/// Two removals of the same member are proposed, and the first one makes the second one impossible.
/// The second one must have no effect.
#[test]
fn a_change_is_checked_again_when_it_is_applied() {
    let mut cluster = ReplicaCluster::new(3, settings());
    let leader = cluster.leader();
    let leaves = MemberChange::Remove { id: leader % 3 + 1 };
    let first = cluster.call(leader, |core| core.change_members(&leaves));
    let second = cluster.call(leader, |core| core.change_members(&leaves));
    cluster.deliver_all();
    cluster.tick(3);
    let first = cluster.host(leader).results.remove(&first);
    assert!(
        matches!(first, Some(RequestOutcome::MembersChanged(Ok(members))) if members.len() == 2)
    );
    // Raft has replaced the second change with an empty entry, because the first one was in
    // progress.
    assert!(cluster.host(leader).results.remove(&second).is_none());
    assert!(matches!(cluster.put(leader, "a", "1"), RequestOutcome::Applied(Ok(_))));
}
