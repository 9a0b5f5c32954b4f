//! A timeline in a terminal: a sentence about the longest wait, and a line for each lane. The lanes
//! of the wait's causes are first.
//!
//! ```text
//!   expensive #1  ████████████████████████
//!   put #1            ▒▒▒▒▒░░░░░░░░░░░░░░░░██
//!   cheap #7                 ░░░░░░░░░░░░░░░░██
//! ```
//!
//! `█` runs, `░` waits for another task, `▒` for a core, `≈` for the disk, `·` for a message.

use std::fmt::Write as _;

use super::{Recording, sentence, time};
use crate::timeline::{Activity, LaneKind, Span};

#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Number of characters of the time axis.
    pub width: usize,
    pub lanes_max: usize,
    pub has_colours: bool,
}

pub fn draw(recording: &Recording, style: Style) -> String {
    let timeline = &recording.timeline;
    let Some((from_ns, to_ns)) = timeline.bounds().filter(|(from, to)| from < to) else {
        return "nothing was recorded\n".to_owned();
    };
    let chain = recording.longest_chain();
    let lanes = recording.lanes(&chain);
    let shown = &lanes[..lanes.len().min(style.lanes_max)];
    let widest = shown.iter().map(|(lane, _)| lane.chars().count()).max().unwrap_or(0);
    let heading = [recording.title(), recording.about()].into_iter().filter(|it| !it.is_empty());
    let mut picture = format!(
        "{}\n{}\nfrom {} to {}\n",
        heading.collect::<Vec<_>>().join(": "),
        sentence(&chain),
        time(from_ns),
        time(to_ns)
    );
    for (lane, kind) in shown {
        let mut cells = vec![(0, ' '); style.width];
        let own = timeline.spans.iter().filter(|span| span.lane == *lane);
        for span in own {
            fill(&mut cells, span, from_ns, to_ns);
        }
        let line: String = cells.iter().map(|(_, cell)| painted(*cell, *kind, style)).collect();
        let _ = writeln!(picture, "{lane:widest$}  {}", line.trim_end());
    }
    if shown.len() < lanes.len() {
        let _ = writeln!(picture, "and {} more", lanes.len() - shown.len());
    }
    picture + "█ runs  ░ waits for another  ▒ waits for a core  ≈ disk  · network\n"
}

/// Fills the cells that a span covers. A cell shows the span that covers the largest part of it.
fn fill(cells: &mut [(u64, char)], span: &Span, from_ns: u64, to_ns: u64) {
    let sign = match span.activity {
        Activity::Run => '█',
        Activity::Core => '▒',
        Activity::Wait { .. } => '░',
        Activity::Disk => '≈',
        Activity::Network => '·',
        Activity::Hold { .. } => return,
    };
    let (count, whole) = (cells.len() as u128, u128::from(to_ns - from_ns));
    let edge = |cell: u128| from_ns + (cell * whole / count) as u64;
    let first = u128::from(span.from_ns - from_ns) * count / whole;
    for cell in first..count {
        let (begin, end) = (edge(cell), edge(cell + 1));
        if begin >= span.to_ns {
            break;
        }
        let covered = span.to_ns.min(end).saturating_sub(span.from_ns.max(begin)).max(1);
        let place = &mut cells[cell as usize];
        if place.0 < covered {
            *place = (covered, sign);
        }
    }
}

fn painted(cell: char, kind: LaneKind, style: Style) -> String {
    if !style.has_colours || cell == ' ' {
        return cell.to_string();
    }
    let colour = match (cell, kind) {
        ('░', _) => "31",
        (_, LaneKind::Read) => "34",
        (_, LaneKind::Write) => "32",
        (_, LaneKind::Work) => "90",
    };
    format!("\x1b[{colour}m{cell}\x1b[0m")
}
