//! The range of an axis, and its ticks. On a linear scale, the distance between ticks is 1, 2 or 5
//! times a power of ten. On a log scale, ticks are at powers of ten, and on a short axis also
//! between them.

use super::Scale;
use super::number::short;

/// Largest absolute value that is drawn. No measurement has larger results, and computing with
/// larger values might not give finite numbers.
const VALUE_MAX: f64 = 1e100;
const LABELLED_DECADES_MAX: i32 = 8;
/// Maximum number of decades of a log axis with ticks between the powers of ten.
const DECADES_WITH_MINOR_TICKS: f64 = 6.0;
/// Maximum number of decades of a log axis with labels at 2 and 5 times a power of ten. A longer
/// axis has labels only at powers of ten.
const DECADES_WITH_POWERS_ONLY: f64 = 2.0;
const PERCENTILES: [f64; 8] = [0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 99.9999];
const MINOR_PERCENTILES: [f64; 6] = [25.0, 75.0, 95.0, 99.5, 99.95, 99.995];
/// The largest percentile at which an axis of percentiles can end.
const PERCENTILE_MAX: f64 = 99.9999;
/// The smallest percentile at which an axis of percentiles can end.
const PERCENTILE_LEAST: f64 = 90.0;
/// Two numbers are considered equal if their relative difference is smaller than this.
const TOLERANCE: f64 = 1e-9;

#[derive(Clone, Debug)]
pub(super) struct AxisRange {
    pub scale: Scale,
    /// If true, some value is zero or negative on a log scale, and is drawn at the edge.
    pub hides_zero: bool,
    pub low: f64,
    pub high: f64,
    pub ticks: Vec<Tick>,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) struct Tick {
    pub value: f64,
    /// The number at the tick. Empty at a minor tick.
    pub label: String,
}

/// Where an axis ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// The axis ends at a tick.
    Round,
    /// The axis ends at the largest value. A log axis then also starts at the smallest value, but
    /// an axis of less than a decade starts and ends at round numbers.
    Largest,
}

/// Returns whether a point with this coordinate can be drawn.
pub(super) fn is_drawable(value: f64) -> bool {
    value.abs() <= VALUE_MAX
}

impl AxisRange {
    /// Computes the range for these values. `ticks_max` applies only to a linear scale.
    pub(super) fn of(
        scale: Scale,
        values: impl Iterator<Item = f64> + Clone,
        ticks_max: usize,
        end: End,
    ) -> AxisRange {
        let values = values.filter(|value| is_drawable(*value));
        let hides_zero = scale == Scale::Log && values.clone().any(|value| value <= 0.0);
        let (low, high, ticks) = match scale {
            Scale::Linear => linear(values, ticks_max, end),
            Scale::Log => log(values, end),
            Scale::Nines => nines(values),
        };
        AxisRange { scale, hides_zero, low, high, ticks }
    }

    /// Returns the position of a value on the axis, from 0 to 1. Values outside the range are at
    /// its edge.
    pub(super) fn share(&self, value: f64) -> f64 {
        let (low, high) = (self.transformed(self.low), self.transformed(self.high));
        ((self.transformed(value) - low) / (high - low)).clamp(0.0, 1.0)
    }

    fn transformed(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => value,
            Scale::Log => value.max(self.low).log10(),
            Scale::Nines => -(1.0 - value.clamp(0.0, PERCENTILE_MAX) / 100.0).log10(),
        }
    }
}

fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |bounds, value| {
        let (low, high) = bounds.unwrap_or((value, value));
        Some((value.min(low), value.max(high)))
    })
}

/// A linear axis always includes zero, so that a difference does not look larger than it is.
fn linear(values: impl Iterator<Item = f64>, ticks_max: usize, end: End) -> (f64, f64, Vec<Tick>) {
    let (low, high) = bounds(values.chain([0.0])).unwrap_or((0.0, 0.0));
    let high = if high - low > 1.0 / VALUE_MAX { high } else { low + 1.0 };
    let step = rounded((high - low) / ticks_max as f64, true);
    let first = (low / step).floor();
    let last = match end {
        End::Round => (high / step - TOLERANCE).ceil(),
        End::Largest => (high / step + TOLERANCE).floor(),
    };
    let ticks = (0..=(last - first) as usize).map(|tick| {
        let value = (first + tick as f64) * step;
        Tick { value, label: short(value) }
    });
    let high = if end == End::Round { last * step } else { high };
    (first * step, high, ticks.collect())
}

