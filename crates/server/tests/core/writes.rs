//! Proposals are answered once they are applied, and everywhere the same is applied.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clearlane_backend::Era;
use clearlane_mvcc as mvcc;
use clearlane_proto::etcdserverpb::{CompactionRequest, InternalRaftRequest};
use clearlane_raft as raft;
use clearlane_server::apply::{self, AppliedResponse};
use clearlane_server::membership::{Member, MemberChange, MembershipRejection};
use clearlane_server::replica::{ApplyTimer, MemberChangeError, ReplicaConfig, RequestOutcome};

use crate::replica_cluster::{ReplicaCluster, member, put};
use crate::settings;

#[test]
fn the_only_member_answers_itself() {
    let mut lab = ReplicaCluster::new(1, settings());
    assert_eq!(lab.leader(), 1);
    assert!(matches!(lab.put(1, "a", "1"), RequestOutcome::Applied(Ok(_))));
    assert_eq!(lab.host(1).get("a"), (Some("1".to_owned()), 2));
    let (revision, changes) = lab.host(1).changes.pop().unwrap();
    assert_eq!(revision, 2);
    let changes: Vec<mvcc::Change> = changes.into_changes().collect();
    assert!(matches!(&changes[..], [mvcc::Change::Put(kv)] if kv.value == "1"));
}

#[test]
fn a_write_at_any_member_is_the_same_everywhere() {
    let mut lab = ReplicaCluster::new(3, settings());
    let leader = lab.leader();
    for id in 1..=3 {
        assert!(matches!(lab.put(id, &format!("k{id}"), "v"), RequestOutcome::Applied(Ok(_))));
    }
    lab.tick(2);
    for id in 1..=3 {
        let bench = lab.host(id);
        assert_eq!(bench.get("k2"), (Some("v".to_owned()), 4), "at {id}, {leader} leads");
        assert!(bench.results.is_empty(), "no result without a proposal");
        assert_eq!(bench.replica().applied_position().conf_state.voters, [1, 2, 3]);
    }
}

/// More of them than share a transaction, with one that is refused and something else between them.
#[test]
fn puts_in_a_row_are_as_any_others() {
    let mut lab = ReplicaCluster::new(1, settings());
    lab.leader();
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
    let bench = lab.host(1);
    let propose = |number| bench.replica().propose(request(number));
    let ids: Vec<u64> = (0..200).map(propose).collect();
    lab.poll(1);
    let (bench, mut revision) = (lab.host(1), 1);
    for (number, id) in ids.iter().enumerate() {
        match (number, bench.results.remove(id)) {
            (70, Some(RequestOutcome::Applied(Err(apply::RequestRejection::LeaseNotFound)))) => {}
            (100, Some(RequestOutcome::Applied(Ok(AppliedResponse::Compact(_))))) => {}
            (_, Some(RequestOutcome::Applied(Ok(AppliedResponse::Put(response))))) => {
                revision += 1;
                assert_eq!(response.header.unwrap().revision, revision, "put {number}");
            }
            (_, other) => panic!("{number} is answered by {other:?}"),
        }
    }
    let told: Vec<i64> = bench.changes.iter().map(|(revision, _)| *revision).collect();
    assert_eq!(told, (2..=199).collect::<Vec<_>>());
    for _ in 0..2 {
        assert_eq!(lab.host(1).get("k49"), (Some("199".to_owned()), 199));
        // What was applied and not committed is applied again, in rows of another cut.
        lab.crash(1);
        lab.start(1);
        lab.leader();
    }
}

/// A small one goes past those that wait, and one that is cancelled meanwhile is not proposed.
#[test]
fn large_values_go_to_the_log_a_megabyte_at_a_time() {
    let mut lab = ReplicaCluster::new(1, settings());
    lab.leader();
    let large = "x".repeat(900_000);
    let replica = lab.host(1).replica();
    let [first, second, cancelled] =
        ["first", "second", "cancelled"].map(|key| replica.propose(put(key, &large)));
    let small = replica.propose(put("small", "1"));
    replica.cancel(cancelled);
    let (mut polls, mut answered) = (0, BTreeMap::new());
    let mut is_done = false;
    while !is_done {
        is_done = lab.poll_once(1);
        for id in lab.host(1).results.keys() {
            answered.entry(*id).or_insert(polls);
        }
        polls += 1;
    }
    assert_eq!(answered[&first], answered[&small]);
    assert!(answered[&first] < answered[&second], "{answered:?}");
    assert!(!answered.contains_key(&cancelled));
    assert_eq!(lab.host(1).get("cancelled").0, None);
    assert_eq!(lab.host(1).get("second").0, Some(large));
}

