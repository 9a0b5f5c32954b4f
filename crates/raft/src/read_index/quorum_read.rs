//! Mode `read-index`: one round at a time, and waiting readers share the next. etcd from 3.1 on.
//!
//! A round asks raft for an index that covers all that was acknowledged before it was asked; raft
//! has the leader ask a quorum. A round ends with an answer to one of its ids, when a leader
//! appears or leader or term change (its readers fail at once: what was asked is lost), or after
//! 7 s. That no leader is known ends nothing: one may come. Readers that wait for the next round
//! stay, as in etcd, so the last of them may wait for two time-outs.
//!
//! * At most one round is in flight.
//! * A reader is released by the answer to a question that was asked after it came.
//! * Each reader is released, or fails, once.
//!
//! Unlike in etcd, the next round does not wait for the applied index of the last. See
//! `docs/read-index.md`.

use std::time::Duration;

use super::clock::ClockReading;
use super::error::{ReadIndexError, Result};
use super::ids::RequestIdGenerator;
use super::interface::{
    ReadIndexAction, ReadIndexConfig, ReadIndexEvent, ReadIndexMetrics, ReadIndexQueue, Reader,
};
use super::request::ReadIndexRequest;
use super::waiters::Waiters;

/// A round with at least this number of readers makes the next one gather.
const LARGE_REQUEST_READERS: usize = 8;
/// The longest time that a round gathers; less if the round before took less. It halves the rounds,
/// each a dozen messages among three members, on a member where they cost more than the
/// reads.
const BATCH_WAIT_MAX: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(crate) struct QuorumRead<T> {
    config: ReadIndexConfig,
    pub(crate) waiters: Waiters<T>,
    in_flight: Option<ReadIndexRequest<T>>,
    /// When the last round was asked, if it served many readers.
    large_request_sent_at: Option<Duration>,
    /// The next round is not asked before this.
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

    /// Returns whether anything is new. A new leader ends the round.
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

    /// Ends the round if it is its answer. Returns when the question was asked, if that is known.
    pub(crate) fn on_answer(&mut self, context: u64, index: u64) -> Option<Duration> {
        let asked_at = self.in_flight.as_ref().and_then(|round| round.sent_at(context));
        let Some(asked_at) = asked_at else {
            self.waiters.metrics.late_answers += 1;
            return None;
        };
        let round = self.in_flight.take()?;
        let waiting =
            round.group.iter().filter(|queued| self.waiters.readers.is_waiting(queued)).count();
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
        if !round.group.iter().any(|queued| self.waiters.readers.is_waiting(queued)) {
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
