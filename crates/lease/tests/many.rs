//! A hundred thousand leases end at once: how fast they go, and how little is done at a time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use clearlane_engine::KeyRange;
use clearlane_lease::expiry::{PROPOSED_MAX, REVOKED_PER_SECOND, SCAN_INTERVAL};
use clearlane_lease::{Config, Renewal};
use support::TestLessor;

const MANY: i64 = 100_000;

fn lab(leases: i64) -> TestLessor {
    let lab = TestLessor::new(Config::new(Duration::from_secs(1)));
    lab.lessor.promote(lab.now);
    for id in 1..=leases {
        assert_eq!(lab.grant(id, 10), Ok(10));
    }
    lab
}

/// Carries out all that is due until nothing is left, and says how many were revoked in each scan.
fn run(lab: &mut TestLessor) -> BTreeMap<Duration, usize> {
    let mut revoked = BTreeMap::new();
    while let Some(next) = lab.lessor.next_due() {
        lab.now = lab.now.max(next);
        let due = lab.lessor.due(lab.now);
        assert!(due.revoke.len() <= PROPOSED_MAX, "{} at once", due.revoke.len());
        *revoked.entry(lab.now).or_default() += due.revoke.len();
        due.revoke.iter().for_each(|id| assert!(lab.revoke(*id).is_ok()));
    }
    assert_eq!(lab.lessor.count(), 0);
    revoked
}

#[test]
fn they_go_at_a_pace() {
    let mut lab = lab(MANY);
    let revoked = run(&mut lab);
    assert_eq!(revoked.values().sum::<usize>(), MANY as usize);
    assert!(revoked.values().all(|count| *count <= REVOKED_PER_SECOND / 2), "{revoked:?}");
    let took = lab.now - Duration::from_secs(10);
    let expected = SCAN_INTERVAL * (MANY as u32 * 2 / REVOKED_PER_SECOND as u32 - 1);
    assert_eq!(took, expected);
}

#[test]
fn a_new_leader_spreads_them() {
    let mut lab = lab(20_000);
    lab.now = Duration::from_secs(60);
    lab.lessor.promote(lab.now);
    let list = lab.lessor.list();
    let left = |id: &i64| lab.lessor.time_to_live(*id, lab.now).unwrap().remaining.unwrap();
    assert_eq!(left(&list[0]), 11, "none is shorter");
    let mut per_second: BTreeMap<i64, usize> = BTreeMap::new();
    list.iter().for_each(|id| *per_second.entry(left(id)).or_default() += 1);
    let most = per_second.values().max().copied().unwrap();
    assert!(most <= REVOKED_PER_SECOND * 3 / 4 + 1, "{most} in a second");
    assert_eq!(per_second.len(), 27, "as many seconds as it takes, and no more");
}

#[test]
fn a_few_are_not_spread() {
    let lab = TestLessor::new(Config::new(Duration::from_secs(1)));
    (1..=900).for_each(|id| assert!(lab.grant(id, 10).is_ok()));
    lab.lessor.promote(lab.now);
    let at = lab.now + Duration::from_secs(11);
    let just_before = at - Duration::from_nanos(1);
    assert!((1..=900).all(|id| lab.lessor.renew(id, just_before) == Renewal::Renewed(10)));
    lab.lessor.promote(lab.now);
    assert!((1..=900).all(|id| lab.lessor.renew(id, at) == Renewal::NotFound));
}

/// More keys than the lessor takes its lock for at once, and others between them.
#[test]
fn a_lease_with_many_keys_takes_them_with_it() {
    let lab = lab(2);
    let keys = 5_000_u32;
    let key = |number: u32| format!("key/{number:05}").into_bytes();
    lab.write(|txn| {
        for number in 0..keys {
            txn.put(&key(number), b"", i64::from(number % 3)).unwrap();
        }
    });
    assert_eq!(lab.lessor.key_count(1) + lab.lessor.key_count(2), 3_333);
    let before = lab.store.begin_read().revision();
    assert_eq!(lab.revoke(1), Ok(before + 1), "at one revision");
    let left = |number: &u32| number % 3 != 1;
    let expected: Vec<_> = (0..keys).filter(left).map(key).collect();
    assert!(lab.keys().iter().map(String::as_bytes).eq(expected.iter().map(Vec::as_slice)));
    assert_eq!((lab.lessor.key_count(1), lab.lessor.key_count(2)), (0, 1_666));
    // One range has leased keys and others.
    lab.write(|txn| assert_eq!(txn.delete_range(KeyRange::ALL).unwrap(), 3_333));
    assert_eq!((lab.lessor.key_count(2), lab.keys().len()), (0, 0));
    assert_eq!(lab.lessor.count(), 1, "a lease outlives its keys");
}

