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
//! * A key that is among those of a lease has it in the holders. Those of a lease that has ended
//!   stay in the holders until [`forget_ended`](LeaseMap::forget_ended) gets to them. They are
//!   attached to nothing, also if another lease has the id by then.
//! * The keys of a lease are sorted, because all members must delete them in one order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clearlane_engine::KeyRange;

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
    lease_of_key: BTreeMap<Bytes, i64>,
    /// Keys of leases that have ended, and how many of them are forgotten.
    ended: VecDeque<(Arc<[Bytes]>, usize)>,
}

impl LeaseMap {
    /// Adds a lease, of which there is none yet. It does not end until an expiry is set.
    pub(crate) fn add(&mut self, id: i64, ttl: i64, remaining_ttl: i64) {
        let (queued_at, checkpoint_at, keys) = (None, None, BTreeSet::new());
        let lease = Lease { ttl, remaining_ttl, expiry: NEVER, queued_at, checkpoint_at, keys };
        self.by_id.insert(id, lease);
    }

    /// From now on no key is attached to it. Those that were are to be
    /// [forgotten](LeaseMap::forget_later).
    pub(crate) fn take_keys(&mut self, id: i64) -> Option<BTreeSet<Bytes>> {
        Some(std::mem::take(&mut self.by_id.get_mut(&id)?.keys))
    }

    pub(crate) fn forget_later(&mut self, keys: Arc<[Bytes]>) {
        if !keys.is_empty() {
            self.ended.push_back((keys, 0));
        }
    }

    /// Its keys were taken before.
    pub(crate) fn remove(&mut self, id: i64) -> Option<Lease> {
        let lease = self.by_id.remove(&id)?;
        assert!(lease.keys.is_empty(), "keys are attached to lease {id:x}, which is removed");
        Some(lease)
    }

    /// Takes this many keys of an ended lease from the holders. Returns the lease's keys, to be
    /// dropped, when those were the last.
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

    /// To no lease if there is none of this id.
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
        // What the holders said may have been of a lease with this id that has ended.
        if let Some(now) = lease.and_then(|id| self.by_id.get_mut(&id))
            && !(before == lease && now.keys.contains(key))
        {
            now.keys.insert(key.clone());
        }
    }

    /// The first keys of a range that the holders have are attached to no lease then. Returns how
    /// many there were.
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

    /// With those of ended leases that are not forgotten.
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
        // One of them again, one at another lease, one deleted, one left.
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
