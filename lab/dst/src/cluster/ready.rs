//! Polls a replica, passes its outputs to the checkers, and converts them to events. In one *turn*,
//! the raft loop handles the inputs that have arrived and then polls the replica once.

use std::sync::Arc;
use std::time::Duration;

use clearlane_backend::DroppedStates;
use clearlane_mvcc::{Changes, CompactionJob, Store};
use clearlane_raft::{Error, Leadership, Message, Role};
use clearlane_replica::apply::RequestRejection;
use clearlane_replica::{
    AppliedPosition, ApplyReady, ApplyReadyHandler, ApplyReport, Completions, NewStore,
    ReplicaInput as RaftInput, ReplicaReady, ReplicaReadyHandler, RequestOutcome, SlowEntry,
    StallEvent, ToApply,
};
use clearlane_wal::Entry;
use clearlane_wal::group_commit::Batch;

use super::{Cluster, member_failed};
use crate::bugs::lost_commit;
use crate::checkers::auth::check_outcome;
use crate::checkers::leases::check_leases;
use crate::checkers::{CheckResult, Rule};
use crate::event_queue::{MILLISECOND, Micros};
use crate::machine::{RunningMember, client_records, hash_kv, lease_keys};
use crate::replies;

impl Cluster {
    /// Plans a poll. The poll also handles inputs that arrive before it.
    pub(super) fn plan_poll(&mut self, id: u64) {
        let Some(running) = self.running_mut(id) else { return };
        if !std::mem::replace(&mut running.is_poll_planned, true) {
            let wait = self.rng.log_uniform(1, 300);
            self.plan_step(id, wait, "polls", Cluster::poll);
        }
    }

    pub(super) fn plan_apply(&mut self, id: u64) {
        let Some(running) = self.running_mut(id) else { return };
        if !std::mem::replace(&mut running.is_apply_planned, true) {
            let wait = self.rng.log_uniform(1, self.config.apply_delay_max);
            self.plan_step(id, wait, "applies", Cluster::apply);
        }
    }

    pub(super) fn poll(&mut self, id: u64) -> CheckResult {
        let now = self.events.now();
        let Some(machine) = self.machines.get_mut(&id) else { return Ok(()) };
        let time = machine.clock.elapsed(now);
        let Some(running) = &mut machine.running else { return Ok(()) };
        running.is_poll_planned = false;
        let Polled { ready: outputs, rejected, accepted_loss } = match poll_replica(running, time) {
            Ok(polled) => polled,
            Err(error) => return self.on_member_error(id, &error),
        };
        Rule::LostLog.check(accepted_loss.is_none(), || {
            let message = accepted_loss.map(|message| message.to_string()).unwrap_or_default();
            format!("{id} continues after {message}, although it has fewer entries")
        })?;
        self.check_raft(id, &outputs, &rejected)?;
        let mut effects = ReadyHandler::new(self, id);
        outputs.dispatch(&mut effects);
        let is_removed = effects.is_removed;
        effects.verdict?;
        self.poll_if_awaited(id);
        self.plan_wake(id);
        if is_removed && self.running(id).is_some() {
            self.remove_machine(id);
        }
        Ok(())
    }

    /// Plans a poll if the raft loop waits for the apply loop's report.
    fn poll_if_awaited(&mut self, id: u64) {
        let Some(running) = self.running(id) else { return };
        let awaited = running.replica.awaited_index();
        if running.unreported_applied.as_ref().is_some_and(|applied| applied.is_urgent(awaited)) {
            self.plan_poll(id);
        }
    }

    pub(super) fn apply(&mut self, id: u64) -> CheckResult {
        let now = self.events.now();
        let Some(machine) = self.machines.get_mut(&id) else { return Ok(()) };
        let Some(running) = &mut machine.running else { return Ok(()) };
        running.is_apply_planned = false;
        let (outputs, entries) = match step_applier(running) {
            Ok(outputs) => outputs,
            Err(error) => return self.on_member_error(id, &error),
        };
        if running.applier.has_work() {
            self.plan_apply(id);
        }
        self.effect_hash.on_apply(now, id, &entries);
        self.check_applied(id, &outputs, &entries)?;
        let mut effects = ReadyHandler::new(self, id);
        outputs.dispatch(&mut effects);
        effects.verdict?;
        self.add_new_machines(id);
        Ok(())
    }

