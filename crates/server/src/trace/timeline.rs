//! From events to a timeline: which task is which, and which one blocked which.
//!
//! A lock knows labels and numbers, and a request its number and its class. Only at the end is it
//! known that the reader with number 17 has read twenty thousand records: it is `long range #17`
//! from its beginning on, also where others wait behind it.
//!
//! A wait is recorded with the label of the holder only. Of the tasks with this label that held the
//! lock at that moment the first is named: it is the one that the
//! [lock](clearlane_contention::rules) means. One that holds it until the recording ends is in no
//! event; then the timeline has the label.
//!
//! The time of a wait is taken out of the request's work, so that a lane does one thing at a time.

use std::collections::HashMap;

use clearlane_contention::timeline::{Activity, LaneKind, Span, Timeline};
use clearlane_contention::{BlockerState, LockEvent, TaskLabel};

use super::{StepKind, TraceEvent};
use crate::request_trace::{RequestTrace, Stage};
use crate::task_labels::{APPLIER, RAFT, lane_kind_of};

/// Label and request number.
type LockParticipant = (TaskLabel, u32);

/// A request, which may wait under several labels, or a worker.
type WaiterId = (Option<TaskLabel>, u32);

fn waiter_id((actor, number): LockParticipant) -> WaiterId {
    match number {
        0 => (Some(actor), 0),
        number => (None, number),
    }
}

/// ```text
///   notes                                      timeline
///   request 17: long range, backend 86 ms      long range #17  ██████████████████
///   range 17 held readTx                                       ‗‗‗‗‗‗‗‗‗‗‗‗‗‗‗‗‗‗
///   applier waited for readTx behind a range   applier           ░░░░░░░░░░░░░░░░█  behind #17
///   applier ran                                put #18          ░░░░░░░░░░░░░░░░░░  behind applier
///   request 18: put, apply 85 ms
/// ```
pub fn build(notes: &[TraceEvent]) -> Timeline {
    let known = EventIndex::new(notes);
    let mut spans = Vec::new();
    for note in notes {
        match *note {
            TraceEvent::Request { trace, .. } => known.add_request_spans(&trace, &mut spans),
            TraceEvent::ThreadStep { thread: worker, step_kind: doing, from_ns, to_ns } => {
                known.add_step_spans(worker, doing, (from_ns, to_ns), &mut spans);
            }
            TraceEvent::Lock(event) => spans.extend(known.lock_span(event)),
        }
    }
    spans.sort_by_key(|span| span.to_ns);
    Timeline { spans }
}

#[derive(Default)]
struct EventIndex {
    requests: HashMap<u32, (String, LaneKind)>,
    lock_intervals: HashMap<(&'static str, TaskLabel, BlockerState), Intervals>,
    wait_intervals: HashMap<WaiterId, Intervals>,
}

impl EventIndex {
    fn new(notes: &[TraceEvent]) -> EventIndex {
        let mut known = EventIndex::default();
        for note in notes {
            match *note {
                TraceEvent::Request { class, kind, trace } => {
                    let number = trace.number();
                    known.requests.insert(number, (format!("{class} #{number}"), kind));
                }
                TraceEvent::Lock(LockEvent::Hold {
                    lock, task, number, start_ns, end_ns, ..
                }) => {
                    let key = (lock, task, BlockerState::Holding);
                    let holds = known.lock_intervals.entry(key).or_default();
                    holds.intervals.push((start_ns, end_ns, number));
                }
                TraceEvent::Lock(LockEvent::Wait {
                    lock, task, number, start_ns, end_ns, ..
                }) => {
                    let key = (lock, task, BlockerState::Waiting);
                    let waits = known.lock_intervals.entry(key).or_default();
                    waits.intervals.push((start_ns, end_ns, number));
                    let waits = known.wait_intervals.entry(waiter_id((task, number))).or_default();
                    waits.intervals.push((start_ns, end_ns, number));
                }
                _ => {}
            }
        }
        known.lock_intervals.values_mut().for_each(Intervals::sort);
        known.wait_intervals.values_mut().for_each(Intervals::sort);
        known
    }

    fn lane(&self, (actor, number): LockParticipant) -> (String, LaneKind) {
        let unknown = || (actor.name().to_owned(), lane_kind_of(actor));
        self.requests.get(&number).cloned().unwrap_or_else(unknown)
    }

