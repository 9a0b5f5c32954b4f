//! One round: a question to raft for a group of readers, asked until it is answered.
//!
//! raft drops a question without a word if it knows no leader or has no commit in its term, and the
//! network may lose it. So a question is asked again 500 ms after the last one, and at once when
//! the term has its first commit, each time with a *fresh* id; after 7 s (etcd's default) the round
//! ends.
//!
//! * An answer to any of the round's ids ends it: all its readers came before the first was asked.
//! * For the same reason no reader joins a round in flight, not even at a retry.
//! * A retry does not use an id again. An acknowledgement of the first question that comes late
//!   would count for the second, and for every question before it in the leader's queue (etcd's
//!   issue 20418; `tests/read_index_stale.rs` plays it).
//!
//! `docs/read-index.md` draws both.

use std::time::Duration;

use super::ids::RequestIdGenerator;
use super::readers::Group;

/// etcd's value.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// A round in flight.
#[derive(Debug)]
pub(crate) struct ReadIndexRequest<T> {
    /// All came before the first question was asked.
    pub(crate) group: Group<T>,
    attempts: Vec<Attempt>,
    /// When the next question is due.
    pub(crate) retry_at: Duration,
    pub(crate) deadline: Duration,
}

#[derive(Debug)]
struct Attempt {
    context: u64,
    /// `None` if the clock has been behind this since.
    sent_at: Option<Duration>,
}

impl<T> ReadIndexRequest<T> {
    pub(crate) fn new(group: Group<T>, now: Duration, timeout: Duration) -> ReadIndexRequest<T> {
        let deadline = now.saturating_add(timeout);
        ReadIndexRequest { group, attempts: Vec::with_capacity(1), retry_at: now, deadline }
    }

    /// Asks, for the first time or again. Returns the id and the number of the attempt.
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

    /// `Some` if this is the id of one of the round's questions; the inner value is when it was
    /// asked, if that is known.
    pub(crate) fn sent_at(&self, context: u64) -> Option<Option<Duration>> {
        let question = self.attempts.iter().find(|question| question.context == context);
        question.map(|question| question.sent_at)
    }

    /// The clock was set back: it is not known how long ago anything was asked.
    pub(crate) fn clear_sent_times(&mut self) {
        for question in &mut self.attempts {
            question.sent_at = None;
        }
    }
}
