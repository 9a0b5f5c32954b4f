//! A plot with lines.

use super::drawing::{Anchor, Drawing, Point, Rule, WIDTH};
use super::labels::{
    NOTE_CHARACTERS_MAX, TITLE_CHARACTERS_MAX, shortened, spread, width_of, wrapped, zero_note,
};
use super::range::{AxisRange, End, is_drawable};
use super::{Better, Line, Plot, Scale, short};

const AREA_HEIGHT: f64 = 220.0;
const MARGIN: f64 = 14.0;
const LINE_HEIGHT: f64 = 18.0;
const LABEL_GAP: f64 = 16.0;
const LABEL_CHARACTERS_MAX: usize = 22;
const X_TICKS_MAX: usize = 7;
const Y_TICKS_MAX: usize = 6;
/// Each point of a shorter line has a dot.
const DOTS_MAX: usize = 40;
/// Of lines of one colour.
const DASHES: [&str; 4] = ["", "7 4", "2 3", "9 3 2 3"];
/// Of a label, so that the columns beside the peak are not behind it.
const ABOVE_PEAK: f64 = 9.0;
/// Between the area and a label.
const LEADER: f64 = 14.0;

/// Where a line has its label.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LabelPlace {
    End,
    /// For lines which all end at the same height.
    Peak,
}

impl Plot {
    /// An `<svg>` that needs nothing else.
    pub fn svg(&self) -> String {
        self.draw(LabelPlace::End)
    }

    pub(super) fn draw(&self, place: LabelPlace) -> String {
        let layout = Layout::of(self, place);
        let mut drawing = Drawing::new(layout.height, &self.title);
        layout.draw_texts(&mut drawing);
        layout.draw_frame(&mut drawing);
        for (line, dashes) in self.lines.iter().zip(self.dashes()) {
            drawing.begin_series(line.colour);
            layout.draw_line(&mut drawing, line, dashes, place);
            drawing.end_series();
        }
        layout.draw_labels(&mut drawing, place);
        drawing.finish()
    }

    fn values(&self, axis: impl Fn(&Point) -> f64 + Clone) -> impl Iterator<Item = f64> + Clone {
        let lines = self.lines.iter();
        lines.flat_map(Line::drawable).map(move |point| axis(&point))
    }

    fn has_zero(&self, axis: impl Fn(&Point) -> f64 + Clone) -> bool {
        self.values(axis).any(|value| value <= 0.0)
    }

    /// What is not as a reader expects it.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for (axis, has_zero, edge) in [
            (&self.x, self.has_zero(|point| point.0), "left"),
            (&self.y, self.has_zero(|point| point.1), "lower"),
        ] {
            if has_zero && axis.scale == Scale::Log {
                notes.push(zero_note(edge));
            }
        }
        let empty = self.lines.iter().filter(|line| line.drawable().next().is_none());
        let empty: Vec<&str> = empty.map(|line| line.label.as_str()).collect();
        if !empty.is_empty() {
            notes.push(format!("Too little data: {}.", empty.join(", ")));
        }
        notes.iter().flat_map(|note| wrapped(note, NOTE_CHARACTERS_MAX)).collect()
    }

    /// A line whose colour an earlier one has gets other dashes.
    fn dashes(&self) -> impl Iterator<Item = &'static str> {
        let earlier = |index: usize| {
            let colour = self.lines[index].colour;
            self.lines[..index].iter().filter(|line| line.colour == colour).count()
        };
        (0..self.lines.len()).map(move |index| DASHES[earlier(index) % DASHES.len()])
    }
}

impl Line {
    fn drawable(&self) -> impl Iterator<Item = Point> + Clone {
        self.points.iter().copied().filter(|(x, y)| is_drawable(*x) && is_drawable(*y))
    }

    /// The point where its label stands.
    fn labelled(&self, place: LabelPlace) -> Option<Point> {
        match place {
            LabelPlace::End => self.drawable().last(),
            LabelPlace::Peak => self.drawable().max_by(|one, other| one.1.total_cmp(&other.1)),
        }
    }
}

/// Where everything is.
struct Layout<'a> {
    plot: &'a Plot,
    titles: Vec<String>,
    notes: Vec<String>,
    x: AxisRange,
    y: AxisRange,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    height: f64,
}

