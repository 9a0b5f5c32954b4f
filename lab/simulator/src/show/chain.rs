//! The chain of waits as a picture. Each request has a bar. An arrow leads from a waiting request
//! to the request that it waits for. The picture is for readers who know neither the threads nor
//! the locks.
//!
//! ```text
//!   expensive read #5  ██ has the lock readTx for 35 ms ██
//!   put #44                ░░ waits 30 ms: expensive read #5 has the lock readTx ░░
//!   put #45                    ░░ waits 15 ms: put #44 comes first ░░
//! ```
//!
//! Workers have no bar. A request that waits for a worker is shown as waiting for the write that
//! reached the worker before it. If there is no such write, the request is shown as waiting for the
//! next request in the [chain of its causes](clearlane_contention::wait_chain).

use std::cmp::Reverse;
use std::fmt::Write as _;

use clearlane_contention::wait_chain::WaitChains;

use super::{Recording, Scale, about_all, bounds_of, escaped};
use crate::timeline::{Activity, LaneKind, Span, Timeline, lane_class};

const WIDTH: f64 = 800.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 15.0;
const ROW: f64 = 28.0;
const BAR: f64 = 18.0;
const TITLE: f64 = 56.0;
const HEADING: f64 = 28.0;
const GAP: f64 = 12.0;
/// The average width of a letter.
const LETTER: f64 = 6.1;
/// Maximum number of requests. The others are omitted.
const LANES_MAX: usize = 10;
/// Waits that are shorter than this share of the picture's whole time are omitted.
const LEAST: f64 = 0.02;
const RED: &str = "#a3281f";
const PINK: &str = "#fbe6e3";
const GREY: &str = "#666";

/// The reason why a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason<'a> {
    HasLock(&'a str),
    /// The other request waits for the same lock.
    IsQueued(&'a str),
    ComesFirst,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cause<'a> {
    lane: &'a str,
    reason: Reason<'a>,
}

/// Draws the recordings one below the other, with titles. Every picture shows the requests that the
/// picture of the first recording shows.
pub fn draw(recordings: &[Recording]) -> String {
    let bounds = bounds_of(recordings);
    let from_ns = bounds.iter().map(|(from_ns, _)| *from_ns).min().unwrap_or(0);
    let to_ns = bounds.iter().map(|(_, to_ns)| *to_ns).max().unwrap_or(0).max(from_ns + 1);
    let first = recordings.first().map(|first| Chains::new(&first.timeline));
    let lanes = first.as_ref().map_or(Vec::new(), Chains::lanes);
    let section_height = HEADING + ROW * lanes.len() as f64 + GAP;
    let foot = TITLE + section_height * recordings.len() as f64;
    let (whole_ns, width) = ((to_ns - from_ns) as f64, WIDTH - LEFT - RIGHT);
    let scale = Scale { from_ns, whole_ns, left: LEFT, width };
    let height = foot + 48.0;
    let mut picture = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' \
         font-family='sans-serif' font-size='12' fill='#222'>\n\
         <defs><marker id='head' markerWidth='8' markerHeight='8' refX='6' refY='3' orient='auto'>\
         <path d='M0,0 L6,3 L0,6 z' fill='{RED}'/></marker></defs>\n\
         <rect width='100%' height='100%' fill='#fff'/>\n\
         <text x='12' y='26' font-size='17' font-weight='bold'>\
         Which request waits for which</text>\n\
         <text x='12' y='44' fill='{GREY}'>{}</text>\n",
        escaped(&about_all(recordings)),
    );
    scale.axis(&mut picture, TITLE, foot);
    for (index, recording) in recordings.iter().enumerate() {
        let top = TITLE + section_height * index as f64;
        section(&mut picture, recording, &lanes, top, scale);
    }
    legend(&mut picture, foot + 40.0);
    picture + "</svg>\n"
}

impl Scale {
    /// Returns whether a wait is long enough to be shown.
    fn shows(self, ns: u64) -> bool {
        ns as f64 >= LEAST * self.whole_ns
    }

