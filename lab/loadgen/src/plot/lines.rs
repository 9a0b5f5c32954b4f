//! Draws a plot with lines.

use itertools::Itertools as _;

use super::drawing::{Drawing, END, Point, START, WIDTH};
use super::frame::{Frame, MARGIN, end_of_texts};
use super::labels::{LABEL_CHARACTERS_MAX, shortened, spread, width_of};
use super::range::{AxisRange, End, is_drawable};
use super::{Better, Line, Plot, short};

const AREA_HEIGHT: f64 = 220.0;
const LABEL_GAP: f64 = 16.0;
const X_TICKS_MAX: usize = 7;
const Y_TICKS_MAX: usize = 6;
/// Maximum number of points of a line that has a dot at each point.
const DOTS_MAX: usize = 40;
/// The dash patterns of lines that have the same colour.
const DASHES: [&str; 4] = ["", "7 4", "2 3", "9 3 2 3"];
/// Distance of a label above its peak, so that it does not cover the columns next to the peak.
const ABOVE_PEAK: f64 = 9.0;
/// Width of the line that leads to a label, measured from the edge of the area or from the peak.
const LEADER: f64 = 14.0;

/// The place of a line's label.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LabelPlace {
    End,
    /// At the peak, for lines that all end at the same height.
    Peak,
}

impl Plot {
    /// Returns an `<svg>` element that needs no other file.
    pub fn svg(&self) -> String {
        self.draw(LabelPlace::End)
    }

    pub(super) fn draw(&self, place: LabelPlace) -> String {
        let frame = self.frame(place);
        let mut drawing = frame.draw();
        for (index, line) in self.lines.iter().enumerate() {
            // If an earlier line has the same colour, this line gets other dashes.
            let earlier = self.lines[..index].iter().filter(|other| other.colour == line.colour);
            let dashes = DASHES[earlier.count() % DASHES.len()];
            drawing.series(line.colour, |drawing| draw_line(drawing, &frame, line, dashes, place));
        }
        draw_labels(&mut drawing, &frame, &self.lines, place);
        drawing.finish()
    }

    fn frame(&self, place: LabelPlace) -> Frame<'_> {
        let values = self.lines.iter().flat_map(Line::drawable);
        let xs = values.clone().map(|(x, _)| x);
        let x = AxisRange::of(self.x.scale, xs, X_TICKS_MAX, End::Largest);
        let y = AxisRange::of(self.y.scale, values.map(|(_, y)| y), Y_TICKS_MAX, End::Round);
        let ticks = width_of(y.ticks.iter().map(|tick| &tick.label));
        let labels = match place {
            LabelPlace::End => width_of(self.lines.iter().map(|line| &line.label)),
            LabelPlace::Peak => 0.0,
        };
        let top = end_of_texts(&self.title) + 12.0;
        let empty: Vec<&Line> =
            self.lines.iter().filter(|line| line.drawable().next().is_none()).collect();
        let names = empty.iter().map(|line| &line.label).join(", ");
        Frame {
            title: &self.title,
            above: self.y.described(self.better),
            below: Some(self.x.described(Better::Neither)),
            note: (!empty.is_empty()).then(|| format!("Too little data: {names}.")),
            left: MARGIN + ticks + 8.0,
            right: WIDTH - MARGIN - labels - LEADER - 4.0,
            top,
            bottom: top + AREA_HEIGHT.max(LABEL_GAP * self.lines.len() as f64),
            is_empty: empty.len() == self.lines.len(),
            x,
            y: Some(y),
        }
    }
}

impl Line {
    fn drawable(&self) -> impl Iterator<Item = Point> + Clone {
        self.points.iter().copied().filter(|(x, y)| is_drawable(*x) && is_drawable(*y))
    }

    /// Returns the point where the label is placed, or `None` if no point of the line can be drawn.
    fn labelled(&self, place: LabelPlace) -> Option<Point> {
        match place {
            LabelPlace::End => self.drawable().last(),
            LabelPlace::Peak => self.drawable().max_by(|one, other| one.1.total_cmp(&other.1)),
        }
    }
}

fn draw_line(
    drawing: &mut Drawing,
    frame: &Frame<'_>,
    line: &Line,
    dashes: &str,
    place: LabelPlace,
) {
    let is_gap = |(x, y): &Point| !is_drawable(*x) || !is_drawable(*y);
    let has_dots = place == LabelPlace::End && line.points.len() <= DOTS_MAX;
    for part in line.points.split(is_gap).filter(|part| !part.is_empty()) {
        let points: Vec<Point> = part.iter().map(|point| frame.place(*point)).collect();
        if points.len() > 1 {
            drawing.polyline("curve", line.colour, dashes, &points);
        }
        if has_dots || points.len() == 1 {
            for ((x, y), point) in part.iter().zip(points) {
                let words = format!("{}: {} at {}", line.label, short(*y), short_x(*x));
                drawing.dot(line.colour, point, &words);
            }
        }
    }
}

fn draw_labels(drawing: &mut Drawing, frame: &Frame<'_>, lines: &[Line], place: LabelPlace) {
    let labelled = |line| Some((line, frame.place(Line::labelled(line, place)?)));
    let labelled: Vec<(&Line, Point)> = lines.iter().filter_map(labelled).collect();
    let (above, class) = match place {
        LabelPlace::End => (0.0, ""),
        LabelPlace::Peak => (ABOVE_PEAK, "halo"),
    };
    let wanted: Vec<f64> = labelled.iter().map(|(_, (_, y))| *y - above).collect();
    let heights = spread(&wanted, LABEL_GAP, frame.top, frame.bottom);
    for ((line, (x, y)), height) in labelled.into_iter().zip(heights) {
        let (edge, side, anchor) = match place {
            LabelPlace::End => (frame.right, 1.0, START),
            LabelPlace::Peak if x < frame.middle().0 => (x, 1.0, START),
            LabelPlace::Peak => (x, -1.0, END),
        };
        let beside = |distance: f64| edge + side * distance;
        let leader = [(x, y), (beside(LEADER / 2.0), height), (beside(LEADER), height)];
        drawing.series(line.colour, |drawing| {
            drawing.polyline("leader", line.colour, "", &leader);
        });
        let label = shortened(&line.label, LABEL_CHARACTERS_MAX);
        drawing.text(class, (beside(LEADER + 3.0), height + 4.0), anchor, &label);
    }
}

/// Returns an x value as text. Percentiles keep all their nines.
fn short_x(x: f64) -> String {
    if (90.0..100.0).contains(&x) { x.to_string() } else { short(x) }
}
