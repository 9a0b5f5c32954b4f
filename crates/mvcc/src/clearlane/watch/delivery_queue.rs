//! What was published and is not delivered yet: all that a writer touches.
//!
//! Guarded by the lock `watchQueue`, and bounded: past the bound everything that waits is thrown
//! away and only its last revision is noted, up to which the watchers must read the store.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::changes::Changes;
use crate::watch::response::Event;

/// Memory of a batch besides its changes.
const BATCH_BYTES: usize = 64;

#[derive(Debug)]
pub(super) struct QueuedTxn {
    pub(super) revision: i64,
    changes: Changes,
    bytes: usize,
}

impl QueuedTxn {
    /// Not for the writer's thread: there may be many.
    pub(super) fn into_events(self) -> Arc<[Event]> {
        let (len, mut changes) = (self.changes.len(), self.changes.into_changes());
        // A range has a length, so that the events are made where they stay.
        let event = |_| Event::new(changes.next().expect("it has as many as it says"));
        (0..len).map(event).collect()
    }
}

#[derive(Debug)]
pub(super) enum QueueItem {
    /// Changes up to this revision were thrown away.
    Overflowed(i64),
    Txn(QueuedTxn),
}

/// What the lock `watchQueue` guards.
#[derive(Debug, Default)]
pub(super) struct DeliveryQueue {
    batches: VecDeque<QueuedTxn>,
    bytes: usize,
    bytes_max: usize,
    /// What was published up to here and is not in `batches` was thrown away.
    overflow_revision: Option<i64>,
    /// If not, nothing is to be published.
    pub(super) has_watchers: bool,
    pub(super) resumed_streams: Vec<u64>,
}

impl DeliveryQueue {
    pub(super) fn new(bytes_max: usize) -> DeliveryQueue {
        DeliveryQueue { bytes_max, ..DeliveryQueue::default() }
    }

    /// Returns whether nothing was queued before: then the delivery thread may be asleep.
    pub(super) fn publish(&mut self, revision: i64, changes: Changes) -> bool {
        if changes.is_empty() {
            return false;
        }
        let was_empty = self.batches.is_empty() && self.overflow_revision.is_none();
        let bytes = BATCH_BYTES + changes.memory_bytes();
        if self.bytes + bytes > self.bytes_max && !self.batches.is_empty() {
            self.overflow_revision = self.batches.back().map(|newest| newest.revision);
            self.clear();
        }
        self.bytes += bytes;
        self.batches.push_back(QueuedTxn { revision, changes, bytes });
        was_empty
    }

    pub(super) fn pop(&mut self) -> Option<QueueItem> {
        if let Some(revision) = self.overflow_revision.take() {
            return Some(QueueItem::Overflowed(revision));
        }
        let batch = self.batches.pop_front()?;
        self.bytes -= batch.bytes;
        Some(QueueItem::Txn(batch))
    }

    pub(super) fn clear_unwatched(&mut self) {
        self.has_watchers = false;
        self.overflow_revision = None;
        self.clear();
    }

    fn clear(&mut self) {
        self.batches.clear();
        self.bytes = 0;
    }

    pub(super) fn len(&self) -> usize {
        self.batches.len()
    }
}
