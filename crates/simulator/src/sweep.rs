//! One number is varied, and a latency is followed: where does it begin to hurt?
//!
//! ```text
//!   cheap.rate   100 ──────▶ 200 ──────▶ 400 ──────▶ 800 ──────▶ 1600
//!   each era     p99         p99         p99         p99         refused: 130 % of 2 cores
//! ```
//!
//! A point beyond what the machine can bear is no failure of the sweep: it is what it looks for.

use std::fmt::Write as _;
use std::str::FromStr;

use serde_json::{Value, json};

use crate::results::{QUANTILES, Results};
use clearlane_backend::Era;

/// So many points of a range that does not say how many.
const STEPS: usize = 8;
/// More are no picture.
const STEPS_MAX: usize = 200;

/// Which values a number is given.
#[derive(Clone, Debug, PartialEq)]
pub struct SweepValues(pub Vec<f64>);

/// Why a text says nothing of the kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no range: {1}; say FROM..TO for 8 values at equal distances, FROM..TO:5 for 5 of them, or FROM..TO:x2 \
     for each twice the one before"
)]
pub struct RangeError(String, String);

impl FromStr for SweepValues {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<SweepValues, RangeError> {
        values(text).map(SweepValues).map_err(|why| RangeError(text.to_owned(), why))
    }
}

fn values(text: &str) -> Result<Vec<f64>, String> {
    let (range, steps) =
        text.split_once(':').map_or((text, None), |(range, steps)| (range, Some(steps)));
    let (from, to) = range.split_once("..").ok_or("there is no `..` in it")?;
    let number = |text: &str| match text.trim().parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
        _ => Err(format!("`{text}` is not a number from 0 on")),
    };
    let (from, to) = (number(from)?, number(to)?);
    if from >= to {
        return Err(format!("{from} is not below {to}"));
    }
    match steps.map(|steps| (steps, steps.strip_prefix('x'))) {
        Some((_, Some(factor))) => geometric(from, to, factor),
        Some((steps, None)) => {
            let count = steps.parse().ok().filter(|count| (2..=STEPS_MAX).contains(count));
            let wrong = || format!("`{steps}` is no number of values from 2 to {STEPS_MAX}");
            Ok(equal(from, to, count.ok_or_else(wrong)?))
        }
        // Between 1 and 4 there are no 8 whole numbers.
        None if is_whole(from) && is_whole(to) && to - from < STEPS as f64 => {
            Ok(equal(from, to, (to - from) as usize + 1))
        }
        None => Ok(equal(from, to, STEPS)),
    }
}

fn is_whole(number: f64) -> bool {
    number.fract() == 0.0
}

/// Of whole numbers only whole ones: half a core is none.
fn equal(from: f64, to: f64, count: usize) -> Vec<f64> {
    let is_whole = is_whole(from) && is_whole(to) && to - from >= (count - 1) as f64;
    let value = |step: usize| {
        let value = from + (to - from) * step as f64 / (count - 1) as f64;
        if is_whole { value.round() } else { rounded(value) }
    };
    (0..count).map(value).collect()
}

fn geometric(from: f64, to: f64, factor: &str) -> Result<Vec<f64>, String> {
    let times = factor.parse::<f64>().ok().filter(|times| times.is_finite() && *times > 1.0);
    let times = times.ok_or_else(|| format!("`{factor}` is not a factor above 1"))?;
    if from == 0.0 {
        return Err("a multiple of 0 is 0".to_owned());
    }
    let mut values = vec![from];
    while let Some(next) =
        values.last().map(|last| rounded(last * times)).filter(|next| *next <= to)
    {
        if values.len() == STEPS_MAX {
            return Err(format!("that is more than {STEPS_MAX} values"));
        }
        values.push(next);
    }
    Ok(values)
}

/// Without the dust of the division.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

/// What of a distribution is followed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric(pub &'static str, f64);

impl FromStr for Metric {
    type Err = String;

    fn from_str(text: &str) -> Result<Metric, String> {
        let known = QUANTILES.into_iter().find(|(name, _)| *name == text);
        let names = || QUANTILES.map(|(name, _)| name).join(", ");
        known.map(|(name, at)| Metric(name, at)).ok_or_else(|| format!("there are {}", names()))
    }
}

/// What came of one value in one era.
#[derive(Clone, Debug, PartialEq)]
pub enum Point {
    /// So many milliseconds; nothing, if nothing was answered.
    Latency(Option<f64>),
    /// It was not run, because of this.
    NotRun(String),
}

/// What came of all.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    /// The number that was varied.
    pub parameter: String,
    /// The class whose latency was followed.
    pub class: String,
    /// What of it.
    pub metric: Metric,
    /// In each era a point for each value.
    pub eras: Vec<Era>,
    /// By value.
    pub rows: Vec<(f64, Vec<Point>)>,
}

impl Sweep {
    /// Of a run, what is followed.
    pub fn point(&self, results: &Results) -> Point {
        let class = results.classes.iter().find(|class| class.name == self.class);
        Point::Latency(class.and_then(|class| class.latency_ms(self.metric.1)))
    }

    /// For reading.
    pub fn table(&self) -> String {
        let width = self.parameter.chars().count().max(8);
        let mut table = format!("{:width$}", self.parameter);
        for era in &self.eras {
            let _ = write!(table, " {:>11}", era.name());
        }
        let _ = writeln!(table, "   {} of {}, ms", self.metric.0, self.class);
        for (value, points) in &self.rows {
            let _ = write!(table, "{value:width$}");
            for point in points {
                let shown = match point {
                    Point::Latency(Some(ms)) => format!("{ms:.2}"),
                    Point::Latency(None) => "-".to_owned(),
                    Point::NotRun(_) => "refused".to_owned(),
                };
                let _ = write!(table, " {shown:>11}");
            }
            table.push('\n');
        }
        self.refusals().fold(table, |table, (value, era, why)| {
            format!("{table}{} = {value}, era {era}: {why}\n", self.parameter)
        })
    }

