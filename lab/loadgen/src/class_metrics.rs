//! The results of the requests of a class.
//!
//! Latencies go into a histogram with three digits: a figure of 12.3 ms is between 12.25 and 12.35.
//! Only answers are in it, because a request that is refused at once is not a quick answer.
//! Failures are counted by their texts.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::response_scanner::ResponseStats;
use crate::time_series::{IntervalMetrics, TimeSeries};

/// Longer latencies are recorded as this.
const LATENCY_MAX: Duration = Duration::from_secs(3600);
/// Further texts are counted as one.
const ERROR_TEXTS_MAX: usize = 20;
const OTHER_ERRORS: &str = "other errors";

#[derive(Clone, Debug)]
pub struct CompletedRequest {
    /// Since the beginning of the run, as `sent` and `answered`.
    pub due: Duration,
    pub sent: Duration,
    pub answered: Duration,
    /// The contents of the answer, or the text of an error.
    pub result: Result<ResponseStats, String>,
}

#[derive(Clone, Debug)]
pub struct ClassMetrics {
    latency: Histogram<u64>,
    send_delay: Histogram<u64>,
    errors: BTreeMap<String, u64>,
    keys: u64,
    bytes: u64,
    last_answer: Duration,
    series: TimeSeries,
}

impl Default for ClassMetrics {
    fn default() -> ClassMetrics {
        let histogram = || {
            let longest = LATENCY_MAX.as_nanos() as u64;
            Histogram::new_with_bounds(1000, longest, 3).expect("the bounds are sound")
        };
        ClassMetrics {
            latency: histogram(),
            send_delay: histogram(),
            errors: BTreeMap::new(),
            keys: 0,
            bytes: 0,
            last_answer: Duration::ZERO,
            series: TimeSeries::default(),
        }
    }
}

impl ClassMetrics {
    /// Of a run that lasts so long.
    pub fn of_window(window: Duration) -> ClassMetrics {
        ClassMetrics { series: TimeSeries::of_window(window), ..ClassMetrics::default() }
    }

    pub fn add(&mut self, done: CompletedRequest) {
        self.send_delay.saturating_record(ns(done.sent.saturating_sub(done.due)));
        match done.result {
            Ok(seen) => {
                let latency = done.answered.saturating_sub(done.due);
                self.latency.saturating_record(ns(latency));
                self.series.add_answer(done.due, latency);
                self.keys += seen.keys;
                self.bytes += seen.bytes;
                self.last_answer = self.last_answer.max(done.answered);
            }
            Err(text) => self.add_failure(done.due, text),
        }
    }

    /// Of a request that was due then.
    pub fn add_failure(&mut self, due: Duration, text: String) {
        self.series.add_failure(due);
        self.add_failures(text, 1);
    }

    pub fn add_failures(&mut self, text: String, count: u64) {
        let known = self.errors.contains_key(&text) || self.errors.len() < ERROR_TEXTS_MAX;
        let text = if known { text } else { OTHER_ERRORS.to_owned() };
        *self.errors.entry(text).or_default() += count;
    }

    pub fn answered(&self) -> u64 {
        self.latency.len()
    }

    pub fn failed(&self) -> u64 {
        self.errors.values().sum()
    }

    /// The number of failures by text.
    pub fn errors(&self) -> &BTreeMap<String, u64> {
        &self.errors
    }

    /// From when a request was due to the end of its answer; `None` if there are no answers.
    pub fn latency_ms(&self, quantile: f64) -> Option<f64> {
        ms(&self.latency, quantile)
    }

    /// From when a request was due to when it was sent: the driver's own delay, included in the
    /// latency.
    pub fn send_delay_ms(&self, quantile: f64) -> Option<f64> {
        ms(&self.send_delay, quantile)
    }

    /// Each value in nanoseconds.
    pub fn latency_histogram(&self) -> &Histogram<u64> {
        &self.latency
    }

    pub fn mean_latency_ms(&self) -> Option<f64> {
        (!self.latency.is_empty()).then(|| self.latency.mean() / 1e6)
    }

    /// By when requests were due.
    pub fn intervals(&self) -> Vec<IntervalMetrics> {
        self.series.intervals()
    }

    /// The length of an interval.
    pub fn interval(&self) -> Duration {
        self.series.interval()
    }

    /// Adds what another thread has counted.
    pub fn merge(&mut self, other: &ClassMetrics) {
        // The bounds are the same.
        let _ = self.latency.add(&other.latency);
        let _ = self.send_delay.add(&other.send_delay);
        for (text, count) in &other.errors {
            self.add_failures(text.clone(), *count);
        }
        self.keys += other.keys;
        self.bytes += other.bytes;
        self.last_answer = self.last_answer.max(other.last_answer);
        self.series.merge(&other.series);
    }

