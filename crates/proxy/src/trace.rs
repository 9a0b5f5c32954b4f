//! Records what requests and watch events do in the proxy, for a timeline. `docs/grpc-proxy.md`
//! shows two of them.
//!
//! ```text
//!   cached range #3   ░░░░░░░░░░░░▒▒█   waits for a probe, for the copy; answers
//!   probe #4            ──────────      asks a member
//!   feed /registry/            █ █      applies responses, passes events on to streams
//!   watch 7.0 event #52        ▒░░░░    of revision 52: waits for the feed, for its stream
//!   stream #7           ░░░░░░░░░░░░    waits for its connection
//! ```
//!
//! Requests and probes are numbered together. An event has its revision as its number, and the
//! stream and the ID of its watch in its name. The [log](EventLog) limits memory. While nothing is
//! recorded, a request, a probe, a response of a feed and a response of a stream cost one relaxed
//! load each.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use clearlane_contention::event_log::{EventLog, RecordedEvent, RecordedTrace};
use clearlane_contention::now_ns;
use clearlane_contention::timeline::{self, Activity, LaneKind, Timeline};
use clearlane_proto::etcdserverpb::WatchResponse;

use crate::cache::range::Span;
use crate::cache::scope::Scope;

/// Records events while it is switched on.
#[derive(Debug, Default)]
pub struct ProxyTrace {
    log: EventLog<TraceEvent>,
}

/// All times are on the clock of [`now_ns`].
#[derive(Debug)]
enum TraceEvent {
    Request {
        lane: (&'static str, LaneKind, u32),
        from_ns: u64,
        to_ns: u64,
        /// In the order of their times. The request runs between them.
        waits: Vec<(WaitFor, u64, u64)>,
    },
    Probe {
        number: u32,
        from_ns: u64,
        to_ns: u64,
    },
    /// A feed has applied a response, and passed its events on to streams.
    FanOut {
        scope: Span,
        /// The revisions of the copy before and after it.
        revisions: (i64, i64),
        from_ns: u64,
        to_ns: u64,
    },
    /// A stream has handed a response to its connection.
    Write {
        stream: u64,
        watch_id: i64,
        content: WriteContent,
        from_ns: u64,
        to_ns: u64,
    },
}

#[derive(Debug)]
enum WriteContent {
    WatchCreated,
    /// Events up to this revision. They are from the copy of this range, or from a member.
    Events(i64, Option<Span>),
    Other,
}

/// What a request waits for.
#[derive(Clone, Debug)]
pub(crate) enum WaitFor {
    /// A probe with this number, or 0 if it has failed.
    Probe(u32),
    /// The copy of this range, until it has the probe's revision.
    Copy(Span),
    /// The response of a member.
    Member,
}

impl ProxyTrace {
    #[inline]
    pub fn is_on(&self) -> bool {
        self.log.is_on()
    }

    /// Starts recording. Does nothing if recording is on. The newest `events_max` events are kept.
    pub fn start(&self, events_max: usize) {
        self.log.start(events_max);
    }

    /// Collects the new events. Call it every few hundredths of a second.
    pub fn collect(&self) {
        self.log.collect();
    }

    /// Stops recording. Returns `None` if recording was off.
    pub fn stop(&self) -> Option<RecordedTrace> {
        self.log.stop(build)
    }

    /// Returns the trace of a request that has just arrived.
    #[inline]
    pub(crate) fn request(self: &Arc<Self>) -> RequestTrace {
        let record = || {
            let number = self.log.next_number();
            let (start_ns, waits) = (now_ns(), Vec::new());
            RecordedRequest { trace: Arc::clone(self), number, start_ns, wait_from_ns: 0, waits }
        };
        RequestTrace(self.is_on().then(record))
    }

    /// Returns the number and the start of a probe, or `None` if recording is off.
    pub(crate) fn start_probe(&self) -> Option<(u32, u64)> {
        self.is_on().then(|| (self.log.next_number(), now_ns()))
    }

    pub(crate) fn end_probe(&self, started: Option<(u32, u64)>) {
        if let Some((number, from_ns)) = started {
            self.log.push(TraceEvent::Probe { number, from_ns, to_ns: now_ns() });
        }
    }

