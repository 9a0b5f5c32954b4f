//! What was published and not handed on yet.
//!
//! The one place that a writer touches: it appends its changes and goes on. What waits is bounded.
//! When the bound is passed everything that waits is thrown away, and only the revision up to which
//! it went is noted: the store has it all, and the watchers can read it there.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::store::Change;
use crate::watch::response::Event;

/// What a batch takes besides its events.
const BATCH_BYTES: usize = 64;

/// The changes of one write transaction.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) revision: i64,
    pub(super) events: Arc<[Event]>,
    bytes: usize,
}

/// What comes next out of the queue.
#[derive(Debug)]
pub(super) enum Next {
    /// Changes up to this revision were thrown away.
    Lost(i64),
    /// The changes of a transaction.
    Batch(Batch),
}

/// What the lock `watchQueue` guards.
#[derive(Debug)]
pub(super) struct Queue {
    batches: VecDeque<Batch>,
    bytes: usize,
    bytes_max: usize,
    /// Whatever was published up to here and is not in `batches` was thrown away.
    lost: Option<i64>,
    /// There are watchers. If not, nothing is kept.
    pub(super) watched: bool,
    /// Streams that have room again.
    drained: Vec<u64>,
}

impl Queue {
    pub(super) fn new(bytes_max: usize) -> Queue {
        let batches = VecDeque::new();
        Queue { batches, bytes: 0, bytes_max, lost: None, watched: false, drained: Vec::new() }
    }

    /// Appends a transaction's changes. Says whether the one who hands them on may sleep.
    pub(super) fn publish(&mut self, revision: i64, changes: Vec<Change>) -> bool {
        if !self.watched || changes.is_empty() {
            return false;
        }
        let was_empty = self.batches.is_empty() && self.lost.is_none();
        let event = |change| Event { change, previous: None };
        let events: Arc<[Event]> = changes.into_iter().map(event).collect();
        let bytes = BATCH_BYTES + events.iter().map(Event::size).sum::<usize>();
        if self.bytes + bytes > self.bytes_max && !self.batches.is_empty() {
            self.lost = self.batches.back().map(|newest| newest.revision);
            self.clear();
        }
        self.bytes += bytes;
        self.batches.push_back(Batch { revision, events, bytes });
        was_empty
    }

    pub(super) fn next(&mut self) -> Option<Next> {
        if let Some(revision) = self.lost.take() {
            return Some(Next::Lost(revision));
        }
        let batch = self.batches.pop_front()?;
        self.bytes -= batch.bytes;
        Some(Next::Batch(batch))
    }

    /// The last watcher has gone.
    pub(super) fn unwatched(&mut self) {
        self.watched = false;
        self.lost = None;
        self.clear();
    }

    fn clear(&mut self) {
        self.batches.clear();
        self.bytes = 0;
    }

    pub(super) fn drained(&mut self, stream: u64) {
        self.drained.push(stream);
    }

    pub(super) fn take_drained(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.drained)
    }

    pub(super) fn len(&self) -> usize {
        self.batches.len()
    }
}
