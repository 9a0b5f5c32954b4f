//! The chain of causes of one wait, down to a span that has no further cause.
//!
//! ```text
//!   cheap #139     ░░░░░░░░░░░░░░   waits for readTx; its blocker is applier
//!   applier        ░░░░░░░░░░░░░░█  waits for readTx; its blocker is expensive #5
//!   expensive #5   ‗‗‗‗‗‗‗‗‗‗‗‗‗‗   holds readTx
//! ```
//!
//! Three kinds of span can cause a wait. The cause is the span that overlaps the wait longest. For
//! a later wait in the chain, only the time during which all spans of the chain so far overlap is
//! considered. If two overlaps are equal, the cause is the span whose kind is listed first:
//!
//! 1. a wait of the blocker that the wait names, but not a later wait for the same lock, because
//!    the blocker is then in the queue after the waiter;
//! 2. a hold of the lock by another lane;
//! 3. another activity of the blocker, unless the blocker holds the lock.
//!
//! If the cause is a hold, the chain continues with the holder's longest wait, provided that this
//! wait takes more than half of the time during which all spans of the chain overlap. Otherwise the
//! chain ends with the hold. A chain also ends after nine spans, and before a cause that overlaps
//! less than a tenth of this time: it would explain almost nothing of the wait.
//!
//! A lane of the chain is never the cause of a later wait in it, because no task waits for itself.
//!
//! `model.js` of the simulator has the same rules for its page.

use std::cmp::Reverse;

use crate::span_index::{Interval, SpanIndex};
use crate::timeline::{Activity, LaneKind, Span, Timeline};

/// Maximum number of spans in a chain. A longer chain is cut off.
const LENGTH_MAX: usize = 9;
/// A cause must overlap at least this part of the time during which all spans of the chain overlap.
const LEAST_PART: f64 = 0.1;
/// Margin before and after the shown part of a chain, as a fraction of the length of this part.
const MARGIN: f64 = 0.15;
/// Maximum time that is shown before and after the wait, in multiples of the wait's length. A cause
/// may start long before the wait.
const LEAD_MAX: u64 = 3;

#[derive(Debug)]
pub struct WaitChains<'a>(SpanIndex<'a>);

impl<'a> WaitChains<'a> {
    pub fn new(timeline: &'a Timeline) -> WaitChains<'a> {
        WaitChains(SpanIndex::new(timeline))
    }

    /// Returns the wait, its cause, the cause of that cause, and so on, up to nine spans in all.
    pub fn chain(&self, wait: &'a Span) -> Vec<&'a Span> {
        let mut chain = vec![wait];
        let mut interval = (wait.from_ns, wait.to_ns);
        let mut last = wait;
        while chain.len() < LENGTH_MAX
            && let Some(cause) = self.cause(last, &chain, interval)
        {
            let whole_ns = interval.1 - interval.0;
            if (cause.overlap_ns(interval) as f64) < LEAST_PART * whole_ns as f64 {
                break;
            }
            interval = (interval.0.max(cause.from_ns), interval.1.min(cause.to_ns));
            chain.push(cause);
            last = cause;
        }
        chain
    }

    /// Returns the cause of `span` in this interval; `None` if `span` is neither a wait nor a hold,
    /// or if no cause is known. `chain` is the chain up to `span`.
    fn cause(&self, span: &Span, chain: &[&Span], interval: Interval) -> Option<&'a Span> {
        match &span.activity {
            Activity::Wait { resource, blocker } => {
                self.cause_of_wait(span, chain, (resource, blocker.as_deref()), interval)
            }
            Activity::Hold { .. } => {
                let busy = self.longest(span.lane.as_str(), interval, |_| true)?;
                let is_most = busy.overlap_ns(interval) * 2 > interval.1 - interval.0;
                (is_wait(busy) && is_most).then_some(busy)
            }
            _ => None,
        }
    }

    fn cause_of_wait(
        &self,
        wait: &Span,
        chain: &[&Span],
        (resource, blocker): (&str, Option<&str>),
        interval: Interval,
    ) -> Option<&'a Span> {
        let is_other = |lane: &str| chain.iter().all(|known| known.lane != lane);
        let blocker = blocker.filter(|blocker| is_other(blocker));
        let of_blocker = |counts: &dyn Fn(&Span) -> bool| self.longest(blocker?, interval, counts);
        let is_cause = |span: &Span| match &span.activity {
            Activity::Wait { resource: same, .. } if same == resource => {
                span.from_ns <= wait.from_ns
            }
            _ => is_wait(span),
        };
        let holds =
            || self.0.locks.get(resource).into_iter().flat_map(|row| row.overlapping(interval));
        let hold = longest_of(holds().filter(|hold| is_other(&hold.lane)), interval);
        let has_lock = holds().any(|hold| Some(hold.lane.as_str()) == blocker);
        let other = if has_lock { None } else { of_blocker(&|span| !is_wait(span)) };
        longest_of([of_blocker(&is_cause), hold, other].into_iter().flatten(), interval)
    }

