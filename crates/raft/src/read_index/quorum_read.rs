//! Mode `read-index`: one round at a time, and all waiting readers share the next. etcd from 3.1 on.
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
//! rounds. But the answer is as good for every reader that came before the question. So:
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
//! would make its clients wait anyway. A reader that is alone, or one of a few, never waits for others.
//!
//! # What ends a round
//!
//! | | |
//! |---|---|
//! | an answer to one of its ids | its readers wait until this member has applied that index |
//! | a leader appears, or another one, or another term | they fail at once: what was asked is lost |
//! | 7 s | they fail |
//!
//! That no leader is known ends nothing: one may come. Readers that wait for the next round are not
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

use super::clock::ClockReading;
use super::error::{ReadIndexError, Result};
use super::ids::RequestIdGenerator;
use super::interface::{
    ReadIndexAction, ReadIndexConfig, ReadIndexEvent, ReadIndexMetrics, ReadIndexQueue, Reader,
};
use super::request::ReadIndexRequest;
use super::waiters::Waiters;

/// A round with so many readers has served many.
const LARGE_REQUEST_READERS: usize = 8;
/// The longest that they gather.
const BATCH_WAIT_MAX: Duration = Duration::from_millis(2);

/// Rounds, one after the other.
#[derive(Debug)]
pub(crate) struct QuorumRead<T> {
    config: ReadIndexConfig,
    pub(crate) waiters: Waiters<T>,
    in_flight: Option<ReadIndexRequest<T>>,
    /// When the round was asked that has just served many.
    large_request_sent_at: Option<Duration>,
    /// Until then the next round gathers.
    batch_until: Duration,
    leader: Option<u64>,
    term: u64,
}

impl<T: Reader> QuorumRead<T> {
    pub(crate) fn new(config: ReadIndexConfig) -> QuorumRead<T> {
        QuorumRead {
            config,
            waiters: Waiters::new(&config),
            in_flight: None,
            large_request_sent_at: None,
            batch_until: Duration::ZERO,
            leader: None,
            term: 0,
        }
    }

    /// Says whether anything is new. A leader that is new ends the round.
    pub(crate) fn set_leader(&mut self, leader: Option<u64>, term: u64) -> bool {
        let changed = (self.leader, self.term) != (leader, term);
        (self.leader, self.term) = (leader, term);
        if changed
            && leader.is_some()
            && let Some(round) = self.in_flight.take()
        {
            self.waiters.metrics.leader_changed += 1;
            self.waiters.fail(ReadIndexError::LeaderChanged, round.group);
        }
        changed
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.leader == Some(self.config.member_id)
    }

    /// Ends the round if it is its answer. When the question was asked, if that is known.
    pub(crate) fn on_answer(&mut self, context: u64, index: u64) -> Option<Duration> {
        let asked_at = self.in_flight.as_ref().and_then(|round| round.sent_at(context));
        let Some(asked_at) = asked_at else {
            self.waiters.metrics.late_answers += 1;
            return None;
        };
        let round = self.in_flight.take()?;
        let waiting =
            round.group.iter().filter(|seat| self.waiters.readers.is_waiting(seat)).count();
        self.large_request_sent_at = asked_at.filter(|_| waiting >= LARGE_REQUEST_READERS);
        self.waiters.wait_for_index(index, round.group);
        asked_at
    }

    /// Ends the round if it is over, asks again if it is time, and begins the next one.
    pub(crate) fn advance(&mut self, moment: ClockReading, ids: &mut RequestIdGenerator) {
        if moment.has_stepped_back
            && let Some(round) = &mut self.in_flight
        {
            round.clear_sent_times();
        }
        let now = moment.now;
        if moment.has_stepped_back {
            (self.large_request_sent_at, self.batch_until) = (None, now);
        }
        if let Some(asked_at) = self.large_request_sent_at.take() {
            self.batch_until = now + now.saturating_sub(asked_at).min(BATCH_WAIT_MAX);
        }
        if let Some(round) = self.in_flight.take_if(|round| round.is_expired(now)) {
            self.waiters.metrics.timed_out += 1;
            self.waiters.fail(ReadIndexError::TimedOut, round.group);
        }
        if let Some(round) = self.in_flight.take_if(|round| round.is_retry_due(now)) {
            self.send_attempt(round, now, ids);
        }
        if self.in_flight.is_none() && !self.waiters.is_queue_empty() && self.batch_until <= now {
            let group = self.waiters.take_queue();
            self.waiters.metrics.requests += 1;
            self.send_attempt(
                ReadIndexRequest::new(group, now, self.config.request_timeout()),
                now,
                ids,
            );
        }
    }

    /// Asks, unless every waiting reader is gone.
    fn send_attempt(
        &mut self,
        mut round: ReadIndexRequest<T>,
        now: Duration,
        ids: &mut RequestIdGenerator,
    ) {
        if !round.group.iter().any(|seat| self.waiters.readers.is_waiting(seat)) {
            self.waiters.readers.release(round.group);
            return;
        }
        let (context, attempt) = round.next_attempt(now, ids);
        self.waiters.metrics.attempts += 1;
        self.waiters.push_action(ReadIndexAction::RequestReadIndex { context, attempt });
        self.in_flight = Some(round);
    }
}

impl<T: Reader> ReadIndexQueue<T> for QuorumRead<T> {
    fn enqueue(&mut self, reader: T) -> Result<()> {
        self.waiters.enqueue(reader)
    }

    fn cancel(&mut self, reader: T) -> bool {
        let in_flight = &mut self.in_flight;
        self.waiters.cancel(reader, |readers| {
            if let Some(round) = in_flight {
                readers.sweep(&mut round.group);
            }
        })
    }

    fn handle_event(&mut self, event: ReadIndexEvent) {
        match event {
            ReadIndexEvent::Answered { context, index } => _ = self.on_answer(context, index),
            ReadIndexEvent::Leader { leader, term } => _ = self.set_leader(leader, term),
            ReadIndexEvent::FirstCommit => {
                self.in_flight.iter_mut().for_each(ReadIndexRequest::retry_now)
            }
            ReadIndexEvent::Applied { index } => self.waiters.set_applied_index(index),
            ReadIndexEvent::Stopped => {
                let group = self.in_flight.take().map(|round| round.group);
                self.waiters.stop(group.unwrap_or_default());
            }
            ReadIndexEvent::TransferStarted | ReadIndexEvent::Committed { .. } => {}
        }
    }

    fn poll(&mut self, now: Duration, ids: &mut RequestIdGenerator) -> Vec<ReadIndexAction<T>> {
        let moment = self.waiters.read_clock(now);
        self.advance(moment, ids);
        self.waiters.take_actions()
    }

    fn next_poll(&self) -> Option<Duration> {
        let next = match &self.in_flight {
            Some(round) => round.next_poll(),
            None if !self.waiters.is_queue_empty() => self.batch_until,
            None => return None,
        };
        Some(self.waiters.to_caller_time(next))
    }

    fn awaited_index(&self) -> Option<u64> {
        self.waiters.awaited_index()
    }

    fn metrics(&self) -> ReadIndexMetrics {
        self.waiters.metrics()
    }
}
