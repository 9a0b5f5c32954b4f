//! Which leases have expired, and how fast are they revoked?
//!
//! # The problem
//!
//! A hundred thousand leases that were granted together end together, when the service that asked for
//! them has gone. Each is an entry in the log, which must be synced and applied, and deletes keys,
//! which watchers are told of. If they all went at once, a put that comes in that moment would stand
//! behind a hundred thousand entries.
//!
//! # The idea
//!
//! They queue up, and go at a pace:
//!
//! ```text
//!   expiring                     ready                  proposed
//!   by moment                    in order               until it is applied
//!   ┌───────────────┐  a scan    ┌───────────┐  as long ┌─────────────┐
//!   │ 12.0 s  id 4  │ ─────────▶ │ 9 3 7 ... │ ───────▶ │ 5 8         │ ─▶ revoked
//!   │ 12.4 s  id 6  │  every     └───────────┘  as      └─────────────┘
//!   └───────────────┘  500 ms,     at most 500  there are      at most 16
//!                      500 of them              fewer than 16
//! ```
//!
//! So at most a thousand are revoked in a second, and a put stands behind sixteen at most. The
//! numbers are etcd's.
//!
//! A renewal only changes the lease. The schedule still has it under its old moment; when that comes,
//! the scan sees that the lease lives, and puts it where it belongs now. A lease that is kept alive for
//! years costs one such move per life, however often it is renewed.
//!
//! # A new leader
//!
//! It gives all leases their time again, counted from one moment. Those of the same length would end
//! together, although they were granted over days. So if there are many, they are *spread*: no two end
//! closer together than the pace allows, with a quarter of it left for those that come by themselves.
//! Some live a little longer for it, none shorter.
//!
//! # Invariants
//!
//! * While a leader has a schedule, each lease is in exactly one of: expiring (once), ready, proposed.
//! * A lease is under no later moment than its expiry.
//! * One step looks at [`LEASES_PER_STEP_MAX`] leases at most; if that was not enough it wants to be called again
//!   at once.
//!
//! # What etcd does that is left out
//!
//! It proposes a revocation again after three seconds. An entry that a leader has appended can be lost
//! only together with its leadership, and a schedule is dropped with that; so what was proposed here
//! stays proposed.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::lease_map::{Checkpoint, Lease, LeaseMap};

/// The interval at which the schedule looks for expired leases.
pub const SCAN_INTERVAL: Duration = Duration::from_millis(500);
/// So many leases may go in a second.
pub const REVOKED_PER_SECOND: usize = 1000;
/// So many may be proposed and not yet applied.
pub const PROPOSED_MAX: usize = 16;
/// So many leases one step looks at.
pub const LEASES_PER_STEP_MAX: usize = 2048;
/// So many checkpoints go into one entry.
pub const CHECKPOINTS_PER_ENTRY_MAX: usize = 1000;

const REVOKED_PER_SCAN_MAX: usize = REVOKED_PER_SECOND / 2;
/// How far apart leases end that were spread: three quarters of the pace.
const SPREAD_INTERVAL: Duration =
    Duration::from_nanos(1_000_000_000 / (REVOKED_PER_SECOND as u64 * 3 / 4));

/// What is to be proposed now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Leases that are to be revoked, each by an entry of its own.
    pub revoke: Vec<i64>,
    /// Checkpoints, all in one entry.
    pub checkpoints: Vec<Checkpoint>,
}

impl Due {
    /// Whether there is nothing to propose.
    pub fn is_empty(&self) -> bool {
        self.revoke.is_empty() && self.checkpoints.is_empty()
    }
}

/// A leader's view of when leases end.
#[derive(Debug)]
pub(crate) struct ExpirySchedule {
    expiring: BTreeSet<(Duration, i64)>,
    ready: VecDeque<i64>,
    proposed: BTreeSet<i64>,
    checkpoints: BTreeSet<(Duration, i64)>,
    checkpoint_interval: Option<Duration>,
    next_scan: Duration,
    /// So many more may become ready before the next scan; 0 once nothing more is due.
    ready_allowance: usize,
}

