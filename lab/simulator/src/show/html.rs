//! A timeline as a page that works in any browser without a network or other files.
//!
//! A script draws the visible part of the timelines on canvases (`page/model.js` finds it,
//! `page/paint.js` draws it). It starts at the longest wait of a request. The blame of each class
//! and the longest waits are tables, which this module writes. A span is a row of six numbers: the
//! lane, the activity, its resource, the blocker, the start and the length. The lane, the resource
//! and the blocker are indexes of names:
//!
//! ```text
//!   names   ["put #3", "readTx", "list #1"]
//!   spans   [0, 2, 1, 2, 1000, 36000, ...]   put #3 waits for readTx behind list #1,
//!                                            from 1000 ns on, for 36000 ns
//! ```
//!
//! If the timelines have no time in common, each of them starts at the left edge.
//!
//! Names are read from files, so they are escaped in markup, and `<` is `\u003c` in the data. A
//! policy in the page's head forbids the page to load anything.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::blame::{LEAST_PERCENT, cause_words, shares};
use super::{Recording, about_all, bounds_of, escaped, sentence, time};
use crate::timeline::{Activity, Timeline, lane_class};
use clearlane_contention::blame::{self, Cause, ClassBlame};
use clearlane_contention::wait_chain::{WaitChains, is_request_wait};

const STYLE: &str = include_str!("page/page.css");
const BODY: &str = include_str!("page/page.html");
/// Each script uses the scripts before it.
const SCRIPTS: [&str; 4] = [
    include_str!("page/model.js"),
    include_str!("page/paint.js"),
    include_str!("page/tell.js"),
    include_str!("page/page.js"),
];
/// Maximum number of waits in the list of the longest waits.
const WAITS_MAX: usize = 12;

pub fn page(recordings: &[Recording]) -> String {
    let titles: Vec<String> = recordings.iter().map(Recording::title).collect();
    let mut tables = String::new();
    for (number, recording) in recordings.iter().enumerate() {
        let _ = write!(tables, "<section><h2>{}</h2>", escaped(&recording.title()));
        blame_table(&mut tables, &blame::blame_by_class(&recording.timeline));
        waits_table(&mut tables, number, &recording.timeline);
        tables += "</section>\n";
    }
    let (panels, has_one_clock) = panels(recordings);
    let data = json!({ "panels": panels, "hasOneClock": has_one_clock });
    // The data must not end its `script` element.
    let data = data.to_string().replace('<', "\\u003c");
    let parts = [
        ("TITLE", escaped(&titles.join(" and "))),
        ("ABOUT", escaped(&about_all(recordings))),
        ("STYLE", STYLE.to_owned()),
        ("TABLES", tables),
        ("DATA", data),
        ("SCRIPT", SCRIPTS.concat()),
    ];
    filled(BODY, &parts)
}

/// Replaces each `{{name}}` in the page with the part of this name. Inserted text is not searched
/// again.
fn filled(page: &str, parts: &[(&str, String)]) -> String {
    let mut pieces = page.split("{{");
    let mut filled = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (name, rest) = piece.split_once("}}").expect("the page closes its braces");
        let part = parts.iter().find(|(known, _)| *known == name);
        filled += &part.expect("the page has no other names").1;
        filled += rest;
    }
    filled
}

/// Returns the timelines as numbers and names, and whether they share one clock. If they do, they
/// are shown at their own times.
fn panels(recordings: &[Recording]) -> (Vec<Value>, bool) {
    let bounds = bounds_of(recordings);
    let latest_begin = bounds.iter().map(|(from, _)| *from).max().unwrap_or(0);
    let first_begin = bounds.iter().map(|(from, _)| *from).min().unwrap_or(0);
    let first_end = bounds.iter().map(|(_, to)| *to).min().unwrap_or(0);
    let has_one_clock = latest_begin < first_end || bounds.len() < 2;
    let panels = recordings.iter().map(|recording| {
        let own = recording.timeline.bounds().map_or(0, |(from, _)| from);
        panel(recording, if has_one_clock { first_begin } else { own })
    });
    (panels.collect(), has_one_clock)
}

fn panel(recording: &Recording, zero_ns: u64) -> Value {
    let timeline = &recording.timeline;
    let mut names = Names::default();
    let lanes: Vec<Value> = timeline
        .lanes()
        .into_iter()
        .map(|(lane, kind)| {
            json!([names.number(lane), kind.name(), names.number(lane_class(lane))])
        })
        .collect();
    let mut spans: Vec<i64> = Vec::with_capacity(timeline.spans.len() * 6);
    for span in &timeline.spans {
        let (what, of, behind) = match &span.activity {
            Activity::Run => (0, None, None),
            Activity::Core => (1, None, None),
            Activity::Wait { resource: of, blocker: behind } => (2, Some(of), behind.as_ref()),
            Activity::Disk => (3, None, None),
            Activity::Network => (4, None, None),
            Activity::Hold { resource: of } => (5, Some(of), None),
        };
        let of = of.map_or(-1, |name| names.number(name));
        let behind = behind.map_or(-1, |name| names.number(name));
        let begin = i64::try_from(span.from_ns - zero_ns).unwrap_or(i64::MAX);
        let took = i64::try_from(span.to_ns - span.from_ns).unwrap_or(i64::MAX);
        spans.extend([names.number(&span.lane), what, of, behind, begin, took]);
    }
    json!({
        "title": recording.title(), "about": recording.about(), "colours": recording.colours(),
        "zero": zero_ns, "names": names.all, "lanes": lanes, "spans": spans,
    })
}

