//! Clients that grant and revoke leases, attach keys to them, and keep some alive for a while.
//!
//! The clients ignore the responses, except the response to a keep-alive. This response is a
//! promise: see [`leases`](crate::checkers::leases). A member renews a lease as the server does. It
//! must consider itself the leader, and its ReadIndex request must be confirmed. Then it renews the
//! lease immediately, unless the lease has a checkpoint below its full TTL. In that case the member
//! proposes a checkpoint that restores the full TTL, and the client gets no response.

use clearlane_lease::Renewal;
use clearlane_raft::read_index::ReadNeed;

use super::Cluster;
use crate::event_queue::{MILLISECOND, Micros, SECOND};
use crate::lease_model::{LEASE_KEY_PREFIX, LeaseOp};
use crate::machine::Machine;
use crate::rng::Rng;

/// Number of leases in use. Lease clients use only the newest leases.
const LEASES_IN_USE: u64 = 4;

#[derive(Debug)]
pub(super) struct LeaseClients {
    pause_max: Micros,
    newest_lease: u64,
    rng: Rng,
}

impl LeaseClients {
    pub(super) fn new(mut rng: Rng) -> LeaseClients {
        let pause_max = rng.log_uniform(30 * MILLISECOND, 2 * SECOND);
        LeaseClients { pause_max, newest_lease: 0, rng }
    }

    fn pause(&mut self) -> Micros {
        self.rng.log_uniform(MILLISECOND, self.pause_max)
    }

    /// Returns the ID of one of the newest leases. The lease may have ended.
    fn recent_lease(&mut self) -> i64 {
        let first = self.newest_lease.saturating_sub(LEASES_IN_USE - 1);
        self.rng.between(first, self.newest_lease) as i64
    }
}

impl Cluster {
    pub(super) fn plan_lease_client(&mut self) {
        let wait = self.lease_clients.pause();
        self.events.plan(wait, Cluster::run_lease_client);
    }

    pub(super) fn run_lease_client(&mut self) {
        if self.quiet.clients_stopped {
            return;
        }
        self.plan_lease_client();
        let up = self.up();
        let Some(member) = self.lease_clients.rng.choose(&up).copied() else { return };
        let clients = &mut self.lease_clients;
        let op = match clients.rng.between(0, 9) {
            0..=1 => {
                clients.newest_lease += 1;
                let ttl = clients.rng.between(2, 8) as i64;
                LeaseOp::Grant { id: clients.newest_lease as i64, ttl }
            }
            2..=5 => {
                let key = format!("{LEASE_KEY_PREFIX}{}", clients.rng.between(1, 6));
                let lease = if clients.rng.permille(900) { clients.recent_lease() } else { 0 };
                LeaseOp::Put { key, lease }
            }
            6 => LeaseOp::Revoke(clients.recent_lease()),
            _ => return self.keep_alive(),
        };
        self.trace_line(format_args!("a lease client asks {member}: {op:?}"));
        self.propose_lease_op(member, op);
    }

    /// Asks a member that considers itself the leader to keep a lease alive.
    fn keep_alive(&mut self) {
        let leads: Vec<u64> =
            self.machines.values().filter(|it| it.is_leader()).map(|it| it.id).collect();
        let Some(member) = self.lease_clients.rng.choose(&leads).copied() else { return };
        let (lease, now) = (self.lease_clients.recent_lease(), self.events.now());
        self.trace_line(format_args!("a lease client asks {member}: keep {lease} alive"));
        // With the gate FastLeaseKeepAlive, the server chooses in the same way: if there are no
        // checkpoints, a lease that exists here is renewed without waiting for entries to be
        // applied.
        let applier = self.machines.get(&member).and_then(Machine::applier);
        let has_checkpoints = self.config.lease_checkpoint_interval.is_some();
        let need = match applier.is_some_and(|applier| applier.leases.contains(lease)) {
            true if !has_checkpoints => ReadNeed::Confirmed,
            _ => ReadNeed::Applied,
        };
        self.after_read_index(member, need, None, move |cluster, member| {
            cluster.renew(member, lease, now);
        });
    }

    /// Renews a lease. `asked` is the time when the lease client sent its request.
    fn renew(&mut self, member: u64, lease: i64, asked: Micros) {
        let now = self.events.now();
        let Some(machine) = self.machines.get_mut(&member) else { return };
        let time = machine.clock.elapsed(now);
        let Some(applier) = machine.applier() else { return };
        match applier.leases.renew(lease, time) {
            Renewal::Renewed(ttl) => {
                let drift = self.config.drift_ppm_max;
                self.checker.lease_promises.on_keep_alive(lease, asked, ttl, drift);
                self.trace_line(format_args!("lease {lease} lives, as {member} says"));
            }
            Renewal::CheckpointFirst(checkpoint) => {
                let op = LeaseOp::Checkpoint(vec![(checkpoint.id, checkpoint.remaining_ttl)]);
                self.propose_lease_op(member, op);
            }
            Renewal::NotFound | Renewal::NotLeading => {}
        }
    }

    /// Returns whether no running member has a lease. In the quiet phase the lease clients stop, so
    /// all leases must expire.
    pub(super) fn has_no_leases(&self) -> bool {
        self.machines
            .values()
            .filter_map(Machine::applier)
            .all(|applier| applier.leases.count() == 0)
    }
}
