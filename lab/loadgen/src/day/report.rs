//! What a day has shown, in lines and as JSON.

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use serde_json::{Value, json};

use super::sample::Sample;
use super::verdict::{HOURS_MIN, Verdict, Windows};
use crate::{Error, Result};

const MB: f64 = 1e6;

#[derive(Clone, Debug, PartialEq)]
pub struct DayReport {
    /// One for each hour.
    pub samples: Vec<Sample>,
    pub windows: Windows,
    /// By how many per cent the resident set may have grown.
    pub bound_percent: f64,
    /// Of the load.
    pub keys: u64,
    pub requests: u64,
    pub seed: u64,
    /// What was there behind the last period and not before the first, if there was anything.
    pub left_over: Option<String>,
    /// After how many hours, and why, if not all of the day was sent.
    pub ended_early: Option<String>,
}

/// What is looked at, and printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Series {
    Resident,
    Db,
    DbInUse,
    Disk,
}

impl Series {
    pub(super) const ALL: [Series; 4] =
        [Series::Resident, Series::Db, Series::DbInUse, Series::Disk];

    pub(super) fn name(self) -> &'static str {
        match self {
            Series::Resident => "resident set",
            Series::Db => "db file",
            Series::DbInUse => "db in use",
            Series::Disk => "data directory",
        }
    }

    fn bytes(self, sample: &Sample) -> Option<u64> {
        match self {
            Series::Resident => Some(sample.resident_bytes),
            Series::Db => Some(sample.db_bytes),
            Series::DbInUse => Some(sample.db_in_use_bytes),
            Series::Disk => sample.disk_bytes,
        }
    }
}

impl DayReport {
    /// In MB, by the hour.
    pub(super) fn points(&self, series: Series) -> Vec<(u64, f64)> {
        let samples = self.samples.iter();
        let point = |sample: &Sample| Some((sample.hour, series.bytes(sample)? as f64 / MB));
        samples.filter_map(point).collect()
    }

    pub(super) fn verdict(&self, series: Series) -> Option<Verdict> {
        Verdict::of(&self.points(series), &self.windows)
    }

    /// An error if the day has ended early, memory has grown beyond the bound, or something was
    /// left; it names all of these that hold.
    pub fn check(&self) -> Result<()> {
        let ended = self.ended_early.as_ref().map(|why| format!("the day has ended early, {why}"));
        let left = self.left_over.as_ref();
        let left = left.map(|what| format!("the load has ended, and there are {what}"));
        let found: Vec<String> = [ended, self.growth(), left].into_iter().flatten().collect();
        if found.is_empty() { Ok(()) } else { Err(Error::Server(found.join("; "))) }
    }

    /// `None` if it is within the bound, or not known because the day has ended early.
    fn growth(&self) -> Option<String> {
        let Some(resident) = self.verdict(Series::Resident) else {
            return self.ended_early.is_none().then(|| "samples are missing".to_owned());
        };
        let (change, bound) = (resident.change_percent, self.bound_percent);
        let what = || format!("the resident set has grown by {change:.1} %, {bound} % are allowed");
        (!resident.is_within(bound)).then(what)
    }

    /// A line for each series.
    pub fn lines(&self) -> String {
        let (early, late) = (hours(&self.windows.early), hours(&self.windows.late));
        let mut lines = String::new();
        for series in Series::ALL {
            let Some(verdict) = self.verdict(series) else { continue };
            let Verdict { early: before, late: after, change_percent, min, max, .. } = verdict;
            let _ = writeln!(
                lines,
                "{}: {before:.1} MB in {early}, {after:.1} MB in {late}: \
                 {change_percent:+.1} %; slope {:+.1} % a day, {min:.1} to {max:.1} MB",
                series.name(),
                verdict.slope_percent_per_day,
            );
        }
        lines
    }

    pub fn json(&self) -> Value {
        json!({
            "hours": self.windows.late.end(),
            "keys": self.keys,
            "requests": self.requests,
            "seed": self.seed,
            "bound_percent": self.bound_percent,
            "left_over": self.left_over,
            "ended_early": self.ended_early,
            "samples": self.samples.iter().map(Sample::json).collect::<Vec<_>>(),
        })
    }

    /// The error says what is missing.
    pub fn from_json(value: &Value) -> std::result::Result<DayReport, String> {
        let missing = |name: &str| format!("no {name}; it is no file of `clearlane-load day`");
        let number = |name: &str| value[name].as_u64().ok_or_else(|| missing(name));
        let hours = number("hours")?;
        if hours < HOURS_MIN {
            return Err(format!("hours is {hours}; at least {HOURS_MIN} are needed"));
        }
        let samples = value["samples"].as_array().ok_or_else(|| missing("samples"))?;
        let samples = samples.iter().map(Sample::from_json).collect::<std::result::Result<_, _>>();
        let bound = value["bound_percent"].as_f64();
        Ok(DayReport {
            samples: samples.map_err(missing)?,
            windows: Windows::of(hours),
            bound_percent: bound.ok_or_else(|| missing("bound_percent"))?,
            keys: number("keys")?,
            requests: number("requests")?,
            seed: number("seed")?,
            left_over: value["left_over"].as_str().map(str::to_owned),
            ended_early: value["ended_early"].as_str().map(str::to_owned),
        })
    }
}