/// Small ones go on, and the store is asked to commit.
#[test]
fn large_values_wait_for_the_store() {
    let mut lab = ReplicaCluster::new(1, settings());
    lab.leader();
    let large = "x".repeat(1_000_000);
    let replica = lab.host(1).replica();
    let ids: Vec<u64> = (0..40).map(|_| replica.propose(put("k", &large))).collect();
    for applied in [16, 32, 40] {
        lab.poll(1);
        let host = lab.host(1);
        assert_eq!(ids.iter().filter(|id| host.results.contains_key(id)).count(), applied);
        assert!(host.is_commit_due);
        assert!(matches!(lab.put(1, "small", "1"), RequestOutcome::Applied(Ok(_))));
        lab.commit(1);
    }
}

/// Little is applied and not committed, and what comes next is beyond the bound with it.
#[test]
fn a_very_large_value_is_not_kept_waiting() {
    let config = ReplicaConfig { snapshot_bytes: 1 << 30, ..settings() };
    let mut lab = ReplicaCluster::new(1, config);
    lab.leader();
    let replica = lab.host(1).replica();
    let small = replica.propose(put("k", &"x".repeat(3 << 20)));
    lab.poll(1);
    let large = lab.host(1).replica().propose(put("k", &"x".repeat(14 << 20)));
    lab.poll(1);
    let host = lab.host(1);
    assert!(host.results.contains_key(&small) && !host.results.contains_key(&large));
    assert!(host.is_commit_due);
    lab.commit(1);
    lab.poll(1);
    assert!(matches!(lab.host(1).results[&large], RequestOutcome::Applied(Ok(_))));
}

/// The leader has appended large entries that it loses: their indexes mean nothing any more.
#[test]
fn a_large_value_waits_for_no_entry_that_was_lost() {
    let mut lab = ReplicaCluster::new(3, settings());
    let leader = lab.leader();
    let large = "x".repeat(900_000);
    lab.isolated.push(leader);
    let replica = lab.host(leader).replica();
    for number in 0..50 {
        replica.propose(put("lost", &number.to_string()));
    }
    replica.propose(put("lost", &large));
    lab.poll(leader);
    let successor = lab.leader();
    assert_ne!(successor, leader);
    lab.isolated.clear();
    lab.tick(5);
    lab.call(successor, |replica| replica.raft.transfer_leader(leader));
    lab.deliver_all();
    assert_eq!(lab.leader(), leader);
    for key in ["first", "second"] {
        let outcome = lab.put(leader, key, &large);
        assert!(matches!(outcome, RequestOutcome::Applied(Ok(_))), "{key}: {outcome:?}");
    }
}

/// What was cancelled counts no more.
#[test]
fn more_large_values_than_may_wait_are_refused() {
    let mut lab = ReplicaCluster::new(1, settings());
    lab.leader();
    let large = "x".repeat(1_000_000);
    let replica = lab.host(1).replica();
    let ids: Vec<u64> = (0..80).map(|_| replica.propose(put("k", &large))).collect();
    ids.iter().skip(1).take(10).for_each(|id| replica.cancel(*id));
    let last = replica.propose(put("last", &large));
    for _ in 0..5 {
        lab.poll(1);
        lab.commit(1);
    }
    let host = lab.host(1);
    let applied = |id: &u64| matches!(host.results.get(id), Some(RequestOutcome::Applied(Ok(_))));
    // One is on its way, 67 wait, of which ten are cancelled.
    assert_eq!(ids.iter().filter(|id| applied(id)).count(), 58);
    assert!(applied(&last));
    let refused = lab.host(1).replica().take_rejection(ids[79]);
    let is_full = matches!(refused, Some(RequestOutcome::NotProposed(raft::Error::QueueFull)));
    assert!(is_full, "{refused:?}");
}

/// Whether they come from its own clients or were forwarded, and if leadership moves meanwhile.
#[test]
fn large_values_of_all_members_arrive() {
    let mut lab = ReplicaCluster::new(3, settings());
    let leader = lab.leader();
    let large = "x".repeat(100_000);
    let mut ids = Vec::new();
    for id in 1..=3 {
        for number in 0..4 {
            let request = put(&format!("{id} {number}"), &large);
            ids.push((id, lab.host(id).replica().propose(request)));
        }
    }
    for id in 1..=3 {
        lab.poll(id);
    }
    lab.deliver_all();
    let heir = leader % 3 + 1;
    lab.call(leader, |replica| replica.raft.transfer_leader(heir));
    lab.deliver_all();
    lab.tick(30);
    for (id, request) in ids {
        let outcome = lab.host(id).results.remove(&request);
        assert!(matches!(outcome, Some(RequestOutcome::Applied(Ok(_)))), "at {id}: {outcome:?}");
    }
    for id in 1..=3 {
        assert_eq!(lab.host(id).get("1 3").0.as_ref(), Some(&large), "at {id}");
    }
}

