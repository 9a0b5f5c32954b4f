//! When leases end, and the pace at which they are revoked.
//!
//! ```text
//!   expiring                     ready                   proposed
//!   12.0 s  id 4   ── a scan ──▶ 9 3 7 ...  ── fewer ──▶ 5 8        ──▶ revoked
//!   12.4 s  id 6     500 ms      at most     than 16     at most 16
//!                    apart       500 a scan
//! ```
//!
//! * Each lease whose time has begun is in exactly one of: expiring (once), ready, proposed.
//! * A renewal changes the lease and not its place here; the scan moves it when its old moment
//!   comes.
//! * One step looks at [`LEASES_PER_STEP_MAX`] leases at most.
//!
//! A revocation is proposed once: it is lost only with the leadership. See `docs/lease.md`.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use clearlane_proto::etcdserverpb::LeaseCheckpoint;

use crate::lease_map::{Lease, LeaseMap};
use crate::lessor::Config;

pub const SCAN_INTERVAL: Duration = Duration::from_millis(500);
/// The most leases that are revoked in a second: etcd's number. Each is an entry in the log.
pub const REVOKED_PER_SECOND: usize = 1000;
/// The most revocations that are proposed and not yet applied. A put stands behind twice as many at
/// most.
/// etcd's number.
pub const PROPOSED_MAX: usize = 16;
/// The most leases that one step looks at; if that was not enough, the next step is due at once.
pub const LEASES_PER_STEP_MAX: usize = 2048;
pub const CHECKPOINTS_PER_ENTRY_MAX: usize = 1000;

const REVOKED_PER_SCAN_MAX: usize = REVOKED_PER_SECOND / 2;
/// How far apart leases end that were spread: three quarters of the pace. The last quarter is for
/// those that end without being spread.
const SPREAD_INTERVAL: Duration =
    Duration::from_nanos(1_000_000_000 / (REVOKED_PER_SECOND as u64 * 3 / 4));

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Each by an entry of its own.
    pub revoke: Vec<i64>,
    /// All in one entry.
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
    /// How many more may become ready before the next scan; 0 once nothing more is due.
    ready_allowance: usize,
}

impl ExpirySchedule {
    /// For a member that begins to lead: every lease has its whole time, or what its checkpoint
    /// says, and an election timeout. Leases of the same length would all end at one moment, though
    /// they were granted over days; so if there are many, they are spread.
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

    /// The expiry of the lease is set.
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

    /// It is due again with a later scan.
    pub(crate) fn not_proposed(&mut self, leases: &mut LeaseMap, id: i64, now: Duration) {
        if self.proposed.remove(&id)
            && let Some(lease) = leases.by_id.get_mut(&id)
        {
            self.queue(id, lease, now + SCAN_INTERVAL);
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
            // It may have been revoked meanwhile, and another lease of the same id granted.
            let has_ended = |lease: &Lease| lease.is_expired(now) && lease.queued_at.is_none();
            if leases.by_id.get(&id).is_some_and(has_ended) && self.proposed.insert(id) {
                due.revoke.push(id);
            }
        }
        due
    }

    /// Expired leases become ready; a renewed lease goes to its new place.
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
            // A part of a second counts as a whole one: a lease may live longer, not shorter.
            let left = left.as_secs() as i64 + i64::from(left.subsec_nanos() > 0);
            if left > 0 && left < lease.ttl {
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

    /// When there may be something to propose, if nothing happens before.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        let has_room = !self.ready.is_empty() && self.proposed.len() < PROPOSED_MAX;
        if has_room || self.ready_allowance > 0 {
            return Some(Duration::ZERO);
        }
        self.next_at().map(|first| first.max(self.next_scan))
    }
}

/// Moves moments at least [`SPREAD_INTERVAL`] apart. They are in order, and stay so.
fn spread(order: &mut [(Duration, i64)]) {
    let mut earliest = Duration::ZERO;
    for (expiry, _) in order {
        *expiry = earliest.max(*expiry);
        earliest = *expiry + SPREAD_INTERVAL;
    }
}
