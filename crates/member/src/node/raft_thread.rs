//! The raft thread: takes what has gathered, lets the core do its work, and carries out what it
//! says.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Sender;
use std::time::Duration;

use clearlane_backend::Retired;
use clearlane_proto::etcdserverpb::{AlarmType, InternalRaftRequest};
use clearlane_raft_log::driver::{self, Message, Role};

use super::commit_thread::ToCommit;
use super::desk::Outcome;
use super::held::{Forwarded, Held, Proposal};
use super::inbox::{Input, Place};
use super::pending::Pending;
use super::wal_thread::ToWal;
use super::{Network, Shared, slow};
use crate::actors::{APPLIER, LOG};
use crate::alarms;
use crate::core::{ChangeError, Core, Outputs, Reads};
use crate::error::{Error, Result};
use crate::membership::{Change, Refused, learner_is_ready};
use crate::recording::Doing;

/// So many ticks a member goes on that was removed.
const LAST_TICKS: u32 = 10;
/// So many old views go together to the thread that drops them, which need not be woken for each. Fewer go with the
/// next tick.
const RETIRED_MAX: usize = 256;

/// What the thread owns.
struct RaftThread<'s> {
    core: Core,
    to_wal: Sender<ToWal>,
    to_commit: Sender<ToCommit>,
    network: Box<dyn Network>,
    shared: &'s Shared,
    /// Proposals that wait for their answers.
    pending: Pending,
    /// Proposals that wait for a leader.
    held: Held,
    /// Batches that the log has, and has not written.
    being_written: usize,
    /// What goes to each desk at the end of this turn.
    letters: Vec<Vec<(Place, Outcome)>>,
    /// What has become of the alarm about the disk.
    room_alarm: RoomAlarm,
    /// Old views, for the commit thread to drop.
    retired: Vec<Retired>,
    /// When this member, which was removed, stops.
    ends_at: Option<Duration>,
    tick: Duration,
}

/// An alarm that this member raises because its disk is nearly full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoomAlarm {
    /// Or somebody has taken it back.
    None,
    /// Not applied yet, as far as is known.
    Proposed,
    Raised,
}

/// Works until it is told to stop, or something fails.
pub(super) fn run(
    core: Core,
    tick: Duration,
    to_wal: Sender<ToWal>,
    to_commit: Sender<ToCommit>,
    network: Box<dyn Network>,
    shared: &Shared,
) -> Result<()> {
    let _watching = EndsWithMe(shared);
    let _as = APPLIER.enter();
    let mut shift = shared.recording.shift(*APPLIER);
    let mut thread = RaftThread {
        core,
        to_wal,
        to_commit,
        network,
        shared,
        pending: Pending::default(),
        held: Held::default(),
        being_written: 0,
        room_alarm: RoomAlarm::None,
        letters: Vec::new(),
        retired: Vec::new(),
        ends_at: None,
        tick,
    };
    // What is committed in the log says who votes, also on a member that has never run.
    let outputs = thread.core.poll(shared.begin.elapsed())?;
    thread.carry_out(outputs);
    thread.begin_alone();
    let mut next_tick = tick;
    loop {
        let now = shared.begin.elapsed();
        let applied = thread.core.progress().index;
        let outputs = thread.core.poll(now)?;
        let entries = thread.core.progress().index.saturating_sub(applied);
        if entries > 0 {
            shared.figures.applied(entries, shared.begin.elapsed().saturating_sub(now));
        }
        let (is_more, is_replaced) = (outputs.is_more, outputs.store_replaced);
        thread.carry_out(outputs);
        if is_replaced {
            shared.figures.keys_are(&**thread.core.store())?;
        }
        let due = thread.core.next_poll().map_or(next_tick, |poll| poll.min(next_tick));
        let wait =
            if is_more { Duration::ZERO } else { due.saturating_sub(shared.begin.elapsed()) };
        shift.over(Doing::Running);
        // What the network does here is not told apart from sleeping.
        thread.network.wait(shared.inbox.arrivals(), wait);
        let inputs = shared.inbox.take();
        shift.over(thread.waited_for());
        for input in inputs {
            if matches!(input, Input::Stop) {
                return Ok(());
            }
            thread.take(input)?;
        }
        let now = shared.begin.elapsed();
        if thread.ends_at.is_some_and(|end| now >= end) {
            return Err(Error::Removed);
        }
        if now >= next_tick {
            thread.mind_heartbeat(now.saturating_sub(next_tick));
            // Ticks that were missed are not made up for: a follower would forget its promise.
            thread.core.tick();
            thread.mind_the_lost(now);
            thread.drop_retired();
            next_tick = now.max(next_tick) + tick;
        }
    }
}

/// Nobody rings for the threads that tell watchers when this one has gone, by a panic too.
struct EndsWithMe<'s>(&'s Shared);

