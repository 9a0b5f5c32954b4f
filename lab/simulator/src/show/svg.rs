//! A timeline as a picture.
//!
//! Reads are blue and writes are green. Waits for a lock are red with stripes. Waits for a worker
//! are grey, with stripes in the other direction, so that a reader who sees no colours can
//! distinguish them. A sentence at the top describes the longest wait of a request and its causes.
//! Each of these spans has a frame, and an arrow to its cause. Each other wait that is not short
//! has a thin arrow to the lane that it names as its blocker. A bar shows its description when the
//! pointer is on it.

use std::cmp::Reverse;
use std::fmt::Write as _;

use super::{Recording, Scale, colour, escaped, locks, sentence, time, waits, words};
use crate::timeline::{Activity, LaneKind, Span};

const WIDTH: f64 = 1100.0;
const LABELS: f64 = 130.0;
const ROW: f64 = 16.0;
/// Height of the axis.
const HEAD: f64 = 30.0;
const TITLE: f64 = 26.0;
/// Height of one line of the text that describes the longest wait.
const LINE: f64 = 15.0;
const LINE_LETTERS: usize = 180;
/// Minimum width of a bar.
const LEAST: f64 = 0.3;
const BLOCKED: &str = "url(#blocked)";
const HELPED: &str = "url(#helped)";
const CORE: &str = "#e0a83a";
const DISK: &str = "#8d6bb8";
const HOLD: &str = "#333333";
const FRAME: &str = "#000000";
const THIN: &str = "#6b4a46";
/// Minimum length of a wait that has an arrow, as a share of the picture's whole time.
const LEAST_ARROW: f64 = 0.02;
/// Maximum number of lanes. Further lanes are omitted.
const LANES_MAX: usize = 200;

pub fn draw(recording: &Recording) -> String {
    let timeline = &recording.timeline;
    let chain = recording.longest_chain();
    let lanes = recording.lanes(&chain);
    let shown = &lanes[..lanes.len().min(LANES_MAX)];
    let lines = wrapped(&sentence(&chain), LINE_LETTERS);
    let (from_ns, to_ns) = timeline.bounds().unwrap_or((0, 1));
    let (whole_ns, width) = ((to_ns - from_ns).max(1) as f64, WIDTH - LABELS - 10.0);
    let scale = Scale { from_ns, whole_ns, left: LABELS, width };
    let head = TITLE + LINE * lines.len() as f64 + HEAD;
    let foot = head + ROW * shown.len() as f64;
    let height = foot + 24.0;
    let mut picture = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11">
<defs><pattern id="blocked" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="6" height="6" fill="#e8897f"/><rect width="2.5" height="6" fill="#b8322a"/></pattern><pattern id="helped" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)"><rect width="6" height="6" fill="#eeeef2"/><rect width="1.5" height="6" fill="#9a9aa8"/></pattern><marker id="head" markerWidth="7" markerHeight="6" refX="6" refY="3" orient="auto"><path d="M0,0 L7,3 L0,6 z" fill="{FRAME}"/></marker><marker id="thin" markerWidth="8" markerHeight="6" refX="8" refY="3" orient="auto"><path d="M0,0 L8,3 L0,6 z" fill="{THIN}"/></marker></defs>
<rect width="100%" height="100%" fill="#ffffff"/>
"##
    );
    heading(&mut picture, recording, &lines);
    let _ = writeln!(
        picture,
        r#"<text x="{LABELS}" y="{:.1}">{}</text><text x="{}" y="{:.1}" text-anchor="end">{}</text>"#,
        head - 12.0,
        time(from_ns),
        WIDTH - 10.0,
        head - 12.0,
        time(to_ns)
    );
    let locks = locks(timeline);
    for (row, (lane, _)) in shown.iter().enumerate() {
        let y = head + ROW * row as f64;
        let _ = writeln!(picture, r#"<text x="4" y="{:.1}">{}</text>"#, y + 11.0, escaped(lane));
        let own = timeline.spans.iter().filter(|span| span.lane == *lane);
        let fill = |span: &Span| fill_of(span, |lock| locks.contains(lock));
        lane_row(&mut picture, own.collect(), y, scale, &fill);
    }
    let top_of = |lane: &str| {
        let row = shown.iter().position(|(other, _)| *other == lane)?;
        Some(head + ROW * row as f64)
    };
    thin_arrows(&mut picture, &timeline.spans, &chain, scale, &top_of);
    frames(&mut picture, &chain, scale, &top_of);
    legend(&mut picture, foot + 16.0);
    picture + "</svg>\n"
}

