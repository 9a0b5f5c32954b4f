//! Finds what each class of lanes spent its time on, and what caused its waits. A lane is one
//! request or one background worker: see [`timeline`](crate::timeline).
//!
//! The span of a wait names only the blocker at the start of the wait. That blocker may have waited
//! itself. So this module finds the cause of each piece of a wait:
//!
//! * Each piece of a wait for a lock is blamed on the lane that holds the lock during the piece. If
//!   there are several holders, the holder whose hold overlaps the wait longest is blamed. If the
//!   holder itself waits, the blame moves on to the cause of that wait, and so on for up to eight
//!   waits.
//! * Each piece of a wait for a worker is blamed on the worker's activity during the piece.
//! * If the timeline has no span for a piece, the piece is blamed on the blocker that the wait
//!   names. If the wait names no blocker, no class is blamed.
//!
//! ```text
//!   expensive #7   ‗‗‗‗‗‗‗‗‗‗‗‗‗‗‗‗‗ holds readTx
//!   applier            ░░░░░░░░░░░░░██               waits for readTx, held by expensive #7; runs
//!   put #2             ░░░░░░░░░░░░░░░               waits for the applier
//!   blame of put       readTx, held by expensive: 13; running: 2
//! ```

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use crate::span_index::{Interval, SpanIndex, SpanRow};
use crate::timeline::{Activity, LaneKind, Span, Timeline, lane_class};

