//! Polls a core, shows the judge what it did, and turns what is to be done into events.

use std::sync::Arc;
use std::time::Duration;

use clearlane_backend::Retired;
use clearlane_member::Progress;
use clearlane_member::core::{
    Answer, Applied, ApplyEffects, ApplyOutputs, Completions, Input as RaftInput, NewStore,
    Outcome, Outputs, RaftEffects, Slow, ToApply,
};
use clearlane_mvcc::{Change, CompactionJob, Store};
use clearlane_raft_log::driver::{Error, Leadership, Message, Role};
use clearlane_raft_log::wal::group::Batch;

use super::{Cluster, Event, Input, broken};
use crate::checkers::{Rule, Violation};
use crate::judge::Verdict;
use crate::machine::{Running, hash_of, state_of, tenants_of};
use crate::replies;
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

    pub(super) fn plan_apply(&mut self, id: u64) {
        let running = self.machines.get_mut(&id).and_then(|machine| machine.running.as_mut());
        let Some(running) = running else { return };
        if !std::mem::replace(&mut running.is_apply_planned, true) {
            let wait = self.chance.of_any_size(1, self.terms.apply);
            self.plan(id, wait, Input::Apply);
        }
    }

    /// A turn of the raft loop.
    pub(super) fn poll(&mut self, id: u64) -> Verdict {
        let now = self.world.now();
        let Some(machine) = self.machines.get_mut(&id) else { return Ok(()) };
        let time = machine.clock.time(now);
        let Some(running) = &mut machine.running else { return Ok(()) };
        running.is_poll_planned = false;
        let outputs = match turn(running, time) {
            Ok(outputs) => outputs,
            Err(error) => return self.stops(id, &error),
        };
        self.judge_raft(id, &outputs)?;
        let mut effects = Effects { cluster: self, id, verdict: Ok(()) };
        outputs.carry_out(&mut effects);
        effects.verdict?;
        self.hear_applied(id);
        self.plan_wake(id);
        let running = self.machines.get(&id).and_then(|machine| machine.running.as_ref());
        if running.is_some_and(|running| running.stops) {
            self.leaves(id);
        }
        Ok(())
    }

    /// The raft loop has a turn soon if it must hear what the apply loop has done.
    fn hear_applied(&mut self, id: u64) {
        let running = self.machines.get(&id).and_then(|machine| machine.running.as_ref());
        let Some(running) = running else { return };
        let awaited = running.core.awaited();
        if running.applied.as_ref().is_some_and(|applied| applied.is_urgent(awaited)) {
            self.plan_poll(id);
        }
    }

    /// A turn of the apply loop.
    pub(super) fn apply(&mut self, id: u64) -> Verdict {
        let now = self.world.now();
        let Some(machine) = self.machines.get_mut(&id) else { return Ok(()) };
        let Some(running) = &mut machine.running else { return Ok(()) };
        running.is_apply_planned = false;
        let outputs = match running.applier.step() {
            Ok(outputs) => outputs,
            Err(error) => return self.stops(id, &error),
        };
        if running.applier.has_work() {
            self.plan_apply(id);
        }
        self.effects.applied(now, id, &outputs.entries);
        self.judge_applied(id, &outputs)?;
        let mut effects = Effects { cluster: self, id, verdict: Ok(()) };
        outputs.carry_out(&mut effects);
        effects.verdict?;
        self.welcome_members(id);
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

    fn judge_raft(&mut self, id: u64, outputs: &Outputs) -> Verdict {
        if let Some(now) = outputs.leadership {
            let (role, term, leader) = (now.role, now.term, now.leader);
            self.line(format_args!("{id} {role:?} term={term} leader={leader}"));
            if role == Role::Leader {
                self.judge.leaders.leads(id, term)?;
            }
        }
        for error in &outputs.unusable {
            self.line(format_args!("{id} cannot take it: {error}"));
            // No member here sends what it could not have said.
            if matches!(error, Error::Stopped(_) | Error::Message(_)) {
                return Err(broken(id, error));
            }
        }
        let running = self.machines.get_mut(&id).and_then(|machine| machine.running.as_mut());
        let Some(running) = running else { return Ok(()) };
        for (request, proposed) in &outputs.proposed {
            running.checked.propose(id, *request)?;
            if self.users.was_proposed(id, *request, *proposed) {
                self.judge.promises.ends_itself(*proposed);
            }
        }
        let ((told, _), index) = (running.core.applied_to(), running.applier.progress().index);
        let in_raft = running.core.applied_in_raft();
        if told.max(in_raft) > index {
            let seen =
                format!("raft of {id} takes {in_raft} for applied, and the store is at {index}");
            return Err(Violation::new(Rule::Running, seen));
        }
        match running.core.conf_state().cloned() {
            Some(counts) => self.judge.raft_counts(id, told, &counts),
            None => Ok(()),
        }
    }

    fn judge_applied(&mut self, id: u64, outputs: &ApplyOutputs) -> Verdict {
        let Some(applier) = self.machines.get(&id).and_then(|machine| machine.applier()) else {
            return Ok(());
        };
        let (now, index) = (self.world.now(), applier.progress().index);
        let store = Arc::clone(applier.store());
        let (raft, table) =
            (Arc::clone(&applier.progress().members), applier.members().conf_state());
        let is_replaced = outputs.replaced.is_some();
        if is_replaced {
            let first = outputs.entries.first();
            self.judge.begins(id, first.map_or(index, |entry| entry.index - 1))?;
            self.figures.copies += 1;
        }
        self.judge.applied(now, id, &outputs.entries, &outputs.changes)?;
        self.judge.members(id, index, &raft, &table)?;
        match is_replaced || !outputs.entries.is_empty() {
            true => self.judge_store(id, index, &*store, !outputs.compactions.is_empty()),
            false => Ok(()),
        }
    }

    /// Outcomes of requests: one for each, and not before the store shows what they say.
    fn judge_completions(&mut self, id: u64, completions: &Completions) -> Verdict {
        let running = self.machines.get_mut(&id).and_then(|machine| machine.running.as_mut());
        let Some(running) = running else { return Ok(()) };
        let shows = running.applier.store().read().revision();
        for (request, outcome) in completions {
            let revision = match outcome {
                Outcome::Applied(Answer::Request(Ok(reply))) => replies::revision_of(reply),
                _ => None,
            };
            running.checked.complete(id, *request, revision, shows)?;
        }
        Ok(())
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
        let Some(core) = self.machines.get(&id).and_then(|machine| machine.applier()) else {
            return Ok(());
        };
        let keys = tenants_of(&**core.store()).map_err(|error| broken(id, &error))?;
        self.judge.leases(id, index, &core.leases().contents(), &keys)
    }

    fn send(&mut self, id: u64, message: &Message) {
        let link = (id, message.to());
        let text = message.to_string();
        self.line(format_args!("sends {text}"));
        self.effects.sent(self.world.now(), id, message);
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

    fn plan_write(&mut self, id: u64, batch: Batch) {
        self.effects.appended(self.world.now(), id, &batch);
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
        let store = running.applier.store();
        let committed = if is_timer { store.tick(time) } else { store.commit().map(|()| true) };
        if committed.map_err(|error| broken(id, &error))? {
            return self.plan_store_committed(id);
        }
        Ok(())
    }

    /// The raft loop hears a little later what the engine has on disk now.
    pub(super) fn plan_store_committed(&mut self, id: u64) -> Verdict {
        let Some(applier) = self.machines.get(&id).and_then(|machine| machine.applier()) else {
            return Ok(());
        };
        let engine = applier.engine().snapshot();
        let engine = engine.map_err(|error| broken(id, &error))?;
        let durable = Progress::read(&*engine).map_err(|error| broken(id, &error))?;
        let wait = self.chance.of_any_size(1, 30 * MILLISECOND);
        self.plan(id, wait, Input::StoreCommitted(durable));
        Ok(())
    }

    /// Goes on with a compaction.
    pub(super) fn compact(&mut self, id: u64) -> Verdict {
        let budget = self.chance.of_any_size(1, 1000) as usize;
        let running = self.machines.get_mut(&id).and_then(|machine| machine.running.as_mut());
        let Some(running) = running else { return Ok(()) };
        let Some(job) = running.compactions.front_mut() else { return Ok(()) };
        let done = running.applier.store().compact_step(job, budget);
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

/// What a raft loop does in a turn: it takes what has come, and polls.
fn turn(running: &mut Running, time: Duration) -> clearlane_member::Result<Outputs> {
    if let Some(applied) = running.applied.take() {
        running.core.take(RaftInput::Applied(applied))?;
    }
    for input in std::mem::take(&mut running.inbox) {
        running.core.take(input)?;
    }
    running.core.poll(time)
}

/// Carries out what a member's halves say.
struct Effects<'c> {
    cluster: &'c mut Cluster,
    id: u64,
    verdict: Verdict,
}

impl Effects<'_> {
    fn running(&mut self) -> Option<&mut Running> {
        self.cluster.machines.get_mut(&self.id).and_then(|machine| machine.running.as_mut())
    }

    /// After the first violation nothing happens any more.
    fn then(&mut self, what: impl FnOnce(&mut Cluster, u64) -> Verdict) {
        if self.verdict.is_ok() {
            self.verdict = what(self.cluster, self.id);
        }
    }

    fn hand_out(&mut self, completions: Completions) {
        self.cluster.effects.answered(self.cluster.world.now(), self.id, &completions);
        self.then(|cluster, id| cluster.judge_completions(id, &completions));
        self.cluster.complete(self.id, completions);
    }
}

impl RaftEffects for Effects<'_> {
    fn is_alone(&mut self, is_alone: bool) {
        let may_look = self.cluster.terms.reads_alone();
        if let Some(running) = self.running() {
            running.is_alone = is_alone && may_look;
        }
    }

    fn send(&mut self, message: Message) {
        self.cluster.send(self.id, &message);
    }

    fn send_copy(&mut self, message: Message) {
        self.cluster.effects.sent(self.cluster.world.now(), self.id, &message);
        self.then(|cluster, id| cluster.begin_copy(id, message));
    }

    fn write(&mut self, batch: Batch) {
        self.cluster.plan_write(self.id, batch);
    }

    fn purge(&mut self, below: u64) {
        self.then(|cluster, id| cluster.plan_purge(id, Some(below)));
    }

    fn apply(&mut self, work: ToApply) {
        if let Some(running) = self.running() {
            running.applier.give(work);
        }
        self.cluster.plan_apply(self.id);
    }

    fn leads(&mut self, _now: Leadership) {}

    fn complete(&mut self, completions: Completions) {
        self.hand_out(completions);
    }

    fn commit(&mut self) {
        let wait = self.cluster.chance.of_any_size(100, 50 * MILLISECOND);
        self.cluster.plan(self.id, wait, Input::Commit { is_timer: false });
    }

    fn stops(&mut self) {
        if let Some(running) = self.running() {
            running.stops = true;
        }
    }
}