pub(super) fn hours(window: &RangeInclusive<u64>) -> String {
    match (window.start(), window.end()) {
        (first, last) if first == last => format!("hour {first}"),
        (first, last) => format!("hours {first} to {last}"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Of the resident set in MB, by the hour.
    pub(crate) fn report(hours: u64, resident_mb: impl Fn(u64) -> u64) -> DayReport {
        let samples = (1..=hours).map(|hour| Sample {
            hour,
            requests: hour * 48_000,
            resident_bytes: resident_mb(hour) * 1_000_000,
            db_bytes: 20_000_000,
            db_in_use_bytes: 10_000_000,
            ..Sample::default()
        });
        DayReport {
            samples: samples.collect(),
            windows: Windows::of(hours),
            bound_percent: 5.0,
            keys: 10_000,
            requests: 4000,
            seed: 1,
            left_over: None,
            ended_early: None,
        }
    }

    #[test]
    fn memory_that_grows_fails() {
        assert_eq!(report(24, |_| 100).check(), Ok(()));
        let leak = report(24, |hour| 100 + 2 * hour).check();
        let what = "the resident set has grown by 27.7 %, 5 % are allowed".to_owned();
        assert_eq!(leak, Err(Error::Server(what)));
    }

    #[test]
    fn what_is_left_fails() {
        let left_over = Some("3 keys (before the first period 2 keys)".to_owned());
        let left = DayReport { left_over, ..report(24, |_| 100) };
        let what = "the load has ended, and there are 3 keys (before the first period 2 keys)";
        assert_eq!(left.check(), Err(Error::Server(what.to_owned())));
        let grown = DayReport { samples: report(24, |hour| 100 + 2 * hour).samples, ..left };
        let both = format!("the resident set has grown by 27.7 %, 5 % are allowed; {what}");
        assert_eq!(grown.check(), Err(Error::Server(both)));
    }

    #[test]
    fn a_day_that_has_ended_early_fails_and_keeps_its_samples() {
        let ended_early = Some("after 2 of 24 hours: a put failed: no answer in 60 s".to_owned());
        let ended = DayReport { ended_early, windows: Windows::of(24), ..report(2, |_| 100) };
        let what = "the day has ended early, after 2 of 24 hours: a put failed: no answer in 60 s";
        assert_eq!(ended.check(), Err(Error::Server(what.to_owned())));
        assert_eq!((ended.lines(), ended.points(Series::Resident).len()), (String::new(), 2));
        assert_eq!(DayReport::from_json(&ended.json()), Ok(ended));
        let missing = DayReport { windows: Windows::of(24), ..report(2, |_| 100) };
        assert_eq!(missing.check(), Err(Error::Server("samples are missing".to_owned())));
    }

    #[test]
    fn a_series_without_points_has_no_line() {
        let lines = report(24, |hour| 100 + hour % 2).lines();
        let expected = "\
resident set: 101.0 MB in hours 3 to 9, 100.5 MB in hours 19 to 24: -0.5 %; slope -0.2 % a day, 100.0 to 101.0 MB
db file: 20.0 MB in hours 3 to 9, 20.0 MB in hours 19 to 24: +0.0 %; slope +0.0 % a day, 20.0 to 20.0 MB
db in use: 10.0 MB in hours 3 to 9, 10.0 MB in hours 19 to 24: +0.0 %; slope +0.0 % a day, 10.0 to 10.0 MB
";
        assert_eq!(lines, expected, "\n{lines}");
    }

    #[test]
    fn a_report_comes_back_from_json() {
        let report = report(24, |hour| hour);
        assert_eq!(DayReport::from_json(&report.json()), Ok(report.clone()));
        let left = DayReport { left_over: Some("a key".to_owned()), ..report };
        assert_eq!(DayReport::from_json(&left.json()), Ok(left));
        for (value, why) in [
            (json!({}), "no hours; it is no file of `clearlane-load day`"),
            (json!({"hours": 1}), "hours is 1; at least 2 are needed"),
            (
                json!({"hours": 2, "samples": [{}]}),
                "no hour; it is no file of `clearlane-load day`",
            ),
        ] {
            assert_eq!(DayReport::from_json(&value), Err(why.to_owned()));
        }
    }
}
