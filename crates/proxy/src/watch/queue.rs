//! What a scope has for a watch session and the session has not yet taken.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::cache::contents::RevisionEvents;

/// The queue is full if its events take more than this number of bytes. The events are shared with
/// the history, so a slow client costs little more memory than this even if it never reads.
const QUEUE_BYTES_MAX: usize = 4 << 20;

/// A watcher is named by its number.
#[derive(Debug)]
pub enum Delivery {
    /// The events of a revision at these places are for the watcher.
    Events(u64, Arc<RevisionEvents>, Vec<u32>),
    /// The queue was full: the watcher must read the history from this revision on.
    Lagging(u64, i64),
    /// The scope has lost its contents. The events after this revision must be read elsewhere.
    Detached(u64, i64),
    /// The cluster was replaced by another one. The watcher must end.
    Ended(u64),
}

#[derive(Debug)]
pub struct SessionQueue {
    bytes_max: usize,
    state: Mutex<QueueState>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct QueueState {
    deliveries: VecDeque<Delivery>,
    event_bytes: usize,
}

impl Default for SessionQueue {
    fn default() -> SessionQueue {
        SessionQueue::new(QUEUE_BYTES_MAX)
    }
}

impl SessionQueue {
    pub fn new(bytes_max: usize) -> SessionQueue {
        SessionQueue { bytes_max, state: Mutex::default(), filled: Notify::new() }
    }

    /// Adds events, or returns false if the queue is full.
    pub fn try_push_events(
        &self,
        watcher: u64,
        events: &Arc<RevisionEvents>,
        picks: Vec<u32>,
    ) -> bool {
        let mut state = self.state.lock();
        if state.event_bytes > 0 && state.event_bytes + events.bytes() > self.bytes_max {
            return false;
        }
        state.event_bytes += events.bytes();
        state.deliveries.push_back(Delivery::Events(watcher, Arc::clone(events), picks));
        drop(state);
        self.filled.notify_one();
        true
    }

    /// Adds a delivery even if the queue is full. There is at most one such delivery per watcher.
    pub fn push(&self, delivery: Delivery) {
        self.state.lock().deliveries.push_back(delivery);
        self.filled.notify_one();
    }

    pub fn take(&self) -> Option<Delivery> {
        let mut state = self.state.lock();
        let delivery = state.deliveries.pop_front()?;
        if let Delivery::Events(_, events, _) = &delivery {
            state.event_bytes -= events.bytes();
        }
        Some(delivery)
    }

    pub fn is_empty(&self) -> bool {
        self.state.lock().deliveries.is_empty()
    }

    /// Returns when something may have been added since the last call.
    pub async fn filled(&self) {
        self.filled.notified().await;
    }
}
