//! Where did the time of each class go, and whose fault was it?
//!
//! A span says who stood in front when a wait began. That one may have waited, too, or may have been a worker who
//! was about something else; neither is who is to blame. So a wait is taken apart:
//!
//! * For a lock, at each moment whoever holds it is to blame, and of several the one who came first. In a convoy
//!   a cheap read stands behind a put for 30 ms, and the put behind an expensive read; it is the expensive read
//!   who has the lock. And if the holder waits for somebody itself, that one is.
//! * For a worker, time is spent as the worker spends it: the put that waits for the applier waits for the lock
//!   that the applier waits for.
//!
//! ```text
//!   expensive #7   ‗‗‗‗‗‗‗‗‗‗‗‗‗‗‗‗‗ has readTx
//!   applier            ░░░░░░░░░░░░░██               readTx, behind expensive #7; runs
//!   put #2             ░░░░░░░░░░░░░░░               applier
//!   blame of put       readTx, held by expensive 13; running 2
//! ```
//!
//! What is left, because the timeline does not have it, is put down to whoever stood in front.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use crate::{Kind, Span, Timeline, What, class};

/// Those who wait for those who wait: no more of them are followed.
const DEPTH_MAX: usize = 8;

/// What time was spent on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// It ran, or somebody did its work.
    Run,
    /// All cores were busy.
    Core,
    /// A disk.
    Disk,
    /// A message was on its way.
    Network,
    /// It waited for somebody.
    Wait {
        /// For which lock, or whose work.
        of: String,
        /// The class of whoever had it, if that is known.
        by: Option<String>,
    },
}

/// Where the time of a class went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blame {
    /// Which class: `put`.
    pub class: String,
    /// Whether these are requests.
    pub kind: Kind,
    /// So many of it.
    pub lanes: usize,
    /// All their time together.
    pub total_ns: u64,
    /// What it was spent on, most of it first.
    pub causes: Vec<(Cause, u64)>,
}

/// The blame of each class, in the order of their first spans.
pub fn of(timeline: &Timeline) -> Vec<Blame> {
    let parties = Parties::new(timeline);
    let mut blames: Vec<Blame> = Vec::new();
    let mut places = HashMap::<&str, usize>::new();
    for (lane, kind) in timeline.lanes() {
        let class = class(lane);
        let place = *places.entry(class).or_insert(blames.len());
        if place == blames.len() {
            let (class, causes) = (class.to_owned(), Vec::new());
            blames.push(Blame { class, kind, lanes: 0, total_ns: 0, causes });
        }
        blames[place].lanes += 1;
    }
    let mut sums = vec![BTreeMap::<Cause, u64>::new(); blames.len()];
    for span in &timeline.spans {
        let sums = &mut sums[places[class(&span.lane)]];
        parties.spend(span, (span.from_ns, span.to_ns), DEPTH_MAX, &mut |cause, ns| {
            *sums.entry(cause).or_default() += ns;
        });
    }
    for (blame, sums) in blames.iter_mut().zip(sums) {
        blame.total_ns = sums.values().sum();
        blame.causes = sums.into_iter().filter(|(_, ns)| *ns > 0).collect();
        blame.causes.sort_by_key(|(_, ns)| Reverse(*ns));
    }
    // Who has locks and does nothing that was recorded has no time of its own.
    blames.retain(|blame| blame.total_ns > 0);
    blames
}

/// Who could be to blame.
struct Parties<'a> {
    lanes: HashMap<&'a str, Row<'a>>,
    locks: HashMap<&'a str, Row<'a>>,
}

/// Spans by their beginnings.
#[derive(Default)]
struct Row<'a> {
    spans: Vec<&'a Span>,
    /// Up to each of them, the latest end.
    reached_ns: Vec<u64>,
}