/// Returns the number that is nearest above or below a positive value, among 1, 2 and 5 times a
/// power of ten. A value that is such a number stays the same.
fn rounded(value: f64, up: bool) -> f64 {
    let power = power_of_ten(value.log10().floor() as i32);
    let mut round = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power).into_iter();
    let found = match up {
        true => round.find(|round| *round >= value * (1.0 - TOLERANCE)),
        false => round.rfind(|round| *round <= value * (1.0 + TOLERANCE)),
    };
    found.unwrap_or(power)
}

/// Returns the `f64` that is nearest to a power of ten. `powi` with a negative exponent may return
/// a slightly different number.
fn power_of_ten(exponent: i32) -> f64 {
    if exponent < 0 { 1.0 / 10f64.powi(-exponent) } else { 10f64.powi(exponent) }
}

fn log(values: impl Iterator<Item = f64>, end: End) -> (f64, f64, Vec<Tick>) {
    let positive = values.filter(|value| *value >= 1.0 / VALUE_MAX);
    let (low, high) = bounds(positive).unwrap_or((1.0, 10.0));
    // An axis of less than a decade might have no tick if it ended at its values.
    let is_long = high / low >= 10.0;
    let (low, high) = if end == End::Largest && is_long {
        (low, high)
    } else {
        (rounded(low, false), rounded(high, true))
    };
    let (low, high) = if high > low * 1.5 { (low, high) } else { (low / 10.0, high * 10.0) };
    let decades = (high / low).log10();
    let (first, last) = (low.log10().round() as i32 - 1, high.log10().round() as i32 + 1);
    let apart = (last - first + LABELLED_DECADES_MAX - 1) / LABELLED_DECADES_MAX;
    let mut ticks = Vec::new();
    for exponent in first..=last {
        for digit in 1..=9 {
            let value = f64::from(digit) * power_of_ten(exponent);
            let is_inside = value >= low * (1.0 - TOLERANCE) && value <= high * (1.0 + TOLERANCE);
            let is_power = digit == 1;
            if !is_inside || !is_power && decades > DECADES_WITH_MINOR_TICKS {
                continue;
            }
            let is_labelled = if is_power {
                exponent % apart == 0
            } else {
                matches!(digit, 2 | 5) && decades <= DECADES_WITH_POWERS_ONLY
            };
            let label = if is_labelled { short(value) } else { String::new() };
            ticks.push(Tick { value, label });
        }
    }
    (low, high, ticks)
}

