//! Records the activity of a member. The recording is switched on and off while the member runs:
//! `docs/head-of-line.md`.
//!
//! A recording contains
//!
//! * requests with their stages, recorded on the thread that serves the request;
//! * steps of threads, recorded through their [`ThreadTrace`]s;
//! * waits for locks and holds of locks, recorded by the locks.
//!
//! A request that starts while the recording is on gets a number, and a thread takes locks for the
//! request [under this number](clearlane_contention::TaskLabel::enter_numbered). [`timeline`] joins
//! the events by that number.
//!
//! The recorder's [event log](clearlane_contention::event_log) limits memory, and what an event
//! costs.

pub mod timeline;

pub use clearlane_contention::event_log::RecordedTrace;
use clearlane_contention::event_log::{EventLog, RecordedEvent};
pub use clearlane_contention::timeline::LaneKind;
use clearlane_contention::{EventRecorder, LockEvent, LockEventKind, Registry, TaskLabel, now_ns};
use parking_lot::Mutex;

use crate::observe::request_trace::RequestTrace;

/// Capacity for lock events. A collection takes them only once the capacity is half used, so at
/// least half of it is free after each collection.
const LOCK_EVENTS_MAX: usize = 32 << 10;

/// The shortest hold that is recorded. A read of 20,000 records takes a lock 20,000 times, and its
/// short holds would overwrite everything else. The wait of another task for such a short hold is
/// still recorded.
const HOLD_MIN_NS: u64 = 5_000;

/// Records events while it is switched on.
///
/// ```text
///   requests, workers ─▶ log ───────────┐ collect, every few hundredths of a second
///   locks ─────────────▶ lock_recorder ─┴▶ log: the newest events ── stop ──▶ timeline
/// ```
#[derive(Debug)]
pub struct TraceRecorder {
    log: EventLog<TraceEvent>,
    locks: Registry,
    /// Is set while recording is on. A thread takes this lock before those of `log`.
    lock_recorder: Mutex<Option<EventRecorder>>,
}

#[derive(Clone, Copy, Debug)]
pub enum TraceEvent {
    Request {
        /// The kind of request, such as `long range`. The name of the request's lane starts with
        /// these words.
        class: &'static str,
        kind: LaneKind,
        trace: RequestTrace,
    },
    ThreadStep {
        thread: TaskLabel,
        step_kind: StepKind,
        /// The start of the step, on the clock of [`now_ns`].
        from_ns: u64,
        to_ns: u64,
    },
    Lock(LockEvent),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// The thread has nothing to do. Such steps are not recorded.
    Idle,
    Running,
    Disk,
    WaitsFor(TaskLabel),
}

impl TraceRecorder {
    pub fn new(locks: &Registry) -> TraceRecorder {
        TraceRecorder {
            log: EventLog::default(),
            locks: locks.clone(),
            lock_recorder: Mutex::default(),
        }
    }

    #[inline]
    pub fn is_on(&self) -> bool {
        self.log.is_on()
    }

    /// Starts recording. Does nothing if recording is on. The newest `events_max` of the
    /// [collected](Self::collect) events are kept.
    pub fn start(&self, events_max: usize) {
        let mut lock_recorder = self.lock_recorder.lock();
        lock_recorder.get_or_insert_with(|| self.locks.record(LOCK_EVENTS_MAX));
        self.log.start(events_max);
    }

    /// Collects the new events. Call it every few hundredths of a second. Between two calls, events
    /// that no longer fit into the limited buffers are lost.
    pub fn collect(&self) {
        let mut lock_recorder = self.lock_recorder.lock();
        match &mut *lock_recorder {
            Some(recorder) if recorder.is_half_full() => {
                let full = std::mem::replace(recorder, self.locks.record(LOCK_EVENTS_MAX));
                self.collect_with(full);
            }
            _ => self.log.collect(),
        }
    }

    fn collect_with(&self, recorder: EventRecorder) {
        let lost = recorder.dropped();
        let events = recorder.stop().into_iter().filter(is_recorded).map(TraceEvent::Lock);
        self.log.collect_and(events, lost);
    }

    /// Stops recording. Returns `None` if recording was off.
    pub fn stop(&self) -> Option<RecordedTrace> {
        let mut lock_recorder = self.lock_recorder.lock();
        self.collect_with(lock_recorder.take()?);
        self.log.stop(timeline::build)
    }

    /// Returns the number for a new request, or 0 if recording is off.
    #[inline]
    pub fn next_request_number(&self) -> u32 {
        self.log.next_number()
    }

    /// Records a request that had a number when it started.
    pub fn record_request(&self, class: &'static str, kind: LaneKind, trace: RequestTrace) {
        if trace.number != 0 && self.is_on() {
            self.log.push(TraceEvent::Request { class, kind, trace });
        }
    }

    pub fn trace_thread(&self, thread: TaskLabel) -> ThreadTrace<'_> {
        ThreadTrace { recorder: self, thread, last_step_end_ns: 0 }
    }
}

fn is_recorded(event: &LockEvent) -> bool {
    event.kind != LockEventKind::Hold || event.end_ns.saturating_sub(event.start_ns) >= HOLD_MIN_NS
}

