//! A stream of lock events that can be switched on, for timelines.
//!
//! A timeline needs every wait and every hold with its beginning and end.
//! [`crate::Registry::record`] switches that on for all locks of a registry. Recording must not
//! change what is recorded:
//!
//! * Off, an event costs one relaxed load.
//! * On, an event costs one atomic addition, which claims a slot of a buffer of fixed length, and
//!   filling the slot, which no other thread touches. No thread waits, for a lock or for a reader.
//! * When the buffer is full, further events are counted and dropped. The beginning is kept rather
//!   than the end, because a recording is started for the scenario that follows.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

use arc_swap::ArcSwapOption;

use crate::{BlockerState, TaskLabel};

/// Times are on the clock of [`crate::now_ns`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockEvent {
    pub kind: LockEventKind,
    pub lock: &'static str,
    pub task: TaskLabel,
    /// As given to [`TaskLabel::enter_numbered`].
    pub number: u32,
    pub start_ns: u64,
    pub end_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockEventKind {
    /// Written by the waiter itself, once it holds the lock.
    Wait {
        /// The blocker when the wait began. `None`: the lock was free, and the thread was only late
        /// to take it.
        blocker: Option<(TaskLabel, BlockerState)>,
    },
    /// Written when the lock is released.
    Hold,
}

/// A recording; it ends when this is dropped or stopped.
#[derive(Debug)]
pub struct EventRecorder {
    sink: Arc<EventSink>,
    buffer: Arc<EventBuffer>,
}

impl EventRecorder {
    /// The events so far, in the order in which they ended.
    pub fn events(&self) -> Vec<LockEvent> {
        self.buffer.slots.iter().filter_map(OnceLock::get).copied().collect()
    }

    /// If so, it is time to start another recording.
    pub fn is_half_full(&self) -> bool {
        self.buffer.claimed.load(Relaxed) >= self.buffer.slots.len() / 2
    }

    /// How many events found the buffer full.
    pub fn dropped(&self) -> u64 {
        let claimed = self.buffer.claimed.load(Relaxed);
        claimed.saturating_sub(self.buffer.slots.len()) as u64
    }

    /// Ends the recording and returns its events.
    pub fn stop(self) -> Vec<LockEvent> {
        self.sink.detach(&self.buffer);
        self.events()
    }
}

impl Drop for EventRecorder {
    fn drop(&mut self) {
        self.sink.detach(&self.buffer);
    }
}

/// The place in a registry for the buffer of a recording.
#[derive(Debug, Default)]
pub(crate) struct EventSink {
    /// Whether there is a buffer, at the price of a relaxed load.
    is_on: AtomicBool,
    buffer: ArcSwapOption<EventBuffer>,
    /// Held while a buffer is put in or taken out, so that both fields change together. Events do
    /// not take it.
    change_lock: parking_lot::Mutex<()>,
}

/// A fixed number of slots. Each is claimed by one thread and filled once.
#[derive(Debug)]
struct EventBuffer {
    slots: Box<[OnceLock<LockEvent>]>,
    /// The number of slots asked for; those beyond the end are the dropped events.
    claimed: AtomicUsize,
}

impl EventSink {
    /// Starts a recording; an earlier one gets no further events.
    pub(crate) fn record(self: &Arc<Self>, capacity: usize) -> EventRecorder {
        let slots = (0..capacity).map(|_| OnceLock::new()).collect();
        let buffer = Arc::new(EventBuffer { slots, claimed: AtomicUsize::new(0) });
        let _changing = self.change_lock.lock();
        self.buffer.store(Some(Arc::clone(&buffer)));
        self.is_on.store(true, Relaxed);
        EventRecorder { sink: Arc::clone(self), buffer }
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    pub(crate) fn write(&self, event: LockEvent) {
        let buffer = self.buffer.load();
        let Some(buffer) = &*buffer else { return };
        let place = buffer.claimed.fetch_add(1, Relaxed);
        if let Some(slot) = buffer.slots.get(place) {
            slot.set(event).expect("a slot is claimed once");
        }
    }

    /// Does nothing if another buffer has replaced this one.
    fn detach(&self, buffer: &Arc<EventBuffer>) {
        let _changing = self.change_lock.lock();
        let current = self.buffer.load();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, buffer)) {
            self.is_on.store(false, Relaxed);
            self.buffer.store(None);
        }
    }
}
