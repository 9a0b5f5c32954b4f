//! All leases, and the lease of each attached key.
//!
//! ```text
//!   by_id                               lease_of_key
//!   7 ─▶ ttl 60, left 0,  { a, b }      a ─▶ 7     b ─▶ 7
//!   9 ─▶ ttl 5,  left 0,  { }
//!
//!   put b, lease 9:   b moves from 7 to 9              b ─▶ 9
//!   delete a:         a is removed from 7              a is removed
//! ```
//!
//! * Each key in `Lease::keys` has an entry in `lease_of_key`.
//! * When a lease ends, the entries of its keys stay in `lease_of_key`. An entry stays until
//!   [`forget_ended`](LeaseMap::forget_ended) removes it, or until a later change to the key
//!   replaces or removes it. Until then the key is attached to no lease, even if a new lease has
//!   the same ID.
//! * The keys of a lease are sorted, because all members must delete them in the same order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clearlane_engine::KeyRange;

/// The value of [`Lease::expiry`] if the lease has no expiry time: on members that are not the
/// leader, and on the leader before the expiry starts.
pub(crate) const NEVER: Duration = Duration::MAX;

#[derive(Debug)]
pub(crate) struct Lease {
    /// The granted TTL in seconds.
    pub(crate) ttl: i64,
    /// The seconds that were left at the last checkpoint. It is 0 if there is no checkpoint, or if
    /// a renewal has undone the checkpoint.
    pub(crate) remaining_ttl: i64,
    /// The time at which the lease expires, or [`NEVER`] if this member is not the leader or the
    /// expiry has not started yet.
    pub(crate) expiry: Duration,
    /// The time under which the collection `expiring` of the leader's schedule lists this lease, or
    /// `None` if the collection does not contain the lease. The time is the expiry that the lease
    /// had when it was listed, or a later time if its revocation could not be proposed. A renewal
    /// does not change this field.
    pub(crate) queued_at: Option<Duration>,
    /// The time under which the leader's schedule lists the next checkpoint, or `None` if no
    /// checkpoint is scheduled.
    pub(crate) checkpoint_at: Option<Duration>,
    /// Number of checkpoints that this leader has proposed and that are not applied yet. A
    /// checkpoint that is applied after a renewal would undo the renewal for the next leader.
    pub(crate) open_checkpoints: u32,
    pub(crate) keys: BTreeSet<Bytes>,
}

/// The part of a lease that all members agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseState {
    pub id: i64,
    /// The granted TTL in seconds.
    pub ttl: i64,
    /// The seconds that were left at the last checkpoint, or 0 if there is no checkpoint.
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
    lease_of_key: BTreeMap<Bytes, i64>,
    /// The keys of each ended lease, and how many of these keys have already been removed from
    /// `lease_of_key`.
    ended: VecDeque<(Arc<[Bytes]>, usize)>,
}

impl LeaseMap {
    /// Adds a lease. The map must not already contain a lease with this ID. The lease does not
    /// expire until an expiry is set.
    pub(crate) fn add(&mut self, id: i64, ttl: i64, remaining_ttl: i64) {
        let lease = Lease {
            ttl,
            remaining_ttl,
            expiry: NEVER,
            queued_at: None,
            checkpoint_at: None,
            open_checkpoints: 0,
            keys: BTreeSet::new(),
        };
        self.by_id.insert(id, lease);
    }

    /// Detaches all keys from the lease and returns them, or returns `None` if there is no such
    /// lease. The caller must pass the keys to [`forget_later`](LeaseMap::forget_later).
    pub(crate) fn take_keys(&mut self, id: i64) -> Option<BTreeSet<Bytes>> {
        Some(std::mem::take(&mut self.by_id.get_mut(&id)?.keys))
    }

    pub(crate) fn forget_later(&mut self, keys: Arc<[Bytes]>) {
        if !keys.is_empty() {
            self.ended.push_back((keys, 0));
        }
    }

    /// Removes a lease and returns it, or returns `None` if there is no such lease. The caller must
    /// first have taken its keys with [`take_keys`](LeaseMap::take_keys).
    pub(crate) fn remove(&mut self, id: i64) -> Option<Lease> {
        let lease = self.by_id.remove(&id)?;
        assert!(lease.keys.is_empty(), "keys are attached to lease {id:x}, which is removed");
        Some(lease)
    }

    /// Removes up to `keys_max` keys of an ended lease from `lease_of_key`, except keys that are
    /// attached to a lease again. If these are the last keys of the ended lease, returns all its
    /// keys, so that the caller can drop them without the lock.
    pub(crate) fn forget_ended(&mut self, keys_max: usize) -> Option<Arc<[Bytes]>> {
        let (keys, forgotten) = self.ended.front_mut()?;
        let end = keys.len().min(*forgotten + keys_max);
        for key in &keys[*forgotten..end] {
            let lease = self.lease_of_key.get(key).and_then(|id| self.by_id.get(id));
            if lease.is_none_or(|lease| !lease.keys.contains(key)) {
                self.lease_of_key.remove(key);
            }
        }
        *forgotten = end;
        let is_last = end == keys.len();
        if is_last { self.ended.pop_front().map(|(keys, _)| keys) } else { None }
    }