impl RecordedEvent for TraceEvent {
    fn start_ns(&self) -> u64 {
        match self {
            TraceEvent::Request { trace, .. } => trace.start_ns,
            TraceEvent::ThreadStep { from_ns, .. } => *from_ns,
            TraceEvent::Lock(event) => event.start_ns,
        }
    }
}

#[derive(Debug)]
pub struct ThreadTrace<'r> {
    recorder: &'r TraceRecorder,
    thread: TaskLabel,
    /// The end of the last step, or 0 if recording was off at that time.
    last_step_end_ns: u64,
}

impl ThreadTrace<'_> {
    /// Records the time since the last step as a step of this kind. Idle time is not recorded.
    #[inline]
    pub fn end_step(&mut self, step_kind: StepKind) {
        if !self.recorder.is_on() {
            self.last_step_end_ns = 0;
            return;
        }
        let (from_ns, to_ns) = (self.last_step_end_ns, now_ns());
        self.last_step_end_ns = to_ns;
        if from_ns != 0 && step_kind != StepKind::Idle {
            let thread = self.thread;
            self.recorder.log.push(TraceEvent::ThreadStep { thread, step_kind, from_ns, to_ns });
        }
    }
}

#[cfg(test)]
mod tests {
    use clearlane_contention::Mutex;
    use clearlane_contention::event_log::NEW_EVENTS_MAX;

    use super::*;
    use crate::observe::request_trace::Stage;
    use crate::observe::task_labels::{GET, LOG};

    fn request(recording: &TraceRecorder) {
        let mut trace = RequestTrace::start().with_number(recording.next_request_number());
        trace.end_stage(Stage::Backend);
        recording.record_request("get", LaneKind::Read, trace);
    }

    /// Holds the lock for the shortest time that is recorded.
    fn hold(lock: &Mutex<()>) {
        let _inside = lock.lock();
        let begin_ns = now_ns();
        while now_ns() < begin_ns + HOLD_MIN_NS {}
    }

    #[test]
    fn nothing_is_recorded_before_and_after() {
        let locks = Registry::new();
        let (recording, lock) = (TraceRecorder::new(&locks), Mutex::new(&locks, "lock", ()));
        let mut thread_trace = recording.trace_thread(*LOG);
        let all = |thread_trace: &mut ThreadTrace<'_>| {
            request(&recording);
            thread_trace.end_step(StepKind::Disk);
            let _as = GET.enter_numbered(recording.next_request_number());
            hold(&lock);
        };
        all(&mut thread_trace);
        assert!(recording.stop().is_none());
        assert_eq!(recording.next_request_number(), 0);
        recording.start(100);
        all(&mut thread_trace);
        // The first step is not recorded, because its start is unknown. So the thread makes a
        // second step.
        thread_trace.end_step(StepKind::Disk);
        let whats = |recorded: &RecordedTrace| {
            let spans = recorded.timeline.spans.iter();
            let mut whats: Vec<_> = spans.map(|span| format!("{:?}", span.activity)).collect();
            whats.sort();
            whats
        };
        let recorded = recording.stop().unwrap();
        assert_eq!(whats(&recorded), ["Disk", "Hold { resource: \"lock\" }", "Run"]);
        all(&mut thread_trace);
        recording.start(100);
        assert!(recording.stop().unwrap().timeline.spans.is_empty());
    }

    #[test]
    fn short_holds_are_not_recorded() {
        let (kind, lock, task) = (LockEventKind::Hold, "lock", *GET);
        let held = |end_ns| LockEvent { kind, lock, task, number: 1, start_ns: 0, end_ns };
        assert!(is_recorded(&held(HOLD_MIN_NS)) && !is_recorded(&held(HOLD_MIN_NS - 1)));
    }

    #[test]
    fn the_newest_are_kept() {
        let locks = Registry::new();
        let (recording, lock) = (TraceRecorder::new(&locks), Mutex::new(&locks, "lock", ()));
        recording.start(50);
        let first = recording.next_request_number();
        for _ in 0..120 {
            request(&recording);
            recording.collect();
        }
        let recorded = recording.stop().unwrap();
        assert_eq!((recorded.overwritten, recorded.lost), (70, 0));
        let lanes = recorded.timeline.lanes();
        let oldest = format!("get #{}", first + 70);
        assert!(lanes.iter().all(|(lane, _)| *lane != oldest), "{lanes:?}");

        // `collect` is called after each hold, so no event of a lock is lost. It is not called
        // during the requests that follow. So their buffer becomes full, and five requests are
        // lost.
        recording.start(usize::MAX);
        for _ in 0..3 * LOCK_EVENTS_MAX {
            hold(&lock);
            recording.collect();
        }
        (0..NEW_EVENTS_MAX + 5).for_each(|_| request(&recording));
        let recorded = recording.stop().unwrap();
        assert_eq!((recorded.overwritten, recorded.lost), (0, 5));
        let holds = |span: &&clearlane_contention::timeline::Span| span.lane == "unnamed";
        assert_eq!(recorded.timeline.spans.iter().filter(holds).count(), 3 * LOCK_EVENTS_MAX);
    }
}