/// All in one range, and more than are forgotten at a time. Some come again meanwhile.
#[test]
fn the_keys_of_a_revoked_lease_are_forgotten_later() {
    let mut lab = lab(2);
    let keys = 2_000_u32;
    let key = |number: u32| format!("key/{number:05}").into_bytes();
    let put = |lab: &TestLessor, numbers: std::ops::Range<u32>, lease: i64| {
        lab.write(|txn| {
            numbers.for_each(|number| txn.put(&key(number), b"", lease).unwrap());
        });
    };
    put(&lab, 0..keys, 1);
    let before = lab.store.begin_read().revision();
    assert_eq!(lab.revoke(1), Ok(before + 1), "at one revision");
    assert!(lab.keys().is_empty() && lab.lessor.count() == 1);
    assert_eq!(lab.grant(1, 10), Ok(10));
    assert_eq!(lab.lessor.key_count(1), 0, "another lease of this id");
    put(&lab, 0..10, 1);
    put(&lab, 10..20, 2);
    put(&lab, 20..30, 0);
    lab.write(|txn| assert_eq!(txn.delete_range(KeyRange::new(&key(5), &key(15))).unwrap(), 10));
    let mut steps = 1;
    while lab.lessor.forget_ended() {
        put(&lab, 100 + steps..101 + steps, i64::from(steps % 3));
        steps += 1;
    }
    assert!(steps > 5, "{steps} steps");
    let states = lab.lessor.lease_states();
    let of_first = (0..5).chain((101..100 + steps).filter(|number| (number - 100) % 3 == 1));
    assert!(states[0].keys.iter().eq(&of_first.map(key).collect::<Vec<_>>()));
    lab.store.commit().unwrap();
    lab.crash();
    assert_eq!(lab.lessor.lease_states(), states);
    assert!(lab.revoke(1).is_ok() && lab.revoke(2).is_ok());
    assert_eq!(lab.keys().len() as u32, 10 + (steps - 1) / 3);
}

/// All of them, some of them, one of them.
#[test]
fn keys_that_are_deleted_at_once_hang_on_no_lease() {
    let lab = lab(2);
    let key = |number: u32| format!("key/{number:05}").into_bytes();
    for step in [1, 7, 3_000] {
        lab.write(|txn| {
            for number in 0..3_000_u32 {
                let lease = i64::from(number.is_multiple_of(step));
                txn.put(&key(number), b"", lease).unwrap();
            }
            txn.put(b"other", b"", 2).unwrap();
        });
        let has_lease = |number: &u32| number.is_multiple_of(step);
        let leased = |from: u32, to: u32| (from..to).filter(has_lease).count();
        assert_eq!(lab.lessor.key_count(1), leased(0, 3_000));
        let (low, high) = (key(1_000), key(2_500));
        lab.write(|txn| {
            assert_eq!(txn.delete_range(KeyRange::new(&low, &high)).unwrap(), 1_500);
            // A key that comes back in the same transaction has the lease of its put.
            txn.put(&key(2_000), b"", 2).unwrap();
        });
        let left = leased(0, 1_000) + leased(2_500, 3_000);
        assert_eq!((lab.lessor.key_count(1), lab.lessor.key_count(2)), (left, 2), "every {step}");
        lab.write(|txn| txn.delete_range(KeyRange::ALL).map(drop).unwrap());
        assert_eq!((lab.lessor.key_count(1), lab.lessor.key_count(2)), (0, 0), "every {step}");
    }
}

/// Those that live must not keep the scan from finding those that do not.
#[test]
fn what_is_kept_alive_hides_nothing() {
    let many = 30_000;
    let mut lab = lab(many);
    lab.now = Duration::from_secs(9);
    (1..=many).for_each(|id| assert_eq!(lab.lessor.renew(id, lab.now), Renewal::Renewed(10)));
    lab.grant(many + 1, 2).unwrap();
    lab.now += Duration::from_secs(2);
    let mut steps = 0;
    let revoked = loop {
        let due = lab.lessor.due(lab.now);
        steps += 1;
        if !due.revoke.is_empty() {
            break due.revoke;
        }
        assert!(lab.lessor.next_due().unwrap() <= lab.now, "it wants to go on");
    };
    assert_eq!(revoked, [many + 1]);
    assert!(steps > 10, "{steps} steps, not one long one");
}

/// An entry that takes long to apply takes nothing from the leases behind it.
#[test]
fn the_time_of_a_lease_begins_when_its_grant_can_be_seen() {
    let mut lab = TestLessor::new(Config::new(Duration::from_secs(1)));
    lab.lessor.promote(lab.now);
    lab.write(|txn| assert_eq!(lab.lessor.grant(7, 2, txn).unwrap(), Ok(2)));
    lab.now += Duration::from_secs(5);
    assert!(lab.lessor.due(lab.now).is_empty());
    assert_eq!(lab.lessor.time_to_live(7, lab.now).unwrap().remaining, Some(2));
    lab.lessor.start_expiry(7, lab.now);
    // Once: a second call does not make it longer.
    lab.lessor.start_expiry(7, lab.now + Duration::from_secs(1));
    lab.now += Duration::from_secs(2);
    assert_eq!(lab.lessor.due(lab.now).revoke, [7]);
}
