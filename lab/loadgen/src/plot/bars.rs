//! Horizontal bars in groups, each with its value.
//!
//! A bar shows its value by its length, so its axis is linear and starts at zero. A log axis has no
//! zero: the lengths would depend on where the axis starts. So on a log axis each value is a dot.

use super::drawing::{Drawing, END, START, WIDTH};
use super::frame::{Frame, LINE_HEIGHT, MARGIN, end_of_texts};
use super::labels::{LABEL_CHARACTERS_MAX, shortened, width_of};
use super::range::{AxisRange, End, is_drawable};
use super::{Axis, Better, Colour, Scale, short};

const BAR: f64 = 16.0;
const BAR_GAP: f64 = 4.0;
const GROUP_GAP: f64 = 12.0;
/// Space for the value of the longest bar.
const VALUE_WIDTH: f64 = 62.0;
const TICKS_MAX: usize = 6;

/// A chart of bars, or of dots if its axis is a log scale. [`Bars::svg`] draws them one below the
/// other.
#[derive(Clone, Debug)]
pub struct Bars {
    pub title: String,
    /// The axis of the values.
    pub y: Axis,
    pub better: Better,
    pub groups: Vec<BarGroup>,
}

#[derive(Clone, Debug)]
pub struct BarGroup {
    pub label: String,
    /// The label, colour and value of each bar. A bar whose value is not finite is drawn as
    /// `no data`.
    pub bars: Vec<(String, Colour, f64)>,
}

impl Bars {
    /// Returns an `<svg>` element that needs no other file.
    pub fn svg(&self) -> String {
        let frame = self.frame();
        let mut drawing = frame.draw();
        let mut y = frame.top;
        for group in &self.groups {
            if !group.label.is_empty() {
                y += LINE_HEIGHT;
                drawing.text("group halo", (MARGIN, y - 5.0), START, &group.label);
            }
            for bar in &group.bars {
                draw_bar(&mut drawing, &frame, self.y.scale, y, bar);
                y += BAR + BAR_GAP;
            }
            y += GROUP_GAP;
        }
        drawing.finish()
    }

    fn frame(&self) -> Frame<'_> {
        let bars = self.groups.iter().flat_map(|group| &group.bars);
        let labels = width_of(bars.clone().map(|(label, ..)| label));
        let values = bars.clone().map(|(.., value)| *value);
        let heights = self.groups.iter().map(|group| {
            let label = if group.label.is_empty() { 0.0 } else { LINE_HEIGHT };
            label + (BAR + BAR_GAP) * group.bars.len() as f64 + GROUP_GAP
        });
        let top = end_of_texts(&self.title) + 10.0;
        Frame {
            title: &self.title,
            above: self.y.described(self.better),
            below: None,
            note: None,
            x: AxisRange::of(self.y.scale, values, TICKS_MAX, End::Round),
            y: None,
            left: MARGIN + labels + 12.0,
            right: WIDTH - MARGIN - VALUE_WIDTH,
            top,
            bottom: top + heights.sum::<f64>().max(2.0 * LINE_HEIGHT),
            is_empty: bars.count() == 0,
        }
    }
}

fn draw_bar(
    drawing: &mut Drawing,
    frame: &Frame<'_>,
    scale: Scale,
    top: f64,
    (label, colour, value): &(String, Colour, f64),
) {
    let text = top + BAR - 4.0;
    let label = shortened(label, LABEL_CHARACTERS_MAX);
    drawing.text("", (frame.left - 8.0, text), END, &label);
    if !is_drawable(*value) {
        drawing.text("faint halo", (frame.left + 6.0, text), START, "no data");
        return;
    }
    let (zero, end) = (frame.x(0.0), frame.x(*value));
    if scale == Scale::Log {
        let middle = top + BAR / 2.0;
        // The line leads from the label to the dot, and on to the right edge, so that its length
        // shows nothing.
        drawing.rule("grid", [(frame.left, middle), (frame.right, middle)]);
        drawing.series(*colour, |drawing| {
            drawing.dot(*colour, (end, middle), &format!("{label}: {}", short(*value)));
        });
        drawing.text("halo", (end + 6.0, text), START, &short(*value));
        return;
    }
    let (from, to) = (zero.min(end), zero.max(end));
    let size = ((to - from).max(1.0), BAR);
    drawing.series(*colour, |drawing| drawing.bar(*colour, (from, top), size));
    drawing.text("halo", (to + 6.0, text), START, &short(*value));
}
