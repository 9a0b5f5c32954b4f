//! Tests of starts after a crash: every acknowledged write exists once, and the log is no longer
//! than necessary.

use clearlane_replica::membership::MemberChange;
use clearlane_replica::{AppliedPosition, Error, ReplicaConfig, RequestOutcome, force_new_cluster};

use crate::halves::replica_cluster::ReplicaCluster;
use crate::halves::settings;

/// Before the crash, the store has committed nothing, a part of the writes, or all of them. After
/// the start all writes exist, at the same revisions as before.
#[test]
fn every_write_is_there_once_whenever_the_store_was_committed() {
    for commit_at in [None, Some(0), Some(3), Some(9)] {
        let mut cluster = ReplicaCluster::new(1, settings());
        cluster.leader();
        for number in 0..10 {
            assert!(matches!(
                cluster.put(1, "a", &number.to_string()),
                RequestOutcome::Applied(Ok(_))
            ));
            if commit_at == Some(number) {
                cluster.commit(1);
            }
        }
        cluster.crash(1);
        cluster.start(1);
        cluster.leader();
        assert_eq!(cluster.host(1).get("a"), (Some("9".to_owned()), 11), "commit at {commit_at:?}");
        cluster.put(1, "a", "10");
        assert_eq!(cluster.host(1).get("a").1, 12, "no revision is used twice or left out");
    }
}

/// Clients learn that an entry is committed before the log on disk has the new commit index. So a
/// forced cluster must keep the entries above that index.
#[test]
fn a_forced_cluster_has_the_last_acknowledged_write() {
    for survivor in 1..=3 {
        let mut cluster = ReplicaCluster::new(3, settings());
        let leader = cluster.leader();
        for number in 0..5 {
            let answer = cluster.put(leader, "a", &number.to_string());
            assert!(matches!(answer, RequestOutcome::Applied(Ok(_))));
        }
        (1..=3).for_each(|id| cluster.crash(id));
        let removed = force_new_cluster(&cluster.host(survivor).storage()).unwrap();
        assert_eq!(removed.len(), 2);
        cluster.start(survivor);
        assert_eq!(cluster.leader(), survivor);
        let answer = cluster.put(survivor, "b", "after");
        assert!(matches!(answer, RequestOutcome::Applied(Ok(_))));
        assert_eq!(cluster.host(survivor).get("a"), (Some("4".to_owned()), 7));
    }
}

#[test]
fn the_log_is_shortened_behind_what_is_durable() {
    let mut cluster = ReplicaCluster::new(1, settings());
    cluster.leader();
    for number in 0..100 {
        cluster.put(1, "key", &format!("{number:0100}"));
    }
    assert!(cluster.host(1).segments() > 3, "nothing is durable, nothing may go");
    let (first, _) = cluster.host(1).replica().raft.raft().kept_indexes();
    assert_eq!(first, 1);
    cluster.commit(1);
    let applied = cluster.host(1).replica().applied_position().index;
    assert_eq!(
        cluster.host(1).replica().raft.raft().kept_indexes().0,
        applied - 5 + 1,
        "a few are kept for others"
    );
    cluster.put(1, "key", "last");
    cluster.put(1, "key", "last");
    assert!(cluster.host(1).segments() <= 2, "{} segments", cluster.host(1).segments());
    cluster.crash(1);
    cluster.start(1);
    cluster.leader();
    assert_eq!(cluster.host(1).get("key"), (Some("last".to_owned()), 103));
}

/// The log is also shortened by bytes, because a few large entries need as much memory as many
/// small ones.
#[test]
fn the_log_is_shortened_by_its_bytes_too() {
    let bytes = ReplicaConfig { snapshot_bytes: 10_000, catch_up_bytes: 3500, ..settings() };
    let mut cluster = ReplicaCluster::new(
        1,
        ReplicaConfig { snapshot_count: 1000, catch_up_entries: 500, ..bytes },
    );
    cluster.leader();
    for number in 0..9 {
        cluster.put(1, "key", &format!("{number:01000}"));
    }
    cluster.commit(1);
    assert_eq!(cluster.host(1).replica().raft.raft().kept_indexes().0, 1, "it is not long enough");
    for number in 0..2 {
        cluster.put(1, "key", &format!("{number:01000}"));
    }
    cluster.commit(1);
    let applied = cluster.host(1).replica().applied_position().index;
    assert_eq!(
        cluster.host(1).replica().raft.raft().kept_indexes().0,
        applied - 3 + 1,
        "3 of some 1,050 bytes"
    );
    cluster.crash(1);
    cluster.start(1);
    cluster.leader();
    assert!(
        cluster.host(1).replica().raft.raft().kept_indexes().0 > applied - 3,
        "no more than before"
    );
}