/// Assigns numbers to distinct names.
#[derive(Default)]
struct Names<'a> {
    all: Vec<&'a str>,
    numbers: HashMap<&'a str, i64>,
}

impl<'a> Names<'a> {
    fn number(&mut self, name: &'a str) -> i64 {
        let next = self.all.len() as i64;
        *self.numbers.entry(name).or_insert_with(|| {
            self.all.push(name);
            next
        })
    }
}

/// Writes the table of blame, in per cent.
fn blame_table(out: &mut String, blames: &[ClassBlame]) {
    *out += "<table class=blame><caption>Where the time of each class went</caption><thead><tr>\
        <th scope=col>class<th scope=col>lanes<th scope=col>mean<th scope=col>running\
        <th scope=col>waiting for a core<th scope=col>disk<th scope=col>network\
        <th scope=col>waiting for another<tbody>\n";
    for blame in blames {
        let _ = write!(
            out,
            "<tr class={}><th scope=row>{}<td>{}<td>{}",
            blame.kind.name(),
            escaped(&blame.class),
            blame.lane_count,
            time(blame.total_ns / blame.lane_count.max(1) as u64),
        );
        for fixed in [Cause::Run, Cause::Core, Cause::Disk, Cause::Network] {
            match shares(blame, 0.0).find(|(cause, _)| **cause == fixed) {
                Some((_, percent)) => _ = write!(out, "<td>{percent:.1} %"),
                None => *out += "<td>",
            }
        }
        let waits = shares(blame, LEAST_PERCENT)
            .filter(|(cause, _)| matches!(cause, Cause::Wait { .. }))
            .map(|(cause, percent)| {
                format!("<b>{percent:.1} %</b> {}", escaped(&cause_words(cause)))
            });
        let _ = writeln!(out, "<td class=waits>{}", waits.collect::<Vec<_>>().join("<br>"));
    }
    *out += "</table>\n";
}

/// Writes a table of the longest waits of requests, for readers without a pointer.
fn waits_table(out: &mut String, panel: usize, timeline: &Timeline) {
    let waits = timeline.spans.iter().enumerate().filter(|(_, span)| is_request_wait(span));
    let mut waits: Vec<_> = waits.collect();
    waits.sort_by_key(|(_, span)| (Reverse(span.length_ns()), span.from_ns));
    if waits.is_empty() {
        *out += "<p>No request waits for another.</p>\n";
        return;
    }
    *out += "<table class=longest><caption>The longest waits of requests</caption><thead><tr>\
        <th scope=col>request<th scope=col>how long<th scope=col>for what, and why\
        <tbody>\n";
    let chains = WaitChains::new(timeline);
    for (number, span) in waits.into_iter().take(WAITS_MAX) {
        let _ = writeln!(
            out,
            "<tr><th scope=row><button type=button data-panel={panel} data-span={number}>{}</button>\
             <td>{}<td>{}",
            escaped(&span.lane),
            time(span.length_ns()),
            escaped(&sentence(&chains.chain(span))),
        );
    }
    *out += "</table>\n";
}

#[cfg(test)]
mod tests {
    use super::super::samples::{span, wait};
    use super::*;
    use crate::timeline::{LaneKind, Span};

    fn recording(name: &str, names: [&str; 2], from_ns: u64) -> Recording {
        let [lane, lock] = names;
        let what = wait(lock, lane);
        let span = Span { kind: LaneKind::Read, ..span(lane, what, from_ns, from_ns + 1_000_000) };
        let timeline = Timeline { spans: vec![span] };
        Recording { name: name.to_owned(), timeline, ..Recording::default() }
    }

    #[test]
    fn no_name_is_markup() {
        let bad = "</script><script>alert(1)</script>{{DATA}}<!--";
        let [plain, evil] =
            [("t", "a"), (bad, bad)].map(|(name, lane)| page(&[recording(name, [lane, lane], 5)]));
        for mark in ["<script", "</script", "<!--", "alert(1)</script"] {
            assert_eq!(evil.matches(mark).count(), plain.matches(mark).count(), "{mark}");
        }
        assert!(evil.contains(r"\u003c/script>\u003cscript>alert(1)"));
        assert!(evil.contains("&lt;/script&gt;&lt;script&gt;alert(1)"));
    }

    #[test]
    fn it_needs_no_network() {
        let page = page(&[recording("t", ["a", "b"], 5)]);
        for mark in ["http:", "https:", "@import", "url(", " src="] {
            assert!(!page.contains(mark), "{mark}");
        }
    }

    #[test]
    fn clocks_are_one_if_the_times_overlap() {
        let at = |from_ns| recording("t", ["a", "b"], from_ns);
        let zeros = |begins: [u64; 2]| {
            let (panels, has_one_clock) = panels(&begins.map(at));
            (panels.iter().map(|panel| panel["zero"].as_u64()).collect::<Vec<_>>(), has_one_clock)
        };
        assert_eq!(zeros([1_000_000, 1_500_000]), (vec![Some(1_000_000), Some(1_000_000)], true));
        assert_eq!(zeros([1_000_000, 9_000_000]), (vec![Some(1_000_000), Some(9_000_000)], false));
        assert!(page(&[Recording::default()]).contains("No request waits for another"));
    }
}
