//! Decides whether a series grows. It compares the last quarter of the day with an early part, and
//! computes the slope of a line through the last three quarters.
//!
//! The early part starts after an eighth of the day. Before that, caches fill and threads start, so
//! memory grows for a good reason. (All parts are rounded to whole hours. On a day of less than 16
//! hours, the early part starts with the first sample.) The values that are compared are medians,
//! so one sample at a bad time changes nothing, unless the day is short.

use std::ops::RangeInclusive;

use crate::experiment::median;

/// Minimum number of hours. A shorter day would not have an early and a late hour.
pub const HOURS_MIN: u64 = 2;
const HOURS_OF_DAY: f64 = 24.0;

/// The hours that are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    /// The early hours. For a day of 24 hours: 3 to 9.
    pub early: RangeInclusive<u64>,
    /// The late hours. For a day of 24 hours: 19 to 24.
    pub late: RangeInclusive<u64>,
    /// The hours whose slope is computed. For a day of 24 hours: 7 to 24.
    pub sloped: RangeInclusive<u64>,
}

impl Windows {
    pub fn of(hours: u64) -> Windows {
        let early = (hours / 8).max(1)..=(3 * hours / 8).max(1);
        let late = hours - (hours / 4).max(1) + 1..=hours;
        Windows { early, late, sloped: hours / 4 + 1..=hours }
    }
}

/// The development of one series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// The median of the early hours. `late` is the median of the late hours.
    pub early: f64,
    pub late: f64,
    /// The change from the early median to the late median.
    pub change_percent: f64,
    /// The slope of a line through the points of the sloped hours, by least squares, in per cent of
    /// the mean of these points. It is 0 if there is only one point.
    pub slope_percent_per_day: f64,
    pub min: f64,
    pub max: f64,
}

impl Verdict {
    /// Computes the verdict. A point is an hour and a value. Returns `None` if the early or the
    /// late hours have no points.
    pub fn of(points: &[(u64, f64)], windows: &Windows) -> Option<Verdict> {
        let within = |window: &RangeInclusive<u64>| {
            let inside = points.iter().filter(|(hour, _)| window.contains(hour));
            inside.copied().collect::<Vec<_>>()
        };
        let median_of =
            |window| median(within(window).into_iter().map(|(_, value)| value).collect());
        let (early, late) = (median_of(&windows.early)?, median_of(&windows.late)?);
        let values = || points.iter().map(|(_, value)| *value);
        Some(Verdict {
            early,
            late,
            change_percent: percent(late - early, early),
            slope_percent_per_day: slope_percent_per_day(&within(&windows.sloped)),
            min: values().fold(f64::INFINITY, f64::min),
            max: values().fold(f64::NEG_INFINITY, f64::max),
        })
    }

    pub fn is_within(&self, bound_percent: f64) -> bool {
        self.change_percent <= bound_percent
    }
}

/// Returns `part` in per cent of `whole`. If `part` is 0, the result is 0, even if `whole` is also
/// 0.
fn percent(part: f64, whole: f64) -> f64 {
    if part == 0.0 { 0.0 } else { 100.0 * part / whole }
}

fn slope_percent_per_day(points: &[(u64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean_hour = points.iter().map(|(hour, _)| *hour as f64).sum::<f64>() / count;
    let mean = points.iter().map(|(_, value)| value).sum::<f64>() / count;
    let sum = |product: &dyn Fn(f64, f64) -> f64| {
        let apart = points.iter().map(|(hour, value)| (*hour as f64 - mean_hour, value - mean));
        apart.map(|(hour, value)| product(hour, value)).sum::<f64>()
    };
    let square = sum(&|hour, _| hour * hour);
    if square == 0.0 {
        return 0.0;
    }
    percent(HOURS_OF_DAY * sum(&|hour, value| hour * value) / square, mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(hours: u64, value: impl Fn(u64) -> f64) -> Verdict {
        let points: Vec<_> = (1..=hours).map(|hour| (hour, value(hour))).collect();
        Verdict::of(&points, &Windows::of(hours)).expect("all windows have points")
    }

    #[test]
    fn a_day_has_its_windows_and_two_hours_have_them_too() {
        let day = Windows { early: 3..=9, late: 19..=24, sloped: 7..=24 };
        assert_eq!(Windows::of(24), day);
        assert_eq!(Windows::of(2), Windows { early: 1..=1, late: 2..=2, sloped: 1..=2 });
        for hours in HOURS_MIN..1000 {
            let Windows { early, late, sloped } = Windows::of(hours);
            assert!(!early.is_empty() && early.end() < late.start(), "{hours}");
            assert!(late.end() == &hours && sloped.end() == &hours && !sloped.is_empty());
        }
    }

    #[test]
    fn what_stays_is_within_any_bound() {
        let flat = verdict(24, |_| 100.0);
        assert_eq!((flat.change_percent, flat.slope_percent_per_day), (0.0, 0.0));
        assert!(flat.is_within(0.0));
        let nothing = verdict(24, |_| 0.0);
        assert!(nothing.is_within(0.0) && nothing.slope_percent_per_day == 0.0, "{nothing:?}");
    }

    #[test]
    fn what_grows_by_the_hour_is_not() {
        // Each hour adds 1 % of the value at the first hour.
        let leak = verdict(24, |hour| 99.0 + hour as f64);
        assert_eq!((leak.early, leak.late, leak.min, leak.max), (105.0, 120.5, 100.0, 123.0));
        assert!((leak.change_percent - 14.76).abs() < 0.01, "{leak:?}");
        assert!((leak.slope_percent_per_day - 100.0 * 24.0 / 114.5).abs() < 1e-9, "{leak:?}");
        assert!(!leak.is_within(5.0) && leak.is_within(15.0));
    }

    #[test]
    fn the_beginning_and_one_sample_decide_nothing() {
        let warm_up = verdict(24, |hour| if hour < 3 { 10.0 } else { 100.0 });
        assert!(warm_up.is_within(0.0), "{warm_up:?}");
        let spike = verdict(24, |hour| if hour == 22 { 500.0 } else { 100.0 });
        assert!(spike.is_within(0.0) && spike.max == 500.0, "{spike:?}");
        let shrinks = verdict(24, |hour| 200.0 - hour as f64);
        assert!(shrinks.is_within(0.0) && shrinks.slope_percent_per_day < 0.0, "{shrinks:?}");
    }

    #[test]
    fn without_points_there_is_no_verdict() {
        assert_eq!(Verdict::of(&[], &Windows::of(24)), None);
        assert_eq!(Verdict::of(&[(1, 5.0)], &Windows::of(2)), None);
    }
}
