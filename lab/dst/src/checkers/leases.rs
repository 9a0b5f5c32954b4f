//! Members that have applied the same have the same leases with the same keys, and a lease that is
//! kept alive does not expire.
//!
//! A lease is in three places (memory, its record, the records of its keys); a crash between two of
//! them, or an entry that is applied again on an older store, would show as a difference from the
//! plain maps that the log makes.
//!
//! For the second rule, the deadline counts from the moment at which the lease client *sent* its
//! request: the leader that answered led at some time after that, and the next one begins later.
//! The lease may expire earlier by as much as clocks may be too fast.

use std::collections::{BTreeMap, BTreeSet};

use clearlane_lease::LeaseState;

use super::{CheckResult, Rule};
use crate::event_queue::{Micros, SECOND};
use crate::lease_model::{LeaseModel, ModelLease};
use crate::machine::text;

#[derive(Debug, Default)]
pub struct LeasePromises {
    /// A lease must not expire before its deadline, under any leader.
    deadlines: BTreeMap<i64, Micros>,
    /// Ids of the requests by which lease clients revoke leases.
    client_revokes: BTreeSet<u64>,
    pub keep_alives: u64,
    /// Leases that have expired.
    pub expired: u64,
}

impl LeasePromises {
    pub fn expect_revoke(&mut self, request: u64) {
        self.client_revokes.insert(request);
    }

    /// `asked` is when the lease client sent its request; `ttl`, in seconds, is the answer.
    pub fn on_keep_alive(&mut self, id: i64, asked: Micros, ttl: i64, drift_ppm_max: u64) {
        let incarnations = ttl.unsigned_abs() * SECOND * 1_000_000 / (1_000_000 + drift_ppm_max);
        let until = self.deadlines.entry(id).or_default();
        *until = (*until).max(asked + incarnations);
        self.keep_alives += 1;
    }

    /// Called when the first member applies the revocation.
    pub fn on_revoke(&mut self, now: Micros, request: u64, id: i64) -> CheckResult {
        let until = self.deadlines.remove(&id).unwrap_or(0);
        if self.client_revokes.remove(&request) {
            return Ok(());
        }
        self.expired += 1;
        Rule::Leases.check(now >= until, || {
            format!("lease {id} has ended at {now}, and was to live until {until}")
        })
    }
}

/// `keys` has the lease of each key in the member's store.
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
