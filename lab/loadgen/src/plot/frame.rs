//! Everything around the marks of a chart: title, axes with ticks, and notes.

use super::Scale;
use super::drawing::{Drawing, END, MIDDLE, Point, START};
use super::labels::{NOTE_CHARACTERS_MAX, TITLE_CHARACTERS_MAX, wrapped};
use super::range::{AxisRange, Tick};

pub(super) const MARGIN: f64 = 14.0;
pub(super) const LINE_HEIGHT: f64 = 18.0;

#[derive(Debug)]
pub(super) struct Frame<'a> {
    pub title: &'a str,
    /// The description of the values, which is above the area.
    pub above: String,
    /// The description of the x axis. `None` for horizontal bars: their values are on the x axis,
    /// and `above` describes them.
    pub below: Option<String>,
    /// A note in addition to the notes about the axes.
    pub note: Option<String>,
    pub x: AxisRange,
    /// The range of the y axis. `None` if the marks are horizontal bars, one below the other.
    pub y: Option<AxisRange>,
    /// The edges of the area for the marks.
    pub left: f64,
    pub right: f64,
    pub top: f64,
    pub bottom: f64,
    pub is_empty: bool,
}

/// The lower end of the texts that are above the area.
pub(super) fn end_of_texts(title: &str) -> f64 {
    MARGIN + LINE_HEIGHT * (wrapped(title, TITLE_CHARACTERS_MAX).len() + 1) as f64
}

impl Frame<'_> {
    /// Starts a picture that has everything except the marks.
    pub(super) fn draw(&self) -> Drawing {
        let notes = self.notes();
        let first_note = if self.below.is_some() { 3 } else { 2 };
        let rows = notes.len() + first_note - 1;
        let height = self.bottom + LINE_HEIGHT * rows as f64 + MARGIN;
        let mut drawing = Drawing::new(height, self.title);
        let titles = wrapped(self.title, TITLE_CHARACTERS_MAX).into_iter();
        let titles = titles.map(|line| ("title", line)).chain([("faint", self.above.clone())]);
        for (row, (class, words)) in titles.enumerate() {
            let y = MARGIN - 2.0 + LINE_HEIGHT * (row + 1) as f64;
            drawing.text(class, (MARGIN, y), START, &words);
        }
        if let Some(words) = &self.below {
            let below = (self.middle().0, self.bottom + 2.0 * LINE_HEIGHT);
            drawing.text("faint", below, MIDDLE, words);
        }
        for (row, note) in notes.iter().enumerate() {
            let y = self.bottom + LINE_HEIGHT * (row + first_note) as f64;
            drawing.text("faint", (MARGIN, y), START, note);
        }
        self.draw_axes(&mut drawing);
        if self.is_empty {
            drawing.text("halo", self.middle(), MIDDLE, "no data");
        }
        drawing
    }

    fn draw_axes(&self, drawing: &mut Drawing) {
        let mut draw = |tick: &Tick, rule: [Point; 2], label: Point, anchor| {
            drawing.rule(if tick.label.is_empty() { "minor" } else { "grid" }, rule);
            if !tick.label.is_empty() {
                drawing.text("faint", label, anchor, &tick.label);
            }
        };
        for tick in self.y.iter().flat_map(|axis| &axis.ticks) {
            let (_, y) = self.place((self.x.low, tick.value));
            draw(tick, [(self.left, y), (self.right, y)], (self.left - 6.0, y + 4.0), END);
        }
        for tick in &self.x.ticks {
            let x = self.x(tick.value);
            let label = (x, self.bottom + LINE_HEIGHT - 2.0);
            draw(tick, [(x, self.top), (x, self.bottom)], label, MIDDLE);
        }
        // A line chart has its edge at the bottom. Horizontal bars start at zero, which may be
        // inside the area. Dots on a log axis start nowhere.
        let zero = self.x(0.0);
        match self.y {
            Some(_) => drawing.rule("edge", [(self.left, self.bottom), (self.right, self.bottom)]),
            None if self.x.scale == Scale::Log => {}
            None => drawing.rule("edge", [(zero, self.top), (zero, self.bottom)]),
        }
    }

    /// Returns notes about features of the picture that a reader might not expect.
    fn notes(&self) -> Vec<String> {
        let axes = [(Some(&self.x), "left"), (self.y.as_ref(), "lower")];
        let hidden = axes.into_iter().filter(|(axis, _)| axis.is_some_and(|axis| axis.hides_zero));
        let zero =
            |(_, edge)| format!("Zero has no place on a log scale: drawn at the {edge} edge.");
        let notes = hidden.map(zero).chain(self.note.clone());
        notes.flat_map(|note| wrapped(&note, NOTE_CHARACTERS_MAX)).collect()
    }

    pub(super) fn middle(&self) -> Point {
        ((self.left + self.right) / 2.0, (self.top + self.bottom) / 2.0)
    }

    /// Returns the coordinates of a point. If there is no y axis, the point is at the bottom.
    pub(super) fn place(&self, (x, y): Point) -> Point {
        let share = self.y.as_ref().map_or(0.0, |axis| axis.share(y));
        (self.x(x), self.bottom - (self.bottom - self.top) * share)
    }

    pub(super) fn x(&self, value: f64) -> f64 {
        self.left + (self.right - self.left) * self.x.share(value)
    }
}