fn nines(values: impl Iterator<Item = f64>) -> (f64, f64, Vec<Tick>) {
    let (_, high) = bounds(values).unwrap_or_default();
    let high = high.clamp(PERCENTILE_LEAST, PERCENTILE_MAX);
    let reached = |percentile: &f64| *percentile <= high * (1.0 + TOLERANCE);
    let labelled = PERCENTILES.into_iter().map(|value| Tick { value, label: value.to_string() });
    let minor = MINOR_PERCENTILES.into_iter().map(|value| Tick { value, label: String::new() });
    (0.0, high, labelled.chain(minor).filter(|tick| reached(&tick.value)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(scale: Scale, values: &[f64]) -> AxisRange {
        AxisRange::of(scale, values.iter().copied(), 6, End::Round)
    }

    fn labels(range: &AxisRange) -> Vec<&str> {
        range
            .ticks
            .iter()
            .map(|tick| tick.label.as_str())
            .filter(|label| !label.is_empty())
            .collect()
    }

    #[test]
    fn linear_ticks_are_round_and_reach_the_largest_value() {
        for (largest, expected) in [
            (1.0, vec!["0", "0.2", "0.4", "0.6", "0.8", "1"]),
            (196.0, vec!["0", "50", "100", "150", "200"]),
            (48_000.0, vec!["0", "10k", "20k", "30k", "40k", "50k"]),
            (0.003, vec!["0", "0.0005", "0.001", "0.0015", "0.002", "0.0025", "0.003"]),
        ] {
            let range = range(Scale::Linear, &[largest, largest / 3.0]);
            assert_eq!(labels(&range), expected);
            assert!(range.high >= largest * (1.0 - TOLERANCE), "{range:?}");
        }
        assert_eq!(labels(&range(Scale::Linear, &[-15.0, 20.0])), ["-20", "-10", "0", "10", "20"]);
    }

    #[test]
    fn an_axis_may_end_at_the_largest_value() {
        let range = AxisRange::of(Scale::Linear, [0.0, 61.0].into_iter(), 7, End::Largest);
        assert_eq!((range.low, range.high), (0.0, 61.0));
        assert_eq!(labels(&range), ["0", "10", "20", "30", "40", "50", "60"]);
        let long = AxisRange::of(Scale::Log, [7.0, 3000.0].into_iter(), 7, End::Largest);
        assert_eq!((long.low, long.high, labels(&long)), (7.0, 3000.0, vec!["10", "100", "1000"]));
        let short = AxisRange::of(Scale::Log, [7.0, 8.0].into_iter(), 7, End::Largest);
        assert_eq!(labels(&short), ["5", "10"]);
    }

    #[test]
    fn log_ticks_are_powers_of_ten_with_minor_ones() {
        let long = range(Scale::Log, &[0.15, 800.0]);
        assert_eq!((long.low, long.high), (0.1, 1000.0));
        assert_eq!(labels(&long), ["0.1", "1", "10", "100", "1000"]);
        assert_eq!(long.ticks.len(), 4 * 9 + 1);
        assert_eq!(labels(&range(Scale::Log, &[3.0, 40.0])), ["2", "5", "10", "20", "50"]);
        assert_eq!(labels(&range(Scale::Log, &[10.0])), ["1", "2", "5", "10", "20", "50", "100"]);
        let longest = range(Scale::Log, &[1e-9, 1e9]);
        assert!((3..=9).contains(&labels(&longest).len()), "{longest:?}");
        assert!((longest.share(1.0) - 0.5).abs() < TOLERANCE);
    }

    #[test]
    fn nines_are_equally_far_apart() {
        let range = range(Scale::Nines, &[0.0, 50.0, 99.9]);
        assert_eq!(labels(&range), ["0", "50", "90", "99", "99.9"]);
        for (percentile, expected) in [(0.0, 0.0), (90.0, 1.0), (99.0, 2.0), (99.9, 3.0)] {
            let share = range.share(percentile);
            assert!((share * 3.0 - expected).abs() < 1e-9, "{percentile}: {share}");
        }
        assert_eq!((range.share(100.0), range.share(f64::INFINITY)), (1.0, 1.0));
    }

    #[test]
    fn whatever_the_values_are_the_axis_is_sound() {
        let odd = [f64::NAN, f64::INFINITY, f64::MIN, 0.0, -0.0, -3.0, 5e-324, 1e-99, 1e99, 1e300];
        let lists = odd.iter().flat_map(|one| odd.iter().map(|other| vec![*one, *other]));
        for (values, end) in lists
            .chain([vec![]])
            .flat_map(|values| [End::Round, End::Largest].map(|end| (values.clone(), end)))
        {
            for scale in [Scale::Linear, Scale::Log, Scale::Nines] {
                let range = AxisRange::of(scale, values.iter().copied(), 6, end);
                assert!(range.low.is_finite() && range.high > range.low, "{values:?}: {range:?}");
                assert!((2..=2000).contains(&range.ticks.len()), "{values:?}: {range:?}");
                for value in values.iter().filter(|value| is_drawable(**value)) {
                    assert!((0.0..=1.0).contains(&range.share(*value)), "{values:?}: {range:?}");
                }
            }
        }
    }
}