    fn plan_wake(&mut self, id: u64) {
        let now = self.events.now();
        let Some(machine) = self.machines.get_mut(&id) else { return };
        let clock = machine.clock;
        let Some(running) = &mut machine.running else { return };
        let Some(next) = running.replica.next_poll() else { return };
        let wait = clock.to_sim_time(next.saturating_sub(clock.elapsed(now)).as_micros() as u64);
        if running.wake_at.is_none_or(|at| at <= now || now + wait < at) {
            running.wake_at = Some(now + wait);
            self.plan_step(id, wait, "polls", Cluster::poll);
        }
    }

    fn check_raft(&mut self, id: u64, outputs: &ReplicaReady, rejected: &[Error]) -> CheckResult {
        if let Some(Leadership { role, term, leader }) = outputs.leadership {
            self.trace_line(format_args!("{id} {role:?} term={term} leader={leader}"));
            if role == Role::Leader {
                self.checker.agreement.on_leader(id, term)?;
            }
        }
        for error in rejected {
            self.trace_line(format_args!("{id} cannot take it: {error}"));
            // The simulated members send no invalid messages, so a receiver must not reject a
            // message as invalid.
            if matches!(error, Error::Fatal(_) | Error::InvalidMessage(_)) {
                return Err(member_failed(id)(error));
            }
        }
        self.check_proposals(id)?;
        let Some(running) = self.running(id) else { return Ok(()) };
        let (reported, _) = running.replica.applied;
        let in_raft = running.replica.raft().applied_index();
        let index = running.applier.applied_position.index;
        Rule::Running.check(reported.max(in_raft) <= index, || {
            format!("raft of {id} counts {in_raft} as applied, but the store is at {index}")
        })?;
        match running.replica.conf_state() {
            Some(raft) => self.checker.agreement.check_conf_state(id, reported, raft),
            None => Ok(()),
        }
    }

    /// Records each request that was proposed since the last turn. Fails if a request was proposed
    /// twice.
    fn check_proposals(&mut self, id: u64) -> CheckResult {
        let running = self.machines.get_mut(&id).and_then(|machine| machine.running.as_mut());
        let Some(running) = running else { return Ok(()) };
        for request in self.clients.requests_at(id) {
            let Some(entry) = running.replica.wait.entry_of(request) else { continue };
            let is_new = running.request_checker.on_propose(id, request, entry)?;
            if is_new && self.clients.on_proposed(id, request, entry) {
                self.checker.lease_promises.expect_revoke(entry);
            }
        }
        Ok(())
    }

    fn check_applied(&mut self, id: u64, outputs: &ApplyReady, entries: &[Entry]) -> CheckResult {
        let Some(RunningMember { applier, .. }) = self.running(id) else { return Ok(()) };
        let (store, table) = (Arc::clone(&applier.store), applier.members.conf_state());
        let AppliedPosition { index, conf_state: raft, .. } = applier.applied_position.clone();
        let is_replaced = outputs.new_store.is_some();
        if is_replaced {
            self.checker.on_store_opened(id, index)?;
            self.metrics.installed_snapshots += 1;
        }
        self.checker.check_applied(self.events.now(), id, entries, &outputs.changes)?;
        self.checker.agreement.check_members(id, index, &raft, &table)?;
        let report = &outputs.report;
        self.check_auth(id, index, is_replaced || report.has_auth_changed)?;
        match is_replaced || !entries.is_empty() {
            true => self.check_store(id, index, &*store, !outputs.compactions.is_empty()),
            false => Ok(()),
        }
    }