    /// Draws a line for each round number of milliseconds, and the numbers below.
    fn axis(self, picture: &mut String, top: f64, bottom: f64) {
        let whole_ms = self.whole_ns / 1e6;
        let decade = 10_f64.powf((whole_ms / 4.0).log10().floor());
        let steps = [1.0, 2.0, 5.0].map(|step| step * decade);
        let step = steps.into_iter().rfind(|step| *step <= whole_ms / 4.0).unwrap_or(decade);
        for index in 0..=(whole_ms / step) as u64 {
            let ms = index as f64 * step;
            let x = self.x(self.from_ns + (ms * 1e6) as u64);
            let _ = writeln!(
                picture,
                "<line x1='{x:.1}' x2='{x:.1}' y1='{top}' y2='{bottom}' stroke='#e6e6e6'/>\
                 <text x='{x:.1}' y='{:.1}' text-anchor='middle' fill='{GREY}'>{ms} ms</text>",
                bottom + 14.0
            );
        }
    }
}

fn section(
    picture: &mut String,
    recording: &Recording,
    lanes: &[(&str, LaneKind)],
    top: f64,
    scale: Scale,
) {
    let chains = Chains::new(&recording.timeline);
    let row_of = |lane: &str| lanes.iter().position(|(other, _)| *other == lane);
    let y_of = |row: usize| top + HEADING + ROW * row as f64;
    let mut arrows = String::new();
    let (mut waiting, mut waited_ns) = (0, 0);
    let mut rows = String::new();
    let waits = lanes.iter().map(|(lane, _)| {
        let waits = chains.waits_of(lane).filter(|(wait, _)| scale.shows(wait.length_ns()));
        waits.collect::<Vec<(&Span, Cause<'_>)>>()
    });
    let waits: Vec<Vec<_>> = waits.collect();
    for (row, (lane, kind)) in lanes.iter().enumerate() {
        let crossing = crossing_arrows(row, &waits, &row_of, scale);
        let waits = &waits[row];
        waiting += usize::from(!waits.is_empty());
        lane_row(&mut rows, &chains, (lane, *kind), waits, (y_of(row), &crossing), scale);
        for (wait, cause) in waits {
            waited_ns += wait.length_ns();
            let Some(holder) = row_of(cause.lane) else { continue };
            let x = scale.x(wait.from_ns);
            let (begin, end) = match holder < row {
                true => (y_of(row), y_of(holder) + BAR + 3.0),
                false => (y_of(row) + BAR, y_of(holder) - 3.0),
            };
            let _ = writeln!(
                arrows,
                "<line x1='{x:.1}' x2='{x:.1}' y1='{begin:.1}' y2='{end:.1}' stroke='{RED}' \
                 stroke-width='1.5' marker-end='url(#head)'/>",
            );
        }
    }
    let sentence = match waiting {
        0 => "no request waits for another".to_owned(),
        1 => format!("1 request waits for another, {}", time(waited_ns)),
        _ => format!("{waiting} requests wait for others, {} in all", time(waited_ns)),
    };
    let count = chains.requests().len();
    let rest = match count > lanes.len() {
        true => format!(" ({} of {count} requests are shown)", lanes.len()),
        false => String::new(),
    };
    let mut left = 12.0;
    if let Some((light, _)) = recording.colours() {
        let y = top + 6.0;
        let _ = writeln!(picture, "<rect x='12' y='{y:.1}' width='5' height='15' fill='{light}'/>");
        left += 11.0;
    }
    let _ = writeln!(
        picture,
        "<text x='{left}' y='{:.1}' font-size='14'>\
         <tspan font-weight='bold'>{}</tspan>: {sentence}{rest}</text>",
        top + 18.0,
        escaped(&recording.title()),
    );
    picture.push_str(&rows);
    picture.push_str(&arrows);
}

/// Returns the positions of the arrows that cross a row. `waits` has the waits of each row.
fn crossing_arrows(
    row: usize,
    waits: &[Vec<(&Span, Cause<'_>)>],
    row_of: &dyn Fn(&str) -> Option<usize>,
    scale: Scale,
) -> Vec<f64> {
    let arrows = waits.iter().enumerate().flat_map(|(from, waits)| {
        let arrow = move |(wait, cause): &(&Span, Cause<'_>)| {
            let to = row_of(cause.lane)?;
            let is_crossing = (from.min(to) + 1..from.max(to)).contains(&row);
            is_crossing.then(|| scale.x(wait.from_ns))
        };
        waits.iter().filter_map(arrow)
    });
    arrows.collect()
}

/// Draws the row of a request. `crossing` has the positions of the arrows that cross the row.
fn lane_row(
    picture: &mut String,
    chains: &Chains<'_>,
    (lane, kind): (&str, LaneKind),
    waits: &[(&Span, Cause<'_>)],
    (top, crossing): (f64, &[f64]),
    scale: Scale,
) {
    let middle = top + BAR / 2.0 + 4.0;
    let name = escaped(&label(lane, kind));
    let _ = writeln!(picture, "<text x='12' y='{middle:.1}'>{name}</text>");
    let Some((from_ns, to_ns)) = chains.bounds(lane) else { return };
    let mut bar = |from_ns, to_ns, fill: &str, stroke: &str| {
        let (left, right) = (scale.x(from_ns), scale.x(to_ns));
        let _ = writeln!(
            picture,
            "<rect x='{left:.1}' y='{top:.1}' width='{:.1}' height='{BAR}' fill='{fill}' \
             stroke='{stroke}'/>",
            (right - left).max(1.5),
        );
    };
    bar(from_ns, to_ns, super::colour(kind), "none");
    for (wait, _) in waits {
        bar(wait.from_ns, wait.to_ns, PINK, RED);
    }
    for (wait, cause) in waits {
        let waited = time(wait.length_ns());
        let holder = label(cause.lane, chains.kind(cause.lane));
        let reason = match (cause.reason, kind) {
            (Reason::HasLock(lock), _) => format!("{holder} has the lock {lock}"),
            (Reason::IsQueued(lock), _) => format!("{holder} waits for the lock {lock} before it"),
            (Reason::ComesFirst, LaneKind::Read) => format!("it must see {holder}"),
            (Reason::ComesFirst, _) => format!("{holder} comes first"),
        };
        let words = format!("waits {waited}: {reason}");
        let (left, right) = (scale.x(wait.from_ns), scale.x(wait.to_ns));
        match width_of(&words) <= right - left {
            true => {
                let x = free_start((left + 8.0, right), width_of(&words), crossing);
                words_at(picture, &words, (x, middle), "start", RED);
            }
            // The words are to the left of the request's bar, where nothing else is drawn.
            false => words_at(picture, &words, (scale.x(from_ns) - 6.0, middle), "end", RED),
        }
    }
    if waits.is_empty() {
        let (left, right) = (scale.x(from_ns), scale.x(to_ns));
        let words = match chains.blocking_hold(lane) {
            Some((lock, ns)) => format!("has the lock {lock} for {}", time(ns)),
            None if chains.has_lock(lane) => String::new(),
            None => "takes no lock".to_owned(),
        };
        if width_of(&words) <= right - left {
            words_at(picture, &words, (left + 8.0, middle), "start", "#fff");
        }
        let total = time(to_ns - from_ns);
        if right + width_of(&total) <= WIDTH {
            words_at(picture, &total, (right + 6.0, middle), "start", GREY);
        }
    }
}

/// Returns the position of words of this width, so that no arrow crosses them. Returns `start` if
/// there is no such position before `end`.
fn free_start((start, end): (f64, f64), width: f64, crossing: &[f64]) -> f64 {
    let is_free = |x: f64| !crossing.iter().any(|arrow| (x - 4.0..x + width).contains(arrow));
    let mut starts: Vec<f64> = crossing.iter().map(|arrow| arrow + 6.0).collect();
    starts.retain(|x| *x > start && x + width <= end);
    starts.sort_by(f64::total_cmp);
    [start].into_iter().chain(starts).find(|x| is_free(*x)).unwrap_or(start)
}

/// Returns the width of the words, with a margin.
fn width_of(words: &str) -> f64 {
    LETTER * words.chars().count() as f64 + 12.0
}

fn words_at(picture: &mut String, words: &str, (x, y): (f64, f64), anchor: &str, colour: &str) {
    let words = escaped(words);
    let _ = writeln!(
        picture,
        "<text x='{x:.1}' y='{y:.1}' text-anchor='{anchor}' fill='{colour}'>{words}</text>",
    );
}

fn legend(picture: &mut String, y: f64) {
    let entries = [
        (super::colour(LaneKind::Read), "none", "a read runs", 120.0),
        (
            super::colour(LaneKind::Write),
            "none",
            "a write runs, or is on its way to the disk",
            290.0,
        ),
        (PINK, RED, "it waits for the request to which the arrow leads", 0.0),
    ];
    let mut x = 12.0;
    for (fill, stroke, words, room) in entries {
        let _ = writeln!(
            picture,
            "<rect x='{x}' y='{:.1}' width='16' height='11' fill='{fill}' stroke='{stroke}'/>\
             <text x='{:.1}' y='{y:.1}' fill='{GREY}'>{words}</text>",
            y - 10.0,
            x + 22.0,
        );
        x += room;
    }
}

/// Returns the name of a request, such as `cheap read #7` for lane `cheap #7`.
fn label(lane: &str, kind: LaneKind) -> String {
    let class = lane_class(lane);
    let word = match kind {
        LaneKind::Read if !["read", "range", "get"].iter().any(|word| class.contains(word)) => {
            " read"
        }
        _ => "",
    };
    format!("{class}{word}{}", &lane[class.len()..])
}

fn time(ns: u64) -> String {
    let ms = ns as f64 / 1e6;
    if ms < 9.95 { format!("{ms:.1} ms") } else { format!("{ms:.0} ms") }
}

struct Chains<'a> {
    timeline: &'a Timeline,
    causes: WaitChains<'a>,
}

impl<'a> Chains<'a> {
    fn new(timeline: &'a Timeline) -> Chains<'a> {
        Chains { timeline, causes: WaitChains::new(timeline) }
    }

    fn kind(&self, lane: &str) -> LaneKind {
        let span = self.timeline.spans.iter().find(|span| span.lane == lane);
        span.map_or(LaneKind::Work, |span| span.kind)
    }

    fn is_request(&self, lane: &str) -> bool {
        self.kind(lane) != LaneKind::Work
    }

    fn spans_of(&self, lane: &str) -> impl Iterator<Item = &'a Span> {
        self.timeline.spans.iter().filter(move |span| span.lane == lane)
    }

    fn requests(&self) -> Vec<(&'a str, LaneKind)> {
        let lanes = self.timeline.lanes().into_iter();
        lanes.filter(|(_, kind)| *kind != LaneKind::Work).collect()
    }

    /// Returns the requests that are shown. First come the requests whose blocking hold is longer
    /// than their own waits. Then come the other writes, and then the other reads.
    fn lanes(&self) -> Vec<(&'a str, LaneKind)> {
        let requests = self.requests().into_iter().enumerate();
        let measured = requests.map(|(place, (lane, kind))| {
            let held_ns = self.blocking_hold(lane).map_or(0, |(_, ns)| ns);
            let waited_ns: u64 = self.waits_of(lane).map(|(wait, _)| wait.length_ns()).sum();
            (place, lane, kind, held_ns, waited_ns)
        });
        let mut lanes: Vec<_> = measured.collect();
        // If there are too many requests, the picture shows the requests with the longest waits or
        // blocking holds.
        lanes.sort_by_key(|(.., held_ns, waited_ns)| Reverse(*held_ns.max(waited_ns)));
        lanes.truncate(LANES_MAX);
        lanes.sort_by_key(|(place, _, kind, held_ns, waited_ns)| match kind {
            _ if held_ns > waited_ns => (0, *place),
            LaneKind::Write => (1, *place),
            _ => (2, *place),
        });
        lanes.into_iter().map(|(_, lane, kind, ..)| (lane, kind)).collect()
    }

    /// Returns the start of the first span of a request, and the end of the last one.
    fn bounds(&self, lane: &str) -> Option<(u64, u64)> {
        let from_ns = self.spans_of(lane).map(|span| span.from_ns).min()?;
        Some((from_ns, self.spans_of(lane).map(|span| span.to_ns).max()?))
    }

    /// Returns the waits of a request for other requests.
    fn waits_of(&self, lane: &str) -> impl Iterator<Item = (&'a Span, Cause<'a>)> {
        self.spans_of(lane).filter_map(|span| Some((span, self.cause(span, lane)?)))
    }

    /// Returns the request that `waiter` waits for in this span, or `None` if it waits for no other
    /// request.
    fn cause(&self, wait: &'a Span, waiter: &str) -> Option<Cause<'a>> {
        let chain = self.causes.chain(wait);
        let mut wanted = None;
        for (place, link) in chain.iter().enumerate() {
            if let Activity::Wait { resource, blocker } = &link.activity {
                wanted = Some((resource.as_str(), blocker.as_deref()));
            }
            let (resource, blocker) = wanted?;
            let worker = blocker.filter(|blocker| super::waits(link) && !self.is_request(blocker));
            if let Some(first) = worker.and_then(|worker| self.came_before(link, worker, waiter)) {
                return Some(Cause { lane: first, reason: Reason::ComesFirst });
            }
            let Some(next) = chain.get(place + 1) else {
                // The chain ends with a wait, and its blocker has no recorded span at that time.
                let blocker = blocker.filter(|_| super::waits(link));
                let request = blocker.filter(|it| *it != waiter && self.is_request(it))?;
                return Some(Cause { lane: request, reason: Reason::HasLock(resource) });
            };
            if next.lane != waiter && self.is_request(&next.lane) {
                let is_queued = matches!(
                    &next.activity, Activity::Wait { resource: same, .. } if same == resource
                );
                let reason = match is_queued {
                    true => Reason::IsQueued(resource),
                    false => Reason::HasLock(resource),
                };
                return Some(Cause { lane: &next.lane, reason });
            }
        }
        None
    }

    /// Returns the write that is before `wait` in the queue of `worker`: the last write that
    /// already waited for the worker when `wait` started.
    fn came_before(&self, wait: &Span, worker: &str, waiter: &str) -> Option<&'a str> {
        let is_before = |other: &&Span| {
            let is_queued = matches!(
                &other.activity, Activity::Wait { blocker: Some(its), .. } if its == worker
            );
            let is_there = other.from_ns <= wait.from_ns && other.to_ns > wait.from_ns;
            is_queued && is_there && other.kind == LaneKind::Write && other.lane != waiter
        };
        let before = self.timeline.spans.iter().filter(is_before);
        before.max_by_key(|other| other.from_ns).map(|other| other.lane.as_str())
    }

    fn has_lock(&self, lane: &str) -> bool {
        self.spans_of(lane).any(|span| matches!(span.activity, Activity::Hold { .. }))
    }

    /// Returns a lock for which another task's wait names this request as the blocker, and the
    /// longest time for which the request holds it. If there are several such locks, returns the
    /// lock with the longest hold. Returns `None` if there is none.
    fn blocking_hold(&self, lane: &str) -> Option<(&'a str, u64)> {
        let is_wanted = |lock: &str| {
            self.timeline.spans.iter().any(|span| {
                matches!(
                    &span.activity,
                    Activity::Wait { resource, blocker: Some(holder) }
                        if resource == lock && holder == lane
                )
            })
        };
        let holds = self.spans_of(lane).filter_map(|span| match &span.activity {
            Activity::Hold { resource } if is_wanted(resource) => {
                Some((resource.as_str(), span.length_ns()))
            }
            _ => None,
        });
        holds.max_by_key(|(_, ns)| *ns)
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::{hold, span, wait};
    use super::*;

    /// The applier waits for a read, and puts wait for the applier. Another read waits for a worker
    /// that waits for the applier.
    fn convoy() -> Timeline {
        let spans = vec![
            span("expensive #1", hold("readTx"), 0, 90_000_000),
            span("expensive #1", Activity::Run, 0, 100_000_000),
            span("put #1", wait("the log", "log"), 5_000_000, 10_000_000),
            span("log", Activity::Disk, 5_000_000, 10_000_000),
            span("put #1", wait("the applier", "applier"), 10_000_000, 90_000_000),
            span("applier", wait("readTx", "expensive #1"), 10_000_000, 90_000_000),
            span("cheap #1", wait("a round of reads", "reads"), 20_000_000, 90_000_000),
            span("reads", wait("the applier", "applier"), 20_000_000, 90_000_000),
            span("put #2", wait("the applier", "applier"), 30_000_000, 91_000_000),
        ];
        Timeline { spans }
    }

    #[test]
    fn a_wait_for_a_worker_is_for_what_the_worker_waits_for_or_does_first() {
        let timeline = convoy();
        let chains = Chains::new(&timeline);
        let causes = |lane| chains.waits_of(lane).map(|(_, cause)| cause).collect::<Vec<_>>();
        let behind = |lane| Cause { lane, reason: Reason::ComesFirst };
        let of_lock = Cause { lane: "expensive #1", reason: Reason::HasLock("readTx") };
        assert_eq!(causes("put #1"), [of_lock], "and not the disk");
        assert_eq!(causes("put #2"), [behind("put #1")]);
        assert_eq!(causes("cheap #1"), [behind("put #1")]);
        assert_eq!(causes("expensive #1"), []);
        let lanes: Vec<_> = chains.lanes().into_iter().map(|(lane, _)| lane).collect();
        assert_eq!(lanes, ["expensive #1", "put #1", "put #2", "cheap #1"]);
    }

    #[test]
    fn of_many_requests_those_that_waited_longest_are_shown() {
        let mut timeline = convoy();
        let early = |number| span(&format!("cheap #{number}"), Activity::Run, 0, number);
        timeline.spans.splice(0..0, (10..30).map(early));
        let chains = Chains::new(&timeline);
        let lanes: Vec<_> = chains.lanes().into_iter().map(|(lane, _)| lane).collect();
        assert_eq!(lanes.len(), LANES_MAX);
        assert_eq!(lanes[..3], ["expensive #1", "put #1", "put #2"]);
        assert!(lanes.contains(&"cheap #1"));
        let picture = draw(&[Recording { timeline, ..Recording::default() }]);
        assert!(picture.contains("in all (10 of 24 requests are shown)<"), "{picture}");
    }

    #[test]
    fn words_are_next_to_the_arrows_that_cross_their_row() {
        assert_eq!(free_start((8.0, 100.0), 50.0, &[]), 8.0);
        assert_eq!(free_start((8.0, 100.0), 50.0, &[2.0, 90.0]), 8.0);
        assert_eq!(free_start((8.0, 100.0), 50.0, &[20.0, 9.0]), 26.0);
        // There is no free position.
        assert_eq!(free_start((8.0, 100.0), 50.0, &[50.0]), 8.0);
    }

    #[test]
    fn workers_that_wait_for_each_other_come_to_an_end() {
        let spans = vec![
            span("a", wait("b", "b"), 0, 9),
            span("b", wait("a", "a"), 0, 9),
            span("put #1", wait("a", "a"), 0, 9),
        ];
        let timeline = Timeline { spans };
        assert_eq!(Chains::new(&timeline).waits_of("put #1").count(), 0);
    }

    #[test]
    fn the_picture_has_an_arrow_for_each_wait_and_says_so() {
        let convoy = convoy();
        let calm = convoy.spans.iter().filter(|span| span.activity == Activity::Run).cloned();
        let calm = Timeline { spans: calm.collect() };
        let named = |name: &str, timeline| Recording {
            name: name.to_owned(),
            timeline,
            ..Recording::default()
        };
        let picture = draw(&[named("era-3.2", convoy), named("<ours>", calm)]);
        assert_eq!(picture.matches("marker-end").count(), 3);
        for words in [
            ">era 3.2</tspan>: 3 requests wait for others, 211 ms in all<",
            ">&lt;ours&gt;</tspan>: no request waits for another<",
            ">has the lock readTx for 90 ms<",
            ">waits 80 ms: expensive read #1 has the lock readTx<",
            ">waits 61 ms: put #1 comes first<",
            ">waits 70 ms: it must see put #1<",
            ">takes no lock<",
            ">cheap read #1<",
        ] {
            assert!(picture.contains(words), "{words}: {picture}");
        }
        assert!(draw(&[Recording::default()]).ends_with("</svg>\n"));
    }
}