/// An entry without an effect on the store still advances the durable position. Otherwise the log
/// of an idle cluster would grow forever.
#[test]
fn entries_without_effect_are_durable_too() {
    let mut cluster = ReplicaCluster::new(1, settings());
    cluster.leader();
    cluster.put(1, "a", "1");
    cluster.commit(1);
    for _ in 0..3 {
        cluster.crash(1);
        cluster.start(1);
        cluster.leader();
        cluster.tick(1);
    }
    let applied = cluster.host(1).replica().applied_position().clone();
    cluster.commit(1);
    let engine = cluster.host(1).replica().apply.engine.snapshot().unwrap();
    assert_eq!(AppliedPosition::read(&*engine).unwrap(), applied);
}

#[test]
fn a_store_that_is_older_than_the_log_is_refused() {
    let mut cluster = ReplicaCluster::new(1, settings());
    cluster.leader();
    for number in 0..30 {
        cluster.put(1, "a", &number.to_string());
    }
    cluster.commit(1);
    cluster.put(1, "a", "more");
    let host = cluster.host(1);
    host.running = None;
    host.store_dir = std::sync::Arc::default();
    let error = host.try_start(settings()).unwrap_err();
    assert!(matches!(&error, Error::Damaged { what: "the store", .. }), "{error}");
}

/// A change of only the commit index is not synced. So after a crash the store may be above the
/// log's commit index. A start must then write the commit index. Otherwise a later snapshot record
/// of the store's position would be ignored at the next start, although segments below the record
/// may have been removed.
#[test]
fn a_record_of_the_store_counts_although_the_commit_index_was_lost() {
    let mut cluster = ReplicaCluster::new(3, settings());
    let leader = cluster.leader();
    let follower = leader % 3 + 1;
    for number in 0..60 {
        cluster.put(leader, "a", &format!("{number:0300}"));
    }
    cluster.tick(2);
    cluster.host(follower).replica().store().commit().unwrap();
    cluster.crash(follower);
    cluster.start(follower);
    cluster.tick(3);
    assert_eq!(cluster.leader(), leader);
    assert!(cluster.host(follower).segments() > 3);
    cluster.commit(follower);
    assert!(cluster.host(follower).segments() <= 3, "the log was shortened");
    cluster.crash(follower);
    cluster.start(follower);
    cluster.put(leader, "a", "after");
    cluster.tick(2);
    assert_eq!(cluster.host(follower).get("a").0.as_deref(), Some("after"));
}

/// etcd applies an entry while it writes the entry to its log, so its store may be ahead of its
/// log. If etcd wrote the store last, a member continues after the store's position. It is a voter,
/// but cannot send earlier entries to other members. Its later starts must succeed as well.
#[test]
fn a_log_that_ends_before_the_store_begins_anew_behind_it() {
    for (members, term_rises) in [(1, false), (3, false), (3, true)] {
        let mut cluster = ReplicaCluster::new(members, settings());
        let leader = cluster.leader();
        let cut_off = leader % members + 1;
        cluster.put(leader, "a", "in the log");
        let log = cluster.synced_log(cut_off);
        let log_end = cluster.host(leader).replica().applied_position().index;
        if term_rises {
            cluster.crash(leader);
            let next = cluster.leader();
            assert_ne!(next, leader);
            cluster.start(leader);
            cluster.tick(2);
        }
        let leader = cluster.leader();
        cluster.put(leader, "a", "in the store");
        cluster.tick(2);
        cluster.host(cut_off).replica().store().commit().unwrap();
        let applied = cluster.host(cut_off).replica().applied_position().index;
        cluster.crash_with_log(cut_off, log);
        let settings = settings();
        let error = cluster.host(cut_off).try_start(settings).unwrap_err();
        assert!(error.is_log_loss(), "{error}");
        let missing = format!(
            "the log ends at entry {log_end}, and the store has applied up to entry {applied}: \
             entries {} to {applied} are missing from the log",
            log_end + 1
        );
        assert_eq!(error.to_string(), missing);
        // At the first start, an option states that etcd wrote the store last. So the log may
        // continue after the store's position. Later starts find no gap.
        cluster.host(cut_off).wal.etcd_wrote_last = true;
        for round in 0..3 {
            cluster.start(cut_off);
            cluster.host(cut_off).wal.etcd_wrote_last = false;
            let (first, _) = cluster.host(cut_off).replica().raft.raft().kept_indexes();
            assert!(first > log_end + 1, "{first} behind {log_end}");
            cluster.tick(2);
            let leader = cluster.leader();
            if round == 0 {
                assert_eq!(cluster.host(cut_off).get("a").0.as_deref(), Some("in the store"));
            }
            let value = format!("after {round}");
            assert!(matches!(cluster.put(leader, "a", &value), RequestOutcome::Applied(Ok(_))));
            cluster.tick(2);
            let seen = cluster.host(cut_off).get("a");
            assert_eq!(seen, (Some(value), 4 + round), "{members} {term_rises}");
            cluster.crash(cut_off);
        }
        // Writes must also succeed while the member with the short log leads.
        cluster.start(cut_off);
        cluster.tick(2);
        for other in (1..=members).filter(|other| *other != cut_off) {
            cluster.isolated = vec![other];
            cluster.tick(30);
            cluster.isolated.clear();
            cluster.tick(30);
        }
        let leader = cluster.leader();
        cluster.put(leader, "a", "last");
        cluster.tick(2);
        for id in 1..=members {
            assert_eq!(
                cluster.host(id).get("a"),
                (Some("last".to_owned()), 7),
                "{id} of {members}"
            );
        }
    }
}

