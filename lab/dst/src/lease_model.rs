//! Leases as plain maps: what all members must have, as far as they have applied the log.
//!
//! Lease clients have keys of their own, behind those of the clients, so that an expired lease
//! takes away no key of the linearizability check; it only uses up a revision. Lease ids are not
//! reused.

use std::collections::BTreeMap;

/// First key of the lease clients, all of which have this prefix.
pub const LEASE_KEY_PREFIX: &str = "m";
/// End of their range, exclusive.
pub const LEASE_KEYS_END: &str = "n";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseOp {
    Grant {
        id: i64,
        /// Seconds, at least the server's minimum TTL.
        ttl: i64,
    },
    /// Requested by a lease client, or by the leader when the lease has expired.
    Revoke(i64),
    /// Lease id and remaining TTL.
    Checkpoint(Vec<(i64, i64)>),
    Put {
        key: String,
        /// 0 if the key is attached to no lease.
        lease: i64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelLease {
    /// As granted.
    pub ttl: i64,
    /// At the last checkpoint; 0 if there is none that counts.
    pub remaining_ttl: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseModel {
    pub leases: BTreeMap<i64, ModelLease>,
    /// The lease that each key is attached to.
    pub keys: BTreeMap<String, i64>,
}

impl LeaseModel {
    /// Returns whether this makes a revision.
    pub fn apply(&mut self, op: &LeaseOp) -> bool {
        match op {
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