impl ApplyEffects for Effects<'_> {
    fn replace(&mut self, _new: NewStore) {
        if let Some(running) = self.running() {
            running.compactions.clear();
        }
    }

    fn applied(&mut self, applied: Applied) {
        if let Some(running) = self.running() {
            match &mut running.applied {
                Some(before) => before.add(applied),
                none => *none = Some(Box::new(applied)),
            }
        }
        self.cluster.hear_applied(self.id);
    }

    fn granted(&mut self, leases: Vec<i64>) {
        let now = self.cluster.world.now();
        let Some(machine) = self.cluster.machines.get(&self.id) else { return };
        let Some(applier) = machine.applier() else { return };
        let time = machine.clock.time(now);
        leases.into_iter().for_each(|lease| applier.leases().begin(lease, time));
    }

    fn slow(&mut self, _slow: Vec<Slow>) {}

    fn complete(&mut self, completions: Completions) {
        self.hand_out(completions);
    }

    fn publish(&mut self, _changes: Vec<(i64, Vec<Change>)>) {}

    fn retire(&mut self, _retired: Vec<Retired>) {}

    fn compact(&mut self, job: CompactionJob) {
        let Some(running) = self.running() else { return };
        let was_idle = running.compactions.is_empty();
        running.compactions.push_back(job);
        if was_idle {
            self.cluster.plan(self.id, MILLISECOND, Input::Compact);
        }
    }

    fn commit(&mut self) {
        RaftEffects::commit(self);
    }
}
