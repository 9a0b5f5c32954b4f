//! The results of a day, as lines of text and as JSON.

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::sample::Sample;
use super::verdict::{HOURS_MIN, Verdict, Windows};
use crate::{Error, Result, TextResult};

const MB: f64 = 1e6;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DayReport {
    /// One sample for each hour.
    pub samples: Vec<Sample>,
    /// Number of planned hours.
    pub hours: u64,
    /// Maximum allowed growth of the resident set, in per cent.
    pub bound_percent: f64,
    /// Number of keys that are updated. `requests` is the approximate number of requests in a
    /// period.
    pub keys: u64,
    pub requests: u64,
    pub seed: u64,
    /// The numbers of keys, leases and watches after the last period and before the first period,
    /// as a line of text. `None` if the numbers are equal, or if the day ended early.
    pub left_over: Option<String>,
    /// The number of completed hours, and the reason for the early end. `None` if the whole day was
    /// sent.
    pub ended_early: Option<String>,
}

/// A series that is compared and printed: its name, and how to get its bytes from a sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct Series {
    pub(super) name: &'static str,
    bytes: fn(&Sample) -> Option<u64>,
}

impl Series {
    pub(super) const RESIDENT: Series =
        Series { name: "resident set", bytes: |sample| Some(sample.resident_bytes) };
    pub(super) const ALL: [Series; 4] = [
        Series::RESIDENT,
        Series { name: "db file", bytes: |sample| Some(sample.db_bytes) },
        Series { name: "db in use", bytes: |sample| Some(sample.db_in_use_bytes) },
        Series { name: "data directory", bytes: |sample| sample.disk_bytes },
    ];
}

impl DayReport {
    /// Returns the values of a series in MB, by the hour.
    pub(super) fn points(&self, series: Series) -> Vec<(u64, f64)> {
        let samples = self.samples.iter();
        let point = |sample: &Sample| Some((sample.hour, (series.bytes)(sample)? as f64 / MB));
        samples.filter_map(point).collect()
    }

    /// Returns the verdict of each series that has points, with the name of the series.
    pub(super) fn verdicts(&self) -> impl Iterator<Item = (&'static str, Verdict)> {
        Series::ALL.into_iter().filter_map(|series| Some((series.name, self.verdict(series)?)))
    }

    fn verdict(&self, series: Series) -> Option<Verdict> {
        Verdict::of(&self.points(series), &Windows::of(self.hours))
    }

    /// Fails if the day has ended early, if memory has grown by more than the bound, if there
    /// are no samples from the early or the late hours, or if something is left over. The error
    /// names all of these problems.
    pub fn check(&self) -> Result<()> {
        let ended = self.ended_early.as_ref().map(|why| format!("the day ended early, {why}"));
        let left = self.left_over.as_ref();
        let left = left.map(|what| format!("after the load, the server still has {what}"));
        let found: Vec<String> = [ended, self.growth(), left].into_iter().flatten().collect();
        if found.is_empty() { Ok(()) } else { Err(Error::Server(found.join("; "))) }
    }

    /// Returns a sentence if memory has grown by more than the bound, or if samples are missing.
    /// Returns `None` if memory has not grown by more than the bound, or if the day ended too early
    /// to know.
    fn growth(&self) -> Option<String> {
        let Some(resident) = self.verdict(Series::RESIDENT) else {
            return self.ended_early.is_none().then(|| "samples are missing".to_owned());
        };
        let (change, bound) = (resident.change_percent, self.bound_percent);
        let what =
            || format!("the resident set has grown by {change:.1} %; at most {bound} % is allowed");
        (!resident.is_within(bound)).then(what)
    }

    /// Returns one line for each series.
    pub fn lines(&self) -> String {
        let Windows { early, late, .. } = Windows::of(self.hours);
        let (early, late) = (hours(&early), hours(&late));
        let mut lines = String::new();
        for (series, verdict) in self.verdicts() {
            let Verdict { early: before, late: after, change_percent, min, max, .. } = verdict;
            let slope = verdict.slope_percent_per_day;
            let _ = writeln!(
                lines,
                "{series}: {before:.1} MB in {early}, {after:.1} MB in {late}: \
                 {change_percent:+.1} %; slope {slope:+.1} % a day, {min:.1} to {max:.1} MB",
            );
        }
        lines
    }

    pub fn json(&self) -> Value {
        json!(self)
    }

    /// Reads a report. The error names the missing field, or a number of hours that is too small.
    pub fn from_json(value: &Value) -> TextResult<DayReport> {
        let report = DayReport::deserialize(value);
        let report = report.map_err(|error| {
            format!("{error}; this is not a file of `clearlane-load day --json`")
        })?;
        match report.hours {
            HOURS_MIN.. => Ok(report),
            hours => Err(format!("hours is {hours}; must be at least {HOURS_MIN}")),
        }
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

    /// Returns a report with this resident set in MB for each hour.
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
            hours,
            bound_percent: 5.0,
            keys: 10_000,
            requests: 4000,
            seed: 1,
            left_over: None,
            ended_early: None,
        }
    }

    fn error(day: &DayReport) -> String {
        day.check().map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn what_has_grown_or_is_left_fails() {
        let grows = "the resident set has grown by 27.7 %; at most 5 % is allowed";
        let left = "after the load, the server still has 3 keys";
        let steady = report(24, |_| 100);
        let mut day = report(24, |hour| 100 + 2 * hour);
        assert_eq!((error(&steady), error(&day)), (String::new(), grows.to_owned()));
        day.left_over = Some("3 keys".to_owned());
        assert_eq!(error(&day), format!("{grows}; {left}"));
        day.samples = steady.samples;
        assert_eq!(error(&day), left);
    }

    #[test]
    fn a_day_that_has_ended_early_fails_and_keeps_its_samples() {
        let ended_early = Some("after 2 of 24 hours: a put failed".to_owned());
        let ended = DayReport { ended_early, hours: 24, ..report(2, |_| 100) };
        assert_eq!(error(&ended), "the day ended early, after 2 of 24 hours: a put failed");
        assert_eq!((ended.lines(), ended.points(Series::RESIDENT).len()), (String::new(), 2));
        let missing = DayReport { ended_early: None, ..ended };
        assert_eq!(error(&missing), "samples are missing");
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
    fn a_report_is_read_as_it_was_written() {
        let mut report = report(24, |hour| hour);
        (report.samples[0].disk_bytes, report.left_over) = (Some(3), Some("a key".to_owned()));
        assert_eq!(DayReport::from_json(&report.json()), Ok(report.clone()));
        let error = DayReport::from_json(&json!({"samples": [{}]})).unwrap_err();
        assert_eq!(
            error,
            "missing field `hour`; this is not a file of `clearlane-load day --json`"
        );
        let short = DayReport { hours: 1, ..report };
        let error = DayReport::from_json(&short.json()).unwrap_err();
        assert_eq!(error, "hours is 1; must be at least 2");
    }
}
