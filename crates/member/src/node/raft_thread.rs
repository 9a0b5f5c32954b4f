//! The raft thread: takes what has gathered, lets the core do its work, and carries out what it
//! says.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Sender;
use std::time::Duration;

use clearlane_proto::etcdserverpb::{AlarmType, InternalRaftRequest};
use clearlane_raft_log::driver::Role;

use super::commit_thread::ToCommit;
use super::desk::Outcome;
use super::inbox::{Input, Place};
use super::wal_thread::ToWal;
use super::{Network, Shared};
use crate::alarms;
use crate::core::{ChangeError, Core, Outputs, Reads};
use crate::error::{Error, Result};
use crate::membership::{Change, Refused, learner_is_ready};

/// So many requests wait for a leader.
const HELD_MAX: usize = 4096;

/// So many ticks a member goes on that was removed.
const LAST_TICKS: u32 = 10;

/// What the thread owns.
struct RaftThread<'s> {
    core: Core,
    to_wal: Sender<ToWal>,
    to_commit: Sender<ToCommit>,
    network: Box<dyn Network>,
    shared: &'s Shared,
    /// Who waits for which proposal, and the reverse for those who give up.
    proposals: HashMap<u64, Place>,
    places: HashMap<Place, u64>,
    /// Requests that wait for a leader.
    held: Vec<(InternalRaftRequest, Place)>,
    /// What goes to each desk at the end of this turn.
    letters: Vec<Vec<(Place, Outcome)>>,
    /// When this member, which was removed, stops.
    ends_at: Option<Duration>,
    tick: Duration,
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
    let mut thread = RaftThread {
        core,
        to_wal,
        to_commit,
        network,
        shared,
        proposals: HashMap::new(),
        places: HashMap::new(),
        held: Vec::new(),
        letters: Vec::new(),
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
        for input in shared.wait(wait) {
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
            // Ticks that were missed are not made up for: a follower would forget its promise.
            thread.core.tick();
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
            Input::Propose(request, place) => self.propose(*request, place),
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
                if let Some(id) = self.places.remove(&place) {
                    self.proposals.remove(&id);
                    self.core.give_up(id);
                } else if !self.core.cancel_read(place.name()) {
                    self.held.retain(|(_, held)| *held != place);
                }
            }
            // What raft cannot use is no fault of this member.
            Input::Message(message) => drop(self.core.receive(message)),
            Input::Copy(copy) => self.core.copy_received(*copy)?,
            Input::CopySent { to, arrived } => self.core.copy_sent(to, arrived),
            Input::Unreachable(id) => self.core.unreachable(id),
            Input::TransferLeader(to) => self.core.transfer_leader(to),
            Input::Removed => return Err(Error::Removed),
            Input::Written(written) => self.core.written(written)?,
            Input::Committed => {
                self.core.store_committed()?;
                self.mind_quota();
            }
            Input::Stop => {}
        }
        Ok(())
    }

    /// Without a leader a request is kept until there is one, or who waits for it gives up.
    fn propose(&mut self, request: InternalRaftRequest, place: Place) {
        if self.core.leadership().leader == 0 && self.held.len() < HELD_MAX {
            self.held.push((request, place));
            return;
        }
        match self.core.propose(request) {
            Ok(id) => self.waits(place, id),
            Err(error) => {
                self.shared.figures.proposals_failed.fetch_add(1, Relaxed);
                self.tell(place, Outcome::NotProposed(error));
            }
        }
    }

    /// A store that is beyond its quota stops the cluster from growing. If the alarm gets lost, the
    /// next commit brings another.
    fn mind_quota(&mut self) {
        let member = self.core.metadata().node_id;
        let has_room = self.shared.quota.has_room(self.shared.sizes.size(), 0);
        if !has_room && !self.core.alarms().is_raised_by(member, AlarmType::Nospace) {
            // Nobody waits for it, and without a leader there is no harm in trying.
            let _ = self.core.propose(alarms::no_space(member));
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
        self.proposals.insert(id, place);
        self.places.insert(place, id);
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
        for message in outputs.send {
            let to = message.to();
            if !self.network.send(message) {
                self.core.unreachable(to);
            }
        }
        for message in outputs.copies {
            self.network.send_copy(message, Arc::clone(self.core.store()));
        }
        if let Some(batch) = outputs.write {
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
            let _ = self.to_commit.send(ToCommit::Replaced);
        }
        if outputs.removed && self.ends_at.is_none() {
            // The others are to hear first that it is committed.
            self.ends_at = Some(self.shared.begin.elapsed() + LAST_TICKS * self.tick);
        }
        if let Some(now) = outputs.leadership {
            figures.leads(now.leader);
            self.shared.status.leadership_is(now);
            self.shared.leadership.send_replace(now);
            for (request, place) in std::mem::take(&mut self.held) {
                self.propose(request, place);
            }
        }
        self.shared.show(&self.core);
        for reads in outputs.reads {
            self.tell_readers(reads);
        }
        for (id, answer) in outputs.answers {
            if let Some(place) = self.proposals.remove(&id) {
                self.places.remove(&place);
                figures.answered(&answer);
                self.tell(place, Outcome::Applied(answer));
            }
        }
        figures.leases_expired.store(self.core.leases_expired(), Relaxed);
        figures.proposals_pending.store(self.proposals.len() as u64, Relaxed);
        self.hand_out();
        self.shared.watching.publish(outputs.changes);
        if !outputs.retired.is_empty() {
            let _ = self.to_commit.send(ToCommit::Drop(outputs.retired));
        }
        for job in outputs.compactions {
            let _ = self.to_commit.send(ToCommit::Compact(job));
        }
        if outputs.commit_due {
            let _ = self.to_commit.send(ToCommit::Now);
        }
    }

    fn tell_readers(&mut self, reads: Reads) {
        match reads {
            Reads::Go(readers) => {
                for reader in readers {
                    self.tell(Place::of_name(reader), Outcome::MayRead);
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
