//! Mode `read-index`: one round at a time, and all who wait share the next. etcd from 3.1 on.
//!
//! # The story
//!
//! A linearizable read must see every write that was acknowledged before it came. A member that has
//! been cut off does not know what was acknowledged, and a leader may have been deposed without
//! knowing it. But a leader that asks a quorum "do you still follow me?" and is told yes was the leader
//! when it asked, so its commit index of that time covers all that was acknowledged until then. That is
//! ReadIndex: a round of heartbeats instead of an entry in the log. Nothing is written, nothing synced.
//!
//! The round costs a round trip, and asking for each read would cost a thousand readers a thousand
//! rounds. But the answer is as good for everybody who came before the question. So:
//!
//! ```text
//!   reader 1   ▶┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄▶ go
//!   round 1     ask ──────▶ answer, 10 is applied
//!   reader 2       ▶┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄▶ go      not in round 1:
//!   reader 3           ▶┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄▶ go      they came after it was asked
//!   round 2                  ask ──────▶ answer ┄┄▶ 12 is applied
//!   reader 4                       ▶┄┄┄┄┄┄┄ ...            waits for round 3
//! ```
//!
//! A reader waits for one and a half round trips on average, two at most. However many there are, there
//! is one round at a time, which grows as the load does.
//!
//! # When many read
//!
//! Then the rounds themselves become the load: each is a dozen messages among three members, and that
//! costs more than the reads. So behind a round that has served many, the next one gathers for as long as
//! that one took, at most 2 ms: half as many rounds, for a wait that a member which has so much to do
//! would make its clients wait anyway. Who is alone, or one of a few, never waits for others.
//!
//! # What ends a round
//!
//! | | |
//! |---|---|
//! | an answer to one of its ids | its readers wait until this member has applied that index |
//! | a leader appears, or another one, or another term | they fail at once: what was asked is lost |
//! | 7 s | they fail |
//!
//! That no leader is known ends nothing: one may come. Those who wait for the next round are not
//! touched by any of this, as in etcd; so the last of them may wait for two time-outs.
//!
//! # Invariants
//!
//! * At most one round is in flight.
//! * A reader is let go by the answer to a question that was asked after it came.
//! * Each reader is let go, or fails, once.
//!
//! # What etcd does that is left out
//!
//! etcd's loop waits for the applied index before it begins the next round, so a slow apply keeps
//! rounds from being asked. Here the wait is behind the round, and the next one goes out meanwhile.

use std::time::Duration;

use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::ids::RequestIds;
use crate::interface::{Action, Config, Event, Figures, ReadBarrier, Reader};
use crate::room::Room;
use crate::round::Round;

/// A round with so many readers has served many.
const CROWD: usize = 8;
/// The longest that they gather.
const GATHER_MAX: Duration = Duration::from_millis(2);

/// Rounds, one after the other.
#[derive(Debug)]
pub(crate) struct ReadIndex<T> {
    config: Config,
    pub(crate) room: Room<T>,
    in_flight: Option<Round<T>>,
    /// When the round was asked that has just served many.
    crowd_asked_at: Option<Duration>,
    /// Until then the next round gathers.
    gathers_until: Duration,
    leader: Option<u64>,
    term: u64,
}

impl<T: Reader> ReadIndex<T> {
    pub(crate) fn new(config: Config) -> ReadIndex<T> {
        ReadIndex {
            config,
            room: Room::new(&config),
            in_flight: None,
            crowd_asked_at: None,
            gathers_until: Duration::ZERO,
            leader: None,
            term: 0,
        }
    }

    /// Says whether anything is new. A leader that is new ends the round.
    pub(crate) fn leader_is(&mut self, leader: Option<u64>, term: u64) -> bool {
        let changed = (self.leader, self.term) != (leader, term);
        (self.leader, self.term) = (leader, term);
        if changed
            && leader.is_some()
            && let Some(round) = self.in_flight.take()
        {
            self.room.figures.leader_changed += 1;
            self.room.fail(Error::LeaderChanged, round.group);
        }
        changed
    }

