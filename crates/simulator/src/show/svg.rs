//! A timeline as a picture: reads blue, writes green, waits for a lock red and striped, waits for a
//! worker grey and striped the other way, so that the colour alone does not tell. Pointing at a bar
//! says what it is.

use std::cmp::Reverse;
use std::fmt::Write as _;

use super::{colour, escaped, locks, time, waits, words};
use crate::timeline::{Activity, LaneKind, Timeline};

const WIDTH: f64 = 1100.0;
const LABELS: f64 = 130.0;
const ROW: f64 = 16.0;
const HEAD: f64 = 30.0;
/// Minimum width of a bar.
const LEAST: f64 = 0.3;
const BLOCKED: &str = "url(#blocked)";
const HELPED: &str = "url(#helped)";
const CORE: &str = "#e0a83a";
const DISK: &str = "#8d6bb8";
const HOLD: &str = "#333333";
/// Further lanes are left out.
const LANES_MAX: usize = 200;

pub fn draw(timeline: &Timeline) -> String {
    let (from_ns, to_ns) = timeline.bounds().unwrap_or((0, 1));
    let whole = (to_ns - from_ns).max(1) as f64;
    let x = |ns: u64| LABELS + (ns - from_ns) as f64 / whole * (WIDTH - LABELS - 10.0);
    let lanes = timeline.lanes();
    let shown = &lanes[..lanes.len().min(LANES_MAX)];
    let locks = locks(timeline);
    let foot = HEAD + ROW * shown.len() as f64;
    let height = foot + 24.0;
    let mut picture = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11">
<defs><pattern id="blocked" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="6" height="6" fill="#e8897f"/><rect width="2.5" height="6" fill="#b8322a"/></pattern><pattern id="helped" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)"><rect width="6" height="6" fill="#eeeef2"/><rect width="1.5" height="6" fill="#9a9aa8"/></pattern></defs>
<rect width="100%" height="100%" fill="#ffffff"/>
<text x="{LABELS}" y="18">{}</text><text x="{}" y="18" text-anchor="end">{}</text>
"##,
        time(from_ns),
        WIDTH - 10.0,
        time(to_ns)
    );
    for (row, (lane, _)) in shown.iter().enumerate() {
        let y = HEAD + ROW * row as f64;
        let _ = writeln!(picture, r#"<text x="4" y="{:.1}">{}</text>"#, y + 11.0, escaped(lane));
        // The right end of what is drawn, at each height.
        let mut drawn = [0.0_f64; 2];
        let mut own: Vec<_> = timeline.spans.iter().filter(|span| span.lane == *lane).collect();
        // Earlier spans are drawn first; later ones are hidden if they are too narrow.
        own.sort_by_key(|span| (span.from_ns, Reverse(span.to_ns)));
        for span in own {
            let (left, right) = (x(span.from_ns), x(span.to_ns));
            let drawn = &mut drawn[usize::from(matches!(span.activity, Activity::Hold { .. }))];
            // Bars that are too narrow to be seen are left out if something is drawn there already.
            if right - left < LEAST && right < *drawn + LEAST {
                continue;
            }
            *drawn = drawn.max(right);
            let (top, height, fill) = match span.activity {
                Activity::Wait { resource: ref of, .. } if locks.contains(of.as_str()) => {
                    (2.0, 10.0, BLOCKED)
                }
                _ if waits(span) => (2.0, 10.0, HELPED),
                Activity::Run => (2.0, 10.0, colour(span.kind)),
                Activity::Core => (2.0, 10.0, CORE),
                Activity::Disk | Activity::Network => (5.0, 4.0, DISK),
                // A bar below, while the lock is held.
                _ => (13.0, 2.0, HOLD),
            };
            let took = time(span.to_ns - span.from_ns);
            let _ = writeln!(
                picture,
                r#"<rect x="{left:.2}" y="{:.1}" width="{:.2}" height="{height}" fill="{fill}"><title>{} {} for {took}</title></rect>"#,
                y + top,
                (right - left).max(LEAST),
                escaped(lane),
                escaped(&words(span))
            );
        }
    }
    legend(&mut picture, foot + 16.0);
    picture + "</svg>\n"
}

fn legend(picture: &mut String, y: f64) {
    let entries = [
        (colour(LaneKind::Read), "reads", 70.0),
        (colour(LaneKind::Write), "writes", 74.0),
        (colour(LaneKind::Work), "works for others", 130.0),
        (BLOCKED, "waits for a lock", 126.0),
        (HELPED, "waits for a worker", 140.0),
        (CORE, "waits for a core", 128.0),
        (DISK, "disk or network", 126.0),
        (HOLD, "has a lock", 0.0),
    ];
    let mut x = LABELS;
    for (fill, words, room) in entries {
        let top = y - 8.0;
        let _ = writeln!(
            picture,
            r##"<rect x="{x}" y="{top}" width="14" height="9" fill="{fill}"/><text x="{}" y="{y}" fill="#555">{words}</text>"##,
            x + 18.0
        );
        x += room;
    }
}