impl<'a> Parties<'a> {
    fn new(timeline: &'a Timeline) -> Parties<'a> {
        let (mut lanes, mut locks) = (HashMap::<_, Row<'_>>::new(), HashMap::<_, Row<'_>>::new());
        for span in &timeline.spans {
            let row = match &span.what {
                What::Hold { of } => locks.entry(of.as_str()),
                _ => lanes.entry(span.lane.as_str()),
            };
            row.or_default().spans.push(span);
        }
        lanes.values_mut().chain(locks.values_mut()).for_each(Row::sort);
        Parties { lanes, locks }
    }

    /// Says what a piece of a span was spent on.
    fn spend(
        &self,
        span: &Span,
        (from_ns, to_ns): (u64, u64),
        depth: usize,
        say: &mut dyn FnMut(Cause, u64),
    ) {
        let (of, behind) = match &span.what {
            What::Run => return say(Cause::Run, to_ns - from_ns),
            What::Core => return say(Cause::Core, to_ns - from_ns),
            What::Disk => return say(Cause::Disk, to_ns - from_ns),
            What::Network => return say(Cause::Network, to_ns - from_ns),
            What::Hold { .. } => return,
            What::Wait { of, behind } => (of, behind.as_deref()),
        };
        let waits = |by: Option<&str>| Cause::Wait {
            of: of.clone(),
            by: by.map(|lane| class(lane).to_owned()),
        };
        let mut known_ns = from_ns;
        let (row, is_lock) = match self.locks.get(of.as_str()) {
            Some(row) => (Some(row), true),
            None => (behind.and_then(|front| self.lanes.get(front)), false),
        };
        for other in row.into_iter().flat_map(|row| row.within(from_ns, to_ns)) {
            let (begin_ns, end_ns) = (other.from_ns.max(known_ns), other.to_ns.min(to_ns));
            if other.lane == span.lane || begin_ns >= end_ns {
                continue;
            }
            if known_ns < begin_ns {
                say(waits(behind), begin_ns - known_ns);
            }
            match (is_lock, depth.checked_sub(1)) {
                (true, Some(depth)) => {
                    let held = waits(Some(&other.lane));
                    self.spend_inside(other, (begin_ns, end_ns), depth, say, &held);
                }
                (true, None) => say(waits(Some(&other.lane)), end_ns - begin_ns),
                (false, Some(depth)) => self.spend(other, (begin_ns, end_ns), depth, say),
                (false, None) => say(waits(behind), end_ns - begin_ns),
            }
            known_ns = end_ns;
        }
        if known_ns < to_ns {
            say(waits(behind), to_ns - known_ns);
        }
    }
}

impl Parties<'_> {
    /// Says what a piece of a hold was spent on for those who wait: for what the holder waits, or for him.
    fn spend_inside(
        &self,
        hold: &Span,
        (from_ns, to_ns): (u64, u64),
        depth: usize,
        say: &mut dyn FnMut(Cause, u64),
        held: &Cause,
    ) {
        let mut known_ns = from_ns;
        let row = self.lanes.get(hold.lane.as_str());
        for other in row.into_iter().flat_map(|row| row.within(from_ns, to_ns)) {
            let (begin_ns, end_ns) = (other.from_ns.max(known_ns), other.to_ns.min(to_ns));
            if !matches!(other.what, What::Wait { .. }) || begin_ns >= end_ns {
                continue;
            }
            if known_ns < begin_ns {
                say(held.clone(), begin_ns - known_ns);
            }
            self.spend(other, (begin_ns, end_ns), depth, say);
            known_ns = end_ns;
        }
        if known_ns < to_ns {
            say(held.clone(), to_ns - known_ns);
        }
    }
}

impl<'a> Row<'a> {
    fn sort(&mut self) {
        self.spans.sort_by_key(|span| span.from_ns);
        let mut reached_ns = 0;
        for span in &self.spans {
            reached_ns = span.to_ns.max(reached_ns);
            self.reached_ns.push(reached_ns);
        }
    }

