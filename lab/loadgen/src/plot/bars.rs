//! Bars that lie, in groups, with the value at each.

use super::drawing::{Anchor, Drawing, Rule, WIDTH};
use super::labels::{
    NOTE_CHARACTERS_MAX, TITLE_CHARACTERS_MAX, shortened, width_of, wrapped, zero_note,
};
use super::range::{AxisRange, End, is_drawable};
use super::{Axis, Better, Colour, Scale, short};

const MARGIN: f64 = 14.0;
const LINE_HEIGHT: f64 = 18.0;
const BAR: f64 = 16.0;
const BAR_GAP: f64 = 4.0;
const GROUP_GAP: f64 = 12.0;
/// For the value of the longest bar.
const VALUE_WIDTH: f64 = 62.0;
const LABEL_CHARACTERS_MAX: usize = 22;
const TICKS_MAX: usize = 6;

/// [`Bars::svg`] draws them, one below the other.
#[derive(Clone, Debug)]
pub struct Bars {
    pub title: String,
    /// Of the values.
    pub y: Axis,
    pub better: Better,
    pub groups: Vec<BarGroup>,
}

#[derive(Clone, Debug)]
pub struct BarGroup {
    pub label: String,
    /// A value that is not finite is none.
    pub bars: Vec<(String, Colour, f64)>,
}

impl Bars {
    /// An `<svg>` that needs nothing else.
    pub fn svg(&self) -> String {
        let layout = Layout::of(self);
        let mut drawing = Drawing::new(layout.height, &self.title);
        layout.draw_frame(&mut drawing);
        let mut y = layout.top;
        for group in &self.groups {
            if !group.label.is_empty() {
                y += LINE_HEIGHT;
                drawing.text("group halo", (MARGIN, y - 5.0), Anchor::Start, &group.label);
            }
            for bar in &group.bars {
                layout.draw_bar(&mut drawing, y, bar);
                y += BAR + BAR_GAP;
            }
            y += GROUP_GAP;
        }
        drawing.finish()
    }

    fn values(&self) -> impl Iterator<Item = f64> + Clone {
        let bars = self.groups.iter().flat_map(|group| &group.bars);
        bars.map(|(_, _, value)| *value).filter(|value| is_drawable(*value))
    }

    fn notes(&self) -> Vec<String> {
        let has_zero = self.y.scale == Scale::Log && self.values().any(|value| value <= 0.0);
        if has_zero { wrapped(&zero_note("left"), NOTE_CHARACTERS_MAX) } else { Vec::new() }
    }
}

/// Where everything is.
struct Layout<'a> {
    bars: &'a Bars,
    titles: Vec<String>,
    notes: Vec<String>,
    range: AxisRange,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    height: f64,
}

