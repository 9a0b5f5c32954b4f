//! Faults come true here; members start and crash, come and leave.

use clearlane_member::Error;
use clearlane_member::core::Input as RaftInput;
use clearlane_member::membership::Change;
use clearlane_raft_log::driver::Leadership;

use super::users::Asker;
use super::{Cluster, Event, Input, broken, tick};
use crate::checkers::{Rule, Violation};
use crate::faults::{Fault, Sight};
use crate::judge::Verdict;
use crate::machine::{Machine, peer_url, state_of};
use crate::network::{Cut, Link};
use crate::proposals::{Proposal, encode};
use crate::world::{MILLISECOND, Micros};

impl Cluster {
    /// A member starts, if it does not run.
    pub(super) fn start(&mut self, id: u64) -> Verdict {
        let now = self.world.now();
        let Some(machine) = self.machines.get_mut(&id) else { return Ok(()) };
        if machine.running.is_some() || machine.is_gone {
            return Ok(());
        }
        if self.quiet.since.is_none() && self.chance.permille(50) {
            // Where it has not begun yet, it is cut off in the midst of its beginning.
            machine.plan_power_cut(self.chance.between(1, 6), 500 * MILLISECOND);
        }
        if let Err(error) = machine.start(now, &self.terms) {
            if !machine.has_power() {
                self.power_fails(id);
                return Ok(());
            }
            return self.stops(id, &error);
        }
        let Some(running) = &mut machine.running else { return Ok(()) };
        if let Some(bug) = self.bug {
            running.core.plant(bug);
            running.applier.plant(bug);
        }
        let (index, life) = (running.applier.progress().index, machine.life);
        let holds = state_of(&**running.applier.store()).map_err(|error| broken(id, &error))?;
        self.judge.begins(id, index)?;
        self.judge.holds(id, index, &holds)?;
        self.judge_leases(id, index)?;
        self.line(format_args!("{id} starts at {index}"));
        let wait = self.chance.between(0, 100 * MILLISECOND);
        self.world.after(wait, tick(id, life));
        self.plan(id, wait, Input::Commit { is_timer: true });
        self.plan(id, wait, Input::Round);
        self.plan_apply(id);
        self.plan_poll(id);
        Ok(())
    }

    /// A member crashes, with its machine or alone.
    pub(super) fn crash(&mut self, id: u64, power: bool) {
        let seed = self.chance.number();
        let Some(machine) = self.machines.get_mut(&id) else { return };
        machine.crash(power.then_some(seed));
        self.figures.crashes += 1;
        let what = if power { "loses its power" } else { "is killed" };
        self.line(format_args!("{id} {what}"));
        self.connections_break(id);
    }

    /// The moment has come at which the power was to fail.
    pub(super) fn power_fails(&mut self, id: u64) {
        let down = self.machines.get(&id).and_then(|machine| machine.cut_planned);
        self.figures.torn += 1;
        self.crash(id, true);
        self.world.after(down.unwrap_or(MILLISECOND), Event::Start(id));
    }

    /// A member stops by itself. It must, after an error of its disk, and starts again later.
    pub(super) fn stops(&mut self, id: u64, error: &Error) -> Verdict {
        use clearlane_raft_log::Error::{Failed, Path};
        let of_disk = matches!(error, Error::Log(Failed { .. } | Path { .. }));
        let machine = self.machines.get_mut(&id).filter(|_| of_disk);
        let planned = machine.and_then(|machine| machine.error_planned.take());
        let Some(down) = planned else { return Err(broken(id, error)) };
        self.line(format_args!("{id} stops: {error}"));
        self.figures.disk_errors += 1;
        // With its machine: what a failed sync has lost is still in the system's memory, and whoever
        // reads it there takes it for written.
        self.crash(id, true);
        self.world.after(down, Event::Start(id));
        Ok(())
    }

    /// A member has learned that it is none.
    pub(super) fn leaves(&mut self, id: u64) {
        self.line(format_args!("{id} has left"));
        self.figures.left += 1;
        self.connections_break(id);
        if let Some(machine) = self.machines.get_mut(&id) {
            machine.crash(None);
            machine.is_gone = true;
        }
    }

    /// Those who were added get a machine.
    pub(super) fn welcome_members(&mut self, id: u64) {
        let Some(applier) = self.machines.get(&id).and_then(Machine::applier) else { return };
        let is_new = |id: &u64| !self.machines.contains_key(id);
        let new: Vec<u64> =
            applier.members().iter().map(|member| member.id).filter(is_new).collect();
        for id in new {
            self.line(format_args!("{id} joins"));
            self.figures.joined += 1;
            self.place(id, &[]);
        }
    }

    fn sight(&self) -> Sight {
        let running = || self.machines.values().filter(|machine| machine.running.is_some());
        let leads = running().filter(|machine| machine.leads());
        let leader = leads.max_by_key(|machine| machine.leadership().term);
        let newest = running().filter_map(|machine| machine.applier());
        let newest = newest.max_by_key(|core| core.progress().index);
        let members = newest.map(|core| core.progress().members.clone()).unwrap_or_default();
        Sight {
            up: running().map(|machine| machine.id).collect(),
            leader: leader.map(|machine| machine.id),
            voters: members.voters.clone(),
            learners: members.learners.clone(),
        }
    }