    /// Those of which something lies in between.
    fn within(&self, from_ns: u64, to_ns: u64) -> impl Iterator<Item = &'a Span> {
        let first = self.reached_ns.partition_point(|reached_ns| *reached_ns <= from_ns);
        let spans = self.spans[first..].iter().take_while(move |span| span.from_ns < to_ns);
        spans.copied().filter(move |span| span.to_ns > from_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(lane: &str, kind: Kind, what: What, from_ns: u64, to_ns: u64) -> Span {
        Span { lane: lane.to_owned(), kind, what, from_ns, to_ns }
    }

    fn wait(of: &str, behind: &str) -> What {
        What::Wait { of: of.to_owned(), behind: Some(behind.to_owned()) }
    }

    fn told(timeline: &Timeline) -> Vec<String> {
        let word = |cause: &Cause| match cause {
            Cause::Wait { of, by } => format!("{of} by {}", by.as_deref().unwrap_or("?")),
            other => format!("{other:?}"),
        };
        let blames =
            of(timeline).into_iter().map(|Blame { class, lanes, total_ns, causes, .. }| {
                let causes: Vec<_> =
                    causes.iter().map(|(cause, ns)| format!("{} {ns}", word(cause))).collect();
                format!("{class} x{lanes} {total_ns}: {}", causes.join(", "))
            });
        blames.collect()
    }

    /// The convoy: a cheap read behind a put, the put by way of the applier behind an expensive read.
    #[test]
    fn who_has_the_lock_is_to_blame() {
        let hold = || What::Hold { of: "readTx".to_owned() };
        let spans = vec![
            span("expensive #1", Kind::Read, What::Run, 0, 100),
            span("expensive #1", Kind::Read, hold(), 0, 100),
            span("applier", Kind::Work, wait("readTx", "expensive #1"), 10, 100),
            span("applier", Kind::Work, hold(), 100, 102),
            span("applier", Kind::Work, What::Run, 100, 102),
            span("put #1", Kind::Write, What::Disk, 0, 5),
            span("put #1", Kind::Write, wait("applier", "applier"), 5, 102),
            span("cheap #1", Kind::Read, wait("readTx", "applier"), 50, 102),
            span("cheap #1", Kind::Read, What::Run, 102, 103),
            span("cheap #2", Kind::Read, wait("readTx", "applier"), 60, 102),
        ];
        let told = told(&Timeline { spans });
        assert_eq!(
            told,
            [
                "expensive x1 100: Run 100",
                "put x1 102: readTx by expensive 90, Disk 5, applier by applier 5, Run 2",
                "applier x1 92: readTx by expensive 90, Run 2",
                "cheap x2 95: readTx by expensive 90, readTx by applier 4, Run 1",
            ]
        );
    }

    #[test]
    fn who_holds_and_waits_is_not_to_blame() {
        let hold = |lock: &str| What::Hold { of: lock.to_owned() };
        let spans = vec![
            span("list #1", Kind::Read, hold("readTx"), 0, 50),
            span("list #1", Kind::Read, What::Run, 0, 50),
            span("commit", Kind::Work, hold("batchTx"), 10, 60),
            span("commit", Kind::Work, wait("readTx", "list #1"), 12, 50),
            span("put #1", Kind::Write, wait("batchTx", "commit"), 11, 60),
        ];
        let told = told(&Timeline { spans });
        assert_eq!(told[2], "put x1 49: readTx by list 38, batchTx by commit 11");
    }

    #[test]
    fn who_waits_for_himself_comes_to_an_end() {
        let spans = vec![
            span("a", Kind::Work, wait("b", "b"), 0, 10),
            span("b", Kind::Work, wait("a", "a"), 0, 10),
            span("put #1", Kind::Write, What::Wait { of: "gone".to_owned(), behind: None }, 0, 4),
        ];
        let told = told(&Timeline { spans });
        assert_eq!(told, ["a x1 10: b by b 10", "b x1 10: a by a 10", "put x1 4: gone by ? 4"]);
    }
}
