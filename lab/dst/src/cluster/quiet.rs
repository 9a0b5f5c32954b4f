//! The quiet phase: all links, disks and clocks are repaired, and the cluster must recover.
//!
//! Clients continue for 3 s and then stop. Three things must happen within a minute. This limit is
//! six times the sum of the longest time-outs.
//!
//! * One final write is acknowledged.
//! * All leases expire.
//! * All members apply the same index, and their stores then have the same hash.

use std::sync::Arc;

use super::client_pool::LAST_CLIENT;
use super::message_triggers::MessageTriggers;
use super::{Cluster, member_failed};
use crate::checkers::{CheckResult, Violation};
use crate::clients::Client;
use crate::event_queue::{MILLISECOND, Micros, SECOND};
use crate::machine::{Machine, RunningMember, hash_kv};
use crate::network::NetworkFaults;

/// Upper bound of `apply_delay_max` in the quiet phase.
const APPLY_WHEN_QUIET: Micros = 10 * MILLISECOND;

#[derive(Debug, Default)]
pub(super) struct QuietPhase {
    pub(super) since: Option<Micros>,
    pub(super) clients_stopped: bool,
    last_write_begun: bool,
    pub(super) last_write_done: bool,
    pub(super) is_over: bool,
}

impl Cluster {
    pub(super) fn begin_quiet_phase(&mut self) {
        let now = self.events.now();
        self.trace_line(format_args!("all is quiet"));
        self.quiet.since = Some(now);
        self.network.restore_all();
        self.config.network_faults = NetworkFaults::HEALTHY;
        // In the old eras each entry takes a separate turn of the apply loop. At 300 ms per turn,
        // the waiting entries would take longer than the quiet phase lasts.
        self.config.apply_delay_max = self.config.apply_delay_max.min(APPLY_WHEN_QUIET);
        self.message_triggers = MessageTriggers::default();
        for machine in self.machines.values_mut() {
            machine.paused_until = 0;
            machine.slow_disk = (0, 0);
            machine.disk_stalled_until = 0;
            machine.clock.set_drift(now, 0);
            let id = machine.id;
            self.events.plan(MILLISECOND, move |cluster| cluster.start(id));
        }
        self.events.plan(SECOND, Cluster::check_convergence);
    }

    /// Ends the run if the final write is acknowledged, all leases have expired and all members
    /// agree. Otherwise plans the next check. Fails if the run has not ended within a minute. If
    /// the cluster has lost its quorum for an accepted reason, ends the run after this minute
    /// without an error.
    pub(super) fn check_convergence(&mut self) -> CheckResult {
        let now = self.events.now();
        let Some(since) = self.quiet.since else { return Ok(()) };
        if now > since + 60 * SECOND {
            if self.has_lost_quorum() {
                self.trace_line(format_args!("the quorum has left"));
                self.metrics.quorums_removed += 1;
                self.quiet.is_over = true;
                return Ok(());
            }
            if self.lacks_intact_quorum() {
                self.trace_line(format_args!("too few disks are intact: the cluster waits"));
                self.metrics.waiting_ends += 1;
                self.quiet.is_over = true;
                return Ok(());
            }
            return Err(
                self.no_progress("the members do not agree one minute after the last fault")
            );
        }
        self.quiet.clients_stopped |= now > since + 3 * SECOND;
        self.stop_removed_members();
        let mut clients = self.clients.clients.values();
        if self.quiet.clients_stopped && clients.all(|client| client.pending_operation.is_none()) {
            self.begin_last_write();
        }
        if self.quiet.last_write_done && self.has_no_leases() && self.all_members_agree()? {
            self.quiet.is_over = true;
            return Ok(());
        }
        self.events.plan(250 * MILLISECOND, Cluster::check_convergence);
        Ok(())
    }

    fn begin_last_write(&mut self) {
        if std::mem::replace(&mut self.quiet.last_write_begun, true) {
            return;
        }
        let rng = self.clients.rng.split();
        let last = Client::new(LAST_CLIENT, self.config.client_config, rng);
        self.clients.clients.insert(LAST_CLIENT, last);
        self.plan_client(LAST_CLIENT, 0);
    }

    /// Stops removed members that have not applied their removal, as an operator would. A member
    /// that has applied its removal still informs the others, and then stops by itself.
    fn stop_removed_members(&mut self) {
        let newest = self.machines.values().filter_map(Machine::applier);
        let Some(newest) = newest.max_by_key(|core| core.applied_position.index) else { return };
        let unaware = self.present().filter(|machine| {
            let knows = machine.applier().is_some_and(|own| own.members.is_removed(machine.id));
            newest.members.is_removed(machine.id) && !knows
        });
        for id in unaware.map(|machine| machine.id).collect::<Vec<_>>() {
            self.remove_machine(id);
        }
    }

    /// Returns whether the cluster has lost its quorum because one of two voters was removed: some
    /// member still has these two as its voters, so it needs both. `docs/dst.md` explains why this
    /// end is accepted.
    fn has_lost_quorum(&self) -> bool {
        let is_gone = |id| self.machines.get(id).is_some_and(|machine| machine.is_removed);
        self.present().filter_map(Machine::replica).any(|core| {
            core.conf_state()
                .is_some_and(|raft| raft.voters.len() == 2 && raft.voters.iter().any(is_gone))
        })
    }

    /// Returns whether all members run, have applied the same index and have no running compaction.
    /// Then their stores must have the same hash, otherwise the result is a violation.
    fn all_members_agree(&mut self) -> Result<bool, Violation> {
        let count = self.present().count();
        let running =
            self.present().filter_map(|machine| Some((machine.id, machine.running.as_ref()?)));
        let Some((_, first)) = running.clone().next() else { return Ok(false) };
        let position = first.applier.applied_position.clone();
        let listed = position.conf_state.voters.len() + position.conf_state.learners.len();
        let is_same = |(_, running): (u64, &RunningMember)| {
            running.applier.applied_position == position && running.compactions.is_empty()
        };
        if running.clone().count() != count || listed != count || !running.clone().all(is_same) {
            return Ok(false);
        }
        let stores = running.map(|(id, running)| (id, Arc::clone(&running.applier.store)));
        for (id, store) in stores.collect::<Vec<_>>() {
            let hash = hash_kv(&*store).map_err(member_failed(id))?;
            self.checker.agreement.check_hash(id, position.index, hash)?;
        }
        self.trace_line(format_args!("all agree at {}", position.index));
        Ok(true)
    }
}
