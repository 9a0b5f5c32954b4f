//! The leases of a member under one lock, and what the store's transactions do to them.
//!
//! ```text
//!   the apply loop                    threads that answer          the raft loop
//!   grant, start_expiry, delete,      renew, time_to_live,         promote, demote,
//!   finish_delete, checkpoint,        keys, list                   due, next_due,
//!   attach, restore                                                not_proposed
//! ```
//!
//! The lock is not held while the store works or a disk is written. A lease is revoked in this
//! order, so that a client that learns that it is gone does not find its keys:
//!
//! 1. `delete`: keys, sorted, and record go, in a write transaction of its own that ends then.
//! 2. `finish_delete`: the lease is gone.
//! 3. `forget_ended`, later, by the commit thread: which lease each of those keys had.

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
/// Changes of a transaction for which the lock is taken once.
const CHANGES_PER_LOCK: usize = 1024;
/// Of keys of ended leases. They are many, and nothing waits for them.
const FORGOTTEN_PER_LOCK: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How long it takes at least until another member leads.
    pub election_timeout: Duration,
    /// How often the leader proposes what is left of a lease. `None`: it does not.
    pub checkpoint_interval: Option<Duration>,
}

impl Config {
    pub fn new(election_timeout: Duration) -> Config {
        Config { election_timeout, checkpoint_interval: None }
    }

