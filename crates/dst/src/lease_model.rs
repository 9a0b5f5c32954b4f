//! Leases as plain maps: what all members must have, as far as they have applied the log.
//!
//! Lease clients have keys of their own, behind those of the clients, so that a lease that ends
//! takes away nothing that a client has been told of. All that clients see of them is that
//! revisions are used up.
//!
//! No lease has the name of one before. So whatever is said of a lease is said of one only.

use std::collections::BTreeMap;

/// In front of the keys of lease clients.
pub const LEASE_KEY_PREFIX: &str = "m";
/// Behind the last of them.
pub const LEASE_KEYS_END: &str = "n";

/// What an entry does to leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseOp {
    /// A lease is granted.
    Grant {
        /// Its name.
        id: i64,
        /// For this number of seconds. Not less than the least there is.
        ttl: i64,
    },
    /// A lease ends, at a lease client's request or by the leader's clock.
    Revoke(i64),
    /// How much is left of leases.
    Checkpoint(Vec<(i64, i64)>),
    /// A key is put, and hangs on this lease from now on; on none, if it is 0.
    Put {
        /// The key.
        key: String,
        /// The lease.
        lease: i64,
    },
}

/// A lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelLease {
    /// For how long it was granted.
    pub ttl: i64,
    /// What was left at the last checkpoint; 0 if that does not count.
    pub remaining_ttl: i64,
}

/// All leases, and all keys of lease clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseModel {
    /// The leases.
    pub leases: BTreeMap<i64, ModelLease>,
    /// On which lease each key hangs.
    pub keys: BTreeMap<String, i64>,
}

impl LeaseModel {
    /// Does it. Says whether that makes a revision.
    pub fn apply(&mut self, act: &LeaseOp) -> bool {
        match act {
            LeaseOp::Grant { id, ttl } => {
                self.leases.entry(*id).or_insert(ModelLease { ttl: *ttl, remaining_ttl: 0 });
                false
            }
            LeaseOp::Revoke(id) => {
                let before = self.keys.len();
                if self.leases.remove(id).is_some() {
                    self.keys.retain(|_, lease| lease != id);
                }
                self.keys.len() < before
            }
            LeaseOp::Checkpoint(checkpoints) => {
                for (id, left) in checkpoints {
                    self.leases.entry(*id).and_modify(|granted| granted.remaining_ttl = *left);
                }
                false
            }
            LeaseOp::Put { key, lease } => {
                let may = *lease == 0 || self.leases.contains_key(lease);
                if may {
                    self.keys.insert(key.clone(), *lease);
                }
                may
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plain_leases_do_what_etcds_do() {
        let put = |key: &str, lease| LeaseOp::Put { key: key.to_owned(), lease };
        let mut tenancy = LeaseModel::default();
        assert!(!tenancy.apply(&put("m1", 7)), "there is no such lease");
        assert!(!tenancy.apply(&LeaseOp::Grant { id: 7, ttl: 3 }));
        assert!(!tenancy.apply(&LeaseOp::Grant { id: 7, ttl: 9 }));
        assert!(!tenancy.apply(&LeaseOp::Checkpoint(vec![(7, 2), (8, 2)])));
        assert_eq!(tenancy.leases, BTreeMap::from([(7, ModelLease { ttl: 3, remaining_ttl: 2 })]));
        assert!(tenancy.apply(&put("m1", 7)) && tenancy.apply(&put("m2", 7)));
        assert!(tenancy.apply(&put("m2", 0)));
        assert!(tenancy.apply(&LeaseOp::Revoke(7)), "one key went with it");
        assert_eq!(tenancy.keys, BTreeMap::from([("m2".to_owned(), 0)]));
        assert!(!tenancy.apply(&LeaseOp::Revoke(7)), "it is gone");
    }
}