    /// Notes that a response for the scope has arrived. Returns the time and the scope's revision,
    /// or `None` if recording is off.
    pub(crate) fn start_fan_out(&self, scope: &Scope) -> Option<(u64, i64)> {
        self.is_on().then(|| (now_ns(), scope.revision()))
    }

    pub(crate) fn end_fan_out(&self, scope: &Scope, started: Option<(u64, i64)>) {
        if let Some((from_ns, before)) = started {
            let (revisions, to_ns) = ((before, scope.revision()), now_ns());
            let scope = scope.span.clone();
            self.log.push(TraceEvent::FanOut { scope, revisions, from_ns, to_ns });
        }
    }

    /// Notes that a stream has a response for its connection. `scope` returns the range from whose
    /// copy the events are. Returns `None` if recording is off.
    pub(crate) fn start_write(
        &self,
        stream: u64,
        response: &WatchResponse,
        scope: impl FnOnce() -> Option<Span>,
    ) -> Option<StartedWrite> {
        let start = || {
            let last = response.events.last().and_then(|event| event.kv.as_ref());
            let content = match last {
                Some(last) => WriteContent::Events(last.mod_revision, scope()),
                None if response.created => WriteContent::WatchCreated,
                None => WriteContent::Other,
            };
            StartedWrite { stream, watch_id: response.watch_id, content, from_ns: now_ns() }
        };
        self.is_on().then(start)
    }

    /// Notes that the connection has taken the response.
    pub(crate) fn end_write(&self, started: Option<StartedWrite>) {
        if let Some(StartedWrite { stream, watch_id, content, from_ns }) = started {
            let to_ns = now_ns();
            self.log.push(TraceEvent::Write { stream, watch_id, content, from_ns, to_ns });
        }
    }
}

#[derive(Debug)]
pub(crate) struct StartedWrite {
    stream: u64,
    watch_id: i64,
    content: WriteContent,
    from_ns: u64,
}

/// The trace of one request. Empty if recording was off when the request arrived.
#[derive(Debug)]
pub(crate) struct RequestTrace(Option<RecordedRequest>);

#[derive(Debug)]
struct RecordedRequest {
    trace: Arc<ProxyTrace>,
    number: u32,
    start_ns: u64,
    wait_from_ns: u64,
    waits: Vec<(WaitFor, u64, u64)>,
}

impl RequestTrace {
    pub(crate) fn start_wait(&mut self) {
        if let Some(request) = &mut self.0 {
            request.wait_from_ns = now_ns();
        }
    }

    /// Notes the end of a wait. The next wait starts now, unless `start_wait` is called again.
    pub(crate) fn end_wait(&mut self, what: impl FnOnce() -> WaitFor) {
        if let Some(request) = &mut self.0 {
            let from_ns = std::mem::replace(&mut request.wait_from_ns, now_ns());
            request.waits.push((what(), from_ns, request.wait_from_ns));
        }
    }

