//! After a crash: what was answered is there, once, and the log is no longer than it must be.

use clearlane_server::membership::MemberChange;
use clearlane_server::replica::{ReplicaConfig, RequestOutcome, force_new_cluster};
use clearlane_server::{AppliedPosition, Error};

use crate::replica_cluster::ReplicaCluster;
use crate::settings;

/// Nothing was committed, everything, or something: it is all there, at the same revision.
#[test]
fn every_write_is_there_once_whenever_the_store_was_committed() {
    for commit_at in [None, Some(0), Some(3), Some(9)] {
        let mut lab = ReplicaCluster::new(1, settings());
        lab.leader();
        for number in 0..10 {
            assert!(matches!(lab.put(1, "a", &number.to_string()), RequestOutcome::Applied(Ok(_))));
            if commit_at == Some(number) {
                lab.commit(1);
            }
        }
        lab.crash(1);
        lab.start(1);
        lab.leader();
        assert_eq!(lab.host(1).get("a"), (Some("9".to_owned()), 11), "commit at {commit_at:?}");
        lab.put(1, "a", "10");
        assert_eq!(lab.host(1).get("a").1, 12, "no revision is used twice or left out");
    }
}

/// Clients learn of a commit before the log does.
#[test]
fn a_forced_cluster_has_the_last_acknowledged_write() {
    for survivor in 1..=3 {
        let mut lab = ReplicaCluster::new(3, settings());
        let leader = lab.leader();
        for number in 0..5 {
            let answer = lab.put(leader, "a", &number.to_string());
            assert!(matches!(answer, RequestOutcome::Applied(Ok(_))));
        }
        (1..=3).for_each(|id| lab.crash(id));
        let removed = force_new_cluster(&lab.host(survivor).storage()).unwrap();
        assert_eq!(removed.len(), 2);
        lab.start(survivor);
        assert_eq!(lab.leader(), survivor);
        let answer = lab.put(survivor, "b", "after");
        assert!(matches!(answer, RequestOutcome::Applied(Ok(_))));
        assert_eq!(lab.host(survivor).get("a"), (Some("4".to_owned()), 7));
    }
}

#[test]
fn the_log_is_shortened_behind_what_is_durable() {
    let mut lab = ReplicaCluster::new(1, settings());
    lab.leader();
    for number in 0..100 {
        lab.put(1, "key", &format!("{number:0100}"));
    }
    assert!(lab.host(1).segments() > 3, "nothing is durable, nothing may go");
    let (first, _) = lab.host(1).replica().raft.raft().kept_indexes();
    assert_eq!(first, 1);
    lab.commit(1);
    let applied = lab.host(1).replica().applied_position().index;
    assert_eq!(
        lab.host(1).replica().raft.raft().kept_indexes().0,
        applied - 5 + 1,
        "a few are kept for others"
    );
    lab.put(1, "key", "last");
    lab.put(1, "key", "last");
    assert!(lab.host(1).segments() <= 2, "{} segments", lab.host(1).segments());
    lab.crash(1);
    lab.start(1);
    lab.leader();
    assert_eq!(lab.host(1).get("key"), (Some("last".to_owned()), 103));
}

/// A few large entries need as much memory as many small ones.
#[test]
fn the_log_is_shortened_by_its_bytes_too() {
    let bytes = ReplicaConfig { snapshot_bytes: 10_000, catch_up_bytes: 3500, ..settings() };
    let mut lab = ReplicaCluster::new(
        1,
        ReplicaConfig { snapshot_count: 1000, catch_up_entries: 500, ..bytes },
    );
    lab.leader();
    for number in 0..9 {
        lab.put(1, "key", &format!("{number:01000}"));
    }
    lab.commit(1);
    assert_eq!(lab.host(1).replica().raft.raft().kept_indexes().0, 1, "it is not long enough");
    for number in 0..2 {
        lab.put(1, "key", &format!("{number:01000}"));
    }
    lab.commit(1);
    let applied = lab.host(1).replica().applied_position().index;
    assert_eq!(
        lab.host(1).replica().raft.raft().kept_indexes().0,
        applied - 3 + 1,
        "3 of some 1,050 bytes"
    );
    lab.crash(1);
    lab.start(1);
    lab.leader();
    assert!(
        lab.host(1).replica().raft.raft().kept_indexes().0 > applied - 3,
        "no more than before"
    );
}