    fn refusals(&self) -> impl Iterator<Item = (f64, Era, &str)> {
        self.rows.iter().flat_map(|(value, points)| {
            self.eras.iter().zip(points).filter_map(|(era, point)| match point {
                Point::NotRun(why) => Some((*value, *era, why.as_str())),
                Point::Latency(_) => None,
            })
        })
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let points = self.rows.iter().flat_map(|(value, points)| {
            self.eras.iter().zip(points).map(move |(era, point)| match point {
                Point::Latency(ms) => json!({ "value": value, "era": era.name(), "ms": ms }),
                Point::NotRun(why) => json!({ "value": value, "era": era.name(), "refused": why }),
            })
        });
        json!({
            "parameter": self.parameter,
            "class": self.class,
            "metric": self.metric.0,
            "points": points.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_what_they_say() {
        let values = |text: &str| text.parse::<SweepValues>().map(|SweepValues(values)| values);
        assert_eq!(values("1..8"), Ok((1..=8).map(f64::from).collect()));
        assert_eq!(values("1..4"), Ok(vec![1.0, 2.0, 3.0, 4.0]));
        assert_eq!(values("0..1:5"), Ok(vec![0.0, 0.25, 0.5, 0.75, 1.0]));
        assert_eq!(values("1..10:4"), Ok(vec![1.0, 4.0, 7.0, 10.0]));
        assert_eq!(values("1..16:4"), Ok(vec![1.0, 6.0, 11.0, 16.0]));
        assert_eq!(values("100..900:x2"), Ok(vec![100.0, 200.0, 400.0, 800.0]));
        assert_eq!(values("0.1..0.8:x2"), Ok(vec![0.1, 0.2, 0.4, 0.8]));
    }

    #[test]
    fn what_is_no_range_says_what_one_is() {
        for (text, told) in [
            ("7", "there is no `..` in it"),
            ("a..7", "`a` is not a number from 0 on"),
            ("-1..7", "`-1` is not a number from 0 on"),
            ("1..inf", "`inf` is not a number from 0 on"),
            ("7..7", "7 is not below 7"),
            ("1..7:1", "`1` is no number of values from 2 to 200"),
            ("1..7:many", "`many` is no number of values from 2 to 200"),
            ("1..7:x1", "`1` is not a factor above 1"),
            ("0..7:x2", "a multiple of 0 is 0"),
            ("1..7:x1.0001", "that is more than 200 values"),
        ] {
            let error = text.parse::<SweepValues>().expect_err(text).to_string();
            assert!(error.contains(told) && error.contains("FROM..TO:5"), "{text}: {error}");
        }
    }

    fn sweep() -> Sweep {
        let some = |ms| Point::Latency(Some(ms));
        let refused = || Point::NotRun("the requests need 2.61 cores".to_owned());
        Sweep {
            parameter: "cheap.rate".to_owned(),
            class: "cheap".to_owned(),
            metric: "p99".parse().expect("it is one"),
            eras: vec![Era::V3_2, Era::Clearlane],
            rows: vec![
                (100.0, vec![some(9.0), some(0.09)]),
                (200.0, vec![some(20.0), some(0.1)]),
                (400.0, vec![some(90.0), Point::Latency(None)]),
                (800.0, vec![refused(), refused()]),
            ],
        }
    }

    #[test]
    fn a_table_has_what_was_refused_too() {
        let expected = "\
cheap.rate         3.2   clearlane   p99 of cheap, ms
       100        9.00        0.09
       200       20.00        0.10
       400       90.00           -
       800     refused     refused
cheap.rate = 800, era 3.2: the requests need 2.61 cores
cheap.rate = 800, era clearlane: the requests need 2.61 cores
";
        assert_eq!(sweep().table(), expected, "\n{}", sweep().table());
        let json = sweep().json();
        assert_eq!(json["points"][1], json!({ "value": 100.0, "era": "clearlane", "ms": 0.09 }));
        assert_eq!(json["points"][7]["refused"], json!("the requests need 2.61 cores"));
    }

    #[test]
    fn a_plot_has_a_mark_for_each_point_at_its_place() {
        let drawn = crate::plot::terminal(&sweep(), 25, 7);
        let expected = "\
p99 of cheap, ms, by powers   o 3.2   x clearlane
       90 │                o
          │        o
          │o
          │
    0.900 │
          │
    0.090 │x       x
          └─────────────────────────
           100    cheap.rate     800
";
        assert_eq!(drawn, expected, "\n{drawn}");
        let svg = crate::plot::svg(&sweep());
        assert_eq!(
            (svg.matches("<polyline").count(), svg.matches("<title>").count()),
            (2, 5),
            "{svg}"
        );
        assert!(svg.contains("<title>3.2, cheap.rate = 400: 90.00 ms</title>"), "{svg}");
    }

    #[test]
    fn a_sweep_without_a_point_has_no_plot() {
        let mut sweep = sweep();
        sweep.rows.drain(..3);
        assert_eq!(crate::plot::terminal(&sweep, 25, 7), "");
        assert!(crate::plot::svg(&sweep).ends_with("</svg>\n"));
    }
}
