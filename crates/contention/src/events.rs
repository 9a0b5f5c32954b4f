//! A stream of lock events for timelines, which can be switched on and off.
//!
//! A timeline needs the start and end of every wait and every hold. [`crate::Registry::record`]
//! switches these events on for all locks of a registry. Recording must not change the behaviour
//! that it records:
//!
//! * While recording is off, an event costs one relaxed load.
//! * While recording is on, a thread claims a slot of a buffer with one atomic addition, and writes
//!   the event into the slot. No other thread writes to that slot. The buffer has a fixed length.
//!   No thread waits for a lock or for a reader of the buffer.
//! * When the buffer is full, further events are counted and dropped. The buffer keeps the oldest
//!   events, because the user starts a recording just before the scenario of interest.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

use arc_swap::ArcSwapOption;

use crate::{BlockerState, TaskLabel};

/// One wait or one hold. Times are on the clock of [`crate::now_ns`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockEvent {
    pub kind: LockEventKind,
    pub lock: &'static str,
    pub task: TaskLabel,
    /// The number of the request, as passed to [`TaskLabel::enter_numbered`]; 0 if it has none.
    pub number: u32,
    pub start_ns: u64,
    pub end_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockEventKind {
    /// A wait. The waiter writes this event after the wait has ended.
    Wait {
        /// The blocker when the wait started. `None` if the thread waited only for the inner lock,
        /// or if the turn was kept for a writer that was not awake yet.
        blocker: Option<(TaskLabel, BlockerState)>,
    },
    /// A hold. The thread writes this event after it has released the lock.
    Hold,
}

/// A recording. It ends when this recorder is dropped or stopped.
#[derive(Debug)]
pub struct EventRecorder {
    sink: Arc<EventSink>,
    buffer: Arc<EventBuffer>,
}

impl EventRecorder {
    /// Returns the events so far, in the order in which the threads wrote them. This is nearly the
    /// order in which the waits and holds ended.
    pub fn events(&self) -> Vec<LockEvent> {
        self.buffer.slots.iter().filter_map(OnceLock::get).copied().collect()
    }

    /// Returns true if at least half of the slots are used. The caller should then start another
    /// recording, before events are dropped.
    pub fn is_half_full(&self) -> bool {
        self.buffer.claimed.load(Relaxed) >= self.buffer.slots.len() / 2
    }

    /// Returns the number of events that were dropped because the buffer was full.
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

/// The place in a registry that holds the buffer of the current recording.
#[derive(Debug, Default)]
pub(crate) struct EventSink {
    /// If true, a recording is in progress, and `buffer` is set. While recording is off, a thread
    /// that has an event reads only this flag, with a relaxed load.
    is_on: AtomicBool,
    buffer: ArcSwapOption<EventBuffer>,
    /// Protects changes of `is_on` and `buffer`, so that the two change together. Threads that
    /// write events do not take this lock.
    change_lock: parking_lot::Mutex<()>,
}

/// A fixed number of slots. Each slot is claimed by one thread and filled once.
#[derive(Debug)]
struct EventBuffer {
    slots: Box<[OnceLock<LockEvent>]>,
    /// The number of slots that events have requested. If it exceeds the length, the excess is the
    /// number of dropped events.
    claimed: AtomicUsize,
}

impl EventSink {
    /// Starts a recording. An earlier recording receives no further events.
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

    /// Removes `buffer`, unless another recording has already replaced it.
    fn detach(&self, buffer: &Arc<EventBuffer>) {
        let _changing = self.change_lock.lock();
        let current = self.buffer.load();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, buffer)) {
            self.is_on.store(false, Relaxed);
            self.buffer.store(None);
        }
    }
}
