//! Polls a core, shows the judge what it did, and turns what is to be done into events.

use std::sync::Arc;

use clearlane_member::Progress;
use clearlane_member::core::Outputs;
use clearlane_mvcc::Store;
use clearlane_raft_log::driver::{Message, Role};
use clearlane_raft_log::wal::group::Batch;

use super::{Cluster, Event, Input, broken};
use crate::judge::Verdict;
use crate::machine::{hash_of, state_of, tenants_of};
use crate::world::MILLISECOND;

impl Cluster {
    /// Plans something for a member in its present life.
    pub(super) fn plan(&mut self, id: u64, wait: u64, what: Input) {
        let Some(machine) = self.machines.get(&id) else { return };
        self.world.after(wait, Event::Member { id, life: machine.life, what });
    }

    /// A poll comes soon; inputs that come before it are served by it, too.
    pub(super) fn plan_poll(&mut self, id: u64) {
        let running = self.machines.get_mut(&id).and_then(|machine| machine.running.as_mut());
        let Some(running) = running else { return };
        if !std::mem::replace(&mut running.is_poll_planned, true) {
            let wait = self.chance.of_any_size(1, 300);
            self.plan(id, wait, Input::Poll);
        }
    }

    pub(super) fn poll(&mut self, id: u64) -> Verdict {
        let now = self.world.now();
        let Some(machine) = self.machines.get_mut(&id) else { return Ok(()) };
        let time = machine.clock.time(now);
        let Some(running) = &mut machine.running else { return Ok(()) };
        running.is_poll_planned = false;
        let outputs = running.core.poll(time).map_err(|error| broken(id, &error))?;
        self.judge_outputs(id, &outputs)?;
        self.carry_out(id, outputs)?;
        self.plan_wake(id);
        Ok(())
    }

    /// The barrier wants to be polled when its clock says so.
    fn plan_wake(&mut self, id: u64) {
        let now = self.world.now();
        let Some(machine) = self.machines.get_mut(&id) else { return };
        let clock = machine.clock;
        let Some(running) = &mut machine.running else { return };
        let Some(next) = running.core.next_poll() else { return };
        let wait = clock.takes(next.saturating_sub(clock.time(now)).as_micros() as u64);
        if running.wake_at.is_none_or(|at| at <= now || now + wait < at) {
            running.wake_at = Some(now + wait);
            self.plan(id, wait, Input::Poll);
        }
    }

    fn judge_outputs(&mut self, id: u64, outputs: &Outputs) -> Verdict {
        if let Some(now) = outputs.leadership {
            let (role, term, leader) = (now.role, now.term, now.leader);
            self.line(format_args!("{id} {role:?} term={term} leader={leader}"));
            if role == Role::Leader {
                self.judge.leaders.leads(id, term)?;
            }
        }
        let Some(core) = self.machines.get(&id).and_then(|machine| machine.core()) else {
            return Ok(());
        };
        let (now, index) = (self.world.now(), core.progress().index);
        let store = Arc::clone(core.store());
        let (raft, table) = (Arc::clone(&core.progress().members), core.members().conf_state());
        if outputs.store_replaced {
            let first = outputs.applied.first();
            self.judge.begins(id, first.map_or(index, |entry| entry.index - 1))?;
            self.figures.copies += 1;
        }
        self.judge.applied(now, id, &outputs.applied, &outputs.changes)?;
        self.judge.members(id, index, &raft, &table)?;
        match outputs.store_replaced || !outputs.applied.is_empty() {
            true => self.judge_store(id, index, &*store, !outputs.compactions.is_empty()),
            false => Ok(()),
        }
    }

    fn judge_store(
        &mut self,
        id: u64,
        index: u64,
        store: &dyn Store<Progress>,
        compacts: bool,
    ) -> Verdict {
        let holds = state_of(store).map_err(|error| broken(id, &error))?;
        let revision = holds.revision;
        self.line(format_args!("{id} has applied {index}, revision {revision}"));
        self.judge.holds(id, index, &holds)?;
        self.judge_leases(id, index)?;
        let running = self.machines.get(&id).and_then(|machine| machine.running.as_ref());
        let compacts = compacts || running.is_some_and(|running| !running.compactions.is_empty());
        // Everybody's at the same indexes, so that there is something to compare. But for one oddity
        // of etcd's: without any key, a hash counts what a compaction has not removed yet.
        if index.is_multiple_of(4) && !(compacts && holds.records.is_empty()) {
            let hash = hash_of(store).map_err(|error| broken(id, &error))?;
            self.judge.hash(id, index, hash)?;
        }
        Ok(())
    }

    /// What a member has of leases, now that it has applied so much.
    pub(super) fn judge_leases(&mut self, id: u64, index: u64) -> Verdict {
        let Some(core) = self.machines.get(&id).and_then(|machine| machine.core()) else {
            return Ok(());
        };
        let keys = tenants_of(&**core.store()).map_err(|error| broken(id, &error))?;
        self.judge.leases(id, index, &core.leases().contents(), &keys)
    }

