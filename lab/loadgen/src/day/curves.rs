//! Compares the days of several servers in one picture and one table.

use std::fmt::Write as _;

use super::report::{DayReport, Series, hours};
use super::verdict::{Verdict, Windows};
use crate::plot::{Axis, Better, Line, Plot, Scale, distinct_colours};
use crate::{Error, Result};

/// Fails if the days differ in hours, keys or requests.
pub fn check_comparable(days: &[(String, DayReport)]) -> Result<()> {
    let load = |day: &DayReport| {
        [("hours", day.hours), ("keys", day.keys), ("requests in a period", day.requests)]
    };
    let Some(((first, day), others)) = days.split_first() else { return Ok(()) };
    for (name, other) in others {
        for ((what, expected), (_, found)) in load(day).into_iter().zip(load(other)) {
            if found != expected {
                let why = format!("{name} has {found} {what}, {first} has {expected}");
                return Err(Error::Local(format!(
                    "{why}: days must have equal options to be compared"
                )));
            }
        }
    }
    Ok(())
}

/// Draws the resident set of each server by the hour. Both axes start at 0.
pub fn svg(days: &[(String, DayReport)]) -> String {
    let colours = distinct_colours(days.iter().map(|(name, _)| name.as_str()));
    let line = |((name, day), colour): (&(String, DayReport), _)| Line {
        label: name.clone(),
        colour,
        points: day
            .points(Series::RESIDENT)
            .into_iter()
            .map(|(hour, mb)| (hour as f64, mb))
            .collect(),
    };
    let samples = days.iter().filter_map(|(_, day)| day.samples.last());
    let requests = samples.map(|sample| sample.requests).max().unwrap_or(0) as f64 / 1e6;
    let title = "Memory of a server under a day of steady load";
    let plot = Plot {
        title: format!("{title}: {requests:.2} million requests"),
        x: Axis::new("end of a simulated hour of 12 periods with a compaction each", Scale::Linear),
        y: Axis::new("resident set, MB", Scale::Linear),
        better: Better::Lower,
        lines: days.iter().zip(colours).map(line).collect(),
    };
    plot.svg()
}

/// Returns a table with a row for each series of each server, and a sentence for each server.
pub fn markdown(days: &[(String, DayReport)]) -> String {
    let Some((_, first)) = days.first() else { return String::new() };
    let windows = Windows::of(first.hours);
    let mut table = format!(
        "| | {} | {} | change | slope, % a day | least to most |\n|---|---|---|---|---|---|\n",
        hours(&windows.early),
        hours(&windows.late),
    );
    for (name, day) in days {
        for (series, verdict) in day.verdicts() {
            let Verdict { early, late, change_percent, min, max, .. } = verdict;
            let slope = verdict.slope_percent_per_day;
            let _ = writeln!(
                table,
                "| {name}, {series} | {early:.1} MB | {late:.1} MB | {change_percent:+.1} % \
                 | {slope:+.1} | {min:.1} to {max:.1} MB |",
            );
        }
    }
    for (name, day) in days {
        let bound = day.bound_percent;
        let outcome = match day.check() {
            Ok(()) => format!("the resident set stays within {bound} %, and nothing is left over"),
            Err(why) => why.to_string(),
        };
        let last = day.samples.last().copied().unwrap_or_default();
        let (requests, seconds) = (last.requests, last.elapsed_ms / 1000);
        let _ = write!(table, "\n{name}: {outcome}; {requests} requests in {seconds} s.\n");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::day::report::tests::report;
    use crate::golden;

    fn days() -> Vec<(String, DayReport)> {
        let grows = report(24, |hour| 100 + 4 * hour);
        vec![("clearlane".to_owned(), report(24, |_| 80)), ("a <b>".to_owned(), grows)]
    }

    #[test]
    fn the_comparison_is_as_it_was() {
        golden::compare("day.svg", &svg(&days()));
        golden::compare("day.md", &markdown(&days()));
        assert!(markdown(&[]).is_empty());
    }

    #[test]
    fn days_of_another_load_are_refused() {
        let mut days = days();
        assert_eq!(check_comparable(&days), Ok(()));
        days[1].1.requests = 5000;
        let why = "a <b> has 5000 requests in a period, clearlane has 4000";
        let told = Error::Local(format!("{why}: days must have equal options to be compared"));
        assert_eq!(check_comparable(&days), Err(told));
        days[1].1 = report(12, |_| 80);
        let told = check_comparable(&days).expect_err("fewer hours").to_string();
        assert!(told.starts_with("a <b> has 12 hours, clearlane has 24: "), "{told}");
        assert_eq!(check_comparable(&[]), Ok(()));
    }
}
