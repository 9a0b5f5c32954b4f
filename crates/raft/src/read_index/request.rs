//! One ReadIndex request for a group of readers, sent in attempts until raft responds.
//!
//! raft silently drops an attempt if no leader is known, or if the leader has not committed an
//! entry of its term. The network may also lose the attempt. So the request is sent again 500 ms
//! after the last attempt, and immediately when the term has its first commit. Each attempt has a
//! *fresh* id. After 7 s (etcd's default) the request ends.
//!
//! * A response to any of the request's ids ends the request: all its readers arrived before the
//!   first attempt.
//! * No reader joins a request in flight, not even at a retry, because a late response to an
//!   earlier attempt could release the reader.
//! * A retry does not reuse an id. Otherwise a late acknowledgement of the first attempt would
//!   confirm the second one, and every earlier request in the leader's queue (etcd's issue 20418;
//!   `tests/suite/read_index_stale.rs` reproduces it).
//!
//! `docs/read-index.md` explains retries in the section "Asking again".

use std::time::Duration;

use super::ids::RequestIdGenerator;
use super::readers::Group;

/// The time between two attempts, as in etcd.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// A ReadIndex request in flight.
#[derive(Debug)]
pub(crate) struct ReadIndexRequest<T> {
    /// The readers. All of them arrived before the first attempt was sent.
    pub(crate) group: Group<T>,
    attempts: Vec<Attempt>,
    /// The time when the next attempt is due.
    pub(crate) retry_at: Duration,
    pub(crate) deadline: Duration,
}

#[derive(Debug)]
struct Attempt {
    context: u64,
    /// The time at which the attempt was sent, or `None` if the clock has gone back since then.
    sent_at: Option<Duration>,
}

impl<T> ReadIndexRequest<T> {
    pub(crate) fn new(group: Group<T>, now: Duration, timeout: Duration) -> ReadIndexRequest<T> {
        let deadline = now.saturating_add(timeout);
        ReadIndexRequest { group, attempts: Vec::with_capacity(1), retry_at: now, deadline }
    }

    /// Records an attempt, the first or a retry. Returns its id and its number.
    pub(crate) fn next_attempt(
        &mut self,
        now: Duration,
        ids: &mut RequestIdGenerator,
    ) -> (u64, u32) {
        let context = ids.next();
        self.attempts.push(Attempt { context, sent_at: Some(now) });
        self.retry_at = now.saturating_add(RETRY_INTERVAL);
        (context, self.attempts.len() as u32)
    }

    /// Returns `Some` if this is the id of one of the attempts. The inner value is the attempt's
    /// send time, or `None` if the send time is not known. Returns `None` if the id belongs to
    /// another request.
    pub(crate) fn sent_at(&self, context: u64) -> Option<Option<Duration>> {
        let question = self.attempts.iter().find(|question| question.context == context);
        question.map(|question| question.sent_at)
    }

    /// Forgets all send times. Called when the clock has gone back, because the time since each
    /// attempt is then unknown.
    pub(crate) fn clear_sent_times(&mut self) {
        for question in &mut self.attempts {
            question.sent_at = None;
        }
    }
}