    /// Records the request. `class` is the name of its lane, without the number.
    pub(crate) fn end(self, class: &'static str, kind: LaneKind) {
        let Some(request) = self.0 else { return };
        let RecordedRequest { trace, number, start_ns: from_ns, waits, .. } = request;
        let (lane, to_ns) = ((class, kind, number), now_ns());
        trace.log.push(TraceEvent::Request { lane, from_ns, to_ns, waits });
    }
}

impl RecordedEvent for TraceEvent {
    fn start_ns(&self) -> u64 {
        match self {
            TraceEvent::Request { from_ns, .. }
            | TraceEvent::Probe { from_ns, .. }
            | TraceEvent::FanOut { from_ns, .. }
            | TraceEvent::Write { from_ns, .. } => *from_ns,
        }
    }
}

/// Builds a timeline. A watch event has the revision that a feed has passed on, so its time in the
/// queue is known without a note in the queue.
fn build(events: &[TraceEvent]) -> Timeline {
    let mut index = EventIndex::default();
    events.iter().for_each(|event| index.add(event));
    let mut spans = Spans::default();
    for event in events {
        match event {
            TraceEvent::Request { lane: (class, kind, number), from_ns, to_ns, waits } => {
                let lane = (format!("{class} #{number}"), *kind);
                let mut run_ns = *from_ns;
                for (what, from_ns, to_ns) in waits {
                    spans.add(&lane, Activity::Run, run_ns, *from_ns);
                    spans.add(&lane, what.activity(), *from_ns, *to_ns);
                    run_ns = *to_ns;
                }
                spans.add(&lane, Activity::Run, run_ns, *to_ns);
            }
            TraceEvent::Probe { number, from_ns, to_ns } => {
                let lane = (probe_lane(*number), LaneKind::Work);
                spans.add(&lane, Activity::Network, *from_ns, *to_ns);
            }
            TraceEvent::FanOut { scope, from_ns, to_ns, .. } => {
                let lane = (feed_lane(scope), LaneKind::Work);
                spans.add(&lane, Activity::Run, *from_ns, *to_ns);
            }
            TraceEvent::Write { stream, watch_id, content, from_ns, to_ns } => {
                let stream_lane = (format!("stream #{stream}"), LaneKind::Work);
                spans.add(&stream_lane, wait("the connection", None), *from_ns, *to_ns);
                let WriteContent::Events(revision, scope) = content else { continue };
                let lane = (format!("watch {stream}.{watch_id} event #{revision}"), LaneKind::Read);
                if let Some((arrived_ns, queued_ns)) =
                    index.queued((*stream, *watch_id), *revision, scope.as_ref())
                {
                    let (arrived_ns, queued_ns) =
                        (arrived_ns.min(*from_ns), queued_ns.min(*from_ns));
                    let feed = scope.as_ref().map(feed_lane);
                    spans.add(&lane, wait("the feed", feed), arrived_ns, queued_ns);
                    let queue = wait("the queue", Some(stream_lane.0));
                    spans.add(&lane, queue, queued_ns, *from_ns);
                }
                spans.add(&lane, wait("the connection", None), *from_ns, *to_ns);
            }
        }
    }
    spans.0.sort_by_key(|span| span.to_ns);
    Timeline { spans: spans.0 }
}

#[derive(Default)]
struct EventIndex<'e> {
    /// For each range, by the revision after it: the revision before it, its start and its end.
    fan_outs: HashMap<&'e Span, BTreeMap<i64, (i64, u64, u64)>>,
    /// The times at which watches were created, by the stream and the ID of the watch.
    created_ns: HashMap<(u64, i64), u64>,
}

impl<'e> EventIndex<'e> {
    fn add(&mut self, event: &'e TraceEvent) {
        match event {
            TraceEvent::FanOut { scope, revisions: (before, after), from_ns, to_ns }
                if before < after =>
            {
                let of_scope = self.fan_outs.entry(scope).or_default();
                of_scope.insert(*after, (*before, *from_ns, *to_ns));
            }
            TraceEvent::Write {
                stream,
                watch_id,
                content: WriteContent::WatchCreated,
                from_ns,
                ..
            } => drop(self.created_ns.insert((*stream, *watch_id), *from_ns)),
            _ => {}
        }
    }

    /// Returns when an event for this watch has arrived, and when the feed had passed it on. A
    /// watch may read events that are older than itself: they were not queued.
    fn queued(&self, watch: (u64, i64), revision: i64, scope: Option<&Span>) -> Option<(u64, u64)> {
        let (_, (before, from_ns, to_ns)) =
            self.fan_outs.get(scope?)?.range(revision..).next().map(|(k, it)| (k, *it))?;
        let created_ns = self.created_ns.get(&watch).copied().unwrap_or(0);
        (before < revision && created_ns <= from_ns).then_some((from_ns, to_ns))
    }
}

#[derive(Default)]
struct Spans(Vec<timeline::Span>);

impl Spans {
    fn add(&mut self, (lane, kind): &(String, LaneKind), activity: Activity, from: u64, to: u64) {
        if from < to {
            let (lane, kind) = (lane.clone(), *kind);
            self.0.push(timeline::Span { lane, kind, activity, from_ns: from, to_ns: to });
        }
    }
}