    /// Consecutive stages in which the request may have waited for locks become one span.
    fn add_request_spans(&self, trace: &RequestTrace, spans: &mut Vec<Span>) {
        let Some((lane, kind)) = self.requests.get(&trace.number()) else { return };
        let waits = self.wait_intervals.get(&(None, trace.number()));
        let mut at_ns = trace.start_ns();
        let mut work_ns = at_ns;
        for stage in Stage::ALL {
            let (from_ns, to_ns) = (at_ns, at_ns + trace.stage_ns(stage));
            at_ns = to_ns;
            let (of, behind) = match stage {
                Stage::ReadIndex => ("a round of reads", Some(RAFT.name().to_owned())),
                Stage::Apply => ("the applier", Some(APPLIER.name().to_owned())),
                Stage::Pool => ("a reader", None),
                Stage::Locks | Stage::Backend | Stage::Sending => continue,
            };
            work_ns = to_ns;
            if from_ns < to_ns {
                let activity = Activity::Wait { resource: of.to_owned(), blocker: behind };
                spans.push(Span { lane: lane.clone(), kind: *kind, activity, from_ns, to_ns });
            }
        }
        add_busy_spans((lane, *kind), &Activity::Run, (work_ns, at_ns), waits, spans);
    }

    fn add_step_spans(
        &self,
        worker: TaskLabel,
        doing: StepKind,
        (from_ns, to_ns): (u64, u64),
        spans: &mut Vec<Span>,
    ) {
        let what = match doing {
            StepKind::Idle => return,
            StepKind::Running => Activity::Run,
            StepKind::Disk => Activity::Disk,
            StepKind::WaitsFor(other) => {
                let name = other.name();
                Activity::Wait { resource: format!("the {name}"), blocker: Some(name.to_owned()) }
            }
        };
        let waits = self.wait_intervals.get(&waiter_id((worker, 0)));
        add_busy_spans((worker.name(), LaneKind::Work), &what, (from_ns, to_ns), waits, spans);
    }

    fn lock_span(&self, event: LockEvent) -> Option<Span> {
        let (party, what, from_ns, to_ns) = match event {
            LockEvent::Hold { lock, task: actor, number, start_ns, end_ns, .. } => {
                ((actor, number), Activity::Hold { resource: lock.to_owned() }, start_ns, end_ns)
            }
            LockEvent::Wait {
                lock, task: actor, number, blocker: front, start_ns, end_ns, ..
            } => {
                let behind = front.map(|(front, stance)| {
                    let stays = self.lock_intervals.get(&(lock, front, stance));
                    let number = stays.and_then(|stays| stays.earliest_at(start_ns)).unwrap_or(0);
                    self.lane((front, number)).0
                });
                let what = Activity::Wait { resource: lock.to_owned(), blocker: behind };
                ((actor, number), what, start_ns, end_ns)
            }
        };
        let is_wait = matches!(what, Activity::Wait { .. });
        // A task of which only the label is known has no lane: it would stand for many.
        let is_nobody =
            !self.requests.contains_key(&party.1) && lane_kind_of(party.0) != LaneKind::Work;
        if from_ns >= to_ns || is_wait && is_nobody {
            return None;
        }
        let (lane, kind) = self.lane(party);
        Some(Span { lane, kind, activity: what, from_ns, to_ns })
    }
}

/// The time from start to end, without the waits in between.
fn add_busy_spans(
    (lane, kind): (&str, LaneKind),
    what: &Activity,
    (from_ns, to_ns): (u64, u64),
    waits: Option<&Intervals>,
    spans: &mut Vec<Span>,
) {
    let mut done = |from_ns, to_ns| {
        if from_ns < to_ns {
            let (lane, activity) = (lane.to_owned(), what.clone());
            spans.push(Span { lane, kind, activity, from_ns, to_ns });
        }
    };
    let mut at_ns = from_ns;
    for (begin_ns, end_ns, _) in waits.into_iter().flat_map(|waits| waits.within(from_ns, to_ns)) {
        done(at_ns, begin_ns.min(to_ns));
        at_ns = end_ns.max(at_ns);
    }
    done(at_ns, to_ns);
}

/// Start, end and request number of holds or waits.
#[derive(Default)]
struct Intervals {
    intervals: Vec<(u64, u64, u32)>,
    /// The latest end of the intervals up to each.
    max_end_ns: Vec<u64>,
}

impl Intervals {
    fn sort(&mut self) {
        self.intervals.sort_unstable();
        let mut reached_ns = 0;
        for (_, to_ns, _) in &self.intervals {
            reached_ns = reached_ns.max(*to_ns);
            self.max_end_ns.push(reached_ns);
        }
    }

    fn within(&self, from_ns: u64, to_ns: u64) -> impl Iterator<Item = (u64, u64, u32)> {
        let first = self.max_end_ns.partition_point(|reached_ns| *reached_ns <= from_ns);
        let stays =
            self.intervals[first..].iter().take_while(move |(begin_ns, ..)| *begin_ns < to_ns);
        stays.copied().filter(move |(_, end_ns, _)| *end_ns > from_ns)
    }

    /// Of the tasks there at this time, the one that came first.
    fn earliest_at(&self, at_ns: u64) -> Option<u32> {
        self.within(at_ns, at_ns.saturating_add(1)).next().map(|(.., number)| number)
    }
}

#[cfg(test)]
mod tests {
    use clearlane_contention::LockMode;
    use clearlane_contention::blame;

    use super::*;
    use crate::task_labels::{GET, LOG, RANGE};

    const MS: u64 = 1_000_000;