/// Draws the description of the recording, and the longest wait.
fn heading(picture: &mut String, recording: &Recording, lines: &[String]) {
    if let Some((light, _)) = recording.colours() {
        let _ = writeln!(picture, r#"<rect x="4" y="7" width="5" height="15" fill="{light}"/>"#);
    }
    let _ = writeln!(
        picture,
        r#"<text x="14" y="19" font-size="14"><tspan font-weight="bold">{}</tspan>&#160; {}</text>"#,
        escaped(&recording.title()),
        escaped(&recording.about())
    );
    for (number, line) in lines.iter().enumerate() {
        let y = TITLE + 11.0 + LINE * number as f64;
        let _ = writeln!(picture, r#"<text x="14" y="{y:.1}">{}</text>"#, escaped(line));
    }
}

fn wrapped(words: &str, letters: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in words.split(' ') {
        let is_full = lines.last().is_some_and(|line| {
            !line.is_empty() && line.chars().count() + 1 + word.chars().count() > letters
        });
        if is_full {
            lines.push(String::new());
        }
        let line = lines.last_mut().expect("there is always one");
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines
}

/// Returns the top within the row, the height and the fill of a bar.
fn fill_of(span: &Span, is_lock: impl Fn(&str) -> bool) -> (f64, f64, &'static str) {
    match &span.activity {
        Activity::Wait { resource, .. } if is_lock(resource) => (2.0, 10.0, BLOCKED),
        _ if waits(span) => (2.0, 10.0, HELPED),
        Activity::Run => (2.0, 10.0, colour(span.kind)),
        Activity::Core => (2.0, 10.0, CORE),
        Activity::Disk | Activity::Network => (5.0, 4.0, DISK),
        // The hold of a lock is a thin bar below the other bars.
        _ => (13.0, 2.0, HOLD),
    }
}

fn lane_row(
    picture: &mut String,
    mut own: Vec<&Span>,
    y: f64,
    scale: Scale,
    fill: &dyn Fn(&Span) -> (f64, f64, &'static str),
) {
    // The right end of the drawn bars, separately for the thin bars of held locks and for all
    // others.
    let mut drawn = [0.0_f64; 2];
    // Earlier spans are drawn first, because a narrow span is omitted if an earlier one covers it.
    own.sort_by_key(|span| (span.from_ns, Reverse(span.to_ns)));
    for span in own {
        let (left, right) = (scale.x(span.from_ns), scale.x(span.to_ns));
        let drawn = &mut drawn[usize::from(matches!(span.activity, Activity::Hold { .. }))];
        // Bars that are too narrow to be seen are omitted if something is already drawn there.
        if right - left < LEAST && right < *drawn + LEAST {
            continue;
        }
        *drawn = drawn.max(right);
        let (top, height, fill) = fill(span);
        let _ = writeln!(
            picture,
            r#"<rect x="{left:.2}" y="{:.1}" width="{:.2}" height="{height}" fill="{fill}"><title>{} {} for {}</title></rect>"#,
            y + top,
            (right - left).max(LEAST),
            escaped(&span.lane),
            escaped(&words(span)),
            time(span.length_ns())
        );
    }
}

/// Draws an arrow from each wait to the lane that it waits for, except for short waits and for the
/// waits of the chain.
fn thin_arrows(
    picture: &mut String,
    spans: &[Span],
    chain: &[&Span],
    scale: Scale,
    top_of: &dyn Fn(&str) -> Option<f64>,
) {
    for span in spans.iter().filter(|span| !chain.contains(span)) {
        let Activity::Wait { blocker: Some(blocker), .. } = &span.activity else { continue };
        let (Some(top), Some(other)) = (top_of(&span.lane), top_of(blocker)) else { continue };
        if top == other || (span.length_ns() as f64) < LEAST_ARROW * scale.whole_ns {
            continue;
        }
        let x = scale.x(span.from_ns) + 3.0;
        let (begin, end) = match other > top {
            true => (top + 12.0, other + 2.0),
            false => (top + 2.0, other + 12.0),
        };
        let _ = writeln!(
            picture,
            r#"<line class="thin" x1="{x:.2}" x2="{x:.2}" y1="{begin:.1}" y2="{end:.1}" stroke="{THIN}" stroke-width="0.8" marker-end="url(#thin)"/>"#
        );
    }
}

/// Draws a frame around each span of a chain, and an arrow from each to its cause.
fn frames(
    picture: &mut String,
    chain: &[&Span],
    scale: Scale,
    top_of: &dyn Fn(&str) -> Option<f64>,
) {
    for (place, span) in chain.iter().enumerate() {
        let Some(top) = top_of(&span.lane) else { continue };
        let (left, right) = (scale.x(span.from_ns), scale.x(span.to_ns));
        let (above, height) = match span.activity {
            Activity::Hold { .. } => (12.0, 4.0),
            _ => (1.0, 12.0),
        };
        let _ = writeln!(
            picture,
            r#"<rect class="chain" x="{left:.2}" y="{:.1}" width="{:.2}" height="{height}" fill="none" stroke="{FRAME}" stroke-width="1.3"/>"#,
            top + above,
            (right - left).max(1.5)
        );
        let Some(cause) = chain.get(place + 1).filter(|cause| cause.lane != span.lane) else {
            continue;
        };
        let Some(other) = top_of(&cause.lane) else { continue };
        let x = (left.max(scale.x(cause.from_ns)) + 7.0).min(right.min(scale.x(cause.to_ns)));
        let (begin, end) = match other > top {
            true => (top + 13.0, other + 1.0),
            false => (top + 1.0, other + 13.0),
        };
        let _ = writeln!(
            picture,
            r#"<line x1="{x:.2}" x2="{x:.2}" y1="{begin:.1}" y2="{end:.1}" stroke="{FRAME}" stroke-width="1.3" marker-end="url(#head)"/>"#
        );
    }
}

fn legend(picture: &mut String, y: f64) {
    let entries = [
        (colour(LaneKind::Read), "reads", 60.0),
        (colour(LaneKind::Write), "writes", 64.0),
        (colour(LaneKind::Work), "works for others", 116.0),
        (BLOCKED, "waits for a lock", 112.0),
        (HELPED, "waits for a worker", 124.0),
        (CORE, "waits for a core", 112.0),
        (DISK, "disk or network", 110.0),
        (HOLD, "has a lock", 84.0),
        ("none", "the longest wait, and its causes", 0.0),
    ];
    let mut x = LABELS / 2.0;
    for (fill, words, room) in entries {
        let top = y - 8.0;
        let stroke = if fill == "none" { FRAME } else { "none" };
        let _ = writeln!(
            picture,
            r##"<rect x="{x}" y="{top}" width="14" height="9" fill="{fill}" stroke="{stroke}"/><text x="{}" y="{y}" fill="#555">{words}</text>"##,
            x + 18.0
        );
        x += room;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::Timeline;

    #[test]
    fn the_chain_is_told_framed_and_on_top() {
        let line = |lane: &str, kind: &str, rest: &str| {
            format!("{{\"lane\":\"{lane}\",\"kind\":\"{kind}\",{rest}}}\n")
        };
        let text = [
            line("log", "work", r#""what":"disk","from":0,"to":100"#),
            line("list #1", "read", r#""what":"hold","of":"readTx","from":0,"to":90"#),
            line("list #1", "read", r#""what":"run","from":0,"to":95"#),
            line(
                "put #1",
                "write",
                r#""what":"wait","of":"readTx","behind":"list #1","from":9,"to":90"#,
            ),
            line(
                "put #2",
                "write",
                r#""what":"wait","of":"the log","behind":"log","from":20,"to":70"#,
            ),
            line(
                "put #3",
                "write",
                r#""what":"wait","of":"the log","behind":"log","from":20,"to":21"#,
            ),
        ];
        let timeline: Timeline = text.concat().parse().expect("a timeline");
        let picture = draw(&Recording { name: "<a>".to_owned(), timeline, ..Recording::default() });
        let words = ">put #1 waits 81 ns for readTx, behind list #1, which has readTx for 90 ns<";
        assert!(picture.contains(words) && picture.contains(">&lt;a&gt;<"), "{picture}");
        assert_eq!(picture.matches("class=\"chain\"").count(), 2);
        // One arrow belongs to the chain. Of the two other waits, one is long enough.
        assert_eq!(picture.matches("marker-end=\"url(#head)\"").count(), 1);
        assert_eq!(picture.matches("class=\"thin\"").count(), 1);
        let place = |lane: &str| picture.find(&format!(">{lane}</text>")).expect("a lane");
        assert!(place("put #1") < place("list #1") && place("list #1") < place("log"));
    }

    #[test]
    fn a_long_sentence_has_lines() {
        assert_eq!(wrapped("aa bb cc", 4), ["aa", "bb", "cc"]);
        assert_eq!(wrapped("aa bb cc", 5), ["aa bb", "cc"]);
    }
}