impl WaitFor {
    fn activity(&self) -> Activity {
        match self {
            WaitFor::Probe(0) => wait("a probe", None),
            WaitFor::Probe(number) => wait("a probe", Some(probe_lane(*number))),
            WaitFor::Copy(scope) => wait("the copy", Some(feed_lane(scope))),
            WaitFor::Member => wait("a member", None),
        }
    }
}

fn wait(resource: &str, blocker: Option<String>) -> Activity {
    Activity::Wait { resource: resource.to_owned(), blocker }
}

fn probe_lane(number: u32) -> String {
    format!("probe #{number}")
}

/// Names a feed by the prefix of its range.
fn feed_lane(scope: &Span) -> String {
    format!("feed {}", scope.from.escape_ascii()).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(timeline: &Timeline, lane: &str) -> Vec<String> {
        let own = timeline.spans.iter().filter(|span| span.lane == lane);
        own.map(|span| {
            let what = match &span.activity {
                Activity::Wait { resource, blocker } => {
                    format!("{resource} behind {}", blocker.as_deref().unwrap_or("?"))
                }
                other => format!("{other:?}"),
            };
            format!("{}-{} {what}", span.from_ns, span.to_ns)
        })
        .collect()
    }

    fn fan_out(revisions: (i64, i64), from_ns: u64, to_ns: u64) -> TraceEvent {
        TraceEvent::FanOut { scope: Span::of_prefix(b"a/"), revisions, from_ns, to_ns }
    }

    fn write(stream: u64, content: WriteContent, from_ns: u64, to_ns: u64) -> TraceEvent {
        TraceEvent::Write { stream, watch_id: 0, content, from_ns, to_ns }
    }

    fn event(revision: i64) -> WriteContent {
        WriteContent::Events(revision, Some(Span::of_prefix(b"a/")))
    }

    #[test]
    fn an_event_waits_for_the_feed_and_for_its_stream() {
        let timeline = build(&[
            fan_out((5, 7), 10, 20),
            write(1, event(6), 15, 16),
            write(2, event(6), 21, 60),
            write(2, event(7), 60, 90),
            // This event did not pass the feed while the recording was on.
            write(1, event(4), 30, 31),
            // These two are from the history: the watches are newer than the event.
            write(3, WriteContent::WatchCreated, 40, 41),
            write(3, event(7), 42, 43),
        ]);
        assert_eq!(lines(&timeline, "feed a/"), ["10-20 Run"]);
        assert_eq!(
            lines(&timeline, "watch 1.0 event #6"),
            ["10-15 the feed behind feed a/", "15-16 the connection behind ?"]
        );
        assert_eq!(
            lines(&timeline, "watch 2.0 event #7"),
            [
                "10-20 the feed behind feed a/",
                "20-60 the queue behind stream #2",
                "60-90 the connection behind ?"
            ]
        );
        assert_eq!(
            lines(&timeline, "stream #2"),
            ["21-60 the connection behind ?", "60-90 the connection behind ?"]
        );
        for lane in ["watch 1.0 event #4", "watch 3.0 event #7"] {
            assert_eq!(lines(&timeline, lane).len(), 1, "{lane}");
        }
        assert_eq!(timeline.to_string().parse(), Ok(timeline));
    }

    #[test]
    fn a_request_runs_between_its_waits() {
        let scope = Span::of_prefix(b"");
        let request = TraceEvent::Request {
            lane: ("range", LaneKind::Read, 3),
            from_ns: 10,
            to_ns: 90,
            waits: vec![
                (WaitFor::Probe(4), 12, 30),
                (WaitFor::Copy(scope), 30, 50),
                (WaitFor::Member, 55, 90),
            ],
        };
        let timeline = build(&[request, TraceEvent::Probe { number: 4, from_ns: 13, to_ns: 29 }]);
        assert_eq!(
            lines(&timeline, "range #3"),
            [
                "10-12 Run",
                "12-30 a probe behind probe #4",
                "30-50 the copy behind feed",
                "50-55 Run",
                "55-90 a member behind ?"
            ]
        );
        assert_eq!(lines(&timeline, "probe #4"), ["13-29 Network"]);
    }
}
