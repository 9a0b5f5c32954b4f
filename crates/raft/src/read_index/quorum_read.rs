//! Mode `read-index`: one ReadIndex request is in flight at a time, and waiting readers share the
//! next request. etcd has worked in this way since 3.1.
//!
//! A ReadIndex request asks raft for an index that covers every write acknowledged before the
//! request. For this, the leader contacts a quorum. A request ends
//!
//! * with a response to one of its ids;
//! * when the leader or the term has changed and a leader is known. Its readers fail immediately,
//!   because the request may have been lost;
//! * after 7 s, by default. Its readers fail;
//! * when a retry is due and all its readers have given up.
//!
//! A request does not end when this member only learns that there is no leader: it ends when the
//! next leader appears. Readers that wait for the next request stay in the queue, as in etcd. In
//! this queue, the last of these readers may wait for two time-outs. But the member gives up each
//! read earlier, 7 to 7.5 s after the read has arrived.
//!
//! * At most one ReadIndex request is in flight.
//! * A reader is released by the response to an attempt that was sent after the reader arrived, or,
//!   in mode `lease`, under a lease.
//! * Each reader is released, or fails, once.
//!
//! Unlike in etcd, the next request does not wait until this member has applied the index of the
//! last one. See `docs/read-index.md`.

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

/// After a ReadIndex request with at least this number of readers, the next one waits to collect
/// more readers.
const LARGE_REQUEST_READERS: usize = 8;
/// Maximum time that a ReadIndex request waits to collect readers. The wait is shorter if the last
/// request took less time. A wait as long as a request halves the number of requests. Each request
/// costs up to six messages among three members, so the wait is useful where requests cost more
/// than reads.
const BATCH_WAIT_MAX: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) struct QuorumRead<T> {
    config: ReadIndexConfig,
    in_flight: Option<ReadIndexRequest<T>>,
    /// The send time of the attempt that got the last response, if its request served many readers
    /// and there has been no poll since the response. `None` otherwise.
    large_request_sent_at: Option<Duration>,
    /// The next ReadIndex request is not sent before this time.
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

    /// Sends an attempt. If every reader of the request has given up, ends the request instead.
    fn send_attempt(
        &mut self,
        waiters: &mut Waiters<T>,
        mut request: ReadIndexRequest<T>,
        now: Duration,
        ids: &mut RequestIdGenerator,
    ) {
        if !request.group.iter().any(|queued| waiters.readers.is_waiting(queued)) {
            waiters.readers.release(request.group);
            return;
        }
        let (context, attempt) = request.next_attempt(now, ids);
        waiters.metrics.attempts += 1;
        waiters.actions.push(ReadIndexAction::RequestReadIndex { context, attempt });
        self.in_flight = Some(request);
    }
}

impl<T: Reader> Mode<T> for QuorumRead<T> {
    /// Ends the request in flight if the response belongs to it. The request's readers are released
    /// now or once the index is applied, depending on their need.
    fn on_answer(&mut self, waiters: &mut Waiters<T>, context: u64, index: u64) {
        // The index is committed, even if the response is late.
        self.on_committed(index);
        let is_its = |request: &mut ReadIndexRequest<T>| request.sent_at(context).is_some();
        let Some(request) = self.in_flight.take_if(is_its) else {
            waiters.metrics.late_answers += 1;
            return;
        };
        let asked_at = request.sent_at(context).flatten();
        let waiting = request.group.iter().filter(|queued| waiters.readers.is_waiting(queued));
        let is_large = waiting.count() >= LARGE_REQUEST_READERS;
        self.large_request_sent_at = asked_at.filter(|_| is_large);
        if let Some(asked_at) = asked_at
            && self.is_leader()
        {
            self.lease.renew(asked_at);
        }
        waiters.wait_for_index(index, request.group);
    }

    /// Fails the request in flight if the leader or the term has changed and a leader is known.
    fn on_leader(&mut self, waiters: &mut Waiters<T>, leader: Option<u64>, term: u64) {
        if (self.leader, self.term) == (leader, term) {
            return;
        }
        (self.leader, self.term) = (leader, term);
        self.lease.on_new_term();
        if leader.is_some()
            && let Some(request) = self.in_flight.take()
        {
            waiters.metrics.leader_changed += 1;
            waiters.fail(ReadIndexError::LeaderChanged, request.group);
        }
    }

    fn on_transfer_started(&mut self) {
        self.lease.on_transfer_started();
    }

    fn on_committed(&mut self, index: u64) {
        self.committed = self.committed.max(index);
    }

    fn on_first_commit(&mut self) {
        if let Some(request) = &mut self.in_flight {
            // A response is likely now, so a retry is due immediately.
            request.retry_at = Duration::ZERO;
        }
    }

    /// If the clock has gone back, first drops the lease and all send times. Serves the queue
    /// immediately if a lease holds. Ends the request in flight if its time-out has passed, and
    /// retries it if a retry is due. If no request is in flight, starts the next request for the
    /// readers in the queue, but not before `batch_until`.
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
        if let Some(request) = self.in_flight.take_if(|request| request.deadline <= now) {
            waiters.metrics.timed_out += 1;
            waiters.fail(ReadIndexError::TimedOut, request.group);
        }
        if let Some(request) = self.in_flight.take_if(|request| request.retry_at <= now) {
            self.send_attempt(waiters, request, now, ids);
        }
        if self.in_flight.is_none() && !waiters.queue.is_empty() && self.batch_until <= now {
            waiters.metrics.requests += 1;
            let timeout = self.config.request_timeout();
            let request = ReadIndexRequest::new(waiters.take_queue(), now, timeout);
            self.send_attempt(waiters, request, now, ids);
        }
    }

    fn next_advance(&self, waiters: &Waiters<T>) -> Option<Duration> {
        match &self.in_flight {
            Some(request) => Some(request.retry_at.min(request.deadline)),
            None => (!waiters.queue.is_empty()).then_some(self.batch_until),
        }
    }

    fn sweep(&mut self, readers: &mut ReaderTable<T>) {
        if let Some(request) = &mut self.in_flight {
            readers.sweep(&mut request.group);
        }
    }
}