impl Drop for EndsWithMe<'_> {
    fn drop(&mut self) {
        self.0.watching.end();
    }
}

impl RaftThread<'_> {
    /// Who is the only voter need not wait for others to lead.
    fn begin_alone(&mut self) {
        let voters = &self.core.progress().members.voters;
        if voters[..] == [self.core.metadata().node_id] {
            self.core.campaign();
        }
    }

    fn take(&mut self, input: Input) -> Result<()> {
        match input {
            Input::Propose(request, place) => self.propose(request, place),
            Input::ChangeMembers(change, place) => match self.change_members(&change) {
                Ok(id) => self.waits(place, id),
                Err(error) => self.tell(place, Outcome::NotChanged(error)),
            },
            Input::Read(place) => {
                if let Err(error) = self.core.read(place.name()) {
                    self.tell(place, Outcome::MayNotRead(error));
                }
            }
            Input::GiveUp(place) => {
                if let Some(id) = self.pending.give_up(place) {
                    self.core.give_up(id);
                    self.held.forget(id);
                } else if !self.core.cancel_read(place.name()) {
                    self.held.give_up(place);
                }
            }
            Input::Message(message) if message.is_proposal() => {
                let now = self.shared.begin.elapsed();
                self.take_over(Forwarded::of_another(Box::new(message), now));
            }
            // What raft cannot use is no fault of this member.
            Input::Message(message) => drop(self.core.receive(message)),
            Input::Copy(copy) => self.core.copy_received(*copy)?,
            Input::CopySent { to, arrived } => self.core.copy_sent(to, arrived),
            Input::Returned(message) => self.not_sent(Box::new(message)),
            Input::Unreachable(id) => {
                self.pending.unreachable(id);
                self.core.unreachable(id);
            }
            Input::TransferLeader(to) => self.core.transfer_leader(to),
            Input::Removed => return Err(Error::Removed),
            Input::Written(written) => {
                self.being_written -= 1;
                self.core.written(written)?;
            }
            Input::Committed => {
                self.core.store_committed()?;
                self.mind_quota();
            }
            Input::Room => self.mind_room(),
            Input::Stop => {}
        }
        Ok(())
    }

    /// What this thread waits for while nothing comes in.
    fn waited_for(&self) -> Doing {
        match self.being_written {
            0 => Doing::Nothing,
            _ => Doing::WaitsFor(*LOG),
        }
    }

    /// Without a leader a request is kept until there is one, or who waits for it gives up; and while
    /// leadership is handed over until it is.
    fn propose(&mut self, mut request: Box<InternalRaftRequest>, place: Place) {
        if !self.core.takes_proposals() {
            match self.held.keep_own(request, place) {
                None => return,
                Some(too_much) => request = too_much,
            }
        }
        match self.core.propose(*request) {
            Ok(id) => self.waits(place, id),
            Err(error) => {
                self.shared.figures.proposals_failed.fetch_add(1, Relaxed);
                self.tell(place, Outcome::NotProposed(error));
            }
        }
    }

    /// A proposal that is a message already. If it got lost here, somebody would wait for seven seconds.
    fn take_over(&mut self, forwarded: Forwarded) {
        if !self.core.takes_proposals() {
            return self.keep(forwarded);
        }
        let leadership = self.core.leadership();
        if let Some(id) = forwarded.own {
            self.pending.renew(id, leadership.term);
        }
        let is_here =
            leadership.role == Role::Leader && forwarded.message.to() == leadership.leader;
        if forwarded.own.is_none()
            && !is_here
            && let Some((id, _)) = self.core.proposal_id(&forwarded.message)
        {
            self.held.remember(id, forwarded.until);
        }
        if is_here {
            // What raft cannot use is no fault of this member.
            let _ = self.core.receive(*forwarded.message);
        } else if let Err(driver::Error::QueueFull) = self.core.pass_on(&forwarded.message) {
            self.held.rest(self.shared.begin.elapsed() + self.tick);
            self.keep(forwarded);
        }
    }

    /// A message could not be sent. Raft says everything again but a proposal, and that is in nobody's
    /// log: it may go to the next leader, or to the same one when the way to it is mended.
    fn not_sent(&mut self, message: Box<Message>) {
        if message.is_proposal() {
            let now = self.shared.begin.elapsed();
            self.held.rest(now + self.tick);
            let mut forwarded = Forwarded::of_another(message, now);
            match self.core.proposal_id(&forwarded.message) {
                Some((id, true)) => forwarded.own = Some(id),
                Some((id, false)) => forwarded.until = self.held.until(id, forwarded.until),
                None => {}
            }
            self.keep(forwarded);
        }
    }

    /// Keeps it if somebody waits for it; tells him if there is no room.
    fn keep(&mut self, forwarded: Forwarded) {
        let own = forwarded.own;
        if own.is_some_and(|id| !self.pending.waits(id)) || self.held.keep(forwarded) {
            return;
        }
        if let Some((id, place)) = own.and_then(|id| Some((id, self.pending.take(id)?))) {
            self.core.give_up(id);
            self.tell(place, Outcome::NotProposed(driver::Error::QueueFull));
        }
    }

    /// Proposes what was held, once somebody leads.
    fn release(&mut self) {
        let now = self.shared.begin.elapsed();
        if !self.held.is_due(now) || !self.core.takes_proposals() {
            return;
        }
        for held in self.held.take() {
            match held {
                Proposal::Own(request, place) => self.propose(request, place),
                Proposal::Forwarded(forwarded) if forwarded.is_wanted(&self.pending, now) => {
                    self.take_over(forwarded);
                }
                Proposal::Forwarded(_) => {}
            }
        }
    }

    /// Nobody is to wait for what an old leader has taken along.
    fn mind_the_lost(&mut self, now: Duration) {
        self.held.forget_old(now);
        for (id, place) in self.pending.take_lost(self.core.progress().term, now) {
            self.core.give_up(id);
            self.held.forget(id);
            self.shared.figures.proposals_failed.fetch_add(1, Relaxed);
            self.tell(place, Outcome::LeaderLost);
        }
    }

    /// A leader's heartbeat goes out with each tick. One that is late by more than another tick may cost
    /// it its place.
    fn mind_heartbeat(&self, late: Duration) {
        let leadership = self.core.leadership();
        let others = self.core.members().iter().count().saturating_sub(1);
        if late <= self.tick || leadership.role != Role::Leader || others == 0 {
            return;
        }
        self.shared.figures.late_heartbeats.fetch_add(others as u64, Relaxed);
        tracing::warn!(
            "heartbeat-interval" = ?self.tick,
            "expected-duration" = ?(2 * self.tick),
            "exceeded-duration" = ?(late - self.tick),
            "leader failed to send out heartbeat on time; took too long, leader is overloaded likely \
             from slow disk"
        );
    }

    /// A store that is beyond its quota stops the cluster from growing. If the alarm gets lost, the
    /// next commit brings another.
    fn mind_quota(&mut self) {
        let member = self.core.metadata().node_id;
        let has_room = self.shared.quota.has_room(self.shared.sizes.size(), 0);
        if !has_room && !self.core.alarms().is_raised_by(member, AlarmType::Nospace) {
            self.core.propose_alarm(alarms::no_space(member));
        }
    }

    /// A disk that is nearly full does, too. When it has room again, the member takes back what it has
    /// raised. What it has proposed may be applied late; so only what was raised can be seen to have been
    /// taken back.
    fn mind_room(&mut self) {
        let member = self.core.metadata().node_id;
        let is_raised = self.core.alarms().is_raised_by(member, AlarmType::Nospace);
        let room = &self.shared.room;
        if room.log_waits() {
            self.let_others_lead();
        }
        match (self.room_alarm, is_raised) {
            (RoomAlarm::None, false) if room.is_low() => {
                self.room_alarm = RoomAlarm::Proposed;
                self.core.propose_alarm(alarms::no_space(member));
            }
            (RoomAlarm::Proposed, true) => {
                self.room_alarm = RoomAlarm::Raised;
                return;
            }
            // It may have got lost.
            (RoomAlarm::Proposed, false) if room.is_low() => {
                self.core.propose_alarm(alarms::no_space(member));
            }
            (RoomAlarm::Raised, false) => {
                self.room_alarm = RoomAlarm::None;
                room.has_alarmed.store(false, Relaxed);
                return;
            }
            (RoomAlarm::Raised, true) if !room.is_low() => {
                match self.shared.quota.has_room(self.shared.sizes.size(), 0) {
                    true => self.core.propose_alarm(alarms::space_again(member)),
                    false => return,
                }
            }
            _ => return,
        }
        room.has_alarmed.store(true, Relaxed);
    }

    /// A leader that cannot write holds up everybody.
    fn let_others_lead(&mut self) {
        let (leadership, own) = (self.core.leadership(), self.core.metadata().node_id);
        if leadership.role != Role::Leader || !self.core.takes_proposals() {
            return;
        }
        let members = self.core.members();
        let votes = |id: u64| members.get(id).is_some_and(|member| !member.is_learner);
        let others = self.core.matched().into_iter().filter(|(id, _)| *id != own && votes(*id));
        if let Some((heir, _)) = others.max_by_key(|(_, matched)| *matched) {
            self.core.transfer_leader(heir);
        }
    }

    /// Only the leader knows how far a learner has come.
    fn change_members(&mut self, change: &Change) -> std::result::Result<u64, ChangeError> {
        if let Change::Promote { id } = *change {
            let leadership = self.core.leadership();
            if leadership.role != Role::Leader {
                return Err(ChangeError::NotLeader);
            }
            match self.core.members().get(id) {
                None => return Err(Refused::NotFound.into()),
                Some(member) if !member.is_learner => return Err(Refused::NotLearner.into()),
                Some(_) => learner_is_ready(id, leadership.leader, &self.core.matched())?,
            }
        }
        self.core.change_members(change)
    }

    fn waits(&mut self, place: Place, id: u64) {
        self.pending.wait(id, place, self.core.leadership().term);
    }

    fn tell(&mut self, place: Place, outcome: Outcome) {
        let desk = usize::from(place.desk);
        if self.letters.len() <= desk {
            self.letters.resize_with(desk + 1, Vec::new);
        }
        self.letters[desk].push((place, outcome));
    }

    /// The order is the core's: see [`Outputs`]. A thread that has gone has failed, and said so.
    fn carry_out(&mut self, outputs: Outputs) {
        self.shared.status.alone_is(self.core.is_alone());
        for message in outputs.send {
            if let Err(message) = self.network.send(message) {
                self.core.unreachable(message.to());
                self.not_sent(message);
            }
        }
        for message in outputs.copies {
            self.network.send_copy(message, Arc::clone(self.core.store()));
        }
        if let Some(batch) = outputs.write {
            self.being_written += 1;
            let _ = self.to_wal.send(ToWal::Write(batch));
        }
        if let Some(below) = outputs.purge {
            let _ = self.to_wal.send(ToWal::Purge(below));
        }
        let figures = &self.shared.figures;
        for (_, changes) in &outputs.changes {
            figures.changed(changes);
        }
        if outputs.store_replaced {
            self.shared.store.store(Arc::new(Arc::clone(self.core.store())));
            // Before the new store's changes are published; those of the old one are dropped.
            self.shared.watching.replace(self.core.store());
            let store = Arc::clone(self.core.store());
            let _ = self.to_commit.send(ToCommit::Replaced(store));
        }
        if outputs.removed && self.ends_at.is_none() {
            // The others are to hear first that it is committed.
            self.ends_at = Some(self.shared.begin.elapsed() + LAST_TICKS * self.tick);
        }
        if let Some(now) = outputs.leadership {
            match now.leader {
                0 => tracing::info!(term = now.term, "no leader is known"),
                id => tracing::info!(leader = format!("{id:x}"), term = now.term, "a member leads"),
            }
            figures.leads(now.leader);
            self.shared.status.leadership_is(now);
            self.shared.leadership.send_replace(now);
            self.pending.leads(now, self.shared.begin.elapsed(), self.tick);
        }
        self.release();
        self.shared.show(&self.core);
        let applying = outputs.known_at.map(|at| self.shared.begin.elapsed().saturating_sub(at));
        for reads in outputs.reads {
            self.tell_readers(reads, applying.unwrap_or_default());
        }
        for (id, answer) in outputs.answers {
            if let Some(place) = self.pending.take(id) {
                figures.answered(&answer);
                self.tell(place, Outcome::Applied(answer));
            }
        }
        slow::tell(&outputs.slow, self.core.slow_limit(), figures);
        let reads = self.core.read_figures();
        figures.slow_read_indexes.store(reads.late_answers + reads.timed_out, Relaxed);
        figures.leases_expired.store(self.core.leases_expired(), Relaxed);
        figures.proposals_pending.store(self.pending.len() as u64, Relaxed);
        self.hand_out();
        self.shared.watching.publish(outputs.changes);
        self.retired.extend(outputs.retired);
        if self.retired.len() >= RETIRED_MAX {
            self.drop_retired();
        }
        for job in outputs.compactions {
            let _ = self.to_commit.send(ToCommit::Compact(job));
        }
        if outputs.commit_due {
            let _ = self.to_commit.send(ToCommit::Now);
        }
    }

    fn drop_retired(&mut self) {
        if !self.retired.is_empty() {
            let _ = self.to_commit.send(ToCommit::Drop(std::mem::take(&mut self.retired)));
        }
    }

    fn tell_readers(&mut self, reads: Reads, applying: Duration) {
        match reads {
            Reads::Go(readers) => {
                for reader in readers {
                    self.tell(Place::of_name(reader), Outcome::MayRead(applying));
                }
            }
            Reads::Fail(error, readers) => {
                self.shared.figures.reads_failed.fetch_add(readers.len() as u64, Relaxed);
                for reader in readers {
                    self.tell(Place::of_name(reader), Outcome::MayNotRead(error));
                }
            }
        }
    }

    fn hand_out(&mut self) {
        if self.letters.iter().all(Vec::is_empty) {
            return;
        }
        let desks = self.shared.desks.lock();
        for (desk, letters) in desks.iter().zip(&mut self.letters) {
            if !letters.is_empty() {
                desk.put(letters);
            }
        }
    }
}