    /// Checks that each request gets one outcome, and only when the store shows its effect.
    fn check_completions(&mut self, id: u64, completions: &Completions) -> CheckResult {
        if self.auth.is_some() {
            self.check_refusals(id, completions)?;
        }
        let Some(running) = self.running_mut(id) else { return Ok(()) };
        let shows = running.applier.store.begin_read().revision();
        for (request, outcome) in completions {
            let revision = match outcome {
                RequestOutcome::Applied(Ok(reply)) => replies::revision_of(reply),
                _ => None,
            };
            running.request_checker.on_complete(id, *request, revision, shows)?;
        }
        Ok(())
    }

    /// Checks that auth on this member has rejected exactly the applied requests that the model's
    /// auth rejects, and for the same reasons. Other rejections are not compared.
    fn check_refusals(&self, id: u64, completions: &Completions) -> CheckResult {
        let Some(running) = self.running(id) else { return Ok(()) };
        for (request, outcome) in completions {
            let refused = match outcome {
                RequestOutcome::Applied(Err(RequestRejection::Auth(refused))) => Some(*refused),
                RequestOutcome::Applied(_) => None,
                _ => continue,
            };
            let entry = running.request_checker.entry_of(*request);
            let place = entry.and_then(|entry| self.checker.model.applied_request(entry));
            if let Some(place) = place {
                check_outcome(id, place.index, refused, &self.checker.model)?;
            }
        }
        Ok(())
    }

    fn check_store(
        &mut self,
        id: u64,
        index: u64,
        store: &dyn Store<AppliedPosition>,
        compacts: bool,
    ) -> CheckResult {
        let holds = client_records(store).map_err(member_failed(id))?;
        let revision = holds.revision;
        self.trace_line(format_args!("{id} has applied {index}, revision {revision}"));
        self.checker.check_records(id, index, &holds)?;
        self.check_leases(id, index)?;
        let running = self.running(id);
        let compacts = compacts || running.is_some_and(|running| !running.compactions.is_empty());
        // All members hash their stores at the same indexes, so that there are hashes to compare.
        // There is one exception: if there is no key, a hash includes records that a running
        // compaction has not removed yet. etcd's hash does the same.
        if index.is_multiple_of(4) && !(compacts && holds.records.is_empty()) {
            let hash = hash_kv(store).map_err(member_failed(id))?;
            self.checker.agreement.check_hash(id, index, hash)?;
        }
        Ok(())
    }

    pub(super) fn check_leases(&mut self, id: u64, index: u64) -> CheckResult {
        let Some(RunningMember { applier, .. }) = self.running(id) else { return Ok(()) };
        let keys = lease_keys(&*applier.store).map_err(member_failed(id))?;
        let leases = applier.leases.lease_states();
        check_leases(id, index, &leases, &keys, self.checker.model.leases_at(index))
    }

    pub(super) fn send(&mut self, id: u64, message: Message) {
        let Some(running) = self.running_mut(id) else { return };
        let message = &running.planted_bug.alter_sent(id, message);
        let link = (id, message.to());
        self.trace_line(format_args!("sends {message}"));
        self.effect_hash.on_send(self.events.now(), id, message);
        let waits = self.network.send(link, !message.is_proposal());
        if waits.is_empty() && self.rng.permille(100) {
            let wait = self.network.delay();
            let words = "hears that a member is out of reach";
            self.plan_raft_input(id, wait, words, RaftInput::Unreachable(link.1));
        }
        let bytes = message.encode();
        for wait in &waits {
            let bytes = bytes.clone();
            self.events
                .plan_at(Some(link.1), *wait, move |cluster| cluster.on_message(link, &bytes));
        }
        if let Some(wait) = waits.first() {
            self.trigger_faults(message, *wait);
        }
    }

    fn plan_write(&mut self, id: u64, batch: Batch) {
        self.effect_hash.on_append(self.events.now(), id, &batch);
        let Some(machine) = self.machines.get_mut(&id) else { return };
        let longest = machine.longest_write(self.events.now(), &self.config);
        if let Some(running) = &mut machine.running {
            running.is_writing = true;
        }
        let wait = self.rng.log_uniform(20, longest);
        self.plan_step(id, wait, "writes", |cluster, id| cluster.write(id, batch));
    }

