//! Injects the faults. Starts, crashes, adds and removes members.

use clearlane_raft::Leadership;
use clearlane_replica::membership::{Member, MemberChange};
use clearlane_replica::{AppliedPosition, Error, ReplicaInput as RaftInput};

use super::client_pool::RequestWaiter;
use super::{Cluster, member_failed};
use crate::bugs::{Bug, unnoticed_transfer};
use crate::checkers::{CheckResult, Rule, Violation};
use crate::event_queue::{MILLISECOND, Micros};
use crate::faults::{ClusterView, Fault};
use crate::machine::{Machine, RunningMember, client_records, peer_url};
use crate::network::Partition;
use crate::proposals::{Proposal, encode};

impl Cluster {
    pub(super) fn plan_start(&mut self, id: u64, wait: Micros) {
        self.events.plan(wait, move |cluster| cluster.start(id));
    }

    /// Starts a member. Does nothing if the member is already running or was removed. A member with
    /// a wiped disk does not start yet, but starts to query the other members.
    pub(super) fn start(&mut self, id: u64) -> CheckResult {
        let now = self.events.now();
        let Some(machine) = self.machines.get_mut(&id) else { return Ok(()) };
        if machine.running.is_some() || machine.is_removed {
            return Ok(());
        }
        if machine.wiped.is_some() {
            self.begin_to_ask(id);
            return Ok(());
        }
        if self.quiet.since.is_none() && self.rng.permille(50) {
            // Let some power cuts happen during the start.
            machine.plan_power_cut(self.rng.between(1, 6), 500 * MILLISECOND);
        }
        if let Err(error) = machine.start(now, &self.config) {
            if !machine.disk.has_power() {
                self.on_power_failure(id);
                return Ok(());
            }
            return self.on_member_error(id, &error);
        }
        let Some(running) = &machine.running else { return Ok(()) };
        let index = running.applier.applied_position.index;
        let holds = client_records(&*running.applier.store).map_err(member_failed(id))?;
        self.checker.on_store_opened(id, index)?;
        self.checker.check_records(id, index, &holds)?;
        self.check_leases(id, index)?;
        self.check_auth(id, index, true)?;
        self.trace_line(format_args!("{id} starts at {index}"));
        let wait = self.rng.between(0, 100 * MILLISECOND);
        self.plan_tick(id, wait);
        self.plan_commit(id, wait, true);
        self.plan_timeouts(id, wait);
        self.plan_apply(id);
        self.plan_poll(id);
        Ok(())
    }

    /// Crashes a member. If `power` is true, its machine loses its power, and unsynced data is
    /// lost.
    pub(super) fn crash(&mut self, id: u64, power: bool) {
        let seed = self.rng.next_u64();
        let Some(machine) = self.machines.get_mut(&id) else { return };
        machine.crash(power.then_some(seed));
        self.metrics.crashes += 1;
        let what = if power { "loses its power" } else { "is killed" };
        self.trace_line(format_args!("{id} {what}"));
        self.break_connections(id);
    }

    pub(super) fn on_power_failure(&mut self, id: u64) {
        let down = self.machines.get(&id).and_then(|machine| machine.planned_power_cut);
        self.metrics.torn_writes += 1;
        self.crash(id, true);
        self.plan_start(id, down.unwrap_or(MILLISECOND));
    }

