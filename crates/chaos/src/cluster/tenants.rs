//! Tenants: they take leases, hang keys on them, keep some alive for a while, and let go.
//!
//! None waits for an answer. Whether a grant or a put came to anything is seen in the log; what matters
//! is that all members make the same of it. Only who keeps a lease alive is told something, and it is
//! a promise: see [`leases`](crate::checkers::leases). He does it as the server does: the member must
//! take itself for the leader, a read must be let go, and then the lease is renewed at once.

use std::collections::BTreeMap;

use clearlane_lease::Renewal;
use clearlane_raft_log::driver::Error;

use super::{Cluster, Event, broken};
use crate::chance::Chance;
use crate::judge::Verdict;
use crate::machine::Machine;
use crate::proposals::{Proposal, encode};
use crate::tenancy::{Act, KEY};
use crate::world::{MILLISECOND, Micros, SECOND};

/// Readers from this name on are tenants who keep a lease alive.
pub(super) const READERS: u64 = 1 << 40;
/// So many of the newest leases are used.
const IN_USE: u64 = 4;

/// All tenants.
#[derive(Debug)]
pub(super) struct Tenants {
    longest_pause: Micros,
    /// The newest lease.
    newest: u64,
    readers: u64,
    /// Who waits to keep a lease alive: which, and since when.
    waiting: BTreeMap<u64, (i64, Micros)>,
    chance: Chance,
}

impl Tenants {
    pub(super) fn new(mut chance: Chance) -> Tenants {
        let longest_pause = chance.of_any_size(30 * MILLISECOND, 2 * SECOND);
        Tenants { longest_pause, newest: 0, readers: READERS, waiting: BTreeMap::new(), chance }
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
        self.tenants.readers += 1;
        let reader = self.tenants.readers;
        self.line(format_args!("a tenant wants from {member}: keep {lease} alive"));
        let running = self.machines.get_mut(&member).and_then(|machine| machine.running.as_mut());
        let Some(running) = running else { return Ok(()) };
        if running.core.read(reader).is_ok() {
            self.tenants.waiting.insert(reader, (lease, now));
        }
        self.plan_poll(member);
        Ok(())
    }

    /// Who wanted to keep a lease alive may, or may not.
    pub(super) fn tenant_hears(&mut self, member: u64, reader: u64, may: bool) -> Verdict {
        let Some((lease, asked)) = self.tenants.waiting.remove(&reader) else { return Ok(()) };
        let now = self.world.now();
        let Some(machine) = self.machines.get_mut(&member).filter(|_| may) else { return Ok(()) };
        let time = machine.clock.time(now);
        let Some(core) = machine.core() else { return Ok(()) };
        match core.leases().renew(lease, time) {
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
        let running = self.machines.get_mut(&member).and_then(|machine| machine.running.as_mut());
        let Some(running) = running else { return Ok(()) };
        match running.core.propose(encode(&Proposal::Lease(act))) {
            Ok(id) => {
                running.core.give_up(id);
                if is_end {
                    self.judge.promises.ends_itself(id);
                }
            }
            Err(error @ Error::Stopped(_)) => return Err(broken(member, &error)),
            Err(_) => {}
        }
        self.plan_poll(member);
        Ok(())
    }

    /// Whether no member has a lease any more: none is kept alive at the end.
    pub(super) fn no_leases(&self) -> bool {
        self.machines.values().filter_map(Machine::core).all(|core| core.leases().count() == 0)
    }
}
