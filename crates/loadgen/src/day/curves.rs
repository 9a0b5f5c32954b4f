//! The days of several servers, as one picture and one table.

use std::fmt::Write as _;

use super::report::{DayReport, Series, hours};
use crate::{Error, Result};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 790.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 340.0;
/// Lines across, with the one at 0.
const GRID_LINES: u64 = 5;
/// They stay apart for colour-blind readers, and have a pattern of dashes for print.
const STYLES: [(&str, &str); 4] =
    [("#009e73", "none"), ("#d55e00", "9 3"), ("#0072b2", "2 3"), ("#e69f00", "9 3 2 3")];

/// An error if they are not of the same hours, keys and requests.
pub fn check_comparable(days: &[(String, DayReport)]) -> Result<()> {
    let load = |day: &DayReport| {
        let hours = *day.windows.late.end();
        [("hours", hours), ("keys", day.keys), ("requests in a period", day.requests)]
    };
    let Some(((first, day), others)) = days.split_first() else { return Ok(()) };
    for (name, other) in others {
        for ((what, expected), (_, found)) in load(day).into_iter().zip(load(other)) {
            if found != expected {
                let why = format!("{name} has {found} {what}, {first} has {expected}");
                return Err(Error::Local(format!("{why}: only equal days can be compared")));
            }
        }
    }
    Ok(())
}

/// The resident sets by the hour, from 0 on.
pub fn svg(days: &[(String, DayReport)]) -> String {
    let curves: Vec<_> = days.iter().map(|(_, day)| day.points(Series::Resident)).collect();
    let points = || curves.iter().flatten();
    let scale = Scale {
        hours: points().map(|(hour, _)| *hour).max().unwrap_or(1).max(2),
        step_mb: step(points().map(|(_, mb)| *mb).fold(1.0, f64::max)),
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"20\" y=\"28\" font-size=\"18\" font-weight=\"bold\">\
         Memory of a server under a day of steady load</text>\n"
    );
    scale.draw_axes(&mut svg);
    for (row, ((name, _), points)) in days.iter().zip(&curves).enumerate() {
        let style = STYLES[row % STYLES.len()];
        scale.draw_curve(&mut svg, points, style);
        draw_legend(&mut svg, row, name, style);
    }
    caption(&mut svg, days);
    svg.push_str("</svg>\n");
    svg
}

struct Scale {
    hours: u64,
    /// Between two lines across.
    step_mb: f64,
}

/// 1, 2 or 5 with zeros, so that the lines across reach the largest.
fn step(largest: f64) -> f64 {
    let least = largest / (GRID_LINES - 1) as f64;
    let power = 10f64.powf(least.log10().floor());
    let digits = [1.0, 2.0, 5.0].into_iter().find(|digit| digit * power >= least);
    digits.unwrap_or(10.0) * power
}

impl Scale {
    fn x(&self, hour: u64) -> f64 {
        LEFT + (RIGHT - LEFT) * hour as f64 / self.hours as f64
    }

    fn y(&self, mb: f64) -> f64 {
        BOTTOM - (BOTTOM - TOP) * mb / (self.step_mb * (GRID_LINES - 1) as f64)
    }

    fn draw_axes(&self, svg: &mut String) {
        for line in 0..GRID_LINES {
            let mb = self.step_mb * line as f64;
            let y = self.y(mb);
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" font-size=\"12\">{mb} MB</text>",
                LEFT - 6.0,
                y + 4.0,
            );
        }
        let apart = self.hours.div_ceil(8);
        for hour in (0..=self.hours).step_by(apart as usize) {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"12\">{hour}\
                 </text>",
                self.x(hour),
                BOTTOM + 18.0,
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">hour</text>",
            (LEFT + RIGHT) / 2.0,
            BOTTOM + 36.0,
        );
    }

    fn draw_curve(&self, svg: &mut String, points: &[(u64, f64)], (colour, dashes): (&str, &str)) {
        let point = |(hour, mb): &(u64, f64)| format!("{:.1},{:.1}", self.x(*hour), self.y(*mb));
        let points: Vec<String> = points.iter().map(point).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2.5\" \
             stroke-dasharray=\"{dashes}\"/>",
            points.join(" "),
        );
    }
}

fn draw_legend(svg: &mut String, row: usize, name: &str, (colour, dashes): (&str, &str)) {
    let (left, y) = (RIGHT + 24.0, TOP + 14.0 + row as f64 * 28.0);
    let _ = writeln!(
        svg,
        "<line x1=\"{left}\" x2=\"{:.1}\" y1=\"{y}\" y2=\"{y}\" stroke=\"{colour}\" \
         stroke-width=\"2.5\" stroke-dasharray=\"{dashes}\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" font-weight=\"bold\">{}</text>",
        left + 34.0,
        left + 42.0,
        y + 4.0,
        escaped(name),
    );
}