    /// Returns the span of this lane that overlaps the interval longest, or `None` if no span
    /// overlaps it. Considers a span only if `counts` returns true for it. Holds are never
    /// considered, because `lanes` does not contain them.
    fn longest(
        &self,
        lane: &str,
        interval: Interval,
        counts: impl Fn(&Span) -> bool,
    ) -> Option<&'a Span> {
        let spans = self.0.lanes.get(lane)?.overlapping(interval);
        longest_of(spans.filter(|span| counts(span)), interval)
    }
}

/// Returns the span that overlaps the interval longest. If overlaps are equal, returns the first of
/// these spans. Returns `None` if no span overlaps the interval.
fn longest_of<'a>(spans: impl Iterator<Item = &'a Span>, interval: Interval) -> Option<&'a Span> {
    let overlapping = spans.filter(|span| span.overlap_ns(interval) > 0);
    overlapping.min_by_key(|span| Reverse(span.overlap_ns(interval)))
}

fn is_wait(span: &Span) -> bool {
    matches!(span.activity, Activity::Wait { .. })
}

/// Returns true if the span is a wait of a request with a known blocker.
pub fn is_request_wait(span: &Span) -> bool {
    span.kind != LaneKind::Work && matches!(span.activity, Activity::Wait { blocker: Some(_), .. })
}

/// Returns the longest wait of a request with a known blocker. If waits are equally long, returns
/// the earliest. Returns `None` if there is no such wait.
pub fn longest_wait(timeline: &Timeline) -> Option<&Span> {
    let waits = timeline.spans.iter().filter(|span| is_request_wait(span));
    waits.min_by_key(|span| (Reverse(span.length_ns()), span.from_ns))
}

/// Returns the interval of a timeline that shows a chain, with a margin on both sides. The interval
/// is from the first start to the last end of the chain's spans. It is cut off at three lengths of
/// the first span before and after that span. Returns `None` if the chain is empty.
pub fn window(chain: &[&Span]) -> Option<(u64, u64)> {
    let wait = chain.first()?;
    let lead_ns = LEAD_MAX * wait.length_ns();
    let from_ns = chain.iter().map(|span| span.from_ns).min()?;
    let from_ns = from_ns.max(wait.from_ns.saturating_sub(lead_ns));
    let to_ns = chain.iter().map(|span| span.to_ns).max()?.min(wait.to_ns + lead_ns);
    let margin_ns = (MARGIN * (to_ns - from_ns) as f64) as u64;
    Some((from_ns.saturating_sub(margin_ns), to_ns + margin_ns))
}

