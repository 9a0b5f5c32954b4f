//! Shows a timeline: in a terminal, as a picture, as a page to look around in, or in somebody else's tool.

pub mod html;
pub mod perfetto;
pub mod svg;
pub mod terminal;

use std::collections::BTreeSet;

use crate::timeline::{Kind, Span, Timeline, What};

/// What a span is, in words.
fn words(span: &Span) -> String {
    match &span.what {
        What::Run => "runs".to_owned(),
        What::Core => "waits for a core".to_owned(),
        What::Wait { of, behind: Some(behind) } => format!("waits for {of}, behind {behind}"),
        What::Wait { of, behind: None } => format!("waits for {of}"),
        What::Disk => "waits for the disk".to_owned(),
        What::Network => "its message is on its way".to_owned(),
        What::Hold { of } => format!("has {of}"),
    }
}

/// Whether somebody waits for somebody else: for what he has, or for what he does.
fn waits(span: &Span) -> bool {
    matches!(span.what, What::Wait { .. })
}

/// The locks that somebody has at some time. Who waits for something else waits for what others do for him.
fn locks(timeline: &Timeline) -> BTreeSet<&str> {
    let held = timeline.spans.iter().filter_map(|span| match &span.what {
        What::Hold { of } => Some(of.as_str()),
        _ => None,
    });
    held.collect()
}

/// A time for people.
fn time(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.3} s", ns as f64 / 1e9),
    }
}

/// Requests in the order of their kinds' colours: what reads, what writes, what works for both.
fn colour(kind: Kind) -> &'static str {
    match kind {
        Kind::Read => "#2f6fb7",
        Kind::Write => "#2a9155",
        Kind::Work => "#7a7a86",
    }
}

/// A text in markup.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
