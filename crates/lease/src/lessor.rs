//! The leases of a member, protected by one lock, and how transactions of the store change them.
//!
//! ```text
//!   the apply loop                    threads that respond         the raft loop
//!   grant, start_expiry, delete,      renew, time_to_live,         promote, demote,
//!   finish_delete, checkpoint,        keys, list                   due, next_due,
//!   attach, restore                                                not_proposed
//! ```
//!
//! The lock is not held while the store works or while data is written to disk.
//!
//! A lease is revoked in the following order. So a client that no longer finds the lease on a
//! member does not find its keys on that member either.
//!
//! 1. `delete` deletes the keys, in sorted order, and the lease's record. Both happen in a separate
//!    write transaction, which then ends.
//! 2. `finish_delete` removes the lease from memory.
//! 3. `forget_ended` runs later on the commit thread. It removes the map entries that show which
//!    lease each of those keys had.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use clearlane_contention::{Mutex, Registry};
use clearlane_engine::{Bucket, KeyRange};
use clearlane_mvcc::{ChangeRun, Changes, KeyLeases, LeasedKey, ReadTxn, WriteTxn};
use clearlane_proto::etcdserverpb::LeaseCheckpoint;
use clearlane_proto::{Message, leasepb};

use crate::expiry::{Due, ExpirySchedule};
use crate::lease_map::{Lease, LeaseMap, LeaseState, NEVER, ttl_duration};
use crate::{Error, LeaseRejection, Result, TTL_MAX};

const KEYS_PER_PAGE: usize = 1024;
/// Maximum number of changes of a transaction that are processed under one acquisition of the lock.
const CHANGES_PER_LOCK: usize = 1024;
/// Maximum number of keys of ended leases that are removed under one acquisition of the lock. The
/// number is small because there may be many keys, and nothing waits for their removal.
const FORGOTTEN_PER_LOCK: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Raft's election timeout. A member starts an election after it has received nothing from a
    /// leader for at least this time.
    pub election_timeout: Duration,
    /// The interval at which the leader proposes a checkpoint with the remaining time of a lease.
    /// If `None`, the leader proposes no checkpoints.
    pub checkpoint_interval: Option<Duration>,
}

impl Config {
    pub fn new(election_timeout: Duration) -> Config {
        Config { election_timeout, checkpoint_interval: None }
    }

