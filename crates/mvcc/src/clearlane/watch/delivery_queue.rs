//! The queue of published transactions that have not been delivered yet. Among the locks of the
//! watchable store, a writer takes only the lock of this queue, `watchQueue`.
//!
//! The size of the queue is limited. If a transaction would exceed the limit, all waiting
//! transactions are dropped first. The transaction is then added, whatever its size. The queue
//! remembers the revision of the newest dropped transaction, and the watchers must read the store
//! up to this revision.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::changes::Changes;
use crate::watch::response::Event;

/// Bytes of memory that a transaction takes in addition to its changes.
const BATCH_BYTES: usize = 64;

#[derive(Debug)]
pub(super) struct QueuedTxn {
    pub(super) revision: i64,
    changes: Changes,
    bytes: usize,
}

impl QueuedTxn {
    /// Builds the events. Must not run on the writer's thread, because there may be many events.
    pub(super) fn into_events(self) -> Arc<[Event]> {
        let (len, mut changes) = (self.changes.len(), self.changes.into_changes());
        // The iterator has an exact length, so `collect` builds the events in place, without a
        // copy.
        let event = |_| Event::new(changes.next().expect("it has as many as it says"));
        (0..len).map(event).collect()
    }
}

#[derive(Debug)]
pub(super) enum QueueItem {
    /// All queued changes up to this revision were dropped.
    Overflowed(i64),
    Txn(QueuedTxn),
}

/// The data that the lock `watchQueue` protects.
#[derive(Debug, Default)]
pub(super) struct DeliveryQueue {
    batches: VecDeque<QueuedTxn>,
    bytes: usize,
    bytes_max: usize,
    /// The revision of the newest dropped transaction, or `None` if `pop` has returned this
    /// revision or no transaction was dropped. All older transactions that were not delivered are
    /// also dropped.
    overflow_revision: Option<i64>,
    /// If false, there are no watchers, and writers publish nothing.
    pub(super) has_watchers: bool,
    /// Streams whose channel has capacity again, until the sync thread takes them.
    pub(super) resumed_streams: Vec<u64>,
}

impl DeliveryQueue {
    pub(super) fn new(bytes_max: usize) -> DeliveryQueue {
        DeliveryQueue { bytes_max, ..DeliveryQueue::default() }
    }

    /// Adds the changes of one revision, if there are any. Returns true if changes were added to an
    /// empty queue, because the delivery thread may then be asleep.
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
