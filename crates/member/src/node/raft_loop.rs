//! The raft loop: takes what has gathered, lets the raft half of the member do its work, and carries out what that
//! says. While it has nothing to do its thread is the [network's](super::Network).
//!
//! It touches no store and no lock of an era, so a tick is late only if the machine is: see
//! `clearlane_raft_tick_lateness_seconds`. etcd's counterpart is `raftNode.start`.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Sender;
use std::time::Duration;

use clearlane_proto::etcdserverpb::AlarmType;
use clearlane_raft_log::driver::{Leadership, Message, Role};
use clearlane_raft_log::wal::group::Batch;

use super::commit_thread::ToCommit;
use super::completions::Sorted;
use super::inbox::ToRaft;
use super::wal_thread::ToWal;
use super::{Network, Shared};
use crate::actors::{LOG, RAFT};
use crate::alarms;
use crate::core::{Completions, Core, Input, Outcome, RaftEffects, ToApply};
use crate::error::{Error, Result};
use crate::recording::Doing;

/// The threads that the raft loop gives work to.
pub(super) struct Ends {
    pub(super) to_wal: Sender<ToWal>,
    pub(super) to_apply: Sender<ToApply>,
    pub(super) to_commit: Sender<ToCommit>,
    pub(super) network: Box<dyn Network>,
}

/// What the loop owns.
struct RaftLoop<'s> {
    core: Core,
    shared: &'s Shared,
    /// What has become of the alarm about the disk.
    room_alarm: RoomAlarm,
    /// The index that the apply loop was told to report at once.
    awaited: u64,
    tick: Duration,
}

/// Carries out what the raft half says. A thread that has gone has failed, and said so.
struct Effects<'s> {
    ends: Ends,
    shared: &'s Shared,
    /// Whether the log has a batch that is not written yet.
    is_writing: bool,
    /// Members to which messages could not be sent.
    unreachable: Vec<u64>,
    sorted: Sorted,
    /// This member was removed, and stops.
    stops: bool,
}

/// An alarm that this member raises because its disk is nearly full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoomAlarm {
    /// Or it was taken back.
    None,
    /// Not applied yet, as far as is known.
    Proposed,
    Raised,
}

/// Works until it is told to stop, or something fails.
pub(super) fn run(core: Core, tick: Duration, ends: Ends, shared: &Shared) -> Result<()> {
    let mut shift = shared.recording.shift(*RAFT);
    let mut this = RaftLoop { core, shared, room_alarm: RoomAlarm::None, awaited: 0, tick };
    let mut effects = Effects {
        ends,
        shared,
        is_writing: false,
        unreachable: Vec::new(),
        sorted: Sorted::default(),
        stops: false,
    };
    let mut next_tick = shared.begin.elapsed() + tick;
    loop {
        this.core.poll(shared.begin.elapsed())?.carry_out(&mut effects);
        if effects.stops {
            return Err(Error::Removed);
        }
        for id in effects.unreachable.drain(..) {
            this.core.take(Input::Unreachable(id))?;
        }
        this.publish();
        let due = this.core.next_poll().map_or(next_tick, |poll| poll.min(next_tick));
        shift.over(Doing::Running);
        // What the network does here is not told apart from sleeping.
        let wait = due.saturating_sub(shared.begin.elapsed());
        effects.ends.network.wait(shared.inbox.arrivals(), wait);
        let (applied, inputs) = shared.inbox.take();
        shift.over(effects.waited_for());
        // In front, so that a proposal is not refused for a gap that is not there any more.
        if let Some(applied) = applied {
            this.core.take(Input::Applied(applied))?;
        }
        for input in inputs {
            match input {
                ToRaft::Core(input) => this.take(input, &mut effects)?,
                ToRaft::Room => this.mind_room(),
                ToRaft::Removed => return Err(Error::Removed),
                ToRaft::Stop => return Ok(()),
            }
        }
        let now = shared.begin.elapsed();
        if now >= next_tick {
            this.tick(now.saturating_sub(next_tick));
            next_tick = now.max(next_tick) + tick;
        }
    }
}

impl RaftLoop<'_> {
    fn take(&mut self, input: Input, effects: &mut Effects<'_>) -> Result<()> {
        let is_commit = matches!(input, Input::Committed(_));
        effects.is_writing &= !matches!(input, Input::Written(_));
        self.core.take(input)?;
        if is_commit {
            self.mind_quota();
        }
        Ok(())
    }

    /// Ticks that were missed are not made up for: a follower would forget its promise.
    fn tick(&mut self, late: Duration) {
        let figures = &self.shared.figures;
        figures.ticked(late);
        // The apply loop says so, too, when it completes some.
        figures.proposals_pending.store(self.core.wait().len() as u64, Relaxed);
        self.mind_heartbeat(late);
        self.core.tick();
    }

    /// What others may look at, and which index the apply loop is to report at once.
    fn publish(&mut self) {
        let figures = &self.shared.figures;
        let reads = self.core.read_figures();
        figures.slow_read_indexes.store(reads.late_answers + reads.timed_out, Relaxed);
        figures.leases_expired.store(self.core.leases_expired(), Relaxed);
        self.shared.status.committed_is(self.core.committed());
        let awaited = self.core.awaited();
        if awaited != std::mem::replace(&mut self.awaited, awaited) {
            self.shared.inbox.awaits(awaited);
        }
    }

    /// A leader's heartbeat goes out with each tick. One that is late by more than another tick may cost
    /// it its leadership.
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

    /// A leader that cannot write holds up all members.
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
}

impl Effects<'_> {
    /// What this loop waits for while nothing comes in.
    fn waited_for(&self) -> Doing {
        match self.is_writing {
            false => Doing::Nothing,
            true => Doing::WaitsFor(*LOG),
        }
    }
}

impl RaftEffects for Effects<'_> {
    fn is_alone(&mut self, is_alone: bool) {
        self.shared.status.alone_is(is_alone);
    }

    fn send(&mut self, message: Message) {
        if let Err(message) = self.ends.network.send(message) {
            self.unreachable.push(message.to());
        }
    }

    fn send_copy(&mut self, message: Message) {
        let store = Arc::clone(&**self.shared.store.load());
        self.ends.network.send_copy(message, store);
    }

    fn write(&mut self, batch: Batch) {
        self.is_writing = true;
        let _ = self.ends.to_wal.send(ToWal::Write(batch));
    }

    fn purge(&mut self, below: u64) {
        let _ = self.ends.to_wal.send(ToWal::Purge(below));
    }

    fn apply(&mut self, work: ToApply) {
        let _ = self.ends.to_apply.send(work);
    }

    fn leads(&mut self, now: Leadership) {
        match now.leader {
            0 => tracing::info!(term = now.term, "no leader is known"),
            id => tracing::info!(leader = format!("{id:x}"), term = now.term, "a member leads"),
        }
        self.shared.figures.leads(now.leader);
        self.shared.status.leadership_is(now, self.shared.begin.elapsed());
        self.shared.leadership.send_replace(now);
    }

    fn complete(&mut self, completions: Completions) {
        let figures = &self.shared.figures;
        for (_, outcome) in &completions {
            match outcome {
                Outcome::NotProposed(_) => figures.proposals_failed.fetch_add(1, Relaxed),
                Outcome::MayNotRead(_) => figures.reads_failed.fetch_add(1, Relaxed),
                _ => continue,
            };
        }
        self.sorted.hand_out(completions, self.shared);
    }

    fn commit(&mut self) {
        let _ = self.ends.to_commit.send(ToCommit::Now);
    }

    fn stops(&mut self) {
        self.stops = true;
    }
}
