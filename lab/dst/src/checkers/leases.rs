//! Members that have applied the same index have the same leases with the same keys. A lease that
//! is kept alive does not expire.
//!
//! A lease is stored in three places: in memory, in its record, and in the records of its keys. If
//! these places contained the effects of different entries after a crash, they would differ from
//! the plain maps of the log. The places would also differ if an entry had a different effect when
//! it is applied again to an older store.
//!
//! For the second rule, the TTL starts when the lease client *sends* its keep-alive request. The
//! leader renews the lease after that time, and no later leader may let it expire earlier. If
//! clocks may be too fast, the required lifetime is shorter. For example, if clocks are up to 25 %
//! fast, a lease with a TTL of 10 s must last for 8 s.

use std::collections::{BTreeMap, BTreeSet};

use clearlane_lease::LeaseState;

use super::{CheckResult, Rule};
use crate::event_queue::{Micros, SECOND};
use crate::lease_model::{LeaseModel, ModelLease};
use crate::machine::text;

#[derive(Debug, Default)]
pub struct LeasePromises {
    /// The deadline of each lease that was kept alive, by lease ID. The lease must not expire
    /// before this deadline, under any leader.
    deadlines: BTreeMap<i64, Micros>,
    /// IDs of the lease clients' revocation requests.
    client_revokes: BTreeSet<u64>,
    pub keep_alives: u64,
    /// Number of leases that have expired.
    pub expired: u64,
}

impl LeasePromises {
    pub fn expect_revoke(&mut self, request: u64) {
        self.client_revokes.insert(request);
    }

    /// Called when a lease client receives the response to a keep-alive request. `asked` is the
    /// time when the client sent the request. `ttl` is the TTL in the response, in seconds. Clocks
    /// are up to `drift_ppm_max` parts per million too fast.
    pub fn on_keep_alive(&mut self, id: i64, asked: Micros, ttl: i64, drift_ppm_max: u64) {
        let lifetime = ttl.unsigned_abs() * SECOND * 1_000_000 / (1_000_000 + drift_ppm_max);
        let until = self.deadlines.entry(id).or_default();
        *until = (*until).max(asked + lifetime);
        self.keep_alives += 1;
    }

    /// Checks that a lease was not revoked before its deadline, unless a lease client has requested
    /// the revocation. Called when the first member applies the revocation.
    pub fn on_revoke(&mut self, now: Micros, request: u64, id: i64) -> CheckResult {
        let until = self.deadlines.remove(&id).unwrap_or(0);
        if self.client_revokes.remove(&request) {
            return Ok(());
        }
        self.expired += 1;
        Rule::Leases.check(now >= until, || {
            format!("lease {id} ended at {now}, but should exist until {until}")
        })
    }
}

/// Checks that the member's leases and their keys equal `expected`, in its store and in its memory.
/// `keys` has the lease of each key in the store.
pub fn check_leases(
    member: u64,
    index: u64,
    leases: &[LeaseState],
    keys: &BTreeMap<String, i64>,
    expected: &LeaseModel,
) -> CheckResult {
    let granted = |lease: &LeaseState| {
        (lease.id, ModelLease { ttl: lease.ttl, remaining_ttl: lease.remaining_ttl })
    };
    let attached =
        leases.iter().flat_map(|lease| lease.keys.iter().map(|key| (text(key), lease.id)));
    let in_memory: BTreeMap<String, i64> = attached.collect();
    let on_leases = keys.iter().filter(|(_, lease)| **lease != 0);
    let found = LeaseModel { leases: leases.iter().map(granted).collect(), keys: keys.clone() };
    let is_same = found == *expected && in_memory.iter().eq(on_leases);
    Rule::Leases.check(is_same, || {
        format!(
            "{member} has applied {index} and has {found:?}, in memory {in_memory:?}, not {expected:?}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease_model::LeaseOp;

    #[test]
    fn leases_that_differ_are_found() {
        let mut leases = LeaseModel::default();
        leases.apply(&LeaseOp::Grant { id: 7, ttl: 3 });
        leases.apply(&LeaseOp::Put { key: "m1".to_owned(), lease: 7 });
        leases.apply(&LeaseOp::Put { key: "m2".to_owned(), lease: 0 });
        let of = |id, left, keys: &[&'static str]| LeaseState {
            id,
            ttl: 3,
            remaining_ttl: left,
            keys: keys.iter().map(|key| (*key).into()).collect(),
        };
        let (right, keys) = (of(7, 0, &["m1"]), leases.keys.clone());
        assert_eq!(check_leases(1, 9, std::slice::from_ref(&right), &keys, &leases), Ok(()));
        for wrong in [vec![], vec![of(8, 0, &["m1"])], vec![of(7, 1, &["m1"])], vec![of(7, 0, &[])]]
        {
            let told = check_leases(1, 9, &wrong, &keys, &leases);
            assert_eq!(told.unwrap_err().rule, Rule::Leases, "{wrong:?}");
        }
        let moved = BTreeMap::from([("m1".to_owned(), 7)]);
        let told = check_leases(1, 9, &[right], &moved, &leases);
        assert_eq!(told.unwrap_err().rule, Rule::Leases);
    }

    #[test]
    fn a_lease_that_ends_too_early_is_found() {
        let promises = || {
            let mut promises = LeasePromises::default();
            promises.on_keep_alive(7, SECOND, 10, 250_000);
            promises.on_keep_alive(7, 0, 10, 250_000);
            promises
        };
        assert_eq!(promises().on_revoke(9 * SECOND, 1, 7), Ok(()));
        assert_eq!(promises().on_revoke(9 * SECOND - 1, 1, 7).unwrap_err().rule, Rule::Leases);
        assert_eq!(promises().on_revoke(0, 1, 8), Ok(()), "no lease client counts on it");
        let mut own = promises();
        own.expect_revoke(1);
        assert_eq!(own.on_revoke(0, 1, 7), Ok(()));
        assert_eq!((own.keep_alives, own.expired), (2, 0));
    }
}
