//! Plots of latencies: by percentile, and as a histogram.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use super::lines::LabelPlace;
use super::{Axis, Better, Colour, Line, Plot, Scale};

/// The plotted percentiles. Each is given by the share of the requests that are above it, in
/// millionths.
const ABOVE: [u64; 15] = [
    1_000_000, 750_000, 500_000, 250_000, 100_000, 50_000, 25_000, 10_000, 5000, 1000, 500, 100,
    50, 10, 1,
];
/// Minimum number of requests above a percentile that is plotted. With fewer requests, the
/// percentile depends more on chance than on the server.
const REQUESTS_ABOVE_MIN: u64 = 10;
const MILLION: u64 = 1_000_000;
const NS_PER_MS: f64 = 1e6;
const BUCKETS_PER_DECADE: f64 = 10.0;

/// The label and colour of a line, and its latencies in nanoseconds.
type Latencies<'a> = (String, Colour, &'a Histogram<u64>);

/// Plots latencies by percentile. Each line ends at the last percentile that has at least ten
/// requests above it. Returns `None` if each line has less than two points, because such a plot
/// shows nothing.
pub fn latency_by_percentile(title: &str, latencies: &[Latencies<'_>]) -> Option<Plot> {
    let lines = lines(latencies, by_percentile);
    lines.iter().any(|line| line.points.len() > 1).then(|| Plot {
        title: title.to_owned(),
        x: Axis::new("percentile of requests", Scale::Nines),
        y: Axis::new("latency, ms", Scale::Log),
        better: Better::Lower,
        lines,
    })
}

/// Plots a histogram as SVG: the share of the requests in each range of latencies.
pub fn latency_histogram(title: &str, latencies: &[Latencies<'_>]) -> String {
    let plot = Plot {
        title: title.to_owned(),
        x: Axis::new("latency, ms", Scale::Log),
        y: Axis::new("requests, % in each tenth of a decade", Scale::Linear),
        better: Better::Neither,
        lines: lines(latencies, outline),
    };
    plot.draw(LabelPlace::Peak)
}

fn lines(latencies: &[Latencies<'_>], points: fn(&Histogram<u64>) -> Vec<(f64, f64)>) -> Vec<Line> {
    let line = |(label, colour, histogram): &Latencies<'_>| Line {
        label: label.clone(),
        colour: *colour,
        points: points(histogram),
    };
    latencies.iter().map(line).collect()
}

fn by_percentile(histogram: &Histogram<u64>) -> Vec<(f64, f64)> {
    let supported = ABOVE.into_iter().filter(|above| {
        u128::from(histogram.len()) * u128::from(*above) >= u128::from(REQUESTS_ABOVE_MIN * MILLION)
    });
    let point = |above: u64| {
        let quantile = (MILLION - above) as f64 / MILLION as f64;
        let ms = histogram.value_at_quantile(quantile) as f64 / NS_PER_MS;
        ((MILLION - above) as f64 / 1e4, ms)
    };
    supported.map(point).collect()
}

/// Returns the outline of the histogram's columns. Neighbouring columns touch.
fn outline(histogram: &Histogram<u64>) -> Vec<(f64, f64)> {
    let mut columns: BTreeMap<i32, u64> = BTreeMap::new();
    for recorded in histogram.iter_recorded() {
        let ms = recorded.value_iterated_to().max(1) as f64 / NS_PER_MS;
        let column = (ms.log10() * BUCKETS_PER_DECADE).floor() as i32;
        *columns.entry(column).or_default() += recorded.count_since_last_iteration();
    }
    let (Some(first), Some(last)) = (columns.keys().next(), columns.keys().last()) else {
        return Vec::new();
    };
    let edge = |column: i32| 10f64.powf(f64::from(column) / BUCKETS_PER_DECADE);
    let mut points = vec![(edge(*first), 0.0)];
    for column in *first..=*last {
        let count = columns.get(&column).copied().unwrap_or(0);
        let percent = 100.0 * count as f64 / histogram.len() as f64;
        points.extend([(edge(column), percent), (edge(column + 1), percent)]);
    }
    points.push((edge(last + 1), 0.0));
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(latencies_ns: impl Iterator<Item = u64>) -> Histogram<u64> {
        let mut histogram = Histogram::new(3).expect("three digits");
        latencies_ns.for_each(|ns| histogram.record(ns).expect("it grows"));
        histogram
    }

    #[test]
    fn a_percentile_has_ten_requests_above_it() {
        for (requests, last) in
            [(10, 0.0), (19, 25.0), (20, 50.0), (100, 90.0), (999, 97.5), (1000, 99.0)]
        {
            let points = by_percentile(&histogram((1..=requests).map(|at| at * 1_000_000)));
            assert_eq!(points.last().map(|(x, _)| *x), Some(last), "{requests}");
        }
        assert!(by_percentile(&histogram(1..=9)).is_empty());
        let points = by_percentile(&histogram((1..=1000).map(|at| at * 1_000_000)));
        for (percentile, expected) in [(0.0, 1.0), (50.0, 500.0), (90.0, 900.0), (99.0, 990.0)] {
            let found = points.iter().find(|(x, _)| *x == percentile).expect("a point").1;
            assert!((found / expected - 1.0).abs() < 0.002, "{percentile}: {found}");
        }
    }
}
