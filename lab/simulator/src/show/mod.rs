//! Shows a timeline: in a terminal, as a picture of all lanes, as a picture of the chain of waits,
//! as an interactive page, or as the table of blame.

pub mod blame;
pub mod chain;
pub mod html;
mod recording;
pub mod svg;
pub mod terminal;

use recording::about_all;
pub use recording::{Recording, conclusion, sentence};

use std::collections::BTreeSet;

use crate::timeline::{Activity, LaneKind, Span, Timeline};

fn words(span: &Span) -> String {
    match &span.activity {
        Activity::Run => "runs".to_owned(),
        Activity::Core => "waits for a core".to_owned(),
        Activity::Wait { resource: of, blocker: Some(behind) } => {
            format!("waits for {of}, behind {behind}")
        }
        Activity::Wait { resource: of, blocker: None } => format!("waits for {of}"),
        Activity::Disk => "waits for the disk".to_owned(),
        Activity::Network => "its message is on its way".to_owned(),
        Activity::Hold { resource: of } => format!("has {of}"),
    }
}

/// Returns whether the task waits for a lock, a worker or another resource, such as a thread that
/// must wake up.
fn waits(span: &Span) -> bool {
    matches!(span.activity, Activity::Wait { .. })
}

/// Returns the locks that tasks of the timeline have held. The picture of all lanes treats all
/// other resources as workers.
fn locks(timeline: &Timeline) -> BTreeSet<&str> {
    let held = timeline.spans.iter().filter_map(|span| match &span.activity {
        Activity::Hold { resource: of } => Some(of.as_str()),
        _ => None,
    });
    held.collect()
}

fn time(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.3} s", ns as f64 / 1e9),
    }
}

/// Returns the start and the end of each timeline. Skips empty timelines.
fn bounds_of(recordings: &[Recording]) -> Vec<(u64, u64)> {
    recordings.iter().filter_map(|recording| recording.timeline.bounds()).collect()
}

/// Converts times to positions on the time axis of a picture.
#[derive(Clone, Copy)]
struct Scale {
    from_ns: u64,
    whole_ns: f64,
    left: f64,
    width: f64,
}

impl Scale {
    fn x(self, ns: u64) -> f64 {
        self.left + (ns - self.from_ns) as f64 / self.whole_ns * self.width
    }
}

/// Returns the colour of a kind: readers, writers, workers.
fn colour(kind: LaneKind) -> &'static str {
    match kind {
        LaneKind::Read => "#2f6fb7",
        LaneKind::Write => "#2a9155",
        LaneKind::Work => "#7a7a86",
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Spans for tests.
#[cfg(test)]
mod samples {
    use super::*;
    use crate::timeline::lane_class;

    pub(super) fn span(lane: &str, activity: Activity, from_ns: u64, to_ns: u64) -> Span {
        let kind = match lane_class(lane) {
            "put" => LaneKind::Write,
            _ if lane.contains('#') => LaneKind::Read,
            _ => LaneKind::Work,
        };
        Span { lane: lane.to_owned(), kind, activity, from_ns, to_ns }
    }

    pub(super) fn wait(resource: &str, blocker: &str) -> Activity {
        Activity::Wait { resource: resource.to_owned(), blocker: Some(blocker.to_owned()) }
    }

    pub(super) fn hold(resource: &str) -> Activity {
        Activity::Hold { resource: resource.to_owned() }
    }
}