/// etcd's bound: 5,000 entries may be committed and not applied; then proposals are refused, at the
/// leader and at a member that forwards to it, until the apply loop has come further.
#[test]
fn too_many_requests_while_the_apply_loop_is_behind() {
    let mut lab = ReplicaCluster::new(3, settings());
    let leader = lab.leader();
    let follower = if leader == 1 { 2 } else { 1 };
    lab.host(leader).replica().holds_apply = true;
    for round in 0..6 {
        for number in 0..1000 {
            let request = put("k", &format!("{round} {number}"));
            lab.host(leader).replica().propose(request);
        }
        lab.poll(leader);
        lab.deliver_all();
        lab.tick(1);
    }
    let (own, forwarded) = (put("own", "1"), put("forwarded", "1"));
    let refused = lab.call(leader, |replica| replica.propose(own));
    let outcome = lab.host(leader).replica().take_rejection(refused);
    let queue_full = matches!(outcome, Some(RequestOutcome::NotProposed(raft::Error::QueueFull)));
    assert!(queue_full, "{outcome:?}");
    lab.call(follower, |replica| replica.propose(forwarded));
    let message = lab.lose_proposal();
    let received = lab.host(leader).replica().receive(message);
    assert_eq!(received, Err(raft::Error::QueueFull), "a forwarded proposal counts as well");

    assert_eq!(lab.leader(), leader, "the raft loop goes on meanwhile");
    lab.host(leader).replica().holds_apply = false;
    lab.poll(leader);
    assert_eq!(lab.host(leader).get("own").0, None);
    assert!(matches!(lab.put(leader, "own", "2"), RequestOutcome::Applied(Ok(_))));
    assert!(matches!(lab.put(follower, "forwarded", "2"), RequestOutcome::Applied(Ok(_))));
    for id in 1..=3 {
        assert_eq!(lab.host(id).get("k").0, Some("5 999".to_owned()), "every put at {id}");
    }
}

/// In an old era each put waits for the locks of the era; its outcome does not wait for those of
/// the next ones.
#[test]
fn puts_of_an_old_era_are_answered_one_by_one() {
    for (era, expected) in [(Era::Clearlane, vec![3]), (Era::V3_2, vec![1, 1, 1])] {
        let mut lab = ReplicaCluster::new(1, settings());
        lab.host(1).era = era;
        lab.crash(1);
        lab.start(1);
        lab.leader();
        lab.host(1).steps.clear();
        for key in ["a", "b", "c"] {
            lab.host(1).replica().propose(put(key, "1"));
        }
        lab.poll(1);
        lab.host(1).steps.retain(|outcomes| *outcomes > 0);
        assert_eq!(lab.host(1).steps, expected, "{era}");
    }
}

#[test]
fn a_cancelled_write_is_not_answered() {
    let mut lab = ReplicaCluster::new(1, settings());
    lab.leader();
    let bench = lab.host(1);
    let id = bench.replica().propose(put("a", "1"));
    bench.replica().cancel(id);
    lab.poll(1);
    assert_eq!(lab.host(1).get("a").1, 2);
    assert!(lab.host(1).results.is_empty());
}

/// A leader that hands over takes nothing: what comes meanwhile waits for the next one, and is
/// proposed once.
#[test]
fn a_proposal_waits_while_leadership_is_handed_over() {
    let mut lab = ReplicaCluster::new(3, settings());
    let leader = lab.leader();
    let other = (leader + 1) % 3 + 1;
    lab.host(leader).replica().raft.transfer_leader(other);
    assert!(!lab.host(leader).replica().raft.can_propose());
    let id = lab.call(leader, |core| core.propose(put("a", "1")));
    assert!(lab.host(leader).results.is_empty());
    lab.deliver_all();
    lab.tick(2);
    assert!(matches!(lab.host(leader).results.remove(&id), Some(RequestOutcome::Applied(Ok(_)))));
    assert_eq!(lab.host(other).get("a"), (Some("1".to_owned()), 2));
}