impl<'a> Layout<'a> {
    fn of(plot: &'a Plot, place: LabelPlace) -> Layout<'a> {
        let x =
            AxisRange::of(plot.x.scale, plot.values(|point| point.0), X_TICKS_MAX, End::Largest);
        let y = AxisRange::of(plot.y.scale, plot.values(|point| point.1), Y_TICKS_MAX, End::Round);
        let titles = wrapped(&plot.title, TITLE_CHARACTERS_MAX);
        let notes = plot.notes();
        let ticks = width_of(y.ticks.iter().map(|tick| &tick.label), LABEL_CHARACTERS_MAX);
        let labels = match place {
            LabelPlace::End => {
                width_of(plot.lines.iter().map(|line| &line.label), LABEL_CHARACTERS_MAX)
            }
            LabelPlace::Peak => 0.0,
        };
        // One more line is for what the y axis is.
        let top = MARGIN + LINE_HEIGHT * (titles.len() + 1) as f64 + 12.0;
        let bottom = top + AREA_HEIGHT.max(LABEL_GAP * plot.lines.len() as f64);
        let height = bottom + LINE_HEIGHT * (notes.len() + 2) as f64 + MARGIN;
        let (left, right) = (MARGIN + ticks + 8.0, WIDTH - MARGIN - labels - LEADER - 4.0);
        Layout { plot, titles, notes, x, y, left, right, top, bottom, height }
    }

    fn place(&self, (x, y): Point) -> Point {
        let (width, height) = (self.right - self.left, self.bottom - self.top);
        (self.left + width * self.x.share(x), self.bottom - height * self.y.share(y))
    }

    fn draw_texts(&self, drawing: &mut Drawing) {
        let mut y = MARGIN + 2.0;
        for title in &self.titles {
            y += LINE_HEIGHT;
            drawing.text("title", (MARGIN, y - 4.0), Anchor::Start, title);
        }
        let described = self.plot.y.described(self.plot.better);
        drawing.text("faint", (MARGIN, y + LINE_HEIGHT - 4.0), Anchor::Start, &described);
        let middle = (self.left + self.right) / 2.0;
        let below = (middle, self.bottom + 2.0 * LINE_HEIGHT);
        let described = self.plot.x.described(Better::Neither);
        drawing.text("faint", below, Anchor::Middle, &described);
        for (row, note) in self.notes.iter().enumerate() {
            let y = self.bottom + LINE_HEIGHT * (row + 3) as f64;
            drawing.text("faint", (MARGIN, y), Anchor::Start, note);
        }
    }

    fn draw_frame(&self, drawing: &mut Drawing) {
        let rule = |label: &str| if label.is_empty() { Rule::Minor } else { Rule::Grid };
        for tick in &self.y.ticks {
            let (_, y) = self.place((self.x.low, tick.value));
            drawing.rule(rule(&tick.label), (self.left, y), (self.right, y));
            if !tick.label.is_empty() {
                drawing.text("faint", (self.left - 6.0, y + 4.0), Anchor::End, &tick.label);
            }
        }
        for tick in &self.x.ticks {
            let (x, _) = self.place((tick.value, self.y.low));
            drawing.rule(rule(&tick.label), (x, self.top), (x, self.bottom));
            if !tick.label.is_empty() {
                let below = (x, self.bottom + LINE_HEIGHT - 2.0);
                drawing.text("faint", below, Anchor::Middle, &tick.label);
            }
        }
        drawing.rule(Rule::Edge, (self.left, self.bottom), (self.right, self.bottom));
        if self.plot.lines.iter().all(|line| line.drawable().next().is_none()) {
            let middle = ((self.left + self.right) / 2.0, (self.top + self.bottom) / 2.0);
            drawing.text("halo", middle, Anchor::Middle, "no data");
        }
    }

    fn draw_line(&self, drawing: &mut Drawing, line: &Line, dashes: &str, place: LabelPlace) {
        let is_gap = |(x, y): &Point| !is_drawable(*x) || !is_drawable(*y);
        let has_dots = place == LabelPlace::End && line.points.len() <= DOTS_MAX;
        for part in line.points.split(is_gap).filter(|part| !part.is_empty()) {
            let points: Vec<Point> = part.iter().map(|point| self.place(*point)).collect();
            if points.len() > 1 {
                drawing.curve(line.colour, dashes, &points);
            }
            if has_dots || points.len() == 1 {
                for ((x, y), point) in part.iter().zip(points) {
                    let words = format!("{}: {} at {}", line.label, short(*y), short_x(*x));
                    drawing.dot(line.colour, point, &words);
                }
            }
        }
    }

    fn draw_labels(&self, drawing: &mut Drawing, place: LabelPlace) {
        let labelled = self
            .plot
            .lines
            .iter()
            .filter_map(|line| line.labelled(place).map(|point| (line, self.place(point))));
        let labelled: Vec<(&Line, Point)> = labelled.collect();
        let above = if place == LabelPlace::Peak { ABOVE_PEAK } else { 0.0 };
        let wanted: Vec<f64> = labelled.iter().map(|(_, (_, y))| *y - above).collect();
        let heights = spread(&wanted, LABEL_GAP, self.top, self.bottom);
        for ((line, (x, y)), height) in labelled.into_iter().zip(heights) {
            let label = shortened(&line.label, LABEL_CHARACTERS_MAX);
            let is_left = place == LabelPlace::End || x < (self.left + self.right) / 2.0;
            let (side, anchor) = if is_left { (1.0, Anchor::Start) } else { (-1.0, Anchor::End) };
            let edge = if place == LabelPlace::End { self.right } else { x };
            drawing.begin_series(line.colour);
            let near = (edge + side * LEADER / 2.0, height);
            let at_label = (edge + side * LEADER, height);
            drawing.leader(line.colour, &[(x, y), near, at_label]);
            drawing.end_series();
            let class = if place == LabelPlace::End { "" } else { "halo" };
            let words = (edge + side * (LEADER + 3.0), height + 4.0);
            drawing.text(class, words, anchor, &label);
        }
    }
}

/// Percentiles need all of their nines.
fn short_x(x: f64) -> String {
    if (90.0..100.0).contains(&x) { x.to_string() } else { short(x) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::{Axis, era_colour, well_formed};

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
        let layout = Layout::of(&plot, LabelPlace::End);
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
        // The last part is one point.
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
