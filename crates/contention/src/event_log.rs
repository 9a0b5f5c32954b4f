//! The events of a recording that is switched on and off while a process runs.
//!
//! ```text
//!   push ─▶ new_events ─ collect, every few hundredths of a second ─▶ the newest events ─ stop ─▶
//! ```
//!
//! * While nothing is recorded, an event costs one relaxed load.
//! * Memory is limited. The oldest events are overwritten, and events that arrive faster than they
//!   are [collected](EventLog::collect) are lost. Overwritten events and lost events are counted.
//! * To record an event, a thread waits only for other threads that are recording one, and for a
//!   collection, which takes the list.
//! * Events that started before the recording are not part of it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::now_ns;
use crate::timeline::Timeline;

/// Maximum number of events between two collections.
pub const NEW_EVENTS_MAX: usize = 64 << 10;

pub trait RecordedEvent {
    /// Returns the start of the event, on the clock of [`now_ns`].
    fn start_ns(&self) -> u64;
}

#[derive(Debug)]
pub struct EventLog<E> {
    is_on: AtomicBool,
    last_number: AtomicU32,
    new_events: Mutex<Vec<E>>,
    newest: Mutex<Option<NewestEvents<E>>>,
    /// Number of events that did not fit into `new_events`.
    lost: AtomicU64,
}

#[derive(Debug)]
struct NewestEvents<E> {
    events: VecDeque<E>,
    events_max: usize,
    start_ns: u64,
    overwritten: u64,
}

#[derive(Clone, Debug)]
pub struct RecordedTrace {
    pub timeline: Timeline,
    /// Number of older events that are missing from the timeline because newer events overwrote
    /// them.
    pub overwritten: u64,
    /// Number of events that are missing from the timeline because they arrived faster than they
    /// were collected.
    pub lost: u64,
}

impl<E> Default for EventLog<E> {
    fn default() -> EventLog<E> {
        EventLog {
            is_on: AtomicBool::new(false),
            last_number: AtomicU32::new(0),
            new_events: Mutex::default(),
            newest: Mutex::default(),
            lost: AtomicU64::new(0),
        }
    }
}

impl<E: RecordedEvent> EventLog<E> {
    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Returns the next number for a request, or 0 if recording is off.
    #[inline]
    pub fn next_number(&self) -> u32 {
        if self.is_on() { self.last_number.fetch_add(1, Relaxed).wrapping_add(1).max(1) } else { 0 }
    }

    /// Starts recording. Does nothing if recording is on. The newest `events_max` of the
    /// [collected](Self::collect) events are kept.
    pub fn start(&self, events_max: usize) {
        let mut newest = self.newest.lock();
        if newest.is_some() {
            return;
        }
        self.new_events.lock().clear();
        self.lost.store(0, Relaxed);
        let (events, start_ns) = (VecDeque::new(), now_ns());
        *newest = Some(NewestEvents { events, events_max, start_ns, overwritten: 0 });
        self.is_on.store(true, Relaxed);
    }

    /// Adds an event. The caller has checked that recording is on.
    pub fn push(&self, event: E) {
        let mut new_events = self.new_events.lock();
        if new_events.len() < NEW_EVENTS_MAX {
            new_events.push(event);
        } else {
            self.lost.fetch_add(1, Relaxed);
        }
    }

    /// Collects the new events. Call it every few hundredths of a second. Between two calls, events
    /// that no longer fit into the limited buffer are lost.
    pub fn collect(&self) {
        self.collect_and([], 0);
    }

    /// Collects the new events, and then adds the events of another source. `lost` is the number of
    /// events that the source has lost.
    pub fn collect_and(&self, others: impl IntoIterator<Item = E>, lost: u64) {
        if let Some(newest) = &mut *self.newest.lock() {
            // The lock of `new_events` is released before the events are moved, because requests
            // that end during that time need it.
            let events = std::mem::take(&mut *self.new_events.lock());
            newest.append(events);
            newest.append(others);
            self.lost.fetch_add(lost, Relaxed);
        }
    }

    /// Stops recording, and builds the timeline of the events. Returns `None` if recording was off.
    pub fn stop(&self, build: impl FnOnce(&[E]) -> Timeline) -> Option<RecordedTrace> {
        let mut newest = {
            let mut newest = self.newest.lock();
            self.is_on.store(false, Relaxed);
            newest.take()?
        };
        newest.append(std::mem::take(&mut *self.new_events.lock()));
        let timeline = build(newest.events.make_contiguous());
        let (overwritten, lost) = (newest.overwritten, self.lost.load(Relaxed));
        Some(RecordedTrace { timeline, overwritten, lost })
    }
}

impl<E: RecordedEvent> NewestEvents<E> {
    fn append(&mut self, events: impl IntoIterator<Item = E>) {
        for event in events.into_iter().filter(|event| event.start_ns() >= self.start_ns) {
            if self.events.len() >= self.events_max {
                self.events.pop_front();
                self.overwritten += 1;
            }
            self.events.push_back(event);
        }
    }
}