    /// Writes the batch and schedules the report of its completion. A stalled disk delays the
    /// write.
    pub(super) fn write(&mut self, id: u64, batch: Batch) -> CheckResult {
        let now = self.events.now();
        let Some(machine) = self.machines.get_mut(&id) else { return Ok(()) };
        if now < machine.disk_stalled_until {
            machine.write_held_since.get_or_insert(now);
            let wait = machine.disk_stalled_until - now;
            self.plan_step(id, wait, "writes", |cluster, id| cluster.write(id, batch));
            return Ok(());
        }
        machine.write_held_since = None;
        let appends = batch.appends().len();
        let Some(written) = machine.write(batch) else { return Ok(()) };
        if !machine.disk.has_power() {
            self.on_power_failure(id);
            return Ok(());
        }
        let wait = machine.disk.take_cost() + self.rng.log_uniform(1, 200);
        self.trace_line(format_args!("{id} has written {appends}"));
        let input = RaftInput::WalWritten(written);
        self.plan_raft_input(id, wait, "hears that it is written", input);
        let Some(running) = self.running_mut(id) else { return Ok(()) };
        running.is_writing = false;
        let purge = running.pending_purge.take();
        self.plan_purge(id, purge)
    }

    /// Purges the log up to the index `purge`. If a batch is being written, the purge waits for its
    /// end.
    fn plan_purge(&mut self, id: u64, purge: Option<u64>) -> CheckResult {
        let Some(machine) = self.machines.get_mut(&id) else { return Ok(()) };
        let (Some(running), Some(index)) = (&mut machine.running, purge) else { return Ok(()) };
        if running.is_writing {
            running.pending_purge = Some(index);
            return Ok(());
        }
        let purged = running.wal.purge(index);
        if !machine.disk.has_power() {
            self.on_power_failure(id);
            return Ok(());
        }
        let segments = match purged {
            Ok(segments) => segments,
            Err(error) => return self.on_member_error(id, &error.into()),
        };
        self.trace_line(format_args!("{id} purges {segments} segments, for it is safe at {index}"));
        Ok(())
    }

    /// Plans a commit of the store. If `is_timer` is true, the commit timer starts this commit.
    pub(super) fn plan_commit(&mut self, id: u64, wait: Micros, is_timer: bool) {
        self.plan_step(id, wait, "commits its store", move |it, id| it.commit(id, is_timer));
    }

    /// Commits the store's pending records. If `is_timer` is true, plans the timer's next commit,
    /// and commits only if the last commit was long enough ago. While the disk is stalled, the
    /// timer's commit is skipped, and any other commit is delayed. Before a commit, removes keys
    /// of ended leases and expired tokens from memory.
    pub(super) fn commit(&mut self, id: u64, is_timer: bool) -> CheckResult {
        let now = self.events.now();
        if is_timer {
            let wait = self.rng.log_uniform(MILLISECOND, self.config.commit_interval_max);
            self.plan_commit(id, wait, is_timer);
        }
        let Some(machine) = self.machines.get_mut(&id) else { return Ok(()) };
        if now < machine.disk_stalled_until {
            let wait = machine.disk_stalled_until - now;
            if !is_timer {
                self.plan_commit(id, wait, is_timer);
            }
            return Ok(());
        }
        let time = machine.clock.elapsed(now);
        let Some(running) = &mut machine.running else { return Ok(()) };
        running.applier.leases.forget_ended();
        running.applier.auth.expire_tokens(time);
        let store = &running.applier.store;
        let committed =
            if is_timer { store.commit_if_due(time) } else { store.commit().map(|()| true) };
        if committed.map_err(member_failed(id))? {
            return self.plan_store_committed(id);
        }
        Ok(())
    }

    /// Schedules a report to the raft loop: the position that the store on disk has reached.
    pub(super) fn plan_store_committed(&mut self, id: u64) -> CheckResult {
        let Some(RunningMember { applier, .. }) = self.running(id) else { return Ok(()) };
        let engine = applier.engine.snapshot();
        let engine = engine.map_err(member_failed(id))?;
        let durable = AppliedPosition::read(&*engine).map_err(member_failed(id))?;
        let wait = self.rng.log_uniform(1, 30 * MILLISECOND);
        let input = RaftInput::StoreCommitted(durable);
        self.plan_raft_input(id, wait, "hears that its store is committed", input);
        Ok(())
    }