    pub(super) fn something_goes_wrong(&mut self) -> Verdict {
        if self.quiet.since.is_some() {
            return Ok(());
        }
        let pause = self.faults.pause();
        self.world.after(pause, Event::Fault);
        match self.faults.draw(&self.sight()) {
            Some(fault) => {
                self.line(format_args!("fault: {fault:?}"));
                self.befall(fault)
            }
            None => Ok(()),
        }
    }

    fn befall(&mut self, fault: Fault) -> Verdict {
        let now = self.world.now();
        match fault {
            Fault::Crash { members, power, down } => {
                for id in members {
                    self.crash(id, power);
                    self.world.after(down, Event::Start(id));
                }
            }
            Fault::PowerCut { member, operation, down } => {
                self.machine(member, |machine| machine.plan_power_cut(operation, down));
            }
            Fault::DiskError { member, operation, down } => {
                self.machine(member, |machine| machine.plan_disk_error(operation, down));
            }
            Fault::Cut(cut, lasts) => self.cut_off(&cut, lasts),
            Fault::Weather(weather, lasts) => {
                self.network.weather = weather;
                self.world.after(lasts, Event::Clears);
            }
            Fault::SlowDisk { member, write, lasts } => {
                self.machine(member, |machine| machine.slow_disk = (now + lasts, write));
            }
            Fault::Pause(member, lasts) => {
                self.machine(member, |machine| machine.paused_until = now + lasts);
            }
            Fault::Drift(member, ppm) => {
                self.machine(member, |machine| machine.clock.set_drift(now, ppm));
            }
            Fault::Join => {
                self.newest_id += 1;
                let id = self.newest_id;
                let peer_urls = vec![peer_url(id)];
                self.change(Change::Add { id, peer_urls, is_learner: true })?;
            }
            Fault::Promote(id) => self.change(Change::Promote { id })?,
            Fault::Leave(id) => self.change(Change::Remove { id })?,
            Fault::Transfer { to, cut } => self.transfer(to, cut),
            Fault::Vote { down, cut } => self.ambush.vote = Some((down, cut)),
            Fault::Compact => self.propose_compaction()?,
        }
        Ok(())
    }

    fn machine(&mut self, id: u64, what: impl FnOnce(&mut Machine)) {
        if let Some(machine) = self.machines.get_mut(&id) {
            what(machine);
        }
    }

    pub(super) fn cut_off(&mut self, cut: &Cut, lasts: Micros) {
        let members: Vec<u64> = self.machines.keys().copied().collect();
        let links = cut.links(&members);
        self.network.cut(&links);
        self.world.after(lasts, Event::Mend(links.into_iter().collect::<Vec<Link>>()));
    }

    fn transfer(&mut self, to: u64, cut: Option<Micros>) {
        let Some(leader) = self.sight().leader else { return };
        self.ambush.transfer = cut.map(|lasts| (leader, lasts));
        let running = self.machines.get_mut(&leader).and_then(|machine| machine.running.as_mut());
        if let Some(running) = running {
            running.core.transfer_leader(to);
        }
        self.plan_poll(leader);
    }

    /// Proposes a change at some member, a promotion at the leader. None waits for the outcome.
    fn change(&mut self, change: Change) -> Verdict {
        let sight = self.sight();
        let any = self.chance.one_of(&sight.up).copied();
        let leader = sight.leader.filter(|_| matches!(change, Change::Promote { .. }));
        let Some(id) = leader.or(any) else { return Ok(()) };
        self.line(format_args!("{id} is to propose {change:?}"));
        self.submit(id, Asker::Nobody, |of| RaftInput::ChangeMembers(change, of));
        Ok(())
    }

    fn propose_compaction(&mut self) -> Verdict {
        let up = self.sight().up;
        let Some(id) = self.chance.one_of(&up).copied() else { return Ok(()) };
        let back = self.chance.of_any_size(0, 100) as i64;
        let Some(applier) = self.machines.get(&id).and_then(Machine::applier) else {
            return Ok(());
        };
        let at = applier.store().read().revision() - back;
        if at > 1 {
            let request = Box::new(encode(&Proposal::Compact(at)));
            self.line(format_args!("{id} is to propose to compact at {at}"));
            self.submit(id, Asker::Nobody, |of| RaftInput::Propose(request, of));
        }
        Ok(())
    }

    /// Everybody's view, for a report.
    pub(super) fn views(&self) -> String {
        let view = |machine: &Machine| match machine.core().zip(machine.applier()) {
            None => format!("{}: down (gone: {})", machine.id, machine.is_gone),
            Some((core, applier)) => {
                let Leadership { leader, term, role } = core.leadership();
                let (index, members) = (applier.progress().index, &applier.progress().members);
                format!(
                    "{}: {role:?} term {term} leader {leader} committed {} applied {index} \
                     voters {:?} learners {:?}",
                    machine.id,
                    core.committed(),
                    members.voters,
                    members.learners
                )
            }
        };
        self.machines.values().map(view).collect::<Vec<_>>().join("; ")
    }

    /// The rule that at the end the cluster works.
    pub(super) fn stuck(&self, why: &str) -> Violation {
        Violation::new(Rule::Progress, format!("{why}: {}", self.views()))
    }
}