    /// Handles a member that has stopped by itself. After a planned disk error, the member restarts
    /// later. A member whose disk was wiped may also stop because its log has lost entries; it does
    /// not restart. Any other stop is a violation.
    pub(super) fn on_member_error(&mut self, id: u64, error: &Error) -> CheckResult {
        use clearlane_wal::Error::{Failed, Path};
        let was_wiped = self.machines.get(&id).is_some_and(|machine| machine.was_wiped);
        if was_wiped && matches!(error, Error::Raft(clearlane_raft::Error::LostLog { .. })) {
            self.metrics.lost_logs += 1;
            self.give_up_member(id);
            return Ok(());
        }
        let of_disk = matches!(error, Error::Wal(Failed { .. } | Path { .. }));
        let machine = self.machines.get_mut(&id).filter(|_| of_disk);
        let planned = machine.and_then(|machine| machine.planned_disk_error.take());
        let Some(down) = planned else { return Err(member_failed(id)(error)) };
        self.trace_line(format_args!("{id} stops: {error}"));
        self.metrics.disk_errors += 1;
        // The machine also loses its power. Otherwise the page cache would still have the data that
        // the failed sync has lost, and a restarted member would treat it as synced.
        self.crash(id, true);
        self.plan_start(id, down);
        Ok(())
    }

    pub(super) fn remove_machine(&mut self, id: u64) {
        self.trace_line(format_args!("{id} has left"));
        self.metrics.members_removed += 1;
        self.break_connections(id);
        if let Some(machine) = self.machines.get_mut(&id) {
            machine.crash(None);
            machine.is_removed = true;
        }
    }

    pub(super) fn add_new_machines(&mut self, id: u64) {
        let Some(RunningMember { applier, .. }) = self.running(id) else { return };
        let ids = applier.members.iter().map(|member| member.id);
        for id in ids.filter(|id| !self.machines.contains_key(id)).collect::<Vec<_>>() {
            self.trace_line(format_args!("{id} joins"));
            self.metrics.members_added += 1;
            self.add_machine(id, &[]);
        }
    }

    pub(super) fn view(&self) -> ClusterView {
        let running = || self.machines.values().filter(|machine| machine.running.is_some());
        let leads = running().filter(|machine| machine.is_leader());
        let leader = leads.max_by_key(|machine| machine.leadership().term);
        let positions = running().filter_map(|machine| Some(&machine.applier()?.applied_position));
        let newest = positions.max_by_key(|position| position.index);
        let members = newest.map(|position| position.conf_state.clone()).unwrap_or_default();
        ClusterView {
            up: self.up(),
            leader: leader.map(|machine| machine.id),
            voters: members.voters.clone(),
            learners: members.learners.clone(),
        }
    }

    pub(super) fn inject_next_fault(&mut self) {
        if self.quiet.since.is_some() {
            return;
        }
        let pause = self.faults.pause();
        self.events.plan(pause, Cluster::inject_next_fault);
        if let Some(fault) = self.faults.next_fault(&self.view()) {
            self.trace_line(format_args!("fault: {fault:?}"));
            self.inject_fault(fault);
        }
    }

    fn inject_fault(&mut self, fault: Fault) {
        let now = self.events.now();
        match fault {
            Fault::Crash { members, power, down } => {
                for id in members {
                    self.crash(id, power);
                    self.plan_start(id, down);
                }
            }
            Fault::PowerCut { member, operation, down } => {
                self.with_machine(member, |machine| machine.plan_power_cut(operation, down));
            }
            Fault::DiskError { member, operation, down } => {
                self.with_machine(member, |machine| machine.plan_disk_error(operation, down));
            }
            Fault::Partition(cut, duration) => self.partition(&cut, duration),
            Fault::Network(faults, duration) => {
                self.network.faults = faults;
                self.events.plan(duration, Cluster::end_network_faults);
            }
            Fault::SlowDisk { member, write, duration } => {
                self.with_machine(member, |machine| machine.slow_disk = (now + duration, write));
            }
            Fault::Pause(member, duration) => {
                self.with_machine(member, |machine| machine.paused_until = now + duration);
            }
            Fault::Drift(member, ppm) => {
                self.with_machine(member, |machine| machine.clock.set_drift(now, ppm));
            }
            Fault::AddMember => {
                self.newest_id += 1;
                let id = self.newest_id;
                let peer_urls = vec![peer_url(id)];
                let member = Member { id, peer_urls, is_learner: true, ..Member::default() };
                self.propose_member_change(MemberChange::Add(member));
            }
            Fault::Promote(id) => self.propose_member_change(MemberChange::Promote { id }),
            Fault::RemoveMember(id) => self.propose_member_change(MemberChange::Remove { id }),
            Fault::TransferLeader { to, cut } => self.transfer_leader(to, cut),
            Fault::CrashAfterVote { down, cut } => {
                self.message_triggers.on_vote = Some((down, cut))
            }
            Fault::Compact => self.propose_compaction(),
        }
    }

