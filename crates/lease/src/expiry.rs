//! When leases expire, and the rate at which they are revoked.
//!
//! ```text
//!   expiring                     ready                   proposed
//!   12.0 s  id 4   ── a scan ──▶ 9 3 7 ...  ── fewer ──▶ 5 8        ──▶ revoked
//!   12.4 s  id 6     500 ms      at most     than 16     at most 16
//!                    apart       500 a scan
//! ```
//!
//! * Each lease whose expiry has started is in exactly one of the three collections. `ready` can
//!   also contain the ID of a lease that was revoked after it had become ready; `due` skips such an
//!   ID.
//! * A renewal changes the lease but not its entry in `expiring`. When the old expiry is reached,
//!   the scan moves the entry to the new expiry.
//! * One step, which is a call of `due`, visits at most [`LEASES_PER_STEP_MAX`] leases in
//!   `expiring`, and at most [`CHECKPOINTS_PER_ENTRY_MAX`] checkpoints.
//!
//! `due` returns each revocation once, and the caller proposes it. `due` returns the revocation
//! again only if the caller reports that it could not be proposed, or that it was rejected when it
//! was applied. It is rejected if the alarm CORRUPT is raised at that time. A proposed revocation
//! is lost only if this member stops being the leader. See `docs/lease.md`.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use clearlane_proto::etcdserverpb::LeaseCheckpoint;

use crate::lease_map::{Lease, LeaseMap};
use crate::lessor::Config;

pub const SCAN_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of expired leases that are revoked per second, as in etcd. Each revocation is a
/// log entry.
pub const REVOKED_PER_SECOND: usize = 1000;
/// Maximum number of revocations that are proposed and not yet applied. A put waits for at most
/// twice this number of revocations: the revocations that are not applied when the put arrives, and
/// the revocations that replace them before the put is proposed. In etcd, the same number applies
/// to each list of up to 500 expired leases, and revocations of several lists may be in progress.
pub const PROPOSED_MAX: usize = 16;
/// Maximum number of leases in `expiring` that one step visits. If more leases are due, the next
/// step follows immediately.
pub const LEASES_PER_STEP_MAX: usize = 2048;
pub const CHECKPOINTS_PER_ENTRY_MAX: usize = 1000;
/// Time until a revocation that was rejected when it was applied is proposed again. etcd waits for
/// its request timeout, 7 s by default, after it has scheduled the revocation.
pub const REJECTED_REVOCATION_DELAY: Duration = Duration::from_secs(3);

const REVOKED_PER_SCAN_MAX: usize = REVOKED_PER_SECOND / 2;
/// The minimum time between the expiries of two leases after a new leader has spread the expiries.
/// Revoking leases with spread expiries uses three quarters of [`REVOKED_PER_SECOND`]. The last
/// quarter is for leases whose expiries were not spread.
const SPREAD_INTERVAL: Duration =
    Duration::from_nanos(1_000_000_000 / (REVOKED_PER_SECOND as u64 * 3 / 4));

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// The leases to revoke. Each needs a separate log entry.
    pub revoke: Vec<i64>,
    /// The checkpoints to propose, all in one log entry.
    pub checkpoints: Vec<LeaseCheckpoint>,
}

impl Due {
    pub fn is_empty(&self) -> bool {
        self.revoke.is_empty() && self.checkpoints.is_empty()
    }
}

#[derive(Debug, Default)]
pub(crate) struct ExpirySchedule {
    expiring: BTreeSet<(Duration, i64)>,
    ready: VecDeque<i64>,
    proposed: BTreeSet<i64>,
    checkpoints: BTreeSet<(Duration, i64)>,
    checkpoint_interval: Option<Duration>,
    next_scan: Duration,
    /// Number of further leases that may become ready before the next scan. It is 0 when no more
    /// leases are due.
    ready_allowance: usize,
}

impl ExpirySchedule {
    /// Creates the schedule of a new leader. Each lease gets its full TTL, or the remaining time of
    /// its checkpoint, plus one election timeout. Leases with the same TTL would all expire at the
    /// same time, even if they were granted over several days. So if there are more than
    /// [`REVOKED_PER_SECOND`] leases, their expiries are spread. In etcd, this number of leases is
    /// enough.
    pub(crate) fn start(leases: &mut LeaseMap, now: Duration, config: &Config) -> ExpirySchedule {
        let mut schedule = ExpirySchedule {
            checkpoint_interval: config.checkpoint_interval,
            next_scan: now,
            ..ExpirySchedule::default()
        };
        let mut order: Vec<(Duration, i64)> = leases
            .by_id
            .iter()
            .map(|(id, lease)| (now + config.election_timeout + lease.renewal_ttl(), *id))
            .collect();
        order.sort_unstable();
        if order.len() > REVOKED_PER_SECOND {
            spread(&mut order);
        }
        for (expiry, id) in order {
            let lease = leases.by_id.get_mut(&id).expect("it was in the map");
            lease.expiry = expiry;
            schedule.add(id, lease, now);
        }
        schedule
    }

    /// Adds a lease to the schedule. The expiry of the lease must be set.
    pub(crate) fn add(&mut self, id: i64, lease: &mut Lease, now: Duration) {
        self.queue(id, lease, lease.expiry);
        self.queue_checkpoint(id, lease, now);
    }

    fn queue(&mut self, id: i64, lease: &mut Lease, at: Duration) {
        lease.queued_at = Some(at);
        self.expiring.insert((at, id));
    }