/// Returns the [`window`] of the longest wait; `None` if no request waits for a known blocker.
pub fn window_of_longest_wait(timeline: &Timeline) -> Option<(u64, u64)> {
    window(&WaitChains::new(timeline).chain(longest_wait(timeline)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(lane: &str, activity: Activity, from_ns: u64, to_ns: u64) -> Span {
        let kind = match lane.split(' ').next() {
            Some("put") => LaneKind::Write,
            Some("cheap" | "expensive") => LaneKind::Read,
            _ => LaneKind::Work,
        };
        Span { lane: lane.to_owned(), kind, activity, from_ns, to_ns }
    }

    fn wait(resource: &str, blocker: &str) -> Activity {
        Activity::Wait { resource: resource.to_owned(), blocker: Some(blocker.to_owned()) }
    }

    fn hold(resource: &str) -> Activity {
        Activity::Hold { resource: resource.to_owned() }
    }

    /// Returns the chain of the first span, as lines with each lane and its activity.
    fn chain(spans: Vec<Span>) -> Vec<String> {
        let timeline = Timeline { spans };
        let chain = WaitChains::new(&timeline).chain(&timeline.spans[0]);
        let words = |span: &Span| match &span.activity {
            Activity::Wait { resource, .. } => format!("{} waits for {resource}", span.lane),
            Activity::Hold { resource } => format!("{} has {resource}", span.lane),
            other => format!("{} {other:?}", span.lane),
        };
        chain.into_iter().map(words).collect()
    }

    /// `tests/compat/page` has the same test for the page.
    #[test]
    fn the_cause_is_the_span_that_overlaps_the_wait_longest_and_not_the_first() {
        let lines = chain(vec![
            span("put #44", wait("the applier", "applier"), 10, 50),
            span("applier", Activity::Run, 8, 12),
            span("applier", wait("readTx", "expensive #5"), 12, 49),
            span("applier", Activity::Run, 49, 50),
            span("expensive #5", Activity::Run, 0, 49),
        ]);
        assert_eq!(
            lines,
            ["put #44 waits for the applier", "applier waits for readTx", "expensive #5 Run"]
        );
        // The second holder has the lock for longer than the blocker that the wait names.
        let lines = chain(vec![
            span("put #1", wait("batchTx", "commit"), 10, 50),
            span("commit", hold("batchTx"), 0, 14),
            span("commit", Activity::Disk, 0, 14),
            span("applier", hold("batchTx"), 14, 50),
            span("applier", wait("readTx", "expensive #5"), 15, 49),
            span("cheap #1", hold("readTx"), 0, 16),
            span("expensive #5", hold("readTx"), 1, 49),
            span("expensive #5", Activity::Run, 1, 49),
        ]);
        let rest = ["applier has batchTx", "applier waits for readTx", "expensive #5 has readTx"];
        assert_eq!(lines[1..], rest);
    }

    #[test]
    fn a_queued_blocker_is_a_link_before_the_holder() {
        let lines = chain(vec![
            span("cheap #1", wait("readTx", "applier"), 20, 50),
            span("applier", wait("readTx", "expensive #5"), 10, 50),
            // The expensive read continues to run, but the applier does not wait for that.
            span("expensive #5", hold("readTx"), 0, 49),
            span("expensive #5", Activity::Run, 0, 60),
        ]);
        assert_eq!(lines[1..], ["applier waits for readTx", "expensive #5 has readTx"]);
    }

    #[test]
    fn a_cause_of_almost_nothing_is_none() {
        let of_log = |to| {
            chain(vec![
                span("put #1", wait("the raft", "raft"), 0, 100),
                span("raft", wait("the log", "log"), 0, to),
            ])
        };
        assert_eq!((of_log(9).len(), of_log(10).len()), (1, 2));
    }

    /// `tests/compat/page` has the same test for the page.
    #[test]
    fn no_lane_waits_for_itself() {
        // The applier has the lock when the put starts to wait. It releases the lock to the commit,
        // and then queues for it behind the put.
        let lines = chain(vec![
            span("put #1", wait("batchTx", "applier"), 10, 50),
            span("applier", hold("batchTx"), 5, 11),
            span("applier", wait("batchTx", "put #1"), 11, 60),
            span("commit", hold("batchTx"), 11, 49),
        ]);
        assert_eq!(lines[1..], ["commit has batchTx"]);
        let lines = chain(vec![
            span("put #1", wait("the applier", "applier"), 10, 50),
            span("applier", wait("batchTx", "commit"), 10, 50),
            span("commit", wait("the applier", "applier"), 10, 50),
        ]);
        let rest = ["applier waits for batchTx", "commit waits for the applier"];
        assert_eq!(lines[1..], rest);
    }

    #[test]
    fn a_circle_comes_to_an_end_and_an_unknown_blocker_is_none() {
        let lines = chain(vec![span("a", wait("b", "b"), 0, 10), span("b", wait("a", "a"), 0, 10)]);
        assert_eq!(lines, ["a waits for b", "b waits for a"]);
        let unknown = Activity::Wait { resource: "gone".to_owned(), blocker: None };
        assert_eq!(chain(vec![span("put #1", unknown, 0, 4)]).len(), 1);
        assert_eq!(chain(vec![span("put #1", wait("gone", "gone"), 0, 4)]).len(), 1);
    }

    #[test]
    fn the_window_has_the_longest_wait_of_a_request_with_its_chain() {
        let spans = vec![
            span("applier", wait("raft", "raft"), 0, 900),
            span("put #1", wait("the log", "log"), 100, 110),
            span("put #2", wait("readTx", "expensive #5"), 520, 580),
            span("expensive #5", hold("readTx"), 500, 600),
        ];
        let timeline = Timeline { spans };
        assert_eq!(window_of_longest_wait(&timeline), Some((485, 615)));
        let Timeline { mut spans } = timeline;
        // The hold now starts long before the wait. So the window is cut off at three lengths of
        // the wait before the wait, and the margin is added.
        spans[3] = span("expensive #5", hold("readTx"), 0, 600);
        assert_eq!(window_of_longest_wait(&Timeline { spans }), Some((301, 639)));
        assert_eq!(window_of_longest_wait(&Timeline::default()), None);
    }
}