    pub(crate) fn leads(&self) -> bool {
        self.leader == Some(self.config.member)
    }

    /// Ends the round if it is its answer. When the question was asked, if that is known.
    pub(crate) fn answered(&mut self, context: u64, index: u64) -> Option<Duration> {
        let asked_at = self.in_flight.as_ref().and_then(|round| round.asked_at(context));
        let Some(asked_at) = asked_at else {
            self.room.figures.late_answers += 1;
            return None;
        };
        let round = self.in_flight.take()?;
        let waiting = round.group.iter().filter(|seat| self.room.readers.waits(seat)).count();
        self.crowd_asked_at = asked_at.filter(|_| waiting >= CROWD);
        self.room.wait_behind(index, round.group);
        asked_at
    }

    /// Ends the round if it is over, asks again if it is time, and begins the next one.
    pub(crate) fn step(&mut self, moment: Moment, ids: &mut RequestIds) {
        if moment.stepped_back
            && let Some(round) = &mut self.in_flight
        {
            round.forget_times();
        }
        let now = moment.now;
        if moment.stepped_back {
            (self.crowd_asked_at, self.gathers_until) = (None, now);
        }
        if let Some(asked_at) = self.crowd_asked_at.take() {
            self.gathers_until = now + now.saturating_sub(asked_at).min(GATHER_MAX);
        }
        if let Some(round) = self.in_flight.take_if(|round| round.is_over(now)) {
            self.room.figures.timed_out += 1;
            self.room.fail(Error::TimedOut, round.group);
        }
        if let Some(round) = self.in_flight.take_if(|round| round.is_due(now)) {
            self.ask(round, now, ids);
        }
        if self.in_flight.is_none() && !self.room.queue_is_empty() && self.gathers_until <= now {
            let group = self.room.take_queue();
            self.room.figures.rounds += 1;
            self.ask(Round::new(group, now, self.config.request_timeout()), now, ids);
        }
    }

    /// Asks, unless everybody who wanted to know is gone.
    fn ask(&mut self, mut round: Round<T>, now: Duration, ids: &mut RequestIds) {
        if !round.group.iter().any(|seat| self.room.readers.waits(seat)) {
            self.room.readers.release(round.group);
            return;
        }
        let (context, attempt) = round.ask(now, ids);
        self.room.figures.asks += 1;
        self.room.act(Action::Ask { context, attempt });
        self.in_flight = Some(round);
    }
}

impl<T: Reader> ReadBarrier<T> for ReadIndex<T> {
    fn read(&mut self, reader: T) -> Result<()> {
        self.room.enter(reader)
    }

    fn cancel(&mut self, reader: T) -> bool {
        let in_flight = &mut self.in_flight;
        self.room.cancel(reader, |readers| {
            if let Some(round) = in_flight {
                readers.sweep(&mut round.group);
            }
        })
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Answered { context, index } => _ = self.answered(context, index),
            Event::Leader { leader, term } => _ = self.leader_is(leader, term),
            Event::FirstCommit => self.in_flight.iter_mut().for_each(Round::hurry),
            Event::Applied { index } => self.room.applied(index),
            Event::Stopped => {
                let group = self.in_flight.take().map(|round| round.group);
                self.room.stop(group.unwrap_or_default());
            }
            Event::TransferBegan | Event::Committed { .. } => {}
        }
    }

    fn poll(&mut self, now: Duration, ids: &mut RequestIds) -> Vec<Action<T>> {
        let moment = self.room.told(now);
        self.step(moment, ids);
        self.room.take_actions()
    }

    fn next_poll(&self) -> Option<Duration> {
        let next = match &self.in_flight {
            Some(round) => round.next_poll(),
            None if !self.room.queue_is_empty() => self.gathers_until,
            None => return None,
        };
        Some(self.room.untold(next))
    }

    fn awaited(&self) -> Option<u64> {
        self.room.awaited()
    }

    fn figures(&self) -> Figures {
        self.room.figures()
    }
}
