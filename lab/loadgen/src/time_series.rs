//! Latencies and failures over time, from second to second.
//!
//! An interval is one second. It is longer if the planned time is more than [`INTERVALS_MAX`]
//! seconds. A closed loop without a time limit always has intervals of one second. A request is
//! counted in the interval of its due time, even if its response arrived later. So if a server is
//! blocked for a second, the long latencies are in that second.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

pub const INTERVALS_MAX: u64 = 600;

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IntervalMetrics {
    pub answered: u64,
    pub failed: u64,
    /// The median latency of the requests of the interval. This and the other latencies are `None`
    /// if there was no response.
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    pub max_ms: Option<f64>,
}

#[derive(Clone, Debug)]
pub struct TimeSeries {
    interval: Duration,
    intervals: Vec<Interval>,
}

#[derive(Clone, Debug)]
struct Interval {
    failed: u64,
    /// Latencies in microseconds, to two digits. The histogram grows to the longest latency that it
    /// holds.
    latency: Histogram<u32>,
}

impl Default for Interval {
    fn default() -> Interval {
        let latency = Histogram::new(2).expect("two digits are in the bounds");
        Interval { failed: 0, latency }
    }
}

impl Default for TimeSeries {
    fn default() -> TimeSeries {
        TimeSeries::of_window(Duration::ZERO)
    }
}

impl TimeSeries {
    pub fn of_window(window: Duration) -> TimeSeries {
        let seconds = window.as_secs().div_ceil(INTERVALS_MAX).max(1);
        let intervals = vec![Interval::default(); window.as_secs().div_ceil(seconds) as usize];
        TimeSeries { interval: Duration::from_secs(seconds), intervals }
    }

    pub fn add_answer(&mut self, due: Duration, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        // Latencies above an hour are recorded as an hour.
        let micros = micros.clamp(1, 3_600_000_000);
        self.at(due).latency.record(micros).expect("it grows to the longest");
    }

    pub fn add_failure(&mut self, due: Duration) {
        self.at(due).failed += 1;
    }

    pub fn interval(&self) -> Duration {
        self.interval
    }

    pub fn intervals(&self) -> Vec<IntervalMetrics> {
        let metrics = |Interval { failed, latency }: &Interval| {
            let ms = |quantile| {
                let micros = latency.value_at_quantile(quantile) as f64;
                (!latency.is_empty()).then_some(micros / 1e3)
            };
            let (p50_ms, p99_ms, max_ms) = (ms(0.5), ms(0.99), ms(1.0));
            IntervalMetrics { answered: latency.len(), failed: *failed, p50_ms, p99_ms, max_ms }
        };
        self.intervals.iter().map(metrics).collect()
    }

    pub fn merge(&mut self, other: &TimeSeries) {
        let more = self.intervals.len().max(other.intervals.len());
        self.intervals.resize_with(more, Interval::default);
        for (own, of) in self.intervals.iter_mut().zip(&other.intervals) {
            own.failed += of.failed;
            // Adding fails only for a histogram with a fixed bound.
            let _ = own.latency.add(&of.latency);
        }
    }

    fn at(&mut self, due: Duration) -> &mut Interval {
        let number = (due.as_nanos() / self.interval.as_nanos()) as usize;
        if number >= self.intervals.len() {
            self.intervals.resize_with(number + 1, Interval::default);
        }
        &mut self.intervals[number]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    #[test]
    fn a_request_counts_in_the_second_in_which_it_was_due() {
        let mut series = TimeSeries::of_window(Duration::from_secs(10));
        series.add_answer(ms(900), ms(3000));
        series.add_answer(ms(1000), ms(2));
        series.add_failure(ms(3999));
        let intervals = series.intervals();
        assert_eq!(intervals.len(), 10, "as long as the window");
        let counts: Vec<_> = intervals.iter().map(|of| (of.answered, of.failed)).collect();
        assert_eq!(counts[..4], [(1, 0), (1, 0), (0, 0), (0, 1)]);
        let max = intervals[0].max_ms.expect("there is an answer");
        assert!((max / 3000.0 - 1.0).abs() < 0.01, "{max}");
        assert_eq!(intervals[3].p50_ms, None);
        series.merge(&series.clone());
        assert_eq!(series.intervals()[0].answered, 2);
        assert_eq!(series.intervals()[3].failed, 2);
    }

    #[test]
    fn long_runs_have_longer_intervals() {
        let day = TimeSeries::of_window(Duration::from_secs(86_400));
        assert_eq!(day.interval(), Duration::from_secs(144));
    }
}