    /// Returns the shortest TTL of a lease, in seconds. A shorter lease could expire during an
    /// election.
    pub fn ttl_min(&self) -> i64 {
        let nanos = self.election_timeout.as_nanos() * 3 / 2;
        nanos.div_ceil(1_000_000_000).try_into().unwrap_or(i64::MAX)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease is renewed and now has this number of seconds left.
    Renewed(i64),
    /// There is no such lease, or it has expired and its revocation is not applied yet.
    NotFound,
    /// A checkpoint below the full TTL has been applied or proposed. The caller must propose the
    /// checkpoint in this value, which restores the full TTL, and call `renew` again after it is
    /// applied.
    CheckpointFirst(LeaseCheckpoint),
    NotLeading,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTtl {
    /// The granted TTL in seconds.
    pub granted: i64,
    /// The remaining time in whole seconds, or `None` on a member that is not the leader.
    pub remaining: Option<i64>,
}

#[derive(Debug)]
pub struct Lessor {
    config: Config,
    state: Mutex<LessorState>,
    attached_keys: AtomicUsize,
    /// If true, the open transaction deletes one lease with its keys, and changes nothing else.
    is_revoking: AtomicBool,
}

#[derive(Debug, Default)]
struct LessorState {
    leases: LeaseMap,
    /// The expiry schedule, or `None` while this member is not the leader.
    schedule: Option<ExpirySchedule>,
}

impl Lessor {
    pub fn new(config: Config, locks: &Registry) -> Lessor {
        let state = Mutex::new(locks, "lessor", LessorState::default());
        let (attached_keys, is_revoking) = (AtomicUsize::new(0), AtomicBool::new(false));
        Lessor { config, state, attached_keys, is_revoking }
    }

    /// Replaces all leases with the leases of a store, and attaches `keys`. Fails if the record of
    /// a lease is damaged. Afterwards this member is not the leader until
    /// [`promote`](Lessor::promote) is called.
    pub fn restore(&self, store: &(dyn ReadTxn + '_), keys: &[LeasedKey]) -> Result<()> {
        let mut leases = LeaseMap::default();
        let mut outcome = Ok(());
        store.scan(Bucket::Lease, &mut |key, value| match leasepb::Lease::decode(&*value) {
            Ok(lease) => {
                leases.add(lease.id, lease.ttl.max(self.config.ttl_min()), lease.remaining_ttl);
                ControlFlow::Continue(())
            }
            Err(error) => {
                outcome = Err(Error::Corrupt(format!("{key:x?}: {error}")));
                ControlFlow::Break(())
            }
        })?;
        outcome?;
        for LeasedKey { key, lease } in keys {
            leases.attach(key, *lease);
        }
        let restored = LessorState { leases, schedule: None };
        let mut state = self.state.lock();
        self.attached_keys.store(restored.leases.attached_count(), Ordering::Relaxed);
        let before = std::mem::replace(&mut *state, restored);
        drop(state);
        drop(before);
        self.is_revoking.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Grants a lease and returns its TTL in seconds, or the reason why the request is rejected.
    /// The lease does not expire until [`start_expiry`](Lessor::start_expiry) is called, which
    /// happens when the grant is visible to clients. If this member becomes the leader before that
    /// call, [`promote`](Lessor::promote) starts the expiry.
    pub fn grant<A>(
        &self,
        id: i64,
        ttl: i64,
        txn: &mut (dyn WriteTxn<A> + '_),
    ) -> Result<std::result::Result<i64, LeaseRejection>> {
        if id == 0 {
            return Ok(Err(LeaseRejection::NotFound));
        }
        if ttl > TTL_MAX {
            return Ok(Err(LeaseRejection::TtlTooLarge));
        }
        if self.contains(id) {
            return Ok(Err(LeaseRejection::Exists));
        }
        let ttl = ttl.max(self.config.ttl_min());
        save(leasepb::Lease { id, ttl, remaining_ttl: 0 }, txn)?;
        self.state.lock().leases.add(id, ttl, 0);
        Ok(Ok(ttl))
    }

    /// Starts the expiry of a granted lease, if this member is the leader. The caller does this
    /// after the grant is applied, so a slow apply does not shorten the lease. A second call before
    /// the lease has expired has no effect.
    pub fn start_expiry(&self, id: i64, now: Duration) {
        let mut state = self.state.lock();
        let LessorState { leases, schedule } = &mut *state;
        if let (Some(schedule), Some(lease)) = (schedule, leases.by_id.get_mut(&id))
            && lease.queued_at.is_none()
        {
            lease.expiry = now + ttl_duration(lease.ttl);
            schedule.add(id, lease, now);
        }
    }

    /// Deletes the keys attached to a lease and the lease's record. Rejects the request if there is
    /// no such lease. The transaction must change nothing else. After it has ended, the caller must
    /// call [`finish_delete`](Lessor::finish_delete).
    pub fn delete<A>(
        &self,
        id: i64,
        txn: &mut (dyn WriteTxn<A> + '_),
    ) -> Result<std::result::Result<(), LeaseRejection>> {
        let Some(keys) = self.state.lock().leases.take_keys(id) else {
            return Ok(Err(LeaseRejection::NotFound));
        };
        let keys: Arc<[Bytes]> = keys.into_iter().collect();
        self.state.lock().leases.forget_later(Arc::clone(&keys));
        self.is_revoking.store(true, Ordering::Relaxed);
        txn.delete_keys(&keys)?;
        txn.unset(Bucket::Lease, &id.to_be_bytes())?;
        Ok(Ok(()))
    }

    /// Removes the lease from memory. The caller must call this after the transaction that deleted
    /// the lease has ended.
    pub fn finish_delete(&self, id: i64) {
        let mut state = self.state.lock();
        let LessorState { leases, schedule } = &mut *state;
        if let Some(lease) = leases.remove(id)
            && let Some(schedule) = schedule
        {
            schedule.remove(id, &lease);
        }
        self.is_revoking.store(false, Ordering::Relaxed);
    }

    /// Removes up to `FORGOTTEN_PER_LOCK` keys of ended leases from the map. Returns true if more
    /// are left.
    pub fn forget_ended(&self) -> bool {
        let mut state = self.state.lock();
        let forgotten = state.leases.forget_ended(FORGOTTEN_PER_LOCK);
        let has_more = state.leases.has_ended_keys();
        self.attached_keys.store(state.leases.attached_count(), Ordering::Relaxed);
        drop(state);
        // This may be the last reference to all the keys, so it is dropped after the lock is
        // released.
        drop(forgotten);
        has_more
    }

    /// Saves checkpoints. Skips a checkpoint whose lease no longer exists.
    pub fn checkpoint<A>(
        &self,
        checkpoints: &[LeaseCheckpoint],
        txn: &mut (dyn WriteTxn<A> + '_),
    ) -> Result<()> {
        for LeaseCheckpoint { id, remaining_ttl } in checkpoints {
            let record = self.state.lock().leases.by_id.get_mut(id).map(|lease| {
                lease.remaining_ttl = *remaining_ttl;
                if *remaining_ttl > 0 {
                    lease.open_checkpoints = lease.open_checkpoints.saturating_sub(1);
                }
                leasepb::Lease { id: *id, ttl: lease.ttl, remaining_ttl: *remaining_ttl }
            });
            if let Some(record) = record {
                save(record, txn)?;
            }
        }
        Ok(())
    }

    /// Takes back checkpoints that [`due`](Lessor::due) returned and the caller could not propose.
    pub fn checkpoints_not_proposed(&self, checkpoints: &[LeaseCheckpoint]) {
        let mut state = self.state.lock();
        for LeaseCheckpoint { id, .. } in checkpoints {
            if let Some(lease) = state.leases.by_id.get_mut(id) {
                lease.open_checkpoints = lease.open_checkpoints.saturating_sub(1);
            }
        }
    }

    pub fn contains(&self, id: i64) -> bool {
        self.state.lock().leases.by_id.contains_key(&id)
    }

    pub fn count(&self) -> usize {
        self.state.lock().leases.by_id.len()
    }

    /// Makes this member the leader. Each lease gets its full TTL, or the remaining time of its
    /// checkpoint, plus one election timeout. This time starts at `now`, the time of the election
    /// on this member's clock. If there are more leases than
    /// [`REVOKED_PER_SECOND`](crate::expiry::REVOKED_PER_SECOND), some leases get more time.
    pub fn promote(&self, now: Duration) {
        let mut state = self.state.lock();
        state.schedule = Some(ExpirySchedule::start(&mut state.leases, now, &self.config));
    }

    /// Makes this member a follower. The member forgets all expiry times, so no further lease
    /// becomes due here. A revocation that the member has already proposed may still be applied.
    pub fn demote(&self) {
        let mut state = self.state.lock();
        if state.schedule.take().is_some() {
            for lease in state.leases.by_id.values_mut() {
                lease.expiry = NEVER;
                lease.queued_at = None;
                lease.checkpoint_at = None;
                lease.open_checkpoints = 0;
            }
        }
    }

    pub fn renew(&self, id: i64, now: Duration) -> Renewal {
        let mut state = self.state.lock();
        let LessorState { leases, schedule } = &mut *state;
        let Some(schedule) = schedule else { return Renewal::NotLeading };
        match leases.by_id.get_mut(&id) {
            // `now` may be older than the scan that has found the lease expired.
            Some(lease) if lease.is_expired(now) || schedule.has_ended(id, lease) => {
                Renewal::NotFound
            }
            Some(lease) if lease.remaining_ttl > 0 || lease.open_checkpoints > 0 => {
                Renewal::CheckpointFirst(LeaseCheckpoint { id, remaining_ttl: 0 })
            }
            Some(lease) => {
                lease.expiry = now + lease.renewal_ttl();
                Renewal::Renewed(lease.ttl)
            }
            None => Renewal::NotFound,
        }
    }

    pub fn time_to_live(&self, id: i64, now: Duration) -> Option<LeaseTtl> {
        let state = self.state.lock();
        let lease = state.leases.by_id.get(&id)?;
        // A lease whose expiry has not started has its full TTL left.
        let remaining = match lease.expiry {
            NEVER => lease.ttl,
            expiry => expiry.saturating_sub(now).as_secs() as i64,
        };
        let remaining = state.schedule.is_some().then_some(remaining);
        Some(LeaseTtl { granted: lease.ttl, remaining })
    }

    /// Returns the keys attached to a lease. The lock is released between pages: a key that is
    /// attached or detached during the call may or may not be included, and if the lease ends
    /// during the call, keys may be missing. All other keys of the lease are included.
    pub fn keys(&self, id: i64) -> Vec<Bytes> {
        let mut keys: Vec<Bytes> = Vec::new();
        loop {
            let from = keys.last().map_or(Bound::Unbounded, Bound::Excluded);
            let state = self.state.lock();
            let Some(lease) = state.leases.by_id.get(&id) else { return keys };
            let page = lease.keys.range::<Bytes, _>((from, Bound::Unbounded)).take(KEYS_PER_PAGE);
            let page: Vec<Bytes> = page.cloned().collect();
            drop(state);
            let is_last = page.len() < KEYS_PER_PAGE;
            keys.extend(page);
            if is_last {
                return keys;
            }
        }
    }

    /// Returns the first key of a lease that is at or after `from`, or `None` if there is no such
    /// key or lease.
    pub fn key_from(&self, id: i64, from: &[u8]) -> Option<Bytes> {
        let state = self.state.lock();
        let keys = &state.leases.by_id.get(&id)?.keys;
        keys.range::<[u8], _>((Bound::Included(from), Bound::Unbounded)).next().cloned()
    }

    pub fn key_count(&self, id: i64) -> usize {
        self.state.lock().leases.by_id.get(&id).map_or(0, |lease| lease.keys.len())
    }

    /// Returns the IDs of all leases. On the leader, the lease that expires first comes first. On
    /// other members, the IDs are sorted.
    pub fn list(&self) -> Vec<i64> {
        let state = self.state.lock();
        let leases = state.leases.by_id.iter().map(|(id, lease)| (lease.expiry, *id));
        let mut leases: Vec<(Duration, i64)> = leases.collect();
        drop(state);
        leases.sort_unstable();
        leases.into_iter().map(|(_, id)| id).collect()
    }

    /// Returns the parts of all leases that all members agree on.
    pub fn lease_states(&self) -> Vec<LeaseState> {
        let state = self.state.lock();
        let contents = |(id, lease): (&i64, &Lease)| LeaseState {
            id: *id,
            ttl: lease.ttl,
            remaining_ttl: lease.remaining_ttl,
            keys: lease.keys.iter().cloned().collect(),
        };
        state.leases.by_id.iter().map(contents).collect()
    }

    /// Returns the revocations and checkpoints that the caller must propose now. There are none if
    /// this member is not the leader.
    pub fn due(&self, now: Duration) -> Due {
        let mut state = self.state.lock();
        let LessorState { leases, schedule } = &mut *state;
        schedule.as_mut().map(|schedule| schedule.due(leases, now)).unwrap_or_default()
    }

    /// Returns the time when [`due`](Lessor::due) must be called again, unless a lease changes
    /// earlier. Returns `None` if nothing is scheduled, or if this member is not the leader.
    pub fn next_due(&self) -> Option<Duration> {
        self.state.lock().schedule.as_ref()?.next_due()
    }

    /// Schedules a lease again, because its proposed revocation was rejected when it was applied.
    pub fn revocation_rejected(&self, id: i64) {
        let mut state = self.state.lock();
        let LessorState { leases, schedule } = &mut *state;
        if let Some(schedule) = schedule {
            schedule.revocation_rejected(leases, id);
        }
    }

    pub fn not_proposed(&self, id: i64, now: Duration) {
        let mut state = self.state.lock();
        let LessorState { leases, schedule } = &mut *state;
        if let Some(schedule) = schedule {
            schedule.not_proposed(leases, id, now);
        }
    }
}

impl KeyLeases for Lessor {
    fn attach(&self, key: &Bytes, lease: i64) {
        let mut state = self.state.lock();
        state.leases.attach(key, lease);
        self.attached_keys.store(state.leases.attached_count(), Ordering::Relaxed);
    }

    fn attach_all(&self, changes: &Changes) {
        // Only the apply loop attaches keys, and it calls this function. So `attached_keys` cannot
        // grow during this call. If `attached_keys` is 0 and no put names a lease, there is nothing
        // to attach or detach, and no lock is taken. A revocation takes no lock either, because
        // `delete` has already detached its keys.
        let is_none_leased = self.attached_keys.load(Ordering::Relaxed) == 0
            && changes.puts().all(|record| record.lease == 0);
        if is_none_leased || self.is_revoking.load(Ordering::Relaxed) {
            return;
        }
        let mut runs = changes.runs().peekable();
        while let Some(run) = runs.peek() {
            if let ChangeRun::DeletedRange(range) = run {
                self.detach_all(range.range());
                runs.next();
                continue;
            }
            let mut state = self.state.lock();
            for _ in 0..CHANGES_PER_LOCK {
                let is_one = |run: &ChangeRun<'_>| matches!(run, ChangeRun::One(_));
                let Some(ChangeRun::One(change)) = runs.next_if(is_one) else { break };
                let (key, lease) = change.attachment();
                state.leases.attach(key, lease);
            }
            self.attached_keys.store(state.leases.attached_count(), Ordering::Relaxed);
        }
    }
}

impl Lessor {
    fn detach_all(&self, range: KeyRange<'_>) {
        loop {
            let mut state = self.state.lock();
            let detached = state.leases.detach(range, CHANGES_PER_LOCK);
            self.attached_keys.store(state.leases.attached_count(), Ordering::Relaxed);
            if detached < CHANGES_PER_LOCK {
                return;
            }
        }
    }
}

fn save<A>(record: leasepb::Lease, txn: &mut (dyn WriteTxn<A> + '_)) -> Result<()> {
    Ok(txn.set(Bucket::Lease, &record.id.to_be_bytes(), record.encode_to_vec().into())?)
}