/// An entry that changes nothing in the store still moves what is durable, or the log of an idle
/// cluster would grow for ever.
#[test]
fn entries_without_effect_are_durable_too() {
    let mut lab = ReplicaCluster::new(1, settings());
    lab.leader();
    lab.put(1, "a", "1");
    lab.commit(1);
    for _ in 0..3 {
        lab.crash(1);
        lab.start(1);
        lab.leader();
        lab.tick(1);
    }
    let applied = lab.host(1).replica().applied_position().clone();
    lab.commit(1);
    let engine = lab.host(1).replica().apply.engine.snapshot().unwrap();
    assert_eq!(AppliedPosition::read(&*engine).unwrap(), applied);
}

#[test]
fn a_store_that_is_older_than_the_log_is_refused() {
    let mut lab = ReplicaCluster::new(1, settings());
    lab.leader();
    for number in 0..30 {
        lab.put(1, "a", &number.to_string());
    }
    lab.commit(1);
    lab.put(1, "a", "more");
    let bench = lab.host(1);
    bench.running = None;
    bench.store_dir = std::sync::Arc::default();
    let error = bench.try_start(settings()).unwrap_err();
    assert!(matches!(&error, Error::Damaged { what: "the store", .. }), "{error}");
}

/// A commit index alone is not synced. So a member that was killed may have a store that is further
/// than its log is committed, and if nothing is written any more, the log does not learn it. What
/// is recorded of the store then must count at the next start: the log goes by it.
#[test]
fn a_record_of_the_store_counts_although_the_commit_index_was_lost() {
    let mut lab = ReplicaCluster::new(3, settings());
    let leader = lab.leader();
    let follower = leader % 3 + 1;
    for number in 0..60 {
        lab.put(leader, "a", &format!("{number:0300}"));
    }
    lab.tick(2);
    lab.host(follower).replica().store().commit().unwrap();
    lab.crash(follower);
    lab.start(follower);
    lab.tick(3);
    assert_eq!(lab.leader(), leader);
    assert!(lab.host(follower).segments() > 3);
    lab.commit(follower);
    assert!(lab.host(follower).segments() <= 3, "the log was shortened");
    lab.crash(follower);
    lab.start(follower);
    lab.put(leader, "a", "after");
    lab.tick(2);
    assert_eq!(lab.host(follower).get("a").0.as_deref(), Some("after"));
}

/// etcd applies while it writes its log. Where the log was cut off, a member goes on behind the
/// store: as a voter that has nothing to send from before, and at its next starts, too.
#[test]
fn a_log_that_ends_before_the_store_begins_anew_behind_it() {
    for (members, term_rises) in [(1, false), (3, false), (3, true)] {
        let mut lab = ReplicaCluster::new(members, settings());
        let leader = lab.leader();
        let cut_off = leader % members + 1;
        lab.put(leader, "a", "in the log");
        let log = lab.synced_log(cut_off);
        let log_end = lab.host(leader).replica().applied_position().index;
        if term_rises {
            lab.crash(leader);
            let next = lab.leader();
            assert_ne!(next, leader);
            lab.start(leader);
            lab.tick(2);
        }
        let leader = lab.leader();
        lab.put(leader, "a", "in the store");
        lab.tick(2);
        lab.host(cut_off).replica().store().commit().unwrap();
        let applied = lab.host(cut_off).replica().applied_position().index;
        lab.crash_with_log(cut_off, log);
        let settings = settings();
        let error = lab.host(cut_off).try_start(settings).unwrap_err();
        assert!(error.is_log_loss(), "{error}");
        let missing = format!(
            "the log ends at entry {log_end}, and the store has applied up to entry {applied}: \
             entries {} to {applied} are missing from the log",
            log_end + 1
        );
        assert_eq!(error.to_string(), missing);
        // The first start is after etcd, and lets the log continue after the store. Later starts
        // find no gap.
        lab.host(cut_off).wal.etcd_wrote_last = true;
        for round in 0..3 {
            lab.start(cut_off);
            lab.host(cut_off).wal.etcd_wrote_last = false;
            let (first, _) = lab.host(cut_off).replica().raft.raft().kept_indexes();
            assert!(first > log_end + 1, "{first} behind {log_end}");
            lab.tick(2);
            let leader = lab.leader();
            if round == 0 {
                assert_eq!(lab.host(cut_off).get("a").0.as_deref(), Some("in the store"));
            }
            let value = format!("after {round}");
            assert!(matches!(lab.put(leader, "a", &value), RequestOutcome::Applied(Ok(_))));
            lab.tick(2);
            let seen = lab.host(cut_off).get("a");
            assert_eq!(seen, (Some(value), 4 + round), "{members} {term_rises}");
            lab.crash(cut_off);
        }
        // Also as the one that leads.
        lab.start(cut_off);
        lab.tick(2);
        for other in (1..=members).filter(|other| *other != cut_off) {
            lab.isolated = vec![other];
            lab.tick(30);
            lab.isolated.clear();
            lab.tick(30);
        }
        let leader = lab.leader();
        lab.put(leader, "a", "last");
        lab.tick(2);
        for id in 1..=members {
            assert_eq!(lab.host(id).get("a"), (Some("last".to_owned()), 7), "{id} of {members}");
        }
    }
}

