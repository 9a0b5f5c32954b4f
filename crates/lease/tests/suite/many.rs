//! Tests with up to 100,000 leases: the rate of revocations if all leases expire together, the
//! spreading of expiries by a new leader, and leases with thousands of keys.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::TestLessor;
use clearlane_engine::KeyRange;
use clearlane_lease::expiry::{
    PROPOSED_MAX, REJECTED_REVOCATION_DELAY, REVOKED_PER_SECOND, SCAN_INTERVAL,
};
use clearlane_lease::{Config, Renewal};

const MANY: i64 = 100_000;

fn lessor(leases: i64) -> TestLessor {
    let lessor = TestLessor::new(Config::new(Duration::from_secs(1)));
    lessor.inner.promote(lessor.now);
    for id in 1..=leases {
        assert_eq!(lessor.grant(id, 10), Ok(10));
    }
    lessor
}

/// Repeatedly carries out all revocations that are due, until no lease is left. Returns the number
/// of revocations at each time.
fn run(lessor: &mut TestLessor) -> BTreeMap<Duration, usize> {
    let mut revoked = BTreeMap::new();
    while let Some(next) = lessor.inner.next_due() {
        lessor.now = lessor.now.max(next);
        let due = lessor.inner.due(lessor.now);
        assert!(due.revoke.len() <= PROPOSED_MAX, "{} at once", due.revoke.len());
        *revoked.entry(lessor.now).or_default() += due.revoke.len();
        due.revoke.iter().for_each(|id| assert!(lessor.revoke(*id).is_ok()));
    }
    assert_eq!(lessor.inner.count(), 0);
    revoked
}

#[test]
fn they_go_at_a_pace() {
    let mut lessor = lessor(MANY);
    let revoked = run(&mut lessor);
    assert_eq!(revoked.values().sum::<usize>(), MANY as usize);
    assert!(revoked.values().all(|count| *count <= REVOKED_PER_SECOND / 2), "{revoked:?}");
    let took = lessor.now - Duration::from_secs(10);
    let expected = SCAN_INTERVAL * (MANY as u32 * 2 / REVOKED_PER_SECOND as u32 - 1);
    assert_eq!(took, expected);
}

#[test]
fn a_new_leader_spreads_them() {
    let mut lessor = lessor(20_000);
    lessor.now = Duration::from_secs(60);
    lessor.inner.promote(lessor.now);
    let list = lessor.inner.list();
    let left = |id: &i64| lessor.inner.time_to_live(*id, lessor.now).unwrap().remaining.unwrap();
    assert_eq!(left(&list[0]), 11, "none is shorter");
    let mut per_second: BTreeMap<i64, usize> = BTreeMap::new();
    list.iter().for_each(|id| *per_second.entry(left(id)).or_default() += 1);
    let most = per_second.values().max().copied().unwrap();
    assert!(most <= REVOKED_PER_SECOND * 3 / 4 + 1, "{most} in a second");
    assert_eq!(per_second.len(), 27, "as many seconds as it takes, and no more");
}

#[test]
fn a_few_are_not_spread() {
    let lessor = TestLessor::new(Config::new(Duration::from_secs(1)));
    (1..=900).for_each(|id| assert!(lessor.grant(id, 10).is_ok()));
    lessor.inner.promote(lessor.now);
    let at = lessor.now + Duration::from_secs(11);
    let just_before = at - Duration::from_nanos(1);
    assert!((1..=900).all(|id| lessor.inner.renew(id, just_before) == Renewal::Renewed(10)));
    lessor.inner.promote(lessor.now);
    assert!((1..=900).all(|id| lessor.inner.renew(id, at) == Renewal::NotFound));
}

