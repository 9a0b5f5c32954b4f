//! The quiet end: nothing more goes wrong, and so everything must come right.
//!
//! All links are whole, all disks fast, all clocks right, and who is a member runs. Clients go on for
//! a while and then rest. One last write must come through, and in the end all members must have
//! applied the same, with the same hash. All of it within a minute: that is six times what the longest
//! time-outs add up to.

use std::sync::Arc;

use super::ambush::Ambush;
use super::users::LAST_CLIENT;
use super::{Cluster, Event};
use crate::clients::Client;
use crate::judge::Verdict;
use crate::machine::{Machine, hash_of};
use crate::network::Weather;
use crate::world::{MILLISECOND, Micros, SECOND};

/// The longest time until the apply loop has its turn, at the end.
const APPLY_WHEN_QUIET: Micros = 10 * MILLISECOND;

/// How far the end has come.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    /// When it began.
    pub(super) since: Option<Micros>,
    /// Clients do not ask any more.
    pub(super) clients_rest: bool,
    last_write_begun: bool,
    /// The last write was acknowledged.
    pub(super) last_write_done: bool,
    pub(super) is_over: bool,
}

impl Cluster {
    pub(super) fn fall_quiet(&mut self) {
        let now = self.world.now();
        self.line(format_args!("all is quiet"));
        self.quiet.since = Some(now);
        self.network.heal();
        self.terms.weather = Weather::FAIR;
        // In the old eras each entry is a turn: at 300 ms each, what has gathered takes longer than the end lasts.
        self.terms.apply = self.terms.apply.min(APPLY_WHEN_QUIET);
        self.ambush = Ambush::default();
        for machine in self.machines.values_mut() {
            machine.paused_until = 0;
            machine.slow_disk = (0, 0);
            machine.clock.set_drift(now, 0);
            self.world.after(MILLISECOND, Event::Start(machine.id));
        }
        self.world.after(SECOND, Event::Look);
    }

    /// Looks whether all is well, and again a little later if it is not.
    pub(super) fn look(&mut self) -> Verdict {
        let now = self.world.now();
        let Some(since) = self.quiet.since else { return Ok(()) };
        if now > since + 60 * SECOND {
            if self.has_lost_a_voter_of_two() {
                self.line(format_args!("the quorum has left"));
                self.figures.quorums_removed += 1;
                self.quiet.is_over = true;
                return Ok(());
            }
            return Err(self.stuck("no agreement a minute after the last fault"));
        }
        self.quiet.clients_rest |= now > since + 3 * SECOND;
        self.send_strangers_home();
        if self.quiet.clients_rest && !self.users.anybody_waits() {
            self.begin_last_write();
        }
        if self.quiet.last_write_done && self.no_leases() && self.all_agree()? {
            self.quiet.is_over = true;
            return Ok(());
        }
        self.world.after(250 * MILLISECOND, Event::Look);
        Ok(())
    }

    fn begin_last_write(&mut self) {
        if std::mem::replace(&mut self.quiet.last_write_begun, true) {
            return;
        }
        let chance = self.users.chance.part();
        let last = Client::new(LAST_CLIENT, self.terms.habits, chance);
        self.users.clients.insert(LAST_CLIENT, last);
        self.world.after(0, Event::Wants(LAST_CLIENT));
    }

    /// A member that has left and has not heard of it is switched off, as its owner would do. One that has heard
    /// of it still tells the others, and stops by itself.
    fn send_strangers_home(&mut self) {
        let newest = self.machines.values().filter_map(Machine::applier);
        let Some(newest) = newest.max_by_key(|core| core.progress().index) else { return };
        let strangers = self.machines.values().filter(|machine| !machine.is_gone);
        let strangers = strangers.filter(|machine| {
            let knows = machine.applier().is_some_and(|own| own.members().is_removed(machine.id));
            newest.members().is_removed(machine.id) && !knows
        });
        for id in strangers.map(|machine| machine.id).collect::<Vec<_>>() {
            self.leaves(id);
        }
    }

    /// Of two voters one was removed, and the removal was committed by it alone: the other lost its power before
    /// it wrote that down, and counts two voters, of which one is stopped for good. etcd comes to the same end.
    fn has_lost_a_voter_of_two(&self) -> bool {
        let is_gone = |id| self.machines.get(id).is_some_and(|machine| machine.is_gone);
        let here = self.machines.values().filter(|machine| !machine.is_gone);
        here.filter_map(Machine::core).any(|core| {
            core.conf_state()
                .is_some_and(|raft| raft.voters.len() == 2 && raft.voters.iter().any(is_gone))
        })
    }

    /// Whether all members have applied the same. If they have, they must hold the same.
    fn all_agree(&mut self) -> Result<bool, crate::checkers::Violation> {
        let here: Vec<&Machine> =
            self.machines.values().filter(|machine| !machine.is_gone).collect();
        let cores: Vec<_> = here.iter().filter_map(|machine| machine.applier()).collect();
        let Some(first) = cores.first().map(|core| core.progress()) else { return Ok(false) };
        let members = first.members.voters.len() + first.members.learners.len();
        let same = cores.iter().all(|core| core.progress() == first);
        if !same || cores.len() != here.len() || members != here.len() {
            return Ok(false);
        }
        let index = first.index;
        if here.iter().any(|machine| {
            machine.running.as_ref().is_some_and(|running| !running.compactions.is_empty())
        }) {
            return Ok(false);
        }
        let stores = here.iter().filter_map(|machine| {
            machine.applier().map(|applier| (machine.id, Arc::clone(applier.store())))
        });
        for (id, store) in stores.collect::<Vec<_>>() {
            let hash = hash_of(&*store).map_err(|error| super::broken(id, &error))?;
            self.judge.hash(id, index, hash)?;
        }
        self.line(format_args!("all agree at {index}"));
        Ok(true)
    }
}