/// Maximum number of waits that are followed from one span to its cause.
const CHAIN_DEPTH_MAX: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The lane ran, or the worker that the lane waited for ran.
    Run,
    /// The lane was ready to run, but all cores were busy.
    Core,
    Disk,
    Network,
    Wait {
        /// The lock that the lane waited for, or the worker whose result it needed.
        resource: String,
        /// The class of the lane that is blamed: the holder of the lock, or the blocker that the
        /// wait names. `None` if neither is known.
        blamed_class: Option<String>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassBlame {
    /// The class of the lanes, such as `put`.
    pub class: String,
    pub kind: LaneKind,
    pub lane_count: usize,
    /// Total time of all lanes of the class.
    pub total_ns: u64,
    /// The causes and their times in nanoseconds, the largest first.
    pub causes: Vec<(Cause, u64)>,
}

/// Returns the blame of each class whose total time is not zero, in the order of the classes' first
/// spans.
pub fn blame_by_class(timeline: &Timeline) -> Vec<ClassBlame> {
    let index = SpanIndex::new(timeline);
    let mut blames: Vec<ClassBlame> = Vec::new();
    let mut places = HashMap::<&str, usize>::new();
    for (lane, kind) in timeline.lanes() {
        let class = lane_class(lane);
        let place = *places.entry(class).or_insert(blames.len());
        if place == blames.len() {
            let (class, causes) = (class.to_owned(), Vec::new());
            blames.push(ClassBlame { class, kind, lane_count: 0, total_ns: 0, causes });
        }
        blames[place].lane_count += 1;
    }
    let mut sums = vec![BTreeMap::<Cause, u64>::new(); blames.len()];
    for span in &timeline.spans {
        let sums = &mut sums[places[lane_class(&span.lane)]];
        let mut add = |cause, ns| *sums.entry(cause).or_default() += ns;
        let interval = (span.from_ns, span.to_ns);
        index.attribute_span(span, interval, CHAIN_DEPTH_MAX, &mut add);
    }
    for (blame, sums) in blames.iter_mut().zip(sums) {
        blame.total_ns = sums.values().sum();
        blame.causes = sums.into_iter().filter(|(_, ns)| *ns > 0).collect();
        blame.causes.sort_by_key(|(_, ns)| Reverse(*ns));
    }
    // A class has no time if its lanes only hold locks, because a hold has no cause.
    blames.retain(|blame| blame.total_ns > 0);
    blames
}

impl SpanIndex<'_> {
    /// Attributes a piece of a span to its causes. Passes each cause to `say` with its time in
    /// nanoseconds. A hold has no cause. `depth` is the maximum number of further waits to follow.
    fn attribute_span(
        &self,
        span: &Span,
        (from_ns, to_ns): Interval,
        depth: usize,
        say: &mut dyn FnMut(Cause, u64),
    ) {
        let (of, behind) = match &span.activity {
            Activity::Run => return say(Cause::Run, to_ns - from_ns),
            Activity::Core => return say(Cause::Core, to_ns - from_ns),
            Activity::Disk => return say(Cause::Disk, to_ns - from_ns),
            Activity::Network => return say(Cause::Network, to_ns - from_ns),
            Activity::Hold { .. } => return,
            Activity::Wait { resource: of, blocker: behind } => (of, behind.as_deref()),
        };
        let waits = |by: Option<&str>| Cause::Wait {
            resource: of.clone(),
            blamed_class: by.map(|lane| lane_class(lane).to_owned()),
        };
        let (row, is_lock) = match self.locks.get(of.as_str()) {
            Some(row) => (Some(row), true),
            None => (behind.and_then(|blocker| self.lanes.get(blocker)), false),
        };
        for (other, piece) in
            SpanRow::pieces(row, (from_ns, to_ns), |other| other.lane != span.lane)
        {
            let ns = piece.1 - piece.0;
            match (other, is_lock, depth.checked_sub(1)) {
                (Some(other), true, Some(depth)) => {
                    self.attribute_hold(other, piece, depth, say, &waits(Some(&other.lane)));
                }
                (Some(other), true, None) => say(waits(Some(&other.lane)), ns),
                (Some(other), false, Some(depth)) => self.attribute_span(other, piece, depth, say),
                (Some(_), false, None) | (None, ..) => say(waits(behind), ns),
            }
        }
    }

    /// Attributes a piece of a hold to its causes. While the holder waits, these are the causes of
    /// its wait. Otherwise the cause is `held`, which blames the holder.
    fn attribute_hold(
        &self,
        hold: &Span,
        interval: Interval,
        depth: usize,
        say: &mut dyn FnMut(Cause, u64),
        held: &Cause,
    ) {
        let waits = |other: &Span| matches!(other.activity, Activity::Wait { .. });
        for (wait, piece) in SpanRow::pieces(self.lanes.get(hold.lane.as_str()), interval, waits) {
            match wait {
                Some(wait) => self.attribute_span(wait, piece, depth, say),
                None => say(held.clone(), piece.1 - piece.0),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(lane: &str, kind: LaneKind, what: Activity, from_ns: u64, to_ns: u64) -> Span {
        Span { lane: lane.to_owned(), kind, activity: what, from_ns, to_ns }
    }

    fn wait(of: &str, behind: &str) -> Activity {
        Activity::Wait { resource: of.to_owned(), blocker: Some(behind.to_owned()) }
    }

    fn hold(lock: &str) -> Activity {
        Activity::Hold { resource: lock.to_owned() }
    }

    fn blame_lines(timeline: &Timeline) -> Vec<String> {
        let word = |cause: &Cause| match cause {
            Cause::Wait { resource: of, blamed_class: by } => {
                format!("{of} by {}", by.as_deref().unwrap_or("?"))
            }
            other => format!("{other:?}"),
        };
        let blames = blame_by_class(timeline).into_iter().map(
            |ClassBlame { class, lane_count: lanes, total_ns, causes, .. }| {
                let causes: Vec<_> =
                    causes.iter().map(|(cause, ns)| format!("{} {ns}", word(cause))).collect();
                format!("{class} x{lanes} {total_ns}: {}", causes.join(", "))
            },
        );
        blames.collect()
    }

    /// The convoy: the applier waits for `readTx`, which an expensive read holds. The put waits for
    /// the applier, and the cheap reads wait for `readTx` behind the applier. All of these waits
    /// are blamed on the expensive read for as long as it holds the lock.
    #[test]
    fn the_holder_of_the_lock_is_blamed() {
        let spans = vec![
            span("expensive #1", LaneKind::Read, Activity::Run, 0, 100),
            span("expensive #1", LaneKind::Read, hold("readTx"), 0, 100),
            span("applier", LaneKind::Work, wait("readTx", "expensive #1"), 10, 100),
            span("applier", LaneKind::Work, hold("readTx"), 100, 102),
            span("applier", LaneKind::Work, Activity::Run, 100, 102),
            span("put #1", LaneKind::Write, Activity::Disk, 0, 5),
            span("put #1", LaneKind::Write, wait("applier", "applier"), 5, 102),
            span("cheap #1", LaneKind::Read, wait("readTx", "applier"), 50, 102),
            span("cheap #1", LaneKind::Read, Activity::Run, 102, 103),
            span("cheap #2", LaneKind::Read, wait("readTx", "applier"), 60, 102),
        ];
        let lines = blame_lines(&Timeline { spans });
        assert_eq!(
            lines,
            [
                "expensive x1 100: Run 100",
                "put x1 102: readTx by expensive 90, Disk 5, applier by applier 5, Run 2",
                "applier x1 92: readTx by expensive 90, Run 2",
                "cheap x2 95: readTx by expensive 90, readTx by applier 4, Run 1",
            ]
        );
    }

    #[test]
    fn a_holder_that_waits_is_not_blamed() {
        let spans = vec![
            span("list #1", LaneKind::Read, hold("readTx"), 0, 50),
            span("list #1", LaneKind::Read, Activity::Run, 0, 50),
            span("commit", LaneKind::Work, hold("batchTx"), 10, 60),
            span("commit", LaneKind::Work, wait("readTx", "list #1"), 12, 50),
            span("put #1", LaneKind::Write, wait("batchTx", "commit"), 11, 60),
        ];
        let lines = blame_lines(&Timeline { spans });
        assert_eq!(lines[2], "put x1 49: readTx by list 38, batchTx by commit 11");
    }

    #[test]
    fn of_several_holders_the_one_is_blamed_that_is_there_longest() {
        let spans = vec![
            span("cheap #1", LaneKind::Read, hold("readTx"), 0, 12),
            span("list #1", LaneKind::Read, hold("readTx"), 5, 50),
            span("put #1", LaneKind::Write, wait("readTx", "cheap #1"), 10, 50),
        ];
        let lines = blame_lines(&Timeline { spans });
        assert_eq!(lines, ["put x1 40: readTx by list 40"]);
    }

    #[test]
    fn a_circle_of_waits_comes_to_an_end() {
        let unknown = Activity::Wait { resource: "gone".to_owned(), blocker: None };
        let spans = vec![
            span("a", LaneKind::Work, wait("b", "b"), 0, 10),
            span("b", LaneKind::Work, wait("a", "a"), 0, 10),
            span("put #1", LaneKind::Write, unknown, 0, 4),
        ];
        let lines = blame_lines(&Timeline { spans });
        assert_eq!(lines, ["a x1 10: b by b 10", "b x1 10: a by a 10", "put x1 4: gone by ? 4"]);
    }
}
