//! A timeline: which lane did what, from when to when, and which lane blocked which.
//!
//! Each recording is one file. The first line is a JSON object that names the recording. This line
//! may be missing. Each further line is one span, in order of the ends of the spans:
//!
//! ```json
//! {"recorded":"the model","scenario":"convoy","era":"3.2"}
//! {"lane":"put #3","kind":"write","what":"wait","of":"readTx","behind":"list #1","from":1,"to":37}
//! {"lane":"list #1","kind":"read","what":"hold","of":"readTx","from":0,"to":37}
//! ```
//!
//! * `lane`: a request or a background worker. `put #3` is a request of class `put`. A recording of
//!   the model numbers the requests of each class separately. A recording of a server numbers all
//!   requests together. A lane without a number, such as `applier`, is its own class (see
//!   [`lane_class`]).
//! * `kind`: `read` and `write` for requests, `work` for background workers.
//! * `what`: `run`, `core` (ready while all cores are busy), `wait`, `disk`, `network`, or `hold`.
//! * `of`: for a `hold`, the lock; for a `wait`, what the lane waits for: a lock, a worker, or
//!   another resource such as a thread of a pool.
//! * `behind`: for a `wait`, the lane that was the blocker when the wait started, if it is known.
//! * `from`, `to`: times in nanoseconds.
//!
//! The simulator's model, a real server and the gRPC proxy write the same format.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value, json};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// All spans, in order of their ends.
    pub spans: Vec<Span>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The name of the lane, such as `put #3`.
    pub lane: String,
    pub kind: LaneKind,
    pub activity: Activity,
    pub from_ns: u64,
    pub to_ns: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LaneKind {
    /// A request that reads.
    Read,
    /// A request that writes.
    Write,
    /// Background work.
    #[default]
    Work,
}

impl LaneKind {
    const ALL: [LaneKind; 3] = [LaneKind::Read, LaneKind::Write, LaneKind::Work];