    /// No lease is granted for less, or it would run out while members elect a leader.
    pub fn ttl_min(&self) -> i64 {
        let nanos = self.election_timeout.as_nanos() * 3 / 2;
        nanos.div_ceil(1_000_000_000).try_into().unwrap_or(i64::MAX)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// For this number of seconds from now on.
    Renewed(i64),
    /// Also if its time is over and the revocation is not applied yet.
    NotFound,
    /// Members count on less than its whole time. Propose the checkpoint "all of it", and when that
    /// is applied, ask again.
    CheckpointFirst(LeaseCheckpoint),
    NotLeading,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTtl {
    /// In seconds.
    pub granted: i64,
    /// In whole seconds; only the leader knows.
    pub remaining: Option<i64>,
}

#[derive(Debug)]
pub struct Lessor {
    config: Config,
    state: Mutex<LessorState>,
    attached_keys: AtomicUsize,
    /// The transaction that is open deletes the keys of a lease, and nothing else.
    is_revoking: AtomicBool,
}

#[derive(Debug, Default)]
struct LessorState {
    leases: LeaseMap,
    /// While this member leads.
    schedule: Option<ExpirySchedule>,
}

impl Lessor {
    pub fn new(config: Config, locks: &Registry) -> Lessor {
        let state = Mutex::new(locks, "lessor", LessorState::default());
        let (attached_keys, is_revoking) = (AtomicUsize::new(0), AtomicBool::new(false));
        Lessor { config, state, attached_keys, is_revoking }
    }

    /// All that was there is forgotten, and what a store has takes its place. There is no leader
    /// yet.
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

    /// Grants a lease, and says for how many seconds. Its time [begins](Lessor::start_expiry) when
    /// the grant can be seen.
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

    /// The time of a granted lease begins, if this member leads: its grant is applied, and what
    /// took long before that is not taken from it.
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

    /// Deletes the keys that hang on a lease, and its record, in a transaction that changes nothing
    /// else. Once that has ended, [`finish_delete`](Lessor::finish_delete) is to be called.
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

    /// To be called when the transaction that deleted the lease has ended.
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

    /// Forgets some keys of leases that have ended. Returns whether there are more.
    pub fn forget_ended(&self) -> bool {
        let mut state = self.state.lock();
        let forgotten = state.leases.forget_ended(FORGOTTEN_PER_LOCK);
        let has_more = state.leases.has_ended_keys();
        self.attached_keys.store(state.leases.attached_count(), Ordering::Relaxed);
        drop(state);
        // It may be the last owner of them all.
        drop(forgotten);
        has_more
    }

    /// Checkpoints of leases that are gone are passed over.
    pub fn checkpoint<A>(
        &self,
        checkpoints: &[LeaseCheckpoint],
        txn: &mut (dyn WriteTxn<A> + '_),
    ) -> Result<()> {
        for LeaseCheckpoint { id, remaining_ttl } in checkpoints {
            let record = self.state.lock().leases.by_id.get_mut(id).map(|lease| {
                lease.remaining_ttl = *remaining_ttl;
                leasepb::Lease { id: *id, ttl: lease.ttl, remaining_ttl: *remaining_ttl }
            });
            if let Some(record) = record {
                save(record, txn)?;
            }
        }
        Ok(())
    }

    pub fn contains(&self, id: i64) -> bool {
        self.state.lock().leases.by_id.contains_key(&id)
    }

    pub fn count(&self) -> usize {
        self.state.lock().leases.by_id.len()
    }

    /// This member leads from now on. All leases have their whole time again, or what their
    /// checkpoint says, and an election time-out more.
    pub fn promote(&self, now: Duration) {
        let mut state = self.state.lock();
        state.schedule = Some(ExpirySchedule::start(&mut state.leases, now, &self.config));
    }

    pub fn demote(&self) {
        let mut state = self.state.lock();
        if state.schedule.take().is_some() {
            for lease in state.leases.by_id.values_mut() {
                lease.expiry = NEVER;
                lease.queued_at = None;
                lease.checkpoint_at = None;
            }
        }
    }

    pub fn renew(&self, id: i64, now: Duration) -> Renewal {
        let mut state = self.state.lock();
        if state.schedule.is_none() {
            return Renewal::NotLeading;
        }
        match state.leases.by_id.get_mut(&id) {
            Some(lease) if lease.is_expired(now) => Renewal::NotFound,
            Some(lease) if lease.remaining_ttl > 0 => {
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
        // One whose time has not begun has all of it.
        let remaining = match lease.expiry {
            NEVER => lease.ttl,
            expiry => expiry.saturating_sub(now).as_secs() as i64,
        };
        let remaining = state.schedule.is_some().then_some(remaining);
        Some(LeaseTtl { granted: lease.ttl, remaining })
    }

    /// The keys that hang on a lease. One that comes or goes while they are listed may be among
    /// them or not; any other is, exactly if it hangs there.
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

    /// The first key of a lease that is not before this one.
    pub fn key_from(&self, id: i64, from: &[u8]) -> Option<Bytes> {
        let state = self.state.lock();
        let keys = &state.leases.by_id.get(&id)?.keys;
        keys.range::<[u8], _>((Bound::Included(from), Bound::Unbounded)).next().cloned()
    }

    pub fn key_count(&self, id: i64) -> usize {
        self.state.lock().leases.by_id.get(&id).map_or(0, |lease| lease.keys.len())
    }

    /// The lease that ends first is in front.
    pub fn list(&self) -> Vec<i64> {
        let state = self.state.lock();
        let leases = state.leases.by_id.iter().map(|(id, lease)| (lease.expiry, *id));
        let mut leases: Vec<(Duration, i64)> = leases.collect();
        drop(state);
        leases.sort_unstable();
        leases.into_iter().map(|(_, id)| id).collect()
    }

    /// What all members agree on.
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

    pub fn due(&self, now: Duration) -> Due {
        let mut state = self.state.lock();
        let LessorState { leases, schedule } = &mut *state;
        schedule.as_mut().map(|schedule| schedule.due(leases, now)).unwrap_or_default()
    }

    /// When to call [`due`](Lessor::due) again, if nothing happens before.
    pub fn next_due(&self) -> Option<Duration> {
        self.state.lock().schedule.as_ref()?.next_due()
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
        // Only the apply loop attaches keys, and it is the caller. So without leased keys a put
        // takes no lock here. The keys of a lease that is revoked were detached before.
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
