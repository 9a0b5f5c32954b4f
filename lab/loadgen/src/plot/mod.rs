//! Plots as SVG. Each is a file that needs no other file, for light and dark screens and for print.
//!
//! A [`Plot`] has lines with labels at their ends. [`Bars`] have a value at each bar, or at each
//! dot on a log axis. Both show what each axis measures, its unit, and which direction is better.
//! The axis of the values ends at a round number. The x axis of a [`Plot`] ends at its largest
//! value.
//!
//! The picture is well-formed for all values. A point that is not a finite number leaves a gap.
//! Zero on a log scale is drawn at the edge, and a note of the plot explains it.

mod bars;
mod colour;
mod drawing;
mod frame;
mod labels;
mod latency;
mod lines;
mod number;
mod range;
#[cfg(test)]
mod tests;

pub use bars::{BarGroup, Bars};
pub use colour::{Colour, distinct_colours, era_colour};
pub use drawing::escaped;
pub use latency::{latency_by_percentile, latency_histogram};
pub use number::short;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    Linear,
    Log,
    /// A scale for percentiles from 0 to below 100. The distances from 90 to 99 and from 99 to 99.9
    /// are equal.
    Nines,
}

#[derive(Clone, Debug)]
pub struct Axis {
    /// The label with its unit, for example `latency, ms`.
    pub label: String,
    pub scale: Scale,
}

/// Whether lower or higher values of the y axis are better.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Better {
    Lower,
    Higher,
    Neither,
}

#[derive(Clone, Debug)]
pub struct Line {
    pub label: String,
    pub colour: Colour,
    /// The points in order of x. A point that is not finite leaves a gap.
    pub points: Vec<(f64, f64)>,
}

/// A plot with lines. [`Plot::svg`] draws it.
#[derive(Clone, Debug)]
pub struct Plot {
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub better: Better,
    pub lines: Vec<Line>,
}

impl Axis {
    pub fn new(label: &str, scale: Scale) -> Axis {
        Axis { label: label.to_owned(), scale }
    }

    /// Returns the description of an axis, for example `latency, ms (log scale, lower is better)`.
    fn described(&self, better: Better) -> String {
        let scale = (self.scale == Scale::Log).then_some("log scale");
        let better = match better {
            Better::Lower => Some("lower is better"),
            Better::Higher => Some("higher is better"),
            Better::Neither => None,
        };
        let notes: Vec<&str> = scale.into_iter().chain(better).collect();
        if notes.is_empty() {
            self.label.clone()
        } else {
            format!("{} ({})", self.label, notes.join(", "))
        }
    }
}