/// A clock by which everything takes 60 ms.
fn slow_clock() -> u64 {
    static NOW_NS: AtomicU64 = AtomicU64::new(0);
    NOW_NS.fetch_add(60_000_000, Ordering::Relaxed)
}

#[test]
fn what_takes_long_to_apply_is_told() {
    for (limit_ms, count) in [(59, 2), (60, 0)] {
        let limit = Duration::from_millis(limit_ms);
        let stopwatch = Some(ApplyTimer { limit, now_ns: slow_clock });
        let mut lab =
            ReplicaCluster::new(1, ReplicaConfig { apply_timer: stopwatch, ..settings() });
        lab.leader();
        lab.host(1).slow_entries.clear();
        lab.put(1, "a", "secret");
        let compaction = Some(CompactionRequest { revision: 9, physical: false });
        lab.propose_and_wait(1, InternalRaftRequest { compaction, ..Default::default() });
        let slow = std::mem::take(&mut lab.host(1).slow_entries);
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
    let mut lab = ReplicaCluster::new(3, settings());
    let waits = lab.call(1, |core| core.propose(put("a", "1")));
    let gone = lab.call(1, |core| core.propose(put("a", "2")));
    lab.call(1, |core| core.cancel(gone));
    assert!(lab.host(1).replica().take_rejection(waits).is_none());
    lab.leader();
    lab.deliver_all();
    lab.tick(2);
    assert!(matches!(lab.host(1).results.remove(&waits), Some(RequestOutcome::Applied(Ok(_)))));
    assert_eq!(lab.host(1).get("a"), (Some("1".to_owned()), 2), "its request had gone");
}

/// So many, and no more.
#[test]
fn without_a_leader_not_all_wait() {
    let mut lab = ReplicaCluster::new(3, settings());
    let last = (0..=4096).map(|_| lab.host(1).replica().propose(put("a", "1"))).last().unwrap();
    lab.poll(1);
    let refused = lab.host(1).replica().take_rejection(last);
    assert!(
        matches!(refused, Some(RequestOutcome::NotProposed(raft::Error::QueueFull))),
        "{refused:?}"
    );
    assert!(lab.host(1).replica().take_rejection(last - 1).is_none());
}

#[test]
fn members_come_and_go() {
    let mut lab = ReplicaCluster::new(1, settings());
    lab.leader();
    let joins = MemberChange::Add(Member { name: String::new(), ..member(2) });
    let asked = lab.call(1, |core| core.change_members(&joins));
    lab.add(2, &[]);
    lab.tick(20);
    let answer = lab.host(1).results.remove(&asked);
    assert!(
        matches!(answer, Some(RequestOutcome::MembersChanged(Ok(members))) if members.len() == 2)
    );
    assert_eq!(lab.host(2).replica().applied_position().conf_state.voters, [1, 2]);
    let again = lab.call(1, |core| core.change_members(&joins));
    let again = lab.host(1).replica().take_change_error(again);
    assert_eq!(again, MemberChangeError::Rejected(MembershipRejection::Exists));

    let leaves = MemberChange::Remove { id: 2 };
    lab.call(1, |core| core.change_members(&leaves));
    lab.deliver_all();
    lab.tick(3);
    assert_eq!(lab.host(1).replica().applied_position().conf_state.voters, [1]);
    assert!(!lab.host(2).is_stopping, "it may have to tell the others");
    lab.tick(10);
    assert!(lab.host(2).is_stopping);
    assert!(!lab.host(1).is_stopping);
    let again = lab.call(1, |core| core.change_members(&joins));
    let again = lab.host(1).replica().take_change_error(again);
    assert_eq!(again, MemberChangeError::Rejected(MembershipRejection::Removed));
}

/// Two changes are proposed and the first makes the second impossible: all members decide alike.
#[test]
fn a_change_is_checked_again_when_it_is_applied() {
    let mut lab = ReplicaCluster::new(3, settings());
    let leader = lab.leader();
    let leaves = MemberChange::Remove { id: leader % 3 + 1 };
    let first = lab.call(leader, |core| core.change_members(&leaves));
    let second = lab.call(leader, |core| core.change_members(&leaves));
    lab.deliver_all();
    lab.tick(3);
    let first = lab.host(leader).results.remove(&first);
    assert!(
        matches!(first, Some(RequestOutcome::MembersChanged(Ok(members))) if members.len() == 2)
    );
    // Raft has made an empty entry of the second, as another was under way.
    assert!(lab.host(leader).results.remove(&second).is_none());
    assert!(matches!(lab.put(leader, "a", "1"), RequestOutcome::Applied(Ok(_))));
}