/// The removal of a member is durable in its store. If the member is started again, each start must
/// stop the member after some ticks.
#[test]
fn a_member_that_was_removed_is_told_so_at_each_start() {
    let mut cluster = ReplicaCluster::new(3, settings());
    let leader = cluster.leader();
    let leaves = leader % 3 + 1;
    cluster.call(leader, |core| core.change_members(&MemberChange::Remove { id: leaves }));
    cluster.deliver_all();
    cluster.tick(13);
    assert!(cluster.host(leaves).is_stopping);
    cluster.commit(leaves);
    for _ in 0..2 {
        cluster.crash(leaves);
        cluster.host(leaves).is_stopping = false;
        cluster.start(leaves);
        cluster.tick(10);
        assert!(cluster.host(leaves).is_stopping);
    }
    cluster.crash(leader);
    cluster.start(leader);
    assert!(!cluster.host(leader).is_stopping);
}

/// The owner of a member creates a log if there is none, and otherwise starts from the log. So if
/// the power fails while the log is being created, there must be no log or a complete one.
#[test]
fn a_new_member_has_no_log_or_one_with_its_first_members() {
    for (step, seed) in (1..=19).flat_map(|step| (0..8).map(move |seed| (step, seed))) {
        let mut cluster = ReplicaCluster::new(0, settings());
        let has_log = cluster.add_with_power_cut_at(1, step, seed);
        if has_log {
            cluster.start(1);
            cluster.leader();
            assert!(
                matches!(cluster.put(1, "a", "1"), RequestOutcome::Applied(Ok(_))),
                "{step} {seed}"
            );
        }
        assert!(if step == 1 { !has_log } else { has_log || step < 19 }, "{step} {seed}");
    }
}

/// A start must fail if any of its disk operations fails. This matters most for a sync: a second
/// sync would succeed, even if the data is not on disk.
#[test]
fn whatever_fails_at_a_start_it_is_none() {
    for step in 1.. {
        let mut cluster = ReplicaCluster::new(1, settings());
        cluster.leader();
        for number in 0..60 {
            cluster.put(1, "a", &number.to_string());
            if number % 25 == 24 {
                cluster.commit(1);
            }
        }
        cluster.crash(1);
        let (starts, operations) = cluster.start_that_fails_at(1, step);
        assert_eq!(starts, operations < step, "of {operations} operations, {step} fails");
        if starts {
            return;
        }
    }
}

#[test]
fn a_whole_cluster_comes_back() {
    let mut cluster = ReplicaCluster::new(3, settings());
    let leader = cluster.leader();
    for number in 0..60 {
        cluster.put(leader, "a", &number.to_string());
        if number % 7 == 0 {
            cluster.commit(number % 3 + 1);
        }
    }
    for id in 1..=3 {
        cluster.crash(id);
    }
    for id in 1..=3 {
        cluster.start(id);
    }
    let leader = cluster.leader();
    cluster.put(leader, "a", "60");
    cluster.tick(2);
    for id in 1..=3 {
        assert_eq!(cluster.host(id).get("a"), (Some("60".to_owned()), 62), "at {id}");
    }
}

/// The member may have supported a lease of its leader before it stopped, and has no record of that
/// lease. So it does not vote for one election time-out after its start.
#[test]
fn a_member_that_comes_back_does_not_vote_at_first() {
    let mut cluster = ReplicaCluster::new(3, settings());
    let leader = cluster.leader();
    cluster.put(leader, "a", "1");
    let other = leader % 3 + 1;
    let third = other % 3 + 1;
    cluster.crash(third);
    cluster.isolated.push(leader);
    cluster.start(third);
    for tick in 0..9 {
        cluster.tick(1);
        let leads = cluster.host(other).replica().raft.raft().leadership().leader;
        assert_ne!(leads, other, "elected {tick} ticks after a voter came back");
    }
    let new = cluster.leader();
    cluster.put(new, "a", "2");
    assert_eq!(cluster.host(third).get("a").0.as_deref(), Some("2"));
}

/// The clock was set back or is stopped, but new requests must get new ids. Old entries are read
/// from the log again, and must not complete requests that are proposed now.
#[test]
fn new_requests_have_other_ids_than_those_in_the_log() {
    let mut cluster = ReplicaCluster::new(1, settings());
    cluster.leader();
    cluster.call(1, |core| core.propose(crate::halves::replica_cluster::put("a", "1")));
    let before = cluster.host(1).replica().raft.last_id();
    cluster.crash(1);
    cluster.host(1).reset_start_time();
    cluster.start(1);
    cluster.leader();
    cluster.call(1, |core| core.propose(crate::halves::replica_cluster::put("a", "2")));
    let after = cluster.host(1).replica().raft.last_id();
    assert!(after > before, "{after:x} after {before:x}");
}