    pub(super) fn compact(&mut self, id: u64) -> CheckResult {
        let budget = self.rng.log_uniform(1, 1000) as usize;
        let Some(running) = self.running_mut(id) else { return Ok(()) };
        let Some(job) = running.compactions.front_mut() else { return Ok(()) };
        let done = running.applier.store.compact_step(job, budget);
        if done.map_err(member_failed(id))? {
            running.compactions.pop_front();
        }
        if !running.compactions.is_empty() {
            let wait = self.rng.log_uniform(100, 200 * MILLISECOND);
            self.plan_step(id, wait, "compacts", Cluster::compact);
        }
        Ok(())
    }
}

/// The outputs of a turn of the raft loop.
struct Polled {
    ready: ReplicaReady,
    /// The errors of rejected messages.
    rejected: Vec<Error>,
    /// A heartbeat that the replica accepted, although it showed that entries are lost. `None` if
    /// there was no such heartbeat.
    accepted_loss: Option<Message>,
}

/// Runs a turn of the raft loop. Fails if the member must stop.
fn poll_replica(running: &mut RunningMember, time: Duration) -> clearlane_replica::Result<Polled> {
    let RunningMember { replica, planted_bug, .. } = running;
    let mut rejected = Vec::new();
    let mut accepted_loss = None;
    let applied = running.unreported_applied.take().map(RaftInput::Applied);
    let events = std::mem::take(&mut running.raft_loop_events);
    for input in applied.into_iter().chain(events) {
        let loss = match &input {
            RaftInput::Message(message) => lost_commit(replica, message).map(|_| message.clone()),
            _ => None,
        };
        match planted_bug.alter_input(replica, input) {
            Some(RaftInput::Message(message)) => match replica.receive(message) {
                Err(error @ Error::LostLog { .. }) => return Err(error.into()),
                result => {
                    rejected.extend(result.err());
                    accepted_loss = accepted_loss.or(loss);
                }
            },
            Some(input) => replica.handle_input(input)?,
            None => {}
        }
    }
    let mut ready = replica.poll(time)?;
    planted_bug.alter_ready(replica, &mut ready)?;
    Ok(Polled { ready, rejected, accepted_loss })
}

fn step_applier(
    running: &mut RunningMember,
) -> clearlane_replica::Result<(ApplyReady, Vec<Entry>)> {
    let RunningMember { applier, planted_bug, unapplied, .. } = running;
    planted_bug.before_apply(applier, unapplied)?;
    let before = Arc::clone(&applier.store);
    let mut ready = applier.step()?;
    ready.make_deferred_reads()?;
    planted_bug.alter_applied(&mut ready);
    let index = applier.applied_position.index;
    let count = unapplied.partition_point(|entry| entry.index <= index);
    let entries: Vec<Entry> = unapplied.drain(..count).collect();
    planted_bug.after_apply((applier, &before), &ready, &entries);
    Ok((ready, entries))
}

struct ReadyHandler<'c> {
    cluster: &'c mut Cluster,
    id: u64,
    verdict: CheckResult,
    /// If true, the member was removed from the cluster, and stops.
    is_removed: bool,
}

impl ReadyHandler<'_> {
    fn new(cluster: &mut Cluster, id: u64) -> ReadyHandler<'_> {
        ReadyHandler { cluster, id, verdict: Ok(()), is_removed: false }
    }

    fn running(&mut self) -> Option<&mut RunningMember> {
        self.cluster.running_mut(self.id)
    }

    /// Runs a check. After the first violation, nothing more is checked.
    fn check(&mut self, what: impl FnOnce(&mut Cluster, u64) -> CheckResult) {
        if self.verdict.is_ok() {
            self.verdict = what(self.cluster, self.id);
        }
    }

    fn deliver(&mut self, completions: Completions) {
        self.cluster.effect_hash.on_complete(self.cluster.events.now(), self.id, &completions);
        self.check(|cluster, id| cluster.check_completions(id, &completions));
        self.cluster.complete(self.id, completions);
    }
}

