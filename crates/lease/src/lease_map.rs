//! Which leases there are, and which keys are attached to them.
//!
//! ```text
//!   leases                              holders
//!   7 ─▶ ttl 60, left 0,  { a, b }      a ─▶ 7     b ─▶ 7
//!   9 ─▶ ttl 5,  left 0,  { }
//!
//!   put b, lease 9:   b leaves 7 and comes to 9        b ─▶ 9
//!   delete a:         a leaves 7                       a is gone here
//! ```
//!
//! * A key is among those of a lease exactly if the holders say so, and only of a lease that is
//!   there.
//! * The keys of a lease are sorted, because all members must delete them in one order.
//! * The holders are looked up with every put, and not walked.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use bytes::Bytes;

/// Where there is no leader to set a moment.
pub(crate) const NEVER: Duration = Duration::MAX;

#[derive(Debug)]
pub(crate) struct Lease {
    /// Granted, in seconds.
    pub(crate) ttl: i64,
    /// Seconds that were left at the last checkpoint; 0 if that does not count.
    pub(crate) remaining_ttl: i64,
    /// When it ends. [`NEVER`] at members that do not lead.
    pub(crate) expiry: Duration,
    /// Under which moment the leader's schedule has it. Renewals do not move it there.
    pub(crate) queued_at: Option<Duration>,
    /// Under which moment its next checkpoint is scheduled.
    pub(crate) checkpoint_at: Option<Duration>,
    pub(crate) keys: BTreeSet<Bytes>,
}

/// A lease as all members have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseState {
    pub id: i64,
    /// Granted, in seconds.
    pub ttl: i64,
    /// In seconds, at the last checkpoint.
    pub remaining_ttl: i64,
    pub keys: Vec<Bytes>,
}

impl Lease {
    pub(crate) fn renewal_ttl(&self) -> Duration {
        let is_checkpointed = self.remaining_ttl > 0;
        ttl_duration(if is_checkpointed { self.remaining_ttl.min(self.ttl) } else { self.ttl })
    }

    pub(crate) fn is_expired(&self, now: Duration) -> bool {
        self.expiry <= now
    }
}

pub(crate) fn ttl_duration(ttl: i64) -> Duration {
    Duration::from_secs(ttl.max(0).unsigned_abs())
}

#[derive(Debug, Default)]
pub(crate) struct LeaseMap {
    pub(crate) by_id: BTreeMap<i64, Lease>,
    lease_of_key: HashMap<Bytes, i64>,
}

impl LeaseMap {
    /// Adds a lease, of which there is none yet. It does not end until an expiry is set.
    pub(crate) fn add(&mut self, id: i64, ttl: i64, remaining_ttl: i64) {
        let (queued_at, checkpoint_at, keys) = (None, None, BTreeSet::new());
        let lease = Lease { ttl, remaining_ttl, expiry: NEVER, queued_at, checkpoint_at, keys };
        self.by_id.insert(id, lease);
    }

    /// Keys that are still attached to it are attached to no lease then.
    pub(crate) fn remove(&mut self, id: i64) -> Option<Lease> {
        let lease = self.by_id.remove(&id)?;
        for key in &lease.keys {
            self.lease_of_key.remove(key);
        }
        Some(lease)
    }

    /// To no lease if there is none of this id.
    pub(crate) fn attach(&mut self, key: &Bytes, lease: i64) {
        let lease = Some(lease).filter(|lease| self.by_id.contains_key(lease));
        let before = match lease {
            Some(lease) => self.lease_of_key.insert(key.clone(), lease),
            None => self.lease_of_key.remove(key),
        };
        if before == lease {
            return;
        }
        if let Some(before) = before.and_then(|id| self.by_id.get_mut(&id)) {
            before.keys.remove(key);
        }
        if let Some(now) = lease.and_then(|id| self.by_id.get_mut(&id)) {
            now.keys.insert(key.clone());
        }
    }

    /// In no order.
    pub(crate) fn attached_keys(&self) -> impl Iterator<Item = &Bytes> {
        self.lease_of_key.keys()
    }

    pub(crate) fn attached_count(&self) -> usize {
        self.lease_of_key.len()
    }
}