    fn carry_out(&mut self, id: u64, outputs: Outputs) -> Verdict {
        let Outputs { send, copies, write, purge, reads, answers, compactions, .. } = outputs;
        for message in send {
            self.send(id, &message);
        }
        for message in copies {
            self.begin_copy(id, message)?;
        }
        self.plan_write(id, write);
        self.plan_purge(id, purge)?;
        for reads in reads {
            self.readers_hear(id, reads)?;
        }
        for (request, answer) in answers {
            self.answered(id, request, answer);
        }
        if let Some(running) =
            self.machines.get_mut(&id).and_then(|machine| machine.running.as_mut())
        {
            if outputs.store_replaced {
                running.compactions.clear();
            }
            let was_idle = running.compactions.is_empty();
            running.compactions.extend(compactions);
            if was_idle && !running.compactions.is_empty() {
                self.plan(id, MILLISECOND, Input::Compact);
            }
        }
        if outputs.commit_due {
            let wait = self.chance.of_any_size(100, 50 * MILLISECOND);
            self.plan(id, wait, Input::Commit { is_timer: false });
        }
        self.welcome_members(id);
        if outputs.removed {
            self.leaves(id);
        } else if outputs.is_more {
            self.plan_poll(id);
        }
        Ok(())
    }

    fn send(&mut self, id: u64, message: &Message) {
        let link = (id, message.to());
        let text = message.to_string();
        self.line(format_args!("sends {text}"));
        let waits = self.network.send(link, !message.is_proposal());
        if waits.is_empty() && self.chance.permille(100) {
            let wait = self.network.delay();
            self.plan(id, wait, Input::Unreachable(link.1));
        }
        let bytes = message.encode();
        for wait in &waits {
            self.world.after(*wait, Event::Arrives { link, bytes: bytes.clone() });
        }
        if let Some(wait) = waits.first() {
            self.strike(message, &text, *wait);
        }
    }

    fn plan_write(&mut self, id: u64, batch: Option<Batch>) {
        let Some(batch) = batch else { return };
        let Some(machine) = self.machines.get_mut(&id) else { return };
        let longest = machine.longest_write(self.world.now(), &self.terms);
        if let Some(running) = &mut machine.running {
            running.is_writing = true;
        }
        let wait = self.chance.of_any_size(20, longest);
        self.plan(id, wait, Input::Write(batch));
    }

    /// The disk gets to a batch. When it is done the member hears of it, a little later.
    pub(super) fn write(&mut self, id: u64, batch: Batch) -> Verdict {
        let Some(machine) = self.machines.get_mut(&id) else { return Ok(()) };
        let Some(running) = &mut machine.running else { return Ok(()) };
        let appends = batch.len();
        let written = batch.write(&mut running.wal);
        if !machine.has_power() {
            self.power_fails(id);
            return Ok(());
        }
        let wait = machine.take_disk_time() + self.chance.of_any_size(1, 200);
        self.line(format_args!("{id} has written {appends}"));
        self.plan(id, wait, Input::Written(written));
        let running = self.machines.get_mut(&id).and_then(|machine| machine.running.as_mut());
        let Some(running) = running else { return Ok(()) };
        running.is_writing = false;
        let purge = running.purge.take();
        self.plan_purge(id, purge)
    }

    /// Shortens the log, when no batch is on its way to it.
    fn plan_purge(&mut self, id: u64, purge: Option<u64>) -> Verdict {
        let Some(machine) = self.machines.get_mut(&id) else { return Ok(()) };
        let (Some(running), Some(index)) = (&mut machine.running, purge) else { return Ok(()) };
        if running.is_writing {
            running.purge = Some(index);
            return Ok(());
        }
        let purged = running.wal.purge(index);
        if !machine.has_power() {
            self.power_fails(id);
            return Ok(());
        }
        let segments = match purged {
            Ok(segments) => segments,
            Err(error) => return self.stops(id, &error.into()),
        };
        self.line(format_args!("{id} purges {segments} segments, for it is safe at {index}"));
        Ok(())
    }

    /// The store commits what is pending, if it is time.
    pub(super) fn commit(&mut self, id: u64, is_timer: bool) -> Verdict {
        let now = self.world.now();
        if is_timer {
            let wait = self.chance.of_any_size(MILLISECOND, self.terms.commit_pause);
            self.plan(id, wait, Input::Commit { is_timer });
        }
        let Some(machine) = self.machines.get_mut(&id) else { return Ok(()) };
        let time = machine.clock.time(now);
        let Some(running) = &mut machine.running else { return Ok(()) };
        let store = running.core.store();
        let committed = if is_timer { store.tick(time) } else { store.commit().map(|()| true) };
        if committed.map_err(|error| broken(id, &error))? {
            self.plan_store_committed(id);
        }
        Ok(())
    }

    /// Who commits does so beside the core, which has gone on when it hears of it.
    pub(super) fn plan_store_committed(&mut self, id: u64) {
        let wait = self.chance.of_any_size(1, 30 * MILLISECOND);
        self.plan(id, wait, Input::StoreCommitted);
    }

    pub(super) fn store_committed(&mut self, id: u64) -> Verdict {
        let running = self.machines.get_mut(&id).and_then(|machine| machine.running.as_mut());
        let Some(running) = running else { return Ok(()) };
        let told = running.core.store_committed();
        self.inputs_are_in(id, told)
    }

    /// Goes on with a compaction.
    pub(super) fn compact(&mut self, id: u64) -> Verdict {
        let budget = self.chance.of_any_size(1, 1000) as usize;
        let running = self.machines.get_mut(&id).and_then(|machine| machine.running.as_mut());
        let Some(running) = running else { return Ok(()) };
        let Some(job) = running.compactions.front_mut() else { return Ok(()) };
        let done = running.core.store().compact_step(job, budget);
        if done.map_err(|error| broken(id, &error))? {
            running.compactions.pop_front();
        }
        if !running.compactions.is_empty() {
            let wait = self.chance.of_any_size(100, 200 * MILLISECOND);
            self.plan(id, wait, Input::Compact);
        }
        Ok(())
    }
}