    /// Returns the word for this kind in a file.
    pub fn name(self) -> &'static str {
        match self {
            LaneKind::Read => "read",
            LaneKind::Write => "write",
            LaneKind::Work => "work",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Activity {
    Run,
    /// Ready to run while all cores are busy.
    Core,
    /// Waits for a lock, for another lane's work, or for another resource.
    Wait {
        resource: String,
        /// The lane that was the blocker when the wait started, if it is known.
        blocker: Option<String>,
    },
    Disk,
    /// The lane's message is in flight.
    Network,
    /// Holds a lock.
    Hold {
        resource: String,
    },
}

impl Activity {
    fn name(&self) -> &'static str {
        match self {
            Activity::Run => "run",
            Activity::Core => "core",
            Activity::Wait { .. } => "wait",
            Activity::Disk => "disk",
            Activity::Network => "network",
            Activity::Hold { .. } => "hold",
        }
    }
}

/// Returns the class of a lane: `put` for `put #3`. A lane without a number is its own class.
pub fn lane_class(lane: &str) -> &str {
    match lane.rsplit_once(" #") {
        Some((class, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => class,
        _ => lane,
    }
}

/// The first line of a file, which names the recording. It may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimelineHeader {
    /// The source of the recording: `the model`, `a server` or `a gRPC proxy`.
    pub recorded: String,
    pub scenario: Option<String>,
    pub era: Option<String>,
    /// Further details, such as `2 cores, seed 1`.
    pub details: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct TimelineError {
    line: usize,
    why: String,
}

impl Timeline {
    /// Returns the spans within an interval. A span that extends beyond the interval is cut off.
    pub fn slice(&self, from_ns: u64, to_ns: u64) -> Timeline {
        let cut = |span: &Span| {
            let (from, to) = (span.from_ns.max(from_ns), span.to_ns.min(to_ns));
            (from < to).then(|| Span { from_ns: from, to_ns: to, ..span.clone() })
        };
        Timeline { spans: self.spans.iter().filter_map(cut).collect() }
    }

    /// Returns the first start and the last end; `None` if there are no spans.
    pub fn bounds(&self) -> Option<(u64, u64)> {
        let from = self.spans.iter().map(|span| span.from_ns).min()?;
        Some((from, self.spans.iter().map(|span| span.to_ns).max()?))
    }

    /// Returns the lanes, in order of the starts of their first spans.
    pub fn lanes(&self) -> Vec<(&str, LaneKind)> {
        let mut firsts: Vec<(u64, &str, LaneKind)> = Vec::new();
        let mut places = HashMap::<&str, usize>::new();
        for span in &self.spans {
            let place = *places.entry(&span.lane).or_insert(firsts.len());
            match firsts.get_mut(place) {
                Some((first, ..)) => *first = span.from_ns.min(*first),
                None => firsts.push((span.from_ns, &span.lane, span.kind)),
            }
        }
        firsts.sort_by_key(|(first, ..)| *first);
        firsts.into_iter().map(|(_, lane, kind)| (lane, kind)).collect()
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spans.iter().try_for_each(|span| writeln!(f, "{}", span.to_json()))
    }
}

impl FromStr for Timeline {
    type Err = TimelineError;

    fn from_str(text: &str) -> Result<Timeline, TimelineError> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let has_header = TimelineHeader::of(text)?.is_some();
        let spans = lines.skip(usize::from(has_header)).map(|(at, line)| {
            Span::from_json(line).map_err(|why| TimelineError { line: at + 1, why })
        });
        Ok(Timeline { spans: spans.collect::<Result<_, _>>()? })
    }
}

impl TimelineHeader {
    /// Reads the header from the text of a file. Returns `None` if the first line is not an object
    /// with the field `recorded`, or if the text is empty. Fails if the header has an unknown
    /// field, or a field that is not a string.
    pub fn of(text: &str) -> Result<Option<TimelineHeader>, TimelineError> {
        let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let Some((at, first)) = lines.next() else { return Ok(None) };
        match serde_json::from_str::<Map<String, Value>>(first) {
            Ok(fields) if fields.contains_key("recorded") => {
                let header = TimelineHeader::from_fields(&fields);
                header.map(Some).map_err(|why| TimelineError { line: at + 1, why })
            }
            _ => Ok(None),
        }
    }

    fn from_fields(fields: &Map<String, Value>) -> Result<TimelineHeader, String> {
        const KNOWN: [&str; 4] = ["recorded", "scenario", "era", "details"];
        if let Some(name) = fields.keys().find(|name| !KNOWN.contains(&name.as_str())) {
            return Err(format!("unknown field `{name}`; known fields: {}", KNOWN.join(", ")));
        }
        let text = |name: &str| match fields.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(format!("`{name}` must be a string")),
        };
        Ok(TimelineHeader {
            recorded: text("recorded")?.unwrap_or_default(),
            scenario: text("scenario")?,
            era: text("era")?,
            details: text("details")?,
        })
    }
}

impl fmt::Display for TimelineHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TimelineHeader { recorded, scenario, era, details } = self;
        let mut json = json!({ "recorded": recorded });
        for (name, text) in [("scenario", scenario), ("era", era), ("details", details)] {
            if let Some(text) = text {
                json[name] = json!(text);
            }
        }
        writeln!(f, "{json}")
    }
}

impl Span {
    pub fn length_ns(&self) -> u64 {
        self.to_ns - self.from_ns
    }

    /// Returns the length of the part of this span that is in an interval.
    pub fn overlap_ns(&self, (from_ns, to_ns): (u64, u64)) -> u64 {
        self.to_ns.min(to_ns).saturating_sub(self.from_ns.max(from_ns))
    }

    fn to_json(&self) -> Value {
        let mut json = json!({
            "lane": self.lane,
            "kind": self.kind.name(),
            "what": self.activity.name(),
            "from": self.from_ns,
            "to": self.to_ns,
        });
        if let Activity::Wait { resource: of, .. } | Activity::Hold { resource: of } =
            &self.activity
        {
            json["of"] = json!(of);
        }
        if let Activity::Wait { blocker: Some(behind), .. } = &self.activity {
            json["behind"] = json!(behind);
        }
        json
    }

