//! Plots as SVG, each a file that needs nothing else, for a light and a dark screen and for print.
//!
//! A [`Plot`] has lines, labelled at their ends; [`Bars`] have a value at each bar. Both say what
//! is on the axes, with the unit, and which direction is better. Axes end at round numbers.
//! Whatever the figures are, the picture is sound: points that are no number leave a gap, and zero
//! on a log scale is drawn at the edge, which the plot then says.

mod bars;
mod colour;
mod drawing;
mod labels;
mod latency;
mod lines;
mod number;
mod range;
#[cfg(test)]
pub(crate) mod well_formed;

pub use bars::{BarGroup, Bars};
pub use colour::{Colour, distinct_colours, era_colour};
pub use drawing::escaped;
pub use latency::{latency_by_percentile, latency_histogram};
pub use number::short;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    Linear,
    Log,
    /// For percentiles, from 0 to below 100: 90, 99 and 99.9 are equally far apart.
    Nines,
}

#[derive(Clone, Debug)]
pub struct Axis {
    /// With the unit: `latency, ms`.
    pub label: String,
    pub scale: Scale,
}

/// Which values of the y axis a reader wants.
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
    /// By x. One that is not finite leaves a gap.
    pub points: Vec<(f64, f64)>,
}

/// [`Plot::svg`] draws it.
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

    /// `latency, ms (log scale, lower is better)`
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_says_its_scale_and_what_is_better() {
        let described = |scale, better| Axis::new("latency, ms", scale).described(better);
        assert_eq!(
            described(Scale::Log, Better::Lower),
            "latency, ms (log scale, lower is better)"
        );
        assert_eq!(described(Scale::Linear, Better::Higher), "latency, ms (higher is better)");
        assert_eq!(described(Scale::Log, Better::Neither), "latency, ms (log scale)");
        assert_eq!(described(Scale::Linear, Better::Neither), "latency, ms");
    }
}