    pub(super) fn end_network_faults(&mut self) {
        self.network.faults = self.config.network_faults;
    }

    fn with_machine(&mut self, id: u64, what: impl FnOnce(&mut Machine)) {
        if let Some(machine) = self.machines.get_mut(&id) {
            what(machine);
        }
    }

    pub(super) fn partition(&mut self, cut: &Partition, duration: Micros) {
        let members: Vec<u64> = self.machines.keys().copied().collect();
        let links = cut.links(&members);
        self.network.cut(&links);
        self.events.plan(duration, move |cluster| cluster.network.restore(&links));
    }

    fn transfer_leader(&mut self, to: u64, cut: Option<Micros>) {
        let Some(leader) = self.view().leader else { return };
        self.message_triggers.on_leader_transfer = cut.map(|duration| (leader, duration));
        let is_planted = self.config.bug == Some(Bug::LeaseKeptOverTransfer);
        let Some(running) = self.running_mut(leader) else { return };
        if is_planted {
            let term = running.replica.raft().leadership().term;
            let message = unnoticed_transfer(leader, to, term).filter(|_| to != leader);
            message.into_iter().for_each(|message| self.send(leader, message));
            return;
        }
        running.replica.transfer_leader(to);
        self.plan_poll(leader);
    }

    /// Proposes a change of members. A promotion is proposed at the leader, if there is one. All
    /// other proposals are made at a random running member. The outcome is ignored.
    pub(super) fn propose_member_change(&mut self, change: MemberChange) {
        let view = self.view();
        let any = self.rng.choose(&view.up).copied();
        let leader = view.leader.filter(|_| matches!(change, MemberChange::Promote { .. }));
        let Some(id) = leader.or(any) else { return };
        self.trace_line(format_args!("{id} is to propose {change:?}"));
        self.submit(id, RequestWaiter::Ignored, |of| RaftInput::ChangeMembers(change, of));
    }

    fn propose_compaction(&mut self) {
        let up = self.up();
        let Some(id) = self.rng.choose(&up).copied() else { return };
        let back = self.rng.log_uniform(0, 100) as i64;
        let Some(RunningMember { applier, .. }) = self.running(id) else { return };
        let at = applier.store.begin_read().revision() - back;
        if at > 1 {
            let request = encode(&Proposal::Compact(at));
            self.trace_line(format_args!("{id} is to propose to compact at {at}"));
            self.propose(id, RequestWaiter::Ignored, request);
        }
    }

    /// Returns the state of all members, for the report of a violation.
    pub(super) fn describe_members(&self) -> String {
        let view = |machine: &Machine| match machine.replica().zip(machine.applier()) {
            None => format!("{}: down (gone: {})", machine.id, machine.is_removed),
            Some((core, applier)) => {
                let Leadership { leader, term, role } = core.raft().leadership();
                let AppliedPosition { index, conf_state: members, .. } = &applier.applied_position;
                format!(
                    "{}: {role:?} term {term} leader {leader} committed {} applied {index} \
                     voters {:?} learners {:?}",
                    machine.id,
                    core.raft().committed_index(),
                    members.voters,
                    members.learners
                )
            }
        };
        self.machines.values().map(view).collect::<Vec<_>>().join("; ")
    }

    pub(super) fn no_progress(&self, why: &str) -> Violation {
        Violation::new(Rule::Progress, format!("{why}: {}", self.describe_members()))
    }
}
