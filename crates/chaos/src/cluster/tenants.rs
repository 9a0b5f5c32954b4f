//! Tenants: they take leases, hang keys on them, keep some alive for a while, and let go.
//!
//! None waits for an answer. Whether a grant or a put came to anything is seen in the log; what matters
//! is that all members make the same of it. Only who keeps a lease alive is told something, and it is
//! a promise: see [`leases`](crate::checkers::leases). He does it as the server does: the member must
//! take itself for the leader, a read must be let go, and then the lease is renewed at once.

use clearlane_lease::Renewal;
use clearlane_member::core::Input as RaftInput;

use super::users::Asker;
use super::{Cluster, Event};
use crate::chance::Chance;
use crate::judge::Verdict;
use crate::machine::Machine;
use crate::proposals::{Proposal, encode};
use crate::tenancy::{Act, KEY};
use crate::world::{MILLISECOND, Micros, SECOND};

/// So many of the newest leases are used.
const IN_USE: u64 = 4;

/// All tenants.
#[derive(Debug)]
pub(super) struct Tenants {
    longest_pause: Micros,
    /// The newest lease.
    newest: u64,
    chance: Chance,
}

impl Tenants {
    pub(super) fn new(mut chance: Chance) -> Tenants {
        let longest_pause = chance.of_any_size(30 * MILLISECOND, 2 * SECOND);
        Tenants { longest_pause, newest: 0, chance }
    }

    fn pause(&mut self) -> Micros {
        self.chance.of_any_size(MILLISECOND, self.longest_pause)
    }

    /// One of those that were granted last. It may be gone.
    fn lease(&mut self) -> i64 {
        let first = self.newest.saturating_sub(IN_USE - 1);
        self.chance.between(first, self.newest) as i64
    }
}

impl Cluster {
    pub(super) fn plan_tenant(&mut self) {
        let wait = self.tenants.pause();
        self.world.after(wait, Event::Tenant);
    }

    /// A tenant does something somewhere.
    pub(super) fn tenant_acts(&mut self) -> Verdict {
        if self.quiet.clients_rest {
            return Ok(());
        }
        self.plan_tenant();
        let up = self.machines.values().filter(|machine| machine.running.is_some());
        let up: Vec<u64> = up.map(|machine| machine.id).collect();
        let Some(member) = self.tenants.chance.one_of(&up).copied() else { return Ok(()) };
        let tenants = &mut self.tenants;
        let act = match tenants.chance.between(0, 9) {
            0..=1 => {
                tenants.newest += 1;
                let ttl = tenants.chance.between(2, 8) as i64;
                Act::Grant { id: tenants.newest as i64, ttl }
            }
            2..=5 => {
                let key = format!("{KEY}{}", tenants.chance.between(1, 6));
                let lease = if tenants.chance.permille(900) { tenants.lease() } else { 0 };
                Act::Put { key, lease }
            }
            6 => Act::Revoke(tenants.lease()),
            _ => return self.keep_alive(),
        };
        self.line(format_args!("a tenant wants from {member}: {act:?}"));
        self.propose_for_nobody(member, act)
    }

    /// At whoever takes himself for the leader.
    fn keep_alive(&mut self) -> Verdict {
        let leads: Vec<u64> =
            self.machines.values().filter(|it| it.leads()).map(|it| it.id).collect();
        let Some(member) = self.tenants.chance.one_of(&leads).copied() else { return Ok(()) };
        let (lease, now) = (self.tenants.lease(), self.world.now());
        self.line(format_args!("a tenant wants from {member}: keep {lease} alive"));
        self.submit(member, Asker::KeepAlive { lease, since: now }, RaftInput::Read);
        Ok(())
    }

    /// A lease may be kept alive, or may not.
    pub(super) fn tenant_hears(
        &mut self,
        member: u64,
        (lease, asked): (i64, Micros),
        may: bool,
    ) -> Verdict {
        let now = self.world.now();
        let Some(machine) = self.machines.get_mut(&member).filter(|_| may) else { return Ok(()) };
        let time = machine.clock.time(now);
        let Some(applier) = machine.applier() else { return Ok(()) };
        match applier.leases().renew(lease, time) {
            Renewal::Renewed(ttl) => {
                let drift = self.terms.drift_ppm_max;
                self.judge.promises.keeps_alive(lease, asked, ttl, drift);
                self.line(format_args!("lease {lease} lives, as {member} says"));
                Ok(())
            }
            Renewal::CheckpointFirst(checkpoint) => {
                let act = Act::Checkpoint(vec![(checkpoint.id, checkpoint.left)]);
                self.propose_for_nobody(member, act)
            }
            Renewal::Gone | Renewal::NotLeading => Ok(()),
        }
    }

    fn propose_for_nobody(&mut self, member: u64, act: Act) -> Verdict {
        let is_end = matches!(act, Act::Revoke(_));
        let request = Box::new(encode(&Proposal::Lease(act)));
        self.submit(member, Asker::Act { is_end }, |of| RaftInput::Propose(request, of));
        Ok(())
    }

    /// Whether no member has a lease any more: none is kept alive at the end.
    pub(super) fn no_leases(&self) -> bool {
        self.machines
            .values()
            .filter_map(Machine::applier)
            .all(|applier| applier.leases().count() == 0)
    }
}
