//! Disks that stall: for up to ten seconds, no write completes at one member or at all members.
//!
//! ```text
//!   0 s        3 s                                    ~23 s
//!   │ election │  stalls only, healthy network:       │ stalls among other faults │ quiet phase
//!   │          │  the rules below are checked         │                           │
//! ```
//!
//! These rules hold while there is no other fault:
//!
//! * If only the leader's disk stalls, the leader stops leading.
//! * At most one leader is elected during a stall, and none if the leader's disk works.

use super::Cluster;
use crate::bugs::Bug;
use crate::checkers::{CheckResult, Rule};
use crate::event_queue::{MILLISECOND, Micros, SECOND};
use crate::network::NetworkFaults;
use crate::rng::Rng;

/// The time when the first stall may start.
const FIRST_STALL: Micros = 3 * SECOND;
/// Length of the phase with stalled disks and no other fault.
const STALL_PHASE: Micros = 20 * SECOND;
/// One election time-out of a member without a drifting clock.
const ELECTION_TIMEOUT: Micros = SECOND;
/// Longest time from the start of a write that the stalled disk blocks until the member stops
/// leading.
const HAND_OVER_MAX: Micros = 5 * ELECTION_TIMEOUT / 2;
/// Longest time from the end of a stall until the members treat the disk as a working one again.
const RECOVERY_MAX: Micros = 5 * ELECTION_TIMEOUT;

#[derive(Debug)]
pub(super) struct StalledDisks {
    rng: Rng,
    current: Option<Stall>,
    last_end: Micros,
    bug: Option<Bug>,
}

#[derive(Clone, Debug)]
struct Stall {
    members: Vec<u64>,
    until: Micros,
    leader: Option<u64>,
    /// Number of leaders that had been elected when the stall started.
    elected: usize,
}

impl StalledDisks {
    /// Returns `None` if no disk stalls in this run. Without a planted bug, disks stall in one of
    /// three runs, chosen at random. With a bug, disks stall only if the bug is
    /// `StalledLeaderLeads`.
    pub(super) fn random(mut rng: Rng, bug: Option<Bug>) -> Option<StalledDisks> {
        let has_stalls = match bug {
            Some(bug) => bug == Bug::StalledLeaderLeads,
            None => rng.permille(333),
        };
        has_stalls.then_some(StalledDisks { rng, current: None, last_end: 0, bug })
    }

    /// Returns how much later than in other runs the faults of other kinds start.
    pub(super) fn delay(&self) -> Micros {
        FIRST_STALL + STALL_PHASE
    }
}

impl Cluster {
    pub(super) fn plan_stalls(&mut self) {
        if self.stalled_disks.is_some() {
            self.network.faults = NetworkFaults::HEALTHY;
            self.events.plan(FIRST_STALL, Cluster::stall_disks);
            self.events.plan(FIRST_STALL + STALL_PHASE, Cluster::end_network_faults);
        }
    }

    fn has_only_stalls(&self) -> bool {
        self.events.now() < FIRST_STALL + STALL_PHASE
    }

    /// Starts a stall. If a stall is in progress, ends it instead, plans the next stall, and checks
    /// the elections during the stall that has ended.
    pub(super) fn stall_disks(&mut self) -> CheckResult {
        if self.quiet.since.is_some() {
            return Ok(());
        }
        let now = self.events.now();
        let elected = self.checker.agreement.leader_by_term.len();
        let view = self.view();
        let Some(stalled) = &mut self.stalled_disks else { return Ok(()) };
        if let Some(stall) = stalled.current.take() {
            stalled.last_end = now;
            let pause = stalled.rng.log_uniform(200 * MILLISECOND, 6 * SECOND);
            self.events.plan(pause, Cluster::stall_disks);
            return self.check_elections(&stall, elected);
        }
        let rng = &mut stalled.rng;
        let one = match view.leader {
            Some(leader) if rng.permille(700) => leader,
            _ => rng.choose(&view.up).copied().unwrap_or(1),
        };
        let all = stalled.bug.is_none() && rng.permille(200);
        let members = if all { self.machines.keys().copied().collect() } else { vec![one] };
        let duration = rng.log_uniform(300 * MILLISECOND, 10 * SECOND);
        // The stall ends 1 µs after the check, so the check runs before the blocked writes.
        let stall = Stall { members, until: now + duration + 1, leader: view.leader, elected };
        self.trace.record(now, format_args!("fault: {stall:?}"));
        for id in &stall.members {
            if let Some(machine) = self.machines.get_mut(id) {
                machine.disk_stalled_until = stall.until;
            }
        }
        stalled.current = Some(stall);
        self.metrics.disk_stalls += 1;
        self.events.plan(duration, Cluster::stall_disks);
        Ok(())
    }

    fn check_elections(&self, stall: &Stall, elected: usize) -> CheckResult {
        let Some(leader) = stall.leader.filter(|_| self.has_only_stalls()) else { return Ok(()) };
        let new = elected - stall.elected;
        let allowed = usize::from(stall.members.contains(&leader));
        Rule::Progress.check(new <= allowed, || {
            format!("{new} leaders were elected during {stall:?}: {}", self.describe_members())
        })
    }

    /// Checks that a member does not lead if its disk is the only stalled disk, and has blocked a
    /// write for longer than `HAND_OVER_MAX`. The deadline is later if another stall ended shortly
    /// before. Called when the member ticks.
    pub(super) fn check_stalled_leader(&self, id: u64) -> CheckResult {
        let Some(stalled) = &self.stalled_disks else { return Ok(()) };
        let (Some(machine), Some(stall)) = (self.machines.get(&id), &stalled.current) else {
            return Ok(());
        };
        let Some(since) = machine.write_held_since.filter(|_| self.has_only_stalls()) else {
            return Ok(());
        };
        let deadline = (since + HAND_OVER_MAX).max(stalled.last_end + RECOVERY_MAX);
        let must_not_lead = stall.members == [id] && self.events.now() > deadline;
        Rule::Progress.check(!must_not_lead || !machine.is_leader(), || {
            format!(
                "{id} is the leader, although its disk has stalled: {}",
                self.describe_members()
            )
        })
    }
}