    fn request(
        class: &'static str,
        kind: LaneKind,
        number: u32,
        times: &[(u64, Stage, u64)],
    ) -> TraceEvent {
        let mut trace = RequestTrace::start_at(times[0].0 * MS).with_number(number);
        for (_, stage, end) in times {
            trace.end_stage_at(*stage, end * MS);
        }
        TraceEvent::Request { class, kind, trace }
    }

    fn held(actor: TaskLabel, number: u32, from: u64, to: u64) -> TraceEvent {
        let (start_ns, end_ns) = (from * MS, to * MS);
        TraceEvent::Lock(LockEvent::Hold {
            lock: "readTx",
            mode: LockMode::Read,
            task: actor,
            number,
            start_ns,
            end_ns,
        })
    }

    fn came(
        actor: TaskLabel,
        number: u32,
        front: (TaskLabel, BlockerState),
        from: u64,
        to: u64,
    ) -> TraceEvent {
        let (start_ns, end_ns, front) = (from * MS, to * MS, Some(front));
        let mode = LockMode::Read;
        TraceEvent::Lock(LockEvent::Wait {
            lock: "readTx",
            mode,
            task: actor,
            number,
            blocker: front,
            start_ns,
            end_ns,
        })
    }

    fn step(worker: TaskLabel, doing: StepKind, from: u64, to: u64) -> TraceEvent {
        let (from_ns, to_ns) = (from * MS, to * MS);
        TraceEvent::ThreadStep { thread: worker, step_kind: doing, from_ns, to_ns }
    }

    /// A long range; the applier waits for it with a put behind it; a get waits for the applier.
    fn convoy() -> Vec<TraceEvent> {
        vec![
            held(*RANGE, 9, 0, 90),
            request(
                "long range",
                LaneKind::Read,
                9,
                &[(0, Stage::Backend, 95), (0, Stage::Sending, 96)],
            ),
            step(*LOG, StepKind::Disk, 10, 12),
            step(*APPLIER, StepKind::WaitsFor(*LOG), 10, 12),
            came(*APPLIER, 0, (*RANGE, BlockerState::Holding), 13, 90),
            held(*APPLIER, 0, 90, 91),
            step(*APPLIER, StepKind::Running, 12, 93),
            request(
                "put",
                LaneKind::Write,
                10,
                &[(10, Stage::Apply, 93), (10, Stage::Sending, 94)],
            ),
            came(*GET, 11, (*APPLIER, BlockerState::Waiting), 50, 91),
            held(*GET, 11, 91, 92),
            request(
                "get",
                LaneKind::Read,
                11,
                &[(45, Stage::ReadIndex, 49), (0, Stage::Backend, 92)],
            ),
            // An unknown task with this label.
            came(*GET, 0, (*APPLIER, BlockerState::Waiting), 60, 91),
        ]
    }

    fn lines(timeline: &Timeline, lane: &str) -> Vec<String> {
        let own = timeline.spans.iter().filter(|span| span.lane == lane);
        own.map(|span| {
            let what = match &span.activity {
                Activity::Wait { resource: of, blocker: behind } => {
                    format!("{of} behind {}", behind.as_deref().unwrap_or("?"))
                }
                Activity::Hold { resource: of } => format!("has {of}"),
                other => format!("{other:?}"),
            };
            format!("{}-{} {what}", span.from_ns / MS, span.to_ns / MS)
        })
        .collect()
    }

    #[test]
    fn a_convoy_is_told_by_its_names() {
        let timeline = build(&convoy());
        assert_eq!(lines(&timeline, "long range #9"), ["0-90 has readTx", "0-96 Run"]);
        assert_eq!(
            lines(&timeline, "applier"),
            [
                "10-12 the log behind log",
                "12-13 Run",
                "13-90 readTx behind long range #9",
                "90-91 has readTx",
                "90-93 Run"
            ]
        );
        assert_eq!(lines(&timeline, "put #10"), ["10-93 the applier behind applier", "93-94 Run"]);
        assert_eq!(
            lines(&timeline, "get #11"),
            [
                "45-49 a round of reads behind raft",
                "49-50 Run",
                "50-91 readTx behind applier",
                "91-92 has readTx",
                "91-92 Run"
            ]
        );
        assert!(lines(&timeline, "get").is_empty());
        assert_eq!(timeline.to_string().parse(), Ok(timeline));
    }

    #[test]
    fn the_blame_is_the_holders() {
        let blames = blame::blame_by_class(&build(&convoy()));
        let put = blames.iter().find(|blame| blame.class == "put").unwrap();
        let by_range = blame::Cause::Wait {
            resource: "readTx".to_owned(),
            blamed_class: Some("long range".to_owned()),
        };
        assert_eq!(put.causes[0], (by_range, 77 * MS));
        assert!(put.causes.contains(&(blame::Cause::Disk, 2 * MS)), "{put:?}");
        assert_eq!(put.total_ns, 84 * MS);
    }
}