/// The lease has more keys than the lessor processes under one lock, and there are keys of another
/// lease between them. A revocation must delete all keys of the lease and no others.
#[test]
fn a_lease_with_many_keys_takes_them_with_it() {
    let lessor = lessor(2);
    let keys = 5_000_u32;
    let key = |number: u32| format!("key/{number:05}").into_bytes();
    lessor.write(|txn| {
        for number in 0..keys {
            txn.put(&key(number), b"", i64::from(number % 3)).unwrap();
        }
    });
    assert_eq!(lessor.inner.key_count(1) + lessor.inner.key_count(2), 3_333);
    let before = lessor.store.begin_read().revision();
    assert_eq!(lessor.revoke(1), Ok(before + 1), "at one revision");
    let left = |number: &u32| number % 3 != 1;
    let expected: Vec<_> = (0..keys).filter(left).map(key).collect();
    assert!(lessor.keys().iter().map(String::as_bytes).eq(expected.iter().map(Vec::as_slice)));
    assert_eq!((lessor.inner.key_count(1), lessor.inner.key_count(2)), (0, 1_666));
    // This range contains keys with and without a lease.
    lessor.write(|txn| assert_eq!(txn.delete_range(KeyRange::ALL).unwrap(), 3_333));
    assert_eq!((lessor.inner.key_count(2), lessor.keys().len()), (0, 0));
    assert_eq!(lessor.inner.count(), 1, "a lease outlives its keys");
}

/// The 2,000 keys of the lease form one range, and one call of `forget_ended` does not forget all
/// these keys. Some keys are put again before the first call and between two calls. These keys must
/// then be attached to the lease of the new put.
#[test]
fn the_keys_of_a_revoked_lease_are_forgotten_later() {
    let mut lessor = lessor(2);
    let keys = 2_000_u32;
    let key = |number: u32| format!("key/{number:05}").into_bytes();
    let put = |lessor: &TestLessor, numbers: std::ops::Range<u32>, lease: i64| {
        lessor.write(|txn| {
            numbers.for_each(|number| txn.put(&key(number), b"", lease).unwrap());
        });
    };
    put(&lessor, 0..keys, 1);
    let before = lessor.store.begin_read().revision();
    assert_eq!(lessor.revoke(1), Ok(before + 1), "at one revision");
    assert!(lessor.keys().is_empty() && lessor.inner.count() == 1);
    assert_eq!(lessor.grant(1, 10), Ok(10));
    assert_eq!(lessor.inner.key_count(1), 0, "another lease of this id");
    put(&lessor, 0..10, 1);
    put(&lessor, 10..20, 2);
    put(&lessor, 20..30, 0);
    lessor.write(|txn| assert_eq!(txn.delete_range(KeyRange::new(&key(5), &key(15))).unwrap(), 10));
    let mut steps = 1;
    while lessor.inner.forget_ended() {
        put(&lessor, 100 + steps..101 + steps, i64::from(steps % 3));
        steps += 1;
    }
    assert!(steps > 5, "{steps} steps");
    let states = lessor.inner.lease_states();
    let of_first = (0..5).chain((101..100 + steps).filter(|number| (number - 100) % 3 == 1));
    assert!(states[0].keys.iter().eq(&of_first.map(key).collect::<Vec<_>>()));
    lessor.store.commit().unwrap();
    lessor.crash();
    assert_eq!(lessor.inner.lease_states(), states);
    assert!(lessor.revoke(1).is_ok() && lessor.revoke(2).is_ok());
    assert_eq!(lessor.keys().len() as u32, 10 + (steps - 1) / 3);
}

