//! Converts events to a timeline: identifies tasks, and finds which task blocked which.
//!
//! A lock event has a label and a number, and a request event has its number and its class. The
//! class is known only at the end of the request, for example after the reader with number 17 has
//! read twenty thousand records. The timeline then calls it `long range #17` from its start on,
//! also in the waits of other tasks.
//!
//! The event of a wait has the holder's label, but not its number. Several tasks with this label
//! may have held the lock when the wait started. From these tasks the timeline chooses the task
//! that released the lock last. If a task holds the lock until the recording ends, there is no
//! event of this hold, and the timeline shows only the label.
//!
//! Two waits are noted longer than they are:
//!
//! * The apply loop may be idle before a request waits for it. Its wait for raft is shown from the
//!   start of the first request that it serves afterwards.
//! * A request may be applied long before its thread runs again. Its wait for the apply loop ends
//!   when the apply loop pauses. The rest is a wait for a thread to wake.
//!
//! The time of a wait is removed from the work of its request or thread, so that at any time a lane
//! shows either work or a wait. Holds of locks are shown in addition.

use std::cmp::Reverse;
use std::collections::HashMap;

use clearlane_contention::timeline::{Activity, LaneKind, Span, Timeline};
use clearlane_contention::{BlockerState, LockEvent, LockEventKind, TaskLabel};

use super::{StepKind, TraceEvent};
use crate::observe::request_trace::{RequestTrace, Stage};
use crate::observe::task_labels::{APPLIER, RAFT, lane_kind_of};

/// Identifies a task that waits: a request by its number, because it may wait under several labels,
/// or a thread by its label.
type WaiterId = (Option<TaskLabel>, u32);

fn waiter_id(task: TaskLabel, number: u32) -> WaiterId {
    ((number == 0).then_some(task), number)
}