impl<'a> Layout<'a> {
    fn of(bars: &'a Bars) -> Layout<'a> {
        let range = AxisRange::of(bars.y.scale, bars.values(), TICKS_MAX, End::Round);
        let titles = wrapped(&bars.title, TITLE_CHARACTERS_MAX);
        let notes = bars.notes();
        let labels = bars.groups.iter().flat_map(|group| &group.bars).map(|(label, _, _)| label);
        let left = MARGIN + width_of(labels, LABEL_CHARACTERS_MAX) + 12.0;
        let right = WIDTH - MARGIN - VALUE_WIDTH;
        let top = MARGIN + LINE_HEIGHT * (titles.len() + 1) as f64 + 10.0;
        let heights = bars.groups.iter().map(|group| {
            let label = if group.label.is_empty() { 0.0 } else { LINE_HEIGHT };
            label + (BAR + BAR_GAP) * group.bars.len() as f64 + GROUP_GAP
        });
        let bottom = top + heights.sum::<f64>().max(2.0 * LINE_HEIGHT);
        let height = bottom + LINE_HEIGHT * (notes.len() + 1) as f64 + MARGIN;
        Layout { bars, titles, notes, range, left, right, top, bottom, height }
    }

    fn x(&self, value: f64) -> f64 {
        self.left + (self.right - self.left) * self.range.share(value)
    }

    fn draw_frame(&self, drawing: &mut Drawing) {
        let mut y = MARGIN + 2.0;
        for title in &self.titles {
            y += LINE_HEIGHT;
            drawing.text("title", (MARGIN, y - 4.0), Anchor::Start, title);
        }
        let described = self.bars.y.described(self.bars.better);
        drawing.text("faint", (MARGIN, y + LINE_HEIGHT - 4.0), Anchor::Start, &described);
        for tick in &self.range.ticks {
            let x = self.x(tick.value);
            let rule = if tick.label.is_empty() { Rule::Minor } else { Rule::Grid };
            drawing.rule(rule, (x, self.top), (x, self.bottom));
            if !tick.label.is_empty() {
                let below = (x, self.bottom + LINE_HEIGHT - 2.0);
                drawing.text("faint", below, Anchor::Middle, &tick.label);
            }
        }
        let x = self.x(0.0);
        drawing.rule(Rule::Edge, (x, self.top), (x, self.bottom));
        for (row, note) in self.notes.iter().enumerate() {
            let y = self.bottom + LINE_HEIGHT * (row + 2) as f64;
            drawing.text("faint", (MARGIN, y), Anchor::Start, note);
        }
        if self.bars.groups.iter().all(|group| group.bars.is_empty()) {
            let middle = ((self.left + self.right) / 2.0, (self.top + self.bottom) / 2.0);
            drawing.text("halo", middle, Anchor::Middle, "no data");
        }
    }

    fn draw_bar(&self, drawing: &mut Drawing, top: f64, bar: &(String, Colour, f64)) {
        let (label, colour, value) = bar;
        let text = top + BAR - 4.0;
        let label = shortened(label, LABEL_CHARACTERS_MAX);
        drawing.text("", (self.left - 8.0, text), Anchor::End, &label);
        if !is_drawable(*value) {
            drawing.text("faint halo", (self.left + 6.0, text), Anchor::Start, "no data");
            return;
        }
        // On a log scale, zero is the left edge.
        let (zero, end) = (self.x(0.0), self.x(*value));
        let (from, to) = (zero.min(end), zero.max(end));
        drawing.begin_series(*colour);
        drawing.bar(*colour, (from, top), ((to - from).max(1.0), BAR));
        drawing.end_series();
        drawing.text("halo", (to + 6.0, text), Anchor::Start, &short(*value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::{era_colour, well_formed};

    fn bars(scale: Scale, groups: &[(&str, &[(&str, f64)])]) -> Bars {
        let bar = |(name, value): &(&str, f64)| ((*name).to_owned(), era_colour(name), *value);
        let group = |(label, bars): &(&str, &[(&str, f64)])| BarGroup {
            label: (*label).to_owned(),
            bars: bars.iter().map(bar).collect(),
        };
        Bars {
            title: "Answers".to_owned(),
            y: Axis::new("answered, requests/s", scale),
            better: Better::Higher,
            groups: groups.iter().map(group).collect(),
        }
    }

    fn lengths(svg: &str) -> Vec<f64> {
        let rects = svg.split("<rect class=\"dot\"").skip(1);
        let widths = rects.filter_map(|rest| rest.split_once("width=\"")?.1.split_once('"'));
        widths.map(|(width, _)| width.parse().expect("a number")).collect()
    }

    #[test]
    fn each_bar_has_its_label_and_its_value() {
        let svg = bars(
            Scale::Linear,
            &[("reads", &[("3.2", 12_345.0), ("clearlane", 24_690.0)]), ("p<uts", &[("3.2", 0.0)])],
        )
        .svg();
        assert_eq!(well_formed::check(&svg), Ok(()));
        for text in ["3.2", "clearlane", "12.3k", "24.7k", "reads", "p&lt;uts", "0"] {
            assert!(svg.contains(&format!(">{text}</text>")), "{text}: {svg}");
        }
        assert!(svg.contains("answered, requests/s (higher is better)"), "{svg}");
        let lengths = lengths(&svg);
        assert!((lengths[1] / lengths[0] - 2.0).abs() < 0.01 && lengths[2] == 1.0, "{lengths:?}");
    }

    #[test]
    fn on_a_log_scale_zero_is_the_edge_and_said_to_be_so() {
        let svg = bars(Scale::Log, &[("", &[("a", 0.0), ("b", 10.0), ("c", 100.0)])]).svg();
        assert!(svg.contains("Zero has no place on a log scale: drawn at the left edge."), "{svg}");
        assert!(svg.contains("(log scale, higher is better)"), "{svg}");
        let lengths = lengths(&svg);
        assert!(lengths[0] == 1.0 && lengths[1] < lengths[2], "{lengths:?}");
    }

    #[test]
    fn without_values_the_picture_is_sound() {
        for groups in [&[][..], &[("a", &[][..])], &[("a", &[("b", f64::NAN)][..])]] {
            for scale in [Scale::Linear, Scale::Log] {
                let svg = bars(scale, groups).svg();
                assert_eq!(well_formed::check(&svg), Ok(()));
                assert!(svg.contains("no data") && !svg.contains("NaN"), "{svg}");
            }
        }
    }
}