    pub(crate) fn has_ended_keys(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Attaches a key to a lease. If there is no lease with this ID, the key is attached to no
    /// lease.
    pub(crate) fn attach(&mut self, key: &Bytes, lease: i64) {
        let lease = Some(lease).filter(|lease| self.by_id.contains_key(lease));
        let before = match lease {
            Some(lease) => self.lease_of_key.insert(key.clone(), lease),
            None => self.lease_of_key.remove(key),
        };
        if before != lease
            && let Some(before) = before.and_then(|id| self.by_id.get_mut(&id))
        {
            before.keys.remove(key);
        }
        // `before` may come from an ended lease with the same ID. Then `keys` does not have the key
        // yet.
        if let Some(now) = lease.and_then(|id| self.by_id.get_mut(&id))
            && !(before == lease && now.keys.contains(key))
        {
            now.keys.insert(key.clone());
        }
    }

    /// Detaches the first keys of the range that are in `lease_of_key`, up to `keys_max` keys.
    /// Returns the number of these keys.
    pub(crate) fn detach(&mut self, range: KeyRange<'_>, keys_max: usize) -> usize {
        if range.is_empty() {
            return 0;
        }
        let to = range.to.map_or(Bound::Unbounded, Bound::Excluded);
        let within = self.lease_of_key.range::<[u8], _>((Bound::Included(range.from), to));
        let keys: Vec<Bytes> = within.take(keys_max).map(|(key, _)| key.clone()).collect();
        keys.iter().for_each(|key| self.attach(key, 0));
        keys.len()
    }

    /// Returns the number of attached keys, plus the keys of ended leases that are still in
    /// `lease_of_key`.
    pub(crate) fn attached_count(&self) -> usize {
        self.lease_of_key.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(numbers: std::ops::Range<u8>) -> Vec<Bytes> {
        numbers.map(|number| Bytes::copy_from_slice(&[number])).collect()
    }

    fn end(leases: &mut LeaseMap, id: i64) -> Arc<[Bytes]> {
        let keys: Arc<[Bytes]> = leases.take_keys(id).unwrap().into_iter().collect();
        leases.forget_later(Arc::clone(&keys));
        assert!(leases.remove(id).is_some() && leases.remove(id).is_none());
        keys
    }

    #[test]
    fn the_keys_of_an_ended_lease_are_forgotten_some_at_a_time() {
        let mut leases = LeaseMap::default();
        leases.add(7, 60, 0);
        leases.add(9, 60, 0);
        keys(0..10).iter().for_each(|key| leases.attach(key, 7));
        keys(8..12).iter().for_each(|key| leases.attach(key, 9));
        let ended = end(&mut leases, 7);
        assert!(ended.iter().eq(&keys(0..8)));
        assert_eq!(leases.attached_count(), 12);
        assert!(leases.forget_ended(3).is_none() && leases.forget_ended(3).is_none());
        assert_eq!((leases.attached_count(), leases.has_ended_keys()), (6, true));
        assert_eq!(leases.forget_ended(3), Some(ended));
        assert_eq!((leases.attached_count(), leases.has_ended_keys()), (4, false));
        assert_eq!(leases.forget_ended(3), None);
        assert!(leases.by_id[&9].keys.iter().eq(&keys(8..12)));
    }

    #[test]
    fn what_a_lease_had_does_not_come_to_the_next_of_its_id() {
        let mut leases = LeaseMap::default();
        leases.add(7, 60, 0);
        keys(0..4).iter().for_each(|key| leases.attach(key, 7));
        end(&mut leases, 7);
        leases.add(7, 60, 0);
        leases.add(9, 60, 0);
        // One key is attached to the new lease 7, one to lease 9, one is deleted, and one is
        // unchanged.
        leases.attach(&keys(0..1)[0], 7);
        leases.attach(&keys(1..2)[0], 9);
        leases.attach(&keys(2..3)[0], 0);
        assert!(leases.forget_ended(100).is_some());
        assert_eq!(leases.attached_count(), 2);
        assert!(leases.by_id[&7].keys.iter().eq(&keys(0..1)));
        assert!(leases.by_id[&9].keys.iter().eq(&keys(1..2)));
        leases.attach(&keys(0..1)[0], 0);
        assert!(leases.by_id[&7].keys.is_empty() && leases.attached_count() == 1);
    }

    #[test]
    fn the_keys_of_a_range_are_detached() {
        let mut leases = LeaseMap::default();
        leases.add(7, 60, 0);
        keys(0..10).iter().for_each(|key| leases.attach(key, 7));
        assert_eq!(leases.detach(KeyRange::new(&[2], &[6]), 3), 3);
        assert_eq!(leases.detach(KeyRange::new(&[2], &[6]), 3), 1);
        assert_eq!(leases.detach(KeyRange::new(&[6], &[2]), 3), 0);
        assert_eq!(leases.detach(KeyRange::starting_at(&[9]), 3), 1);
        assert!(leases.by_id[&7].keys.iter().eq(&[keys(0..2), keys(6..9)].concat()));
    }
}