    fn queue_checkpoint(&mut self, id: i64, lease: &mut Lease, now: Duration) {
        let at = self.checkpoint_interval.map(|interval| now + interval);
        lease.checkpoint_at = at.filter(|at| *at < lease.expiry);
        self.checkpoints.extend(lease.checkpoint_at.map(|at| (at, id)));
    }

    pub(crate) fn remove(&mut self, id: i64, lease: &Lease) {
        self.proposed.remove(&id);
        if let Some(at) = lease.queued_at {
            self.expiring.remove(&(at, id));
        }
        if let Some(at) = lease.checkpoint_at {
            self.checkpoints.remove(&(at, id));
        }
    }

    /// Returns true if a scan has found the lease expired, and its revocation has been proposed or
    /// will be proposed soon.
    pub(crate) fn has_ended(&self, id: i64, lease: &Lease) -> bool {
        lease.queued_at.is_none() && (self.proposed.contains(&id) || self.ready.contains(&id))
    }

    /// Schedules a lease again if its revocation could not be proposed. The lease is due again
    /// after [`SCAN_INTERVAL`]. The lease stays expired, so a renewal fails.
    pub(crate) fn not_proposed(&mut self, leases: &mut LeaseMap, id: i64, now: Duration) {
        if self.proposed.remove(&id)
            && let Some(lease) = leases.by_id.get_mut(&id)
        {
            self.queue(id, lease, now + SCAN_INTERVAL);
        }
    }

    /// Schedules a lease again if its revocation was rejected when it was applied. The lease is due
    /// again after [`REJECTED_REVOCATION_DELAY`]. The lease stays expired.
    pub(crate) fn revocation_rejected(&mut self, leases: &mut LeaseMap, id: i64) {
        let again = self.next_scan + REJECTED_REVOCATION_DELAY;
        if self.proposed.remove(&id)
            && let Some(lease) = leases.by_id.get_mut(&id)
        {
            self.queue(id, lease, again);
        }
    }

    pub(crate) fn due(&mut self, leases: &mut LeaseMap, now: Duration) -> Due {
        let mut due = Due::default();
        if now >= self.next_scan && self.next_at().is_some_and(|first| first <= now) {
            self.next_scan = now + SCAN_INTERVAL;
            self.ready_allowance = REVOKED_PER_SCAN_MAX;
            due.checkpoints = self.due_checkpoints(leases, now);
        }
        self.scan(leases, now);
        while self.proposed.len() < PROPOSED_MAX
            && let Some(id) = self.ready.pop_front()
        {
            // After the scan, the lease may have been revoked, and another lease with the same ID
            // granted.
            let has_ended = |lease: &Lease| lease.is_expired(now) && lease.queued_at.is_none();
            if leases.by_id.get(&id).is_some_and(has_ended) && self.proposed.insert(id) {
                due.revoke.push(id);
            }
        }
        due
    }

    /// Moves expired leases to `ready`, and renewed leases to their new place in `expiring`.
    fn scan(&mut self, leases: &mut LeaseMap, now: Duration) {
        for _ in 0..LEASES_PER_STEP_MAX {
            let next = self.expiring.first().copied().filter(|(at, _)| *at <= now);
            let Some((_, id)) = next.filter(|_| self.ready_allowance > 0) else {
                self.ready_allowance = 0;
                return;
            };
            self.expiring.pop_first();
            let lease = leases.by_id.get_mut(&id).expect("a scheduled lease is in the map");
            if lease.is_expired(now) {
                lease.queued_at = None;
                self.ready.push_back(id);
                self.ready_allowance -= 1;
            } else {
                self.queue(id, lease, lease.expiry);
            }
        }
    }

    fn due_checkpoints(&mut self, leases: &mut LeaseMap, now: Duration) -> Vec<LeaseCheckpoint> {
        let mut due = Vec::new();
        for _ in 0..CHECKPOINTS_PER_ENTRY_MAX {
            let next = self.checkpoints.first().copied().filter(|(at, _)| *at <= now);
            let Some((_, id)) = next else { break };
            self.checkpoints.pop_first();
            let lease = leases.by_id.get_mut(&id).expect("a scheduled lease is in the map");
            let left = lease.expiry.saturating_sub(now);
            // A fraction of a second is rounded up, because a lease may last longer than its
            // granted TTL, but must not end early.
            let left = left.as_secs() as i64 + i64::from(left.subsec_nanos() > 0);
            if left > 0 && left < lease.ttl {
                lease.open_checkpoints += 1;
                due.push(LeaseCheckpoint { id, remaining_ttl: left });
            }
            self.queue_checkpoint(id, lease, now);
        }
        due
    }

    fn next_at(&self) -> Option<Duration> {
        let firsts = [self.expiring.first(), self.checkpoints.first()];
        firsts.into_iter().flatten().map(|(at, _)| *at).min()
    }

    /// Returns the time when `due` may have something to propose, unless a lease changes earlier.
    /// Returns 0 if `due` may have something to propose now, and `None` if nothing is scheduled.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        let has_room = !self.ready.is_empty() && self.proposed.len() < PROPOSED_MAX;
        if has_room || self.ready_allowance > 0 {
            return Some(Duration::ZERO);
        }
        self.next_at().map(|first| first.max(self.next_scan))
    }
}

/// Moves expiries until they are at least [`SPREAD_INTERVAL`] apart. The slice must be sorted, and
/// stays sorted.
fn spread(order: &mut [(Duration, i64)]) {
    let mut earliest = Duration::ZERO;
    for (expiry, _) in order {
        *expiry = earliest.max(*expiry);
        earliest = *expiry + SPREAD_INTERVAL;
    }
}