impl ExpirySchedule {
    /// For a member that begins to lead: every lease has its whole time, and `extra`.
    pub(crate) fn start(
        book: &mut LeaseMap,
        now: Duration,
        extra: Duration,
        checkpoint_interval: Option<Duration>,
    ) -> ExpirySchedule {
        let mut schedule = ExpirySchedule {
            expiring: BTreeSet::new(),
            ready: VecDeque::new(),
            proposed: BTreeSet::new(),
            checkpoints: BTreeSet::new(),
            checkpoint_interval,
            next_scan: now,
            ready_allowance: 0,
        };
        let mut order: Vec<(Duration, i64)> =
            book.iter().map(|(id, lease)| (now + extra + lease.renewal_ttl(), id)).collect();
        order.sort_unstable();
        if order.len() > REVOKED_PER_SECOND {
            spread(&mut order);
        }
        for (expiry, id) in order {
            let lease = book.get_mut(id).expect("it was in the book");
            lease.expiry = expiry;
            schedule.add(id, lease, now);
        }
        schedule
    }

    /// A lease is there whose expiry is set.
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

    /// A lease is there no more.
    pub(crate) fn remove(&mut self, id: i64, lease: &Lease) {
        self.proposed.remove(&id);
        if let Some(at) = lease.queued_at {
            self.expiring.remove(&(at, id));
        }
        if let Some(at) = lease.checkpoint_at {
            self.checkpoints.remove(&(at, id));
        }
    }

    /// What was due could not be proposed: it is due again with a later scan.
    pub(crate) fn not_proposed(&mut self, book: &mut LeaseMap, id: i64, now: Duration) {
        if self.proposed.remove(&id)
            && let Some(lease) = book.get_mut(id)
        {
            self.queue(id, lease, now + SCAN_INTERVAL);
        }
    }

    /// What is to be proposed now.
    pub(crate) fn due(&mut self, book: &mut LeaseMap, now: Duration) -> Due {
        let mut due = Due::default();
        if now >= self.next_scan && self.next_at().is_some_and(|first| first <= now) {
            self.next_scan = now + SCAN_INTERVAL;
            self.ready_allowance = REVOKED_PER_SCAN_MAX;
            due.checkpoints = self.due_checkpoints(book, now);
        }
        self.scan(book, now);
        while self.proposed.len() < PROPOSED_MAX
            && let Some(id) = self.ready.pop_front()
        {
            // It may have been revoked meanwhile, and another lease of the same id granted.
            let has_ended = |lease: &Lease| lease.is_expired(now) && lease.queued_at.is_none();
            if book.get(id).is_some_and(has_ended) && self.proposed.insert(id) {
                due.revoke.push(id);
            }
        }
        due
    }

    /// A lease that has ended becomes ready. A lease that was renewed goes to its new place.
    fn scan(&mut self, book: &mut LeaseMap, now: Duration) {
        for _ in 0..LEASES_PER_STEP_MAX {
            let next = self.expiring.first().copied().filter(|(at, _)| *at <= now);
            let Some((_, id)) = next.filter(|_| self.ready_allowance > 0) else {
                self.ready_allowance = 0;
                return;
            };
            self.expiring.pop_first();
            let lease = book.get_mut(id).expect("who is scheduled is in the book");
            if lease.is_expired(now) {
                lease.queued_at = None;
                self.ready.push_back(id);
                self.ready_allowance -= 1;
            } else {
                self.queue(id, lease, lease.expiry);
            }
        }
    }

    fn due_checkpoints(&mut self, book: &mut LeaseMap, now: Duration) -> Vec<Checkpoint> {
        let mut due = Vec::new();
        for _ in 0..CHECKPOINTS_PER_ENTRY_MAX {
            let next = self.checkpoints.first().copied().filter(|(at, _)| *at <= now);
            let Some((_, id)) = next else { break };
            self.checkpoints.pop_first();
            let lease = book.get_mut(id).expect("who is scheduled is in the book");
            let left = lease.expiry.saturating_sub(now);
            // A part of a second counts as a whole one: a lease may live longer, never shorter.
            let left = left.as_secs() as i64 + i64::from(left.subsec_nanos() > 0);
            if left > 0 && left < lease.ttl {
                due.push(Checkpoint { id, remaining_ttl: left });
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

/// No two closer together than the pace allows. They are in order, and stay so.
fn spread(order: &mut [(Duration, i64)]) {
    let mut earliest = Duration::ZERO;
    for (expiry, _) in order {
        *expiry = earliest.max(*expiry);
        earliest = *expiry + SPREAD_INTERVAL;
    }
}