/// Builds a timeline, for example:
///
/// ```text
///   events                                     timeline
///   request 17: long range, backend 86 ms      long range #17  ██████████████████
///   range 17 held readTx                                       ‗‗‗‗‗‗‗‗‗‗‗‗‗‗‗‗‗‗
///   applier waited for readTx behind a range   applier           ░░░░░░░░░░░░░░░░█  behind #17
///   applier ran                                put #18          ░░░░░░░░░░░░░░░░░░  behind applier
///   request 18: put, apply 85 ms
/// ```
pub fn build(events: &[TraceEvent]) -> Timeline {
    let index = EventIndex::new(events);
    let mut spans = Vec::new();
    for event in events {
        match *event {
            TraceEvent::Request { trace, .. } => index.add_request_spans(&trace, &mut spans),
            TraceEvent::ThreadStep { thread, step_kind, from_ns, to_ns } => {
                index.add_step_spans(thread, step_kind, (from_ns, to_ns), &mut spans);
            }
            TraceEvent::Lock(event) => spans.extend(index.lock_span(event)),
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
    /// The waits of requests for the apply loop.
    apply_waits: Intervals,
    /// The start and end of each step in which the apply loop works, in the order of time.
    apply_steps: Vec<(u64, u64)>,
}

impl EventIndex {
    fn new(events: &[TraceEvent]) -> EventIndex {
        let mut index = EventIndex::default();
        for event in events {
            match *event {
                TraceEvent::Request { class, kind, trace } => {
                    let number = trace.number;
                    index.requests.insert(number, (format!("{class} #{number}"), kind));
                    let waits = stages(&trace).filter(|(stage, ..)| is_for_applier(*stage));
                    let waits = waits.map(|(_, from_ns, to_ns)| (from_ns, to_ns, number));
                    index.apply_waits.intervals.extend(waits);
                }
                TraceEvent::Lock(LockEvent { kind, lock, task, number, start_ns, end_ns }) => {
                    let interval = (start_ns, end_ns, number);
                    let mut state = BlockerState::Holding;
                    if kind != LockEventKind::Hold {
                        state = BlockerState::Waiting;
                        let waits = index.wait_intervals.entry(waiter_id(task, number));
                        waits.or_default().intervals.push(interval);
                    }
                    let intervals = index.lock_intervals.entry((lock, task, state));
                    intervals.or_default().intervals.push(interval);
                }
                TraceEvent::ThreadStep { thread, step_kind, from_ns, to_ns } => {
                    if thread == *APPLIER && step_kind == StepKind::Running {
                        index.apply_steps.push((from_ns, to_ns));
                    }
                }
            }
        }
        index.lock_intervals.values_mut().for_each(Intervals::sort);
        index.wait_intervals.values_mut().for_each(Intervals::sort);
        index.apply_waits.sort();
        index.apply_steps.sort_unstable();
        index
    }

    fn lane(&self, task: TaskLabel, number: u32) -> (String, LaneKind) {
        let unknown = || (task.name().to_owned(), lane_kind_of(task));
        self.requests.get(&number).cloned().unwrap_or_else(unknown)
    }

    /// Adds the spans of a request. Consecutive stages that may include waits for locks become one
    /// span.
    fn add_request_spans(&self, trace: &RequestTrace, spans: &mut Vec<Span>) {
        let Some((lane, kind)) = self.requests.get(&trace.number) else { return };
        let waits = self.wait_intervals.get(&(None, trace.number));
        let (mut at_ns, mut work_ns) = (trace.start_ns, trace.start_ns);
        let lane = lane.as_str();
        for (stage, from_ns, to_ns) in stages(trace) {
            at_ns = to_ns;
            let (resource, blocker) = match stage {
                Stage::ReadIndex => ("a round of reads", Some(*RAFT)),
                Stage::Apply | Stage::Token => ("the applier", Some(*APPLIER)),
                Stage::Pool => ("a thread of a pool", None),
                Stage::Locks | Stage::Backend | Stage::Password | Stage::Sending => continue,
            };
            if from_ns < to_ns {
                let work = (work_ns, from_ns);
                add_busy_spans((lane, *kind), &Activity::Run, work, waits, spans);
                let wake_ns = match is_for_applier(stage) {
                    true => self.applied_by(from_ns, to_ns),
                    false => to_ns,
                };
                let mut wait = |activity, from_ns, to_ns| {
                    let lane = lane.to_owned();
                    spans.push(Span { lane, kind: *kind, activity, from_ns, to_ns });
                };
                wait(wait_for(resource, blocker), from_ns, wake_ns);
                if wake_ns < to_ns {
                    wait(wait_for("a thread to wake", None), wake_ns, to_ns);
                }
                work_ns = to_ns;
            }
        }
        add_busy_spans((lane, *kind), &Activity::Run, (work_ns, at_ns), waits, spans);
    }

    /// Returns the time by which a request has been applied that waits for the apply loop between
    /// these times: the end of the last step of the apply loop. Returns `to_ns` if the apply loop
    /// works at that time, or if none of its steps ends in the wait.
    fn applied_by(&self, from_ns: u64, to_ns: u64) -> u64 {
        let steps = self.apply_steps.partition_point(|(start_ns, _)| *start_ns < to_ns);
        let last_ns = self.apply_steps[..steps].last().map_or(to_ns, |(_, end_ns)| *end_ns);
        if from_ns < last_ns { last_ns.min(to_ns) } else { to_ns }
    }

    fn add_step_spans(
        &self,
        thread: TaskLabel,
        step_kind: StepKind,
        (mut from_ns, to_ns): (u64, u64),
        spans: &mut Vec<Span>,
    ) {
        if thread == *APPLIER && step_kind == StepKind::WaitsFor(*RAFT) {
            // A request that ends earlier was applied before, and its thread runs again only now.
            let mut waits = self.apply_waits.within(from_ns, to_ns);
            let Some((first_ns, ..)) = waits.find(|(_, end_ns, _)| *end_ns > to_ns) else {
                return;
            };
            from_ns = from_ns.max(first_ns);
        }
        let activity = match step_kind {
            StepKind::Idle => return,
            StepKind::Running => Activity::Run,
            StepKind::Disk => Activity::Disk,
            StepKind::WaitsFor(other) => wait_for(&format!("the {}", other.name()), Some(other)),
        };
        let waits = self.wait_intervals.get(&waiter_id(thread, 0));
        add_busy_spans((thread.name(), LaneKind::Work), &activity, (from_ns, to_ns), waits, spans);
    }

    fn lock_span(&self, event: LockEvent) -> Option<Span> {
        let LockEvent { kind, lock, task, number, start_ns: from_ns, end_ns: to_ns } = event;
        let resource = lock.to_owned();
        let activity = match kind {
            LockEventKind::Hold => Activity::Hold { resource },
            // The wait of a read without a recorded request is not shown, because its lane would
            // have only the label, which many tasks share.
            _ if !self.requests.contains_key(&number) && lane_kind_of(task) != LaneKind::Work => {
                return None;
            }
            LockEventKind::Wait { blocker } => {
                let blocker = blocker.map(|(blocker, state)| {
                    let intervals = self.lock_intervals.get(&(lock, blocker, state));
                    let number = intervals.and_then(|intervals| intervals.longest_at(from_ns));
                    self.lane(blocker, number.unwrap_or(0)).0
                });
                Activity::Wait { resource, blocker }
            }
        };
        let (lane, kind) = self.lane(task, number);
        (from_ns < to_ns).then_some(Span { lane, kind, activity, from_ns, to_ns })
    }
}

/// Returns the stages of a request, each with its start and its end.
fn stages(trace: &RequestTrace) -> impl Iterator<Item = (Stage, u64, u64)> {
    let mut at_ns = trace.start_ns;
    Stage::ALL.into_iter().zip(trace.stage_ns).map(move |(stage, stage_ns)| {
        let from_ns = at_ns;
        at_ns += stage_ns;
        (stage, from_ns, at_ns)
    })
}

fn is_for_applier(stage: Stage) -> bool {
    matches!(stage, Stage::Apply | Stage::Token)
}

fn wait_for(resource: &str, blocker: Option<TaskLabel>) -> Activity {
    let blocker = blocker.map(|blocker| blocker.name().to_owned());
    Activity::Wait { resource: resource.to_owned(), blocker }
}

/// Adds spans of this activity for the time from `from_ns` to `to_ns`, without the waits in it.
fn add_busy_spans(
    (lane, kind): (&str, LaneKind),
    activity: &Activity,
    (from_ns, to_ns): (u64, u64),
    waits: Option<&Intervals>,
    spans: &mut Vec<Span>,
) {
    let mut done = |from_ns, to_ns| {
        if from_ns < to_ns {
            let (lane, activity) = (lane.to_owned(), activity.clone());
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
    /// For each interval, the latest end of this interval and all earlier intervals.
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

    /// Returns the number of the task whose interval contains this time and ends last. If several
    /// such intervals end at the same time, returns the task of the first one. Returns `None` if
    /// no interval contains this time.
    fn longest_at(&self, at_ns: u64) -> Option<u32> {
        let there = self.within(at_ns, at_ns.saturating_add(1));
        there.min_by_key(|(_, end_ns, _)| Reverse(*end_ns)).map(|(.., number)| number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::task_labels::{AUTHENTICATE, GET, LOG, RANGE};

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

    fn lock_event(
        kind: LockEventKind,
        task: TaskLabel,
        number: u32,
        from: u64,
        to: u64,
    ) -> TraceEvent {
        let (start_ns, end_ns) = (from * MS, to * MS);
        TraceEvent::Lock(LockEvent { kind, lock: "readTx", task, number, start_ns, end_ns })
    }

    fn held(task: TaskLabel, number: u32, from: u64, to: u64) -> TraceEvent {
        lock_event(LockEventKind::Hold, task, number, from, to)
    }

    fn waited(
        task: TaskLabel,
        number: u32,
        blocker: (TaskLabel, BlockerState),
        from: u64,
        to: u64,
    ) -> TraceEvent {
        lock_event(LockEventKind::Wait { blocker: Some(blocker) }, task, number, from, to)
    }

    fn step(thread: TaskLabel, step_kind: StepKind, from: u64, to: u64) -> TraceEvent {
        let (from_ns, to_ns) = (from * MS, to * MS);
        TraceEvent::ThreadStep { thread, step_kind, from_ns, to_ns }
    }

    /// Returns the events of a convoy: a long range, an apply loop that waits for it with a put in
    /// its queue, and a get that waits for the apply loop.
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
            waited(*APPLIER, 0, (*RANGE, BlockerState::Holding), 13, 90),
            held(*APPLIER, 0, 90, 91),
            step(*APPLIER, StepKind::Running, 12, 93),
            request(
                "put",
                LaneKind::Write,
                10,
                &[(10, Stage::Apply, 93), (10, Stage::Sending, 94)],
            ),
            waited(*GET, 11, (*APPLIER, BlockerState::Waiting), 50, 91),
            held(*GET, 11, 91, 92),
            request(
                "get",
                LaneKind::Read,
                11,
                &[(45, Stage::ReadIndex, 49), (0, Stage::Backend, 92)],
            ),
            // A get without a number. It has no lane.
            waited(*GET, 0, (*APPLIER, BlockerState::Waiting), 60, 91),
        ]
    }

    fn lines(timeline: &Timeline, lane: &str) -> Vec<String> {
        let own = timeline.spans.iter().filter(|span| span.lane == lane);
        own.map(|span| {
            let what = match &span.activity {
                Activity::Wait { resource, blocker } => {
                    format!("{resource} behind {}", blocker.as_deref().unwrap_or("?"))
                }
                Activity::Hold { resource } => format!("has {resource}"),
                other => format!("{other:?}"),
            };
            format!("{}-{} {what}", span.from_ns / MS, span.to_ns / MS)
        })
        .collect()
    }

    /// The request waits for a thread, holds a lock while it computes, and waits for its token.
    #[test]
    fn an_authentication_works_between_two_waits() {
        let timeline = build(&[
            held(*AUTHENTICATE, 5, 8, 60),
            request(
                "authenticate",
                LaneKind::Read,
                5,
                &[
                    (0, Stage::ReadIndex, 2),
                    (0, Stage::Pool, 7),
                    (0, Stage::Password, 61),
                    (0, Stage::Token, 63),
                    (0, Stage::Sending, 64),
                ],
            ),
        ]);
        assert_eq!(
            lines(&timeline, "authenticate #5"),
            [
                "0-2 a round of reads behind raft",
                "2-7 a thread of a pool behind ?",
                "8-60 has readTx",
                "7-61 Run",
                "61-63 the applier behind applier",
                "63-64 Run"
            ]
        );
    }

    #[test]
    fn the_apply_loop_waits_for_raft_only_while_a_request_waits_for_it() {
        let put =
            |number, from, to| request("put", LaneKind::Write, number, &[(from, Stage::Apply, to)]);
        let timeline = build(&[
            step(*APPLIER, StepKind::WaitsFor(*RAFT), 0, 20),
            step(*APPLIER, StepKind::Running, 20, 22),
            step(*APPLIER, StepKind::WaitsFor(*RAFT), 22, 60),
            step(*APPLIER, StepKind::Running, 60, 62),
            // The thread of this put runs again 8 ms after the put was applied.
            put(1, 15, 30),
            put(2, 58, 61),
        ]);
        assert_eq!(
            lines(&timeline, "applier"),
            ["15-20 the raft behind raft", "20-22 Run", "58-60 the raft behind raft", "60-62 Run"]
        );
        assert_eq!(
            lines(&timeline, "put #1"),
            ["15-22 the applier behind applier", "22-30 a thread to wake behind ?"]
        );
        assert_eq!(lines(&timeline, "put #2"), ["58-61 the applier behind applier"]);
    }

    #[test]
    fn of_several_readers_the_one_that_stays_longest_is_named() {
        let timeline = build(&[
            held(*RANGE, 7, 0, 12),
            held(*RANGE, 9, 5, 90),
            request("range", LaneKind::Read, 7, &[(0, Stage::Backend, 12)]),
            request("long range", LaneKind::Read, 9, &[(5, Stage::Backend, 95)]),
            waited(*APPLIER, 0, (*RANGE, BlockerState::Holding), 10, 90),
        ]);
        assert_eq!(lines(&timeline, "applier"), ["10-90 readTx behind long range #9"]);
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
}