fn escaped(name: &str) -> String {
    name.replace('&', "&amp;").replace('<', "&lt;")
}

fn caption(svg: &mut String, days: &[(String, DayReport)]) {
    let all = days.iter().filter_map(|(_, day)| day.samples.last());
    let requests = all.map(|sample| sample.requests).max().unwrap_or(0) as f64 / 1e6;
    let _ = writeln!(
        svg,
        "<text x=\"20\" y=\"{:.1}\" fill=\"#555\">Resident set at the end of each simulated hour, \
         of 12 periods with a compaction each; {requests:.2} million requests to each server.</text>",
        HEIGHT - 14.0,
    );
}

/// A row for each series of each server.
pub fn markdown(days: &[(String, DayReport)]) -> String {
    let Some((_, first)) = days.first() else { return String::new() };
    let mut table = format!(
        "| | {} | {} | change | slope, % a day | least to most |\n|---|---|---|---|---|---|\n",
        hours(&first.windows.early),
        hours(&first.windows.late),
    );
    for (name, day) in days {
        for series in Series::ALL {
            let Some(verdict) = day.verdict(series) else { continue };
            let _ = writeln!(
                table,
                "| {name}, {} | {:.1} MB | {:.1} MB | {:+.1} % | {:+.1} | {:.1} to {:.1} MB |",
                series.name(),
                verdict.early,
                verdict.late,
                verdict.change_percent,
                verdict.slope_percent_per_day,
                verdict.min,
                verdict.max,
            );
        }
    }
    for (name, day) in days {
        let outcome = day.check().map_or_else(
            |why| why.to_string(),
            |()| {
                format!(
                    "the resident set stays within {} %, and nothing is left",
                    day.bound_percent
                )
            },
        );
        let requests = day.samples.last().map_or(0, |sample| sample.requests);
        let seconds = day.samples.last().map_or(0, |sample| sample.elapsed_ms / 1000);
        let _ = write!(table, "\n{name}: {outcome}; {requests} requests in {seconds} s.\n");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::day::report::tests::report;

    fn days() -> Vec<(String, DayReport)> {
        let grows = report(24, |hour| 100 + 4 * hour);
        vec![("clearlane".to_owned(), report(24, |_| 80)), ("a <b>".to_owned(), grows)]
    }

    #[test]
    fn each_server_has_a_curve_within_the_axes() {
        let svg = svg(&days());
        assert_eq!(svg.matches("<polyline").count(), 2, "{svg}");
        assert!(svg.contains(">clearlane</text>") && svg.contains(">a &lt;b></text>"), "{svg}");
        let points = svg.split("points=\"").skip(1).filter_map(|rest| rest.split('"').next());
        for point in points.flat_map(|points| points.split(' ')) {
            let (x, y) = point.split_once(',').expect("two numbers");
            let (x, y): (f64, f64) = (x.parse().expect("a number"), y.parse().expect("a number"));
            assert!((LEFT..=RIGHT).contains(&x) && (TOP..=BOTTOM).contains(&y), "{point}");
        }
    }

    #[test]
    fn days_of_another_load_are_refused() {
        let mut days = days();
        assert_eq!(check_comparable(&days), Ok(()));
        days[1].1.requests = 5000;
        let why = "a <b> has 5000 requests in a period, clearlane has 4000";
        let told = Error::Local(format!("{why}: only equal days can be compared"));
        assert_eq!(check_comparable(&days), Err(told));
        days[1].1 = report(12, |_| 80);
        let told = check_comparable(&days).expect_err("fewer hours").to_string();
        assert!(told.starts_with("a <b> has 12 hours, clearlane has 24: "), "{told}");
        assert_eq!(check_comparable(&[]), Ok(()));
    }

    #[test]
    fn lines_across_reach_the_largest() {
        for (largest, expected) in [(1.0, 0.5), (196.0, 50.0), (204.0, 100.0), (40.0, 10.0)] {
            assert_eq!(step(largest), expected, "{largest}");
        }
    }

    #[test]
    fn the_table_has_a_row_for_each_series_and_a_verdict() {
        let table = markdown(&days());
        let row =
            "| clearlane, resident set | 80.0 MB | 80.0 MB | +0.0 % | +0.0 | 80.0 to 80.0 MB |";
        assert!(table.contains(row), "{table}");
        assert!(table.contains("clearlane: the resident set stays within 5 %"), "{table}");
        assert!(table.contains("a <b>: the resident set has grown by 50.0 %"), "{table}");
        assert!(markdown(&[]).is_empty());
    }
}
