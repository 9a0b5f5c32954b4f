//! Disks that stall: no write of a member, or of any member, completes for up to ten seconds.
//!
//! ```text
//!   0 s        3 s                                    ~23 s
//!   │ election │  stalls only, healthy network:       │ stalls among other faults │ quiet phase
//!   │          │  the rules below are checked         │                           │
//! ```
//!
//! While nothing else is wrong,
//!
//! * a leader whose disk has stalled stops leading, if all other disks work;
//! * at most one leader is elected during a stall, and none during a stall of a follower;
//! * if all disks stall, at most one leader is elected.

use super::{Cluster, Event};
use crate::bugs::Bug;
use crate::checkers::{CheckResult, Rule};
use crate::event_queue::{MILLISECOND, Micros, SECOND};
use crate::network::NetworkFaults;
use crate::rng::Rng;

/// When the first stall may start.
const FIRST_STALL: Micros = 3 * SECOND;
/// Length of the phase with stalled disks and no other fault.
const STALL_PHASE: Micros = 20 * SECOND;
/// One election time-out of a member without a drifting clock.
const ELECTION_TIMEOUT: Micros = SECOND;
/// Longest time between a write that the stalled disk holds up and the end of leadership.
const HAND_OVER_MAX: Micros = 5 * ELECTION_TIMEOUT / 2;
/// Longest time from the end of a stall until the member's disk must count as working.
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
    /// Number of elected leaders when the stall started.
    elected: usize,
}

impl StalledDisks {
    /// `None`: no disk stalls in this run. Each third run has stalls, and each with the bug that
    /// they are to find.
    pub(super) fn random(mut rng: Rng, bug: Option<Bug>) -> Option<StalledDisks> {
        let has_stalls = match bug {
            Some(bug) => bug == Bug::StalledLeaderLeads,
            None => rng.permille(333),
        };
        has_stalls.then_some(StalledDisks { rng, current: None, last_end: 0, bug })
    }

    /// The other faults start later by this time.
    pub(super) fn delay(&self) -> Micros {
        FIRST_STALL + STALL_PHASE
    }
}

impl Cluster {
    pub(super) fn plan_stalls(&mut self) {
        if self.stalled_disks.is_some() {
            self.network.faults = NetworkFaults::HEALTHY;
            self.events.schedule(FIRST_STALL, Event::StallDisks);
            self.events.schedule(FIRST_STALL + STALL_PHASE, Event::EndNetworkFaults);
        }
    }

    fn has_only_stalls(&self) -> bool {
        self.events.now() < FIRST_STALL + STALL_PHASE
    }

    /// Starts a stall, or ends the present one and plans the next.
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
            self.events.schedule(pause, Event::StallDisks);
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
        // The check comes before the writes that the stall has held up.
        let stall = Stall { members, until: now + duration + 1, leader: view.leader, elected };
        self.trace.record(now, format_args!("fault: {stall:?}"));
        for id in &stall.members {
            if let Some(machine) = self.machines.get_mut(id) {
                machine.disk_stalled_until = stall.until;
            }
        }
        stalled.current = Some(stall);
        self.metrics.disk_stalls += 1;
        self.events.schedule(duration, Event::StallDisks);
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

    /// Called when a member ticks.
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
            format!("{id} leads, and its disk has stalled: {}", self.describe_members())
        })
    }
}