/// Its removal is durable, and it was not stopped for long: the next start must stop, too.
#[test]
fn a_member_that_was_removed_is_told_so_at_each_start() {
    let mut lab = ReplicaCluster::new(3, settings());
    let leader = lab.leader();
    let leaves = leader % 3 + 1;
    lab.call(leader, |core| core.change_members(&MemberChange::Remove { id: leaves }));
    lab.deliver_all();
    lab.tick(13);
    assert!(lab.host(leaves).is_stopping);
    lab.commit(leaves);
    for _ in 0..2 {
        lab.crash(leaves);
        lab.host(leaves).is_stopping = false;
        lab.start(leaves);
        lab.tick(10);
        assert!(lab.host(leaves).is_stopping);
    }
    lab.crash(leader);
    lab.start(leader);
    assert!(!lab.host(leader).is_stopping);
}

/// Whether there is a log is all that its owner looks at to tell a new member from an old one.
#[test]
fn a_new_member_has_no_log_or_one_with_its_first_members() {
    for (step, seed) in (1..=19).flat_map(|step| (0..8).map(move |seed| (step, seed))) {
        let mut lab = ReplicaCluster::new(0, settings());
        let has_log = lab.add_with_power_cut_at(1, step, seed);
        if has_log {
            lab.start(1);
            lab.leader();
            assert!(
                matches!(lab.put(1, "a", "1"), RequestOutcome::Applied(Ok(_))),
                "{step} {seed}"
            );
        }
        assert!(if step == 1 { !has_log } else { has_log || step < 19 }, "{step} {seed}");
    }
}

/// Above all if a sync fails: a second one would succeed, whatever is on disk.
#[test]
fn whatever_fails_at_a_start_it_is_none() {
    for step in 1.. {
        let mut lab = ReplicaCluster::new(1, settings());
        lab.leader();
        for number in 0..60 {
            lab.put(1, "a", &number.to_string());
            if number % 25 == 24 {
                lab.commit(1);
            }
        }
        lab.crash(1);
        let (starts, operations) = lab.start_that_fails_at(1, step);
        assert_eq!(starts, operations < step, "of {operations} operations, {step} fails");
        if starts {
            return;
        }
    }
}

#[test]
fn a_whole_cluster_comes_back() {
    let mut lab = ReplicaCluster::new(3, settings());
    let leader = lab.leader();
    for number in 0..60 {
        lab.put(leader, "a", &number.to_string());
        if number % 7 == 0 {
            lab.commit(number % 3 + 1);
        }
    }
    for id in 1..=3 {
        lab.crash(id);
    }
    for id in 1..=3 {
        lab.start(id);
    }
    let leader = lab.leader();
    lab.put(leader, "a", "60");
    lab.tick(2);
    for id in 1..=3 {
        assert_eq!(lab.host(id).get("a"), (Some("60".to_owned()), 62), "at {id}");
    }
}

/// It may have granted its leader a lease, and has no record of it.
#[test]
fn a_member_that_comes_back_does_not_vote_at_first() {
    let mut lab = ReplicaCluster::new(3, settings());
    let leader = lab.leader();
    lab.put(leader, "a", "1");
    let other = leader % 3 + 1;
    let third = other % 3 + 1;
    lab.crash(third);
    lab.isolated.push(leader);
    lab.start(third);
    for tick in 0..9 {
        lab.tick(1);
        let leads = lab.host(other).replica().raft.raft().leadership().leader;
        assert_ne!(leads, other, "elected {tick} ticks after a voter came back");
    }
    let new = lab.leader();
    lab.put(new, "a", "2");
    assert_eq!(lab.host(third).get("a").0.as_deref(), Some("2"));
}

/// The clock was set back, or stands still. Entries from before come out of the log again, and are
/// no answer to what is proposed now.
#[test]
fn new_requests_have_other_ids_than_those_in_the_log() {
    let mut lab = ReplicaCluster::new(1, settings());
    lab.leader();
    lab.call(1, |core| core.propose(crate::replica_cluster::put("a", "1")));
    let before = lab.host(1).replica().raft.last_id();
    lab.crash(1);
    lab.host(1).reset_start_time();
    lab.start(1);
    lab.leader();
    lab.call(1, |core| core.propose(crate::replica_cluster::put("a", "2")));
    let after = lab.host(1).replica().raft.last_id();
    assert!(after > before, "{after:x} after {before:x}");
}
