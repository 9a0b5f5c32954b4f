//! Draws a plot with lines.

use itertools::Itertools as _;

use super::drawing::{Anchor, Drawing, Point, WIDTH};
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
            drawing.begin_series(line.colour);
            draw_line(&mut drawing, &frame, line, DASHES[earlier.count() % DASHES.len()], place);
            drawing.end_series();
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
            LabelPlace::End => (frame.right, 1.0, Anchor::START),
            LabelPlace::Peak if x < frame.middle().0 => (x, 1.0, Anchor::START),
            LabelPlace::Peak => (x, -1.0, Anchor::END),
        };
        let beside = |distance: f64| edge + side * distance;
        let leader = [(x, y), (beside(LEADER / 2.0), height), (beside(LEADER), height)];
        drawing.begin_series(line.colour);
        drawing.polyline("leader", line.colour, "", &leader);
        drawing.end_series();
        let label = shortened(&line.label, LABEL_CHARACTERS_MAX);
        drawing.text(class, (beside(LEADER + 3.0), height + 4.0), anchor, &label);
    }
}

/// Returns an x value as text. Percentiles keep all their nines.
fn short_x(x: f64) -> String {
    if (90.0..100.0).contains(&x) { x.to_string() } else { short(x) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::{Axis, Scale, era_colour, well_formed};

    fn plot(scale: Scale, lines: &[(&str, &[Point])]) -> Plot {
        let line = |(name, points): &(&str, &[Point])| Line {
            label: (*name).to_owned(),
            colour: era_colour(name),
            points: points.to_vec(),
        };
        Plot {
            title: "Latency of cheap reads".to_owned(),
            x: Axis::new("time, s", Scale::Linear),
            y: Axis::new("latency, ms", scale),
            better: Better::Lower,
            lines: lines.iter().map(line).collect(),
        }
    }

    fn texts(svg: &str) -> Vec<&str> {
        let after = svg.split("<text").skip(1).filter_map(|rest| rest.split_once('>'));
        after.filter_map(|(_, rest)| rest.split_once("</text>")).map(|(text, _)| text).collect()
    }

    fn attributes<'a>(svg: &'a str, element: &str, name: &str) -> Vec<&'a str> {
        let begin = format!("<{element} ");
        let elements = svg.split(&begin).skip(1);
        let ends = elements.filter_map(|rest| rest.split_once('>')).map(|(inside, _)| inside);
        let key = format!(" {name}=\"");
        let values = ends.filter_map(|inside| inside.split_once(&key));
        values.filter_map(|(_, rest)| rest.split_once('"')).map(|(value, _)| value).collect()
    }

    #[test]
    fn it_says_what_is_drawn_and_labels_each_line() {
        let points = [(0.0, 1.0), (30.0, 20.0), (60.0, 5.0)];
        let svg = plot(Scale::Log, &[("3.2", &points), ("clearlane", &points)]).svg();
        assert_eq!(well_formed::check(&svg), Ok(()));
        let texts = texts(&svg);
        for expected in [
            "Latency of cheap reads",
            "latency, ms (log scale, lower is better)",
            "time, s",
            "3.2",
            "clearlane",
            "10",
            "60",
        ] {
            assert!(texts.contains(&expected), "{expected}: {texts:?}");
        }
        assert_eq!(svg.matches("<polyline class=\"curve\"").count(), 2, "{svg}");
        assert_eq!(svg.matches("prefers-color-scheme:dark").count(), 1);
        let colour = era_colour("3.2");
        assert!(svg.contains(&format!("--light:{};--dark:{}", colour.light, colour.dark)));
    }

    #[test]
    fn lines_of_one_colour_have_other_dashes() {
        let points = [(0.0, 1.0), (1.0, 2.0)];
        let svg = plot(Scale::Linear, &[("3.2", &points), ("etcd", &points), ("3.2", &points)]);
        let svg = svg.svg();
        assert_eq!(attributes(&svg, "polyline", "stroke-dasharray"), ["7 4"]);
    }

    #[test]
    fn all_is_inside_of_the_picture_and_no_label_lies_on_another() {
        let lines: Vec<(String, Vec<Point>)> = (0..30_u32)
            .map(|line| {
                let points = (0..50).map(|at| (f64::from(at), f64::from(at * line % 7)));
                (format!("a line with a long name, {line}"), points.collect())
            })
            .collect();
        let lines: Vec<(&str, &[Point])> =
            lines.iter().map(|(name, points)| (name.as_str(), points.as_slice())).collect();
        let plot = plot(Scale::Linear, &lines);
        let layout = plot.frame(LabelPlace::End);
        let svg = plot.svg();
        for points in attributes(&svg, "polyline", "points") {
            for point in points.split(' ') {
                let (x, y) = point.split_once(',').expect("two numbers");
                let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                assert!(x >= layout.left - 0.1 && x <= WIDTH, "{point}");
                assert!(y >= layout.top - 0.1 && y <= layout.bottom + 0.1, "{point}");
            }
        }
        let labels = svg.split("<text").filter(|rest| rest.contains("a line with"));
        let mut heights: Vec<f64> = labels
            .filter_map(|rest| rest.split_once(" y=\""))
            .filter_map(|(_, rest)| rest.split_once('"')?.0.parse().ok())
            .collect();
        assert_eq!(heights.len(), 30);
        heights.sort_by(f64::total_cmp);
        assert!(heights.windows(2).all(|pair| pair[1] - pair[0] > 15.0), "{heights:?}");
    }

    #[test]
    fn what_is_no_number_leaves_a_gap() {
        let points =
            [(0.0, 1.0), (1.0, 2.0), (2.0, f64::NAN), (3.0, 2.0), (4.0, f64::INFINITY), (5.0, 1.0)];
        let svg = plot(Scale::Linear, &[("etcd", &points)]).svg();
        // The line has three parts. The first part has two points and is drawn as a curve. The
        // other two are single points. Each of the four points has a dot.
        assert_eq!(svg.matches("<polyline class=\"curve\"").count(), 1, "{svg}");
        assert_eq!(svg.matches("<circle").count(), 4, "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn zero_on_a_log_scale_is_at_the_edge() {
        let svg = plot(Scale::Log, &[("etcd", &[(0.0, 0.0), (1.0, 10.0)])]).svg();
        let note = "Zero has no place on a log scale: drawn at the lower edge.";
        assert!(texts(&svg).contains(&note), "{svg}");
        let linear = plot(Scale::Linear, &[("etcd", &[(0.0, 0.0), (1.0, 10.0)])]).svg();
        assert!(!linear.contains("Zero has no place"), "{linear}");
        let only_zero = plot(Scale::Log, &[("etcd", &[(0.0, 0.0)])]).svg();
        assert!(only_zero.contains("<circle"), "{only_zero}");
    }

    #[test]
    fn without_data_it_says_so() {
        for lines in [&[][..], &[("3.5", &[][..]), ("<&>", &[(f64::NAN, 1.0)])]] {
            for scale in [Scale::Linear, Scale::Log, Scale::Nines] {
                let svg = plot(scale, lines).svg();
                assert_eq!(well_formed::check(&svg), Ok(()));
                assert!(texts(&svg).contains(&"no data"), "{svg}");
                assert!(!svg.contains("NaN"), "{svg}");
                let note = "Too little data: 3.5, &lt;&amp;&gt;.";
                assert_eq!(texts(&svg).contains(&note), !lines.is_empty(), "{svg}");
            }
        }
    }
}
