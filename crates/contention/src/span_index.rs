//! An index of a timeline: the spans of each lane, and the holds of each lock.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::timeline::{Activity, Span, Timeline};

/// The start and end of an interval, in nanoseconds.
pub(crate) type Interval = (u64, u64);

#[derive(Debug)]
pub(crate) struct SpanIndex<'a> {
    /// The spans of each lane, except its holds.
    pub(crate) lanes: HashMap<&'a str, SpanRow<'a>>,
    /// The holds of each lock, by all lanes.
    pub(crate) locks: HashMap<&'a str, SpanRow<'a>>,
}

/// Spans in order of their starts.
#[derive(Debug, Default)]
pub(crate) struct SpanRow<'a> {
    spans: Vec<&'a Span>,
    /// For each span, the latest end among this span and all spans before it.
    latest_end_ns: Vec<u64>,
}

impl<'a> SpanIndex<'a> {
    pub(crate) fn new(timeline: &'a Timeline) -> SpanIndex<'a> {
        let (mut lanes, mut locks) =
            (HashMap::<_, SpanRow<'_>>::new(), HashMap::<_, SpanRow<'_>>::new());
        for span in &timeline.spans {
            let row = match &span.activity {
                Activity::Hold { resource: of } => locks.entry(of.as_str()),
                _ => lanes.entry(span.lane.as_str()),
            };
            row.or_default().spans.push(span);
        }
        lanes.values_mut().chain(locks.values_mut()).for_each(SpanRow::sort);
        SpanIndex { lanes, locks }
    }
}

impl<'a> SpanRow<'a> {
    fn sort(&mut self) {
        self.spans.sort_by_key(|span| span.from_ns);
        let mut reached_ns = 0;
        for span in &self.spans {
            reached_ns = span.to_ns.max(reached_ns);
            self.latest_end_ns.push(reached_ns);
        }
    }

    /// Returns the spans that overlap an interval, in order of their starts.
    pub(crate) fn overlapping(&self, (from_ns, to_ns): Interval) -> impl Iterator<Item = &'a Span> {
        let first = self.latest_end_ns.partition_point(|reached_ns| *reached_ns <= from_ns);
        let spans = self.spans[first..].iter().take_while(move |span| span.from_ns < to_ns);
        spans.copied().filter(move |span| span.to_ns > from_ns)
    }

    /// Cuts an interval into pieces, and returns each piece with its span, in order of time.
    ///
    /// A span is considered only if `counts` returns true for it. The span of a piece covers the
    /// whole piece. If several spans cover the piece, its span is the span that has the longest
    /// overlap with the whole interval. If no span covers the piece, its span is `None`.
    pub(crate) fn pieces(
        row: Option<&SpanRow<'a>>,
        (from_ns, to_ns): Interval,
        counts: impl Fn(&Span) -> bool,
    ) -> Vec<(Option<&'a Span>, Interval)> {
        let counted = row.into_iter().flat_map(|row| row.overlapping((from_ns, to_ns)));
        let counted: Vec<&Span> = counted.filter(|span| counts(span)).collect();
        let mut next = 0;
        // The spans that have started, each with its index in `counted`. The span with the longest
        // overlap with the whole interval is first. If two overlaps are equal, the earlier span is
        // first. A span that has ended is removed when it becomes the first.
        let mut present = BinaryHeap::<(u64, Reverse<usize>)>::new();
        let mut pieces: Vec<(Option<&Span>, Interval)> = Vec::new();
        let mut at_ns = from_ns;
        while at_ns < to_ns {
            while let Some(span) = counted.get(next).filter(|span| span.from_ns <= at_ns) {
                present.push((span.overlap_ns((from_ns, to_ns)), Reverse(next)));
                next += 1;
            }
            while present.peek().is_some_and(|(_, place)| counted[place.0].to_ns <= at_ns) {
                present.pop();
            }
            let next_ns = counted.get(next).map_or(to_ns, |span| span.from_ns);
            let longest = present.peek().map(|(_, place)| counted[place.0]);
            let end_ns = longest.map_or(to_ns, |span| span.to_ns).min(next_ns).min(to_ns);
            match pieces.last_mut() {
                Some((last, interval)) if is_same(*last, longest) => interval.1 = end_ns,
                _ => pieces.push((longest, (at_ns, end_ns))),
            }
            at_ns = end_ns;
        }
        pieces
    }
}

fn is_same(one: Option<&Span>, other: Option<&Span>) -> bool {
    one.map(std::ptr::from_ref) == other.map(std::ptr::from_ref)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::LaneKind;

    fn hold(lane: &str, from_ns: u64, to_ns: u64) -> Span {
        let activity = Activity::Hold { resource: "readTx".to_owned() };
        Span { lane: lane.to_owned(), kind: LaneKind::Read, activity, from_ns, to_ns }
    }

    fn pieces(holds: &[(&str, u64, u64)], interval: Interval) -> Vec<(String, Interval)> {
        let spans = holds.iter().map(|(lane, from_ns, to_ns)| hold(lane, *from_ns, *to_ns));
        let timeline = Timeline { spans: spans.collect() };
        let index = SpanIndex::new(&timeline);
        let pieces = SpanRow::pieces(index.locks.get("readTx"), interval, |span| span.lane != "no");
        let name = |span: Option<&Span>| span.map_or("-", |span| span.lane.as_str()).to_owned();
        pieces.into_iter().map(|(span, interval)| (name(span), interval)).collect()
    }

    fn piece(lane: &str, from_ns: u64, to_ns: u64) -> (String, Interval) {
        (lane.to_owned(), (from_ns, to_ns))
    }

    #[test]
    fn a_piece_is_of_the_span_that_overlaps_the_whole_longest() {
        let holds = [("short", 0, 20), ("long", 12, 90), ("no", 0, 100), ("last", 80, 120)];
        assert_eq!(
            pieces(&holds, (10, 100)),
            [piece("short", 10, 12), piece("long", 12, 90), piece("last", 90, 100)]
        );
        assert_eq!(pieces(&[("a", 5, 9), ("b", 5, 9)], (0, 10))[1], piece("a", 5, 9));
    }

    #[test]
    fn a_piece_may_have_no_span() {
        assert_eq!(
            pieces(&[("a", 5, 7), ("b", 9, 30)], (0, 12)),
            [piece("-", 0, 5), piece("a", 5, 7), piece("-", 7, 9), piece("b", 9, 12)]
        );
        assert_eq!(pieces(&[("b", 20, 30)], (0, 12)), [piece("-", 0, 12)]);
        assert_eq!(pieces(&[], (3, 3)), []);
    }
}