    pub fn keys_per_answer(&self) -> f64 {
        self.keys as f64 / self.answered().max(1) as f64
    }

    pub fn bytes_per_answer(&self) -> f64 {
        self.bytes as f64 / self.answered().max(1) as f64
    }

    /// When it came, since the beginning.
    pub fn last_answer(&self) -> Duration {
        self.last_answer
    }

    /// Over the window, or until the last answer, if that came later.
    pub fn answered_per_second(&self, window: Duration) -> f64 {
        let elapsed = window.max(self.last_answer).as_secs_f64();
        if elapsed > 0.0 { self.answered() as f64 / elapsed } else { 0.0 }
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn ms(histogram: &Histogram<u64>, quantile: f64) -> Option<f64> {
    // The largest value has the precision of the histogram, too.
    (!histogram.is_empty()).then(|| histogram.value_at_quantile(quantile) as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(due_ms: u64, sent_ms: u64, answered_ms: u64) -> CompletedRequest {
        let [due, sent, answered] = [due_ms, sent_ms, answered_ms].map(Duration::from_millis);
        let outcome = Ok(ResponseStats { keys: 2, bytes: 100 });
        CompletedRequest { due, sent, answered, result: outcome }
    }

    fn near(found: Option<f64>, expected: f64) -> bool {
        found.is_some_and(|found| (found / expected - 1.0).abs() < 0.002)
    }

    #[test]
    fn percentiles_are_those_of_the_latencies_from_the_time_they_were_due() {
        let mut tally = ClassMetrics::default();
        // 1 to 1,000 ms; all were sent 0 to 99 ms after they were due.
        (1..=1000).for_each(|latency| tally.add(done(500, 500 + latency % 100, 500 + latency)));
        for (quantile, expected) in [(0.5, 500.0), (0.9, 900.0), (0.99, 990.0), (0.999, 999.0)] {
            let found = tally.latency_ms(quantile);
            assert!(near(found, expected), "{quantile}: {found:?}");
        }
        assert!(near(tally.latency_ms(1.0), 1000.0), "{:?}", tally.latency_ms(1.0));
        assert!(near(tally.send_delay_ms(1.0), 99.0), "{:?}", tally.send_delay_ms(1.0));
        assert_eq!((tally.answered(), tally.failed()), (1000, 0));
        assert_eq!((tally.keys_per_answer(), tally.bytes_per_answer()), (2.0, 100.0));
    }

    #[test]
    fn a_server_that_stands_still_is_seen_by_all_who_were_due() {
        // 100 a second for 5 s; from 2 s to 3 s no request is answered.
        let mut tally = ClassMetrics::default();
        for due in (0..5000).step_by(10) {
            tally.add(done(due, due, if (2000..3000).contains(&due) { 3000 } else { due + 1 }));
        }
        assert!(near(tally.latency_ms(0.80), 1.0), "{:?}", tally.latency_ms(0.80));
        assert!(near(tally.latency_ms(0.90), 500.0), "{:?}", tally.latency_ms(0.90));
        assert!(near(tally.latency_ms(0.99), 950.0), "{:?}", tally.latency_ms(0.99));
    }

    #[test]
    fn failures_are_counted_by_their_text_and_have_no_latency() {
        let mut tally = ClassMetrics::default();
        assert_eq!(
            (tally.latency_ms(0.5), tally.answered_per_second(Duration::from_secs(1))),
            (None, 0.0)
        );
        for number in 0..100 {
            let outcome = Err(format!("text {number}"));
            tally.add(CompletedRequest { result: outcome, ..done(0, 0, 10) });
            tally.add_failures("text 0".to_owned(), 2);
        }
        assert_eq!((tally.answered(), tally.failed()), (0, 300));
        assert_eq!(tally.errors()["text 0"], 201);
        assert_eq!(tally.errors()[OTHER_ERRORS], 80);
        assert_eq!(tally.errors().len(), ERROR_TEXTS_MAX + 1);
        assert_eq!(tally.latency_ms(0.5), None);
    }

    #[test]
    fn a_late_answer_lowers_the_rate() {
        let mut tally = ClassMetrics::default();
        (0..100).for_each(|at| tally.add(done(at, at, at)));
        assert_eq!(tally.answered_per_second(Duration::from_secs(10)), 10.0);
        tally.add(done(0, 0, 20_200));
        assert_eq!(tally.answered_per_second(Duration::from_secs(10)), 5.0);
    }
}