    fn from_json(line: &str) -> Result<Span, String> {
        let fields: Map<String, Value> =
            serde_json::from_str(line).map_err(|error| format!("not a JSON object: {error}"))?;
        const KNOWN: [&str; 7] = ["lane", "kind", "what", "of", "behind", "from", "to"];
        if let Some(name) = fields.keys().find(|name| !KNOWN.contains(&name.as_str())) {
            return Err(format!("unknown field `{name}`; known fields: {}", KNOWN.join(", ")));
        }
        let text = |name: &str| match fields.get(name).and_then(Value::as_str) {
            Some(text) => Ok(text.to_owned()),
            None => Err(format!("`{name}` must be a string")),
        };
        let time = |name: &str| match fields.get(name).and_then(Value::as_u64) {
            Some(ns) => Ok(ns),
            None => Err(format!("`{name}` must be a number of nanoseconds")),
        };
        let kind = text("kind")?;
        let kind = LaneKind::ALL
            .into_iter()
            .find(|known| known.name() == kind)
            .ok_or_else(|| format!("unknown `kind`: `{kind}`; known are read, write and work"))?;
        let what = match text("what")?.as_str() {
            "run" => Activity::Run,
            "core" => Activity::Core,
            "wait" => Activity::Wait { resource: text("of")?, blocker: text("behind").ok() },
            "disk" => Activity::Disk,
            "network" => Activity::Network,
            "hold" => Activity::Hold { resource: text("of")? },
            other => {
                let known = "run, core, wait, disk, network and hold";
                return Err(format!("unknown `what`: `{other}`; known are {known}"));
            }
        };
        let (from_ns, to_ns) = (time("from")?, time("to")?);
        if to_ns < from_ns {
            return Err(format!("`to` is {to_ns}, before `from`, which is {from_ns}"));
        }
        Ok(Span { lane: text("lane")?, kind, activity: what, from_ns, to_ns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(lane: &str, what: Activity, from_ns: u64, to_ns: u64) -> Span {
        let kind = if lane.starts_with("put") { LaneKind::Write } else { LaneKind::Read };
        Span { lane: lane.to_owned(), kind, activity: what, from_ns, to_ns }
    }

    fn timeline() -> Timeline {
        let wait = |of: &str, behind: Option<&str>| Activity::Wait {
            resource: of.to_owned(),
            blocker: behind.map(str::to_owned),
        };
        let spans = vec![
            span("get #1", Activity::Run, 10, 50),
            span("put #1", wait("readTx", Some("get #1")), 20, 50),
            span("get #1", Activity::Hold { resource: "readTx".to_owned() }, 5, 50),
            span("put #1", wait("applier", None), 50, 60),
            span("put #1", Activity::Disk, 60, 70),
        ];
        Timeline { spans }
    }

    #[test]
    fn what_is_written_is_read() {
        let timeline = timeline();
        assert_eq!(timeline.to_string().parse(), Ok(timeline.clone()));
        assert_eq!(timeline.bounds(), Some((5, 70)));
        assert_eq!(timeline.lanes(), [("get #1", LaneKind::Read), ("put #1", LaneKind::Write)]);
        let middle = timeline.slice(30, 55);
        let ends: Vec<_> = middle.spans.iter().map(|span| (span.from_ns, span.to_ns)).collect();
        assert_eq!(ends, [(30, 50), (30, 50), (30, 50), (50, 55)]);
    }

    #[test]
    fn a_file_may_begin_with_what_was_recorded() {
        let header = TimelineHeader {
            recorded: "the model".to_owned(),
            era: Some("3.2".to_owned()),
            ..TimelineHeader::default()
        };
        let text = format!("{header}{}", timeline());
        assert_eq!(text.parse(), Ok(timeline()));
        assert_eq!(TimelineHeader::of(&text), Ok(Some(header)));
        assert_eq!(TimelineHeader::of(&timeline().to_string()), Ok(None));
        for (bad, why) in [
            (r#"{"recorded":5}"#, "line 1: `recorded` must be a string"),
            (r#"{"recorded":"a","colour":"a"}"#, "line 1: unknown field `colour`; known fields: "),
        ] {
            let refused = bad.parse::<Timeline>().unwrap_err().to_string();
            assert!(refused.contains(why), "{bad}: {refused}");
        }
    }

    #[test]
    fn what_is_no_timeline_is_told_by_its_line() {
        let good = r#"{"lane":"a","kind":"read","what":"run","from":1,"to":2}"#;
        for (bad, why) in [
            ("{", "line 2: not a JSON object"),
            (
                r#"{"lane":"a","kind":"read","what":"run","from":1}"#,
                "line 2: `to` must be a number",
            ),
            (r#"{"lane":"a","kind":"read","what":"nap","from":1,"to":2}"#, "unknown `what`: `nap`"),
            (
                r#"{"lane":"a","kind":"read","what":"wait","from":1,"to":2}"#,
                "`of` must be a string",
            ),
            (
                r#"{"lane":"a","kind":"read","what":"run","from":3,"to":2}"#,
                "`to` is 2, before `from`",
            ),
            (r#"{"lane":"a","colour":"a"}"#, "unknown field `colour`; known fields: lane, kind"),
        ] {
            let refused = format!("{good}\n{bad}\n").parse::<Timeline>().unwrap_err().to_string();
            assert!(refused.contains(why), "{bad}: {refused}");
        }
    }
}