impl ReplicaReadyHandler for ReadyHandler<'_> {
    fn set_sole_voter_caught_up(&mut self, is_alone: bool) {
        let may_look = self.cluster.config.sole_voter_reads_locally();
        if let Some(running) = self.running() {
            running.can_read_locally = is_alone && may_look;
        }
    }

    fn send(&mut self, message: Message) {
        self.cluster.send(self.id, message);
    }

    fn send_raft_snapshot(&mut self, message: Message) {
        self.cluster.effect_hash.on_send(self.cluster.events.now(), self.id, &message);
        self.check(|cluster, id| cluster.begin_snapshot_transfer(id, message));
    }

    fn write_wal(&mut self, batch: Batch) {
        self.cluster.plan_write(self.id, batch);
    }

    fn purge_wal(&mut self, below: u64) {
        self.check(|cluster, id| cluster.plan_purge(id, Some(below)));
    }

    fn apply(&mut self, mut work: ToApply) {
        if let Some(running) = self.running() {
            let RunningMember { applier, planted_bug, request_checker, .. } = running;
            planted_bug.alter_committed(&mut work);
            let early = planted_bug.answer_early(&work, applier, request_checker);
            if let ToApply::Entries(entries) = &work {
                running.unapplied.extend(entries.iter().cloned());
            }
            running.planted_bug.alter_work(&mut work);
            running.applier.enqueue(work);
            if !early.is_empty() {
                self.deliver(early);
            }
        }
        self.cluster.plan_apply(self.id);
    }

    fn set_leadership(&mut self, _now: Leadership) {}

    fn complete(&mut self, completions: Completions) {
        self.deliver(completions);
    }

    fn commit_store(&mut self) {
        let wait = self.cluster.rng.log_uniform(100, 50 * MILLISECOND);
        self.cluster.plan_commit(self.id, wait, false);
    }

    fn report_stall(&mut self, event: StallEvent) {
        self.cluster.trace_line(format_args!("{} {event:?}", self.id));
        let asks = matches!(event, StallEvent::TransfersLeadership(_));
        self.cluster.metrics.stall_transfers += u64::from(asks);
    }

    fn stop(&mut self) {
        self.is_removed = true;
    }
}

impl ApplyReadyHandler for ReadyHandler<'_> {
    fn replace_store(&mut self, _new: NewStore) {
        if let Some(running) = self.running() {
            running.compactions.clear();
        }
    }

    fn publish_applied(&mut self, applied: ApplyReport) {
        if let Some(running) = self.running() {
            match &mut running.unreported_applied {
                Some(before) => before.merge(applied),
                none => *none = Some(Box::new(applied)),
            }
        }
        self.cluster.poll_if_awaited(self.id);
    }

    fn granted(&mut self, leases: Vec<i64>) {
        let now = self.cluster.events.now();
        let Some(machine) = self.cluster.machines.get(&self.id) else { return };
        let Some(applier) = machine.applier() else { return };
        let time = machine.clock.elapsed(now);
        leases.into_iter().for_each(|lease| applier.leases.start_expiry(lease, time));
    }

    fn report_slow(&mut self, _slow: Vec<SlowEntry>) {}

    fn complete(&mut self, completions: Completions) {
        self.deliver(completions);
    }

    fn publish_changes(&mut self, _changes: Vec<(i64, Changes)>) {}

    fn drop_states(&mut self, _retired: Vec<DroppedStates>) {}

    fn schedule_compaction(&mut self, job: CompactionJob) {
        let Some(running) = self.running() else { return };
        let was_idle = running.compactions.is_empty();
        running.compactions.push_back(job);
        if was_idle {
            self.cluster.plan_step(self.id, MILLISECOND, "compacts", Cluster::compact);
        }
    }

    fn commit_store(&mut self) {
        ReplicaReadyHandler::commit_store(self);
    }
}
