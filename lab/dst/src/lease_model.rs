//! Leases as plain maps: the state that each member must have after it has applied the log up to
//! some index.
//!
//! Lease clients have their own keys, which sort after the other clients' keys. So a lease that
//! expires deletes no key that the linearizability check reads. It only makes a revision. Lease IDs
//! are not reused.

use std::collections::BTreeMap;

/// All keys of the lease clients have this prefix, which is also the start of their range.
pub const LEASE_KEY_PREFIX: &str = "m";
/// The exclusive end of the range of the lease clients' keys.
pub const LEASE_KEYS_END: &str = "n";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseOp {
    Grant {
        id: i64,
        /// The TTL in seconds. It is at least the server's minimum TTL.
        ttl: i64,
    },
    /// A lease client revokes a lease, or the leader revokes it because it has expired.
    Revoke(i64),
    /// The ID and the remaining TTL of each lease.
    Checkpoint(Vec<(i64, i64)>),
    Put {
        key: String,
        /// The lease of the key. 0 if the key is attached to no lease.
        lease: i64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelLease {
    /// The granted TTL, in seconds.
    pub ttl: i64,
    /// The remaining TTL at the last checkpoint, in seconds. 0 if there was no checkpoint.
    pub remaining_ttl: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseModel {
    pub leases: BTreeMap<i64, ModelLease>,
    /// The lease that each key is attached to.
    pub keys: BTreeMap<String, i64>,
}

impl LeaseModel {
    /// Applies the operation. Returns whether the operation makes a revision.
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
