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
use super::error::ReadIndexError;
use super::ids::RequestIdGenerator;
use super::interface::{ReadIndexAction, ReadIndexConfig, Reader};
use super::lease_read::Lease;
use super::mode::Mode;
use super::readers::ReaderTable;
use super::request::ReadIndexRequest;
use super::waiters::Waiters;

/// A round with at least this number of readers makes the next one gather.
const LARGE_REQUEST_READERS: usize = 8;
/// The longest time that a round gathers; less if the round before took less. It halves the rounds,
/// each a dozen messages among three members, on a member where they cost more than the
/// reads.
const BATCH_WAIT_MAX: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) struct QuorumRead<T> {
    config: ReadIndexConfig,
    in_flight: Option<ReadIndexRequest<T>>,
    /// When the last round was asked, if it served many readers.
    large_request_sent_at: Option<Duration>,
    /// The next round is not asked before this.
    batch_until: Duration,
    leader: Option<u64>,
    term: u64,
    committed: u64,
    lease: Lease,
}

impl<T: Reader> QuorumRead<T> {
    pub(super) fn new(config: ReadIndexConfig, lease_length: Duration) -> QuorumRead<T> {
        QuorumRead {
            config,
            in_flight: None,
            large_request_sent_at: None,
            batch_until: Duration::ZERO,
            leader: None,
            term: 0,
            committed: 0,
            lease: Lease::new(lease_length),
        }
    }

    fn is_leader(&self) -> bool {
        self.leader == Some(self.config.member_id)
    }

    fn serve_under_lease(&mut self, waiters: &mut Waiters<T>, now: Duration) {
        if self.lease.holds(now) && !waiters.queue.is_empty() {
            assert!(self.is_leader(), "only a leader for sure has a lease");
            waiters.metrics.lease_reads += 1;
            let group = waiters.take_queue();
            waiters.wait_for_index(self.committed, group);
        }
    }

    /// Asks, unless every waiting reader is gone.
    fn send_attempt(
        &mut self,
        waiters: &mut Waiters<T>,
        mut round: ReadIndexRequest<T>,
        now: Duration,
        ids: &mut RequestIdGenerator,
    ) {
        if !round.group.iter().any(|queued| waiters.readers.is_waiting(queued)) {
            waiters.readers.release(round.group);
            return;
        }
        let (context, attempt) = round.next_attempt(now, ids);
        waiters.metrics.attempts += 1;
        waiters.actions.push(ReadIndexAction::RequestReadIndex { context, attempt });
        self.in_flight = Some(round);
    }
}

impl<T: Reader> Mode<T> for QuorumRead<T> {
    /// Ends the round if it is its answer.
    fn on_answer(&mut self, waiters: &mut Waiters<T>, context: u64, index: u64) {
        // What was committed when the quorum was asked is committed.
        self.on_committed(index);
        let is_its = |round: &mut ReadIndexRequest<T>| round.sent_at(context).is_some();
        let Some(round) = self.in_flight.take_if(is_its) else {
            waiters.metrics.late_answers += 1;
            return;
        };
        let asked_at = round.sent_at(context).flatten();
        let waiting = round.group.iter().filter(|queued| waiters.readers.is_waiting(queued));
        let is_large = waiting.count() >= LARGE_REQUEST_READERS;
        self.large_request_sent_at = asked_at.filter(|_| is_large);
        if let Some(asked_at) = asked_at
            && self.is_leader()
        {
            self.lease.renew(asked_at);
        }
        waiters.wait_for_index(index, round.group);
    }

    /// A new leader ends the round.
    fn on_leader(&mut self, waiters: &mut Waiters<T>, leader: Option<u64>, term: u64) {
        if (self.leader, self.term) == (leader, term) {
            return;
        }
        (self.leader, self.term) = (leader, term);
        self.lease.on_new_term();
        if leader.is_some()
            && let Some(round) = self.in_flight.take()
        {
            waiters.metrics.leader_changed += 1;
            waiters.fail(ReadIndexError::LeaderChanged, round.group);
        }
    }

    fn on_transfer_started(&mut self) {
        self.lease.on_transfer_started();
    }

    fn on_committed(&mut self, index: u64) {
        self.committed = self.committed.max(index);
    }

    fn on_first_commit(&mut self) {
        if let Some(round) = &mut self.in_flight {
            // An answer is likely now.
            round.retry_at = Duration::ZERO;
        }
    }

    /// Serves the queue under a lease. Ends the round if it is over, asks again if it is time, and
    /// begins the next one.
    fn advance(
        &mut self,
        waiters: &mut Waiters<T>,
        ClockReading { now, has_stepped_back }: ClockReading,
        ids: &mut RequestIdGenerator,
    ) {
        if has_stepped_back {
            self.in_flight.iter_mut().for_each(ReadIndexRequest::clear_sent_times);
            self.large_request_sent_at = None;
            self.batch_until = now;
            self.lease.drop_until_renewed();
        }
        self.serve_under_lease(waiters, now);
        if let Some(asked_at) = self.large_request_sent_at.take() {
            self.batch_until = now + now.saturating_sub(asked_at).min(BATCH_WAIT_MAX);
        }
        if let Some(round) = self.in_flight.take_if(|round| round.deadline <= now) {
            waiters.metrics.timed_out += 1;
            waiters.fail(ReadIndexError::TimedOut, round.group);
        }
        if let Some(round) = self.in_flight.take_if(|round| round.retry_at <= now) {
            self.send_attempt(waiters, round, now, ids);
        }
        if self.in_flight.is_none() && !waiters.queue.is_empty() && self.batch_until <= now {
            waiters.metrics.requests += 1;
            let timeout = self.config.request_timeout();
            let round = ReadIndexRequest::new(waiters.take_queue(), now, timeout);
            self.send_attempt(waiters, round, now, ids);
        }
    }

    fn next_advance(&self, waiters: &Waiters<T>) -> Option<Duration> {
        match &self.in_flight {
            Some(round) => Some(round.retry_at.min(round.deadline)),
            None => (!waiters.queue.is_empty()).then_some(self.batch_until),
        }
    }

    fn sweep(&mut self, readers: &mut ReaderTable<T>) {
        if let Some(round) = &mut self.in_flight {
            readers.sweep(&mut round.group);
        }
    }
}