/// Deletes a range three times. First all keys have a lease, then every seventh key, and then only
/// the first key, which is outside the range. The deleted keys must be attached to no lease.
#[test]
fn keys_that_are_deleted_at_once_hang_on_no_lease() {
    let lessor = lessor(2);
    let key = |number: u32| format!("key/{number:05}").into_bytes();
    for step in [1, 7, 3_000] {
        lessor.write(|txn| {
            for number in 0..3_000_u32 {
                let lease = i64::from(number.is_multiple_of(step));
                txn.put(&key(number), b"", lease).unwrap();
            }
            txn.put(b"other", b"", 2).unwrap();
        });
        let has_lease = |number: &u32| number.is_multiple_of(step);
        let leased = |from: u32, to: u32| (from..to).filter(has_lease).count();
        assert_eq!(lessor.inner.key_count(1), leased(0, 3_000));
        let (low, high) = (key(1_000), key(2_500));
        lessor.write(|txn| {
            assert_eq!(txn.delete_range(KeyRange::new(&low, &high)).unwrap(), 1_500);
            // A key that is put again in the same transaction gets the lease of the put.
            txn.put(&key(2_000), b"", 2).unwrap();
        });
        let left = leased(0, 1_000) + leased(2_500, 3_000);
        assert_eq!(
            (lessor.inner.key_count(1), lessor.inner.key_count(2)),
            (left, 2),
            "every {step}"
        );
        lessor.write(|txn| txn.delete_range(KeyRange::ALL).map(drop).unwrap());
        assert_eq!((lessor.inner.key_count(1), lessor.inner.key_count(2)), (0, 0), "every {step}");
    }
}

/// Many leases are renewed. The scan for expired leases must still find the only lease that has
/// expired.
#[test]
fn what_is_kept_alive_hides_nothing() {
    let many = 30_000;
    let mut lessor = lessor(many);
    lessor.now = Duration::from_secs(9);
    (1..=many).for_each(|id| assert_eq!(lessor.inner.renew(id, lessor.now), Renewal::Renewed(10)));
    lessor.grant(many + 1, 2).unwrap();
    lessor.now += Duration::from_secs(2);
    let mut steps = 0;
    let revoked = loop {
        let due = lessor.inner.due(lessor.now);
        steps += 1;
        if !due.revoke.is_empty() {
            break due.revoke;
        }
        assert!(lessor.inner.next_due().unwrap() <= lessor.now, "it wants to go on");
    };
    assert_eq!(revoked, [many + 1]);
    assert!(steps > 10, "{steps} steps, not one long one");
}

/// The TTL of a lease starts when the grant is visible. So an entry that takes long to apply does
/// not shorten the lease that it grants.
#[test]
fn the_time_of_a_lease_begins_when_its_grant_can_be_seen() {
    let mut lessor = TestLessor::new(Config::new(Duration::from_secs(1)));
    lessor.inner.promote(lessor.now);
    lessor.write(|txn| assert_eq!(lessor.inner.grant(7, 2, txn).unwrap(), Ok(2)));
    lessor.now += Duration::from_secs(5);
    assert!(lessor.inner.due(lessor.now).is_empty());
    assert_eq!(lessor.inner.time_to_live(7, lessor.now).unwrap().remaining, Some(2));
    lessor.inner.start_expiry(7, lessor.now);
    // The expiry starts once: a second call does not extend it.
    lessor.inner.start_expiry(7, lessor.now + Duration::from_secs(1));
    lessor.now += Duration::from_secs(2);
    assert_eq!(lessor.inner.due(lessor.now).revoke, [7]);
}

#[test]
fn a_renewal_with_an_old_clock_does_not_revive_a_lease() {
    let lessor = lessor(100);
    let expired = Duration::from_secs(11);
    let due = lessor.inner.due(expired);
    assert_eq!(due.revoke.len(), PROPOSED_MAX, "the others are ready");
    for id in 1..=100 {
        let before = Duration::from_secs(9);
        assert_eq!(lessor.inner.renew(id, before), Renewal::NotFound, "lease {id}");
    }
}

#[test]
fn a_rejected_revocation_is_proposed_again() {
    let mut lessor = lessor(PROPOSED_MAX as i64);
    let start = Duration::from_secs(10);
    let due = lessor.inner.due(start);
    assert_eq!(due.revoke.len(), PROPOSED_MAX);
    due.revoke.iter().for_each(|id| lessor.inner.revocation_rejected(*id));
    let again = lessor.inner.next_due().unwrap();
    assert!(again >= start + REJECTED_REVOCATION_DELAY, "{again:?}");
    lessor.now = again;
    assert_eq!(lessor.inner.due(again).revoke, due.revoke);
    assert_eq!(lessor.inner.renew(1, again), Renewal::NotFound);
}
