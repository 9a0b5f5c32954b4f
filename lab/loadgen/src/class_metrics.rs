//! The results of the requests of one class.
//!
//! Latencies are in a histogram with three significant digits, so a figure is off by at most 0.1 %.
//! The histogram has only successful responses, because a fast rejection would look like a quick
//! response. Failures are counted by their texts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use parking_lot::Mutex;

use crate::TextResult;
use crate::response_scanner::ResponseStats;
use crate::time_series::{IntervalMetrics, TimeSeries};

/// Longest latency that the histogram can hold. Longer latencies are recorded as this value.
const LATENCY_MAX: Duration = Duration::from_secs(3600);
/// Maximum number of different error texts. Further texts are counted together.
const ERROR_TEXTS_MAX: usize = 20;
const OTHER_ERRORS: &str = "other errors";

/// The counts of a response, or the text of an error.
pub(crate) type CallResult = TextResult<ResponseStats>;

#[derive(Clone, Debug)]
pub struct CompletedRequest {
    /// The time when the request was due, since the start of the run. `sent` and `answered` are
    /// also counted from the start of the run.
    pub due: Duration,
    pub sent: Duration,
    pub answered: Duration,
    /// The counts of the response, or the text of an error.
    pub result: CallResult,
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
        ClassMetrics {
            latency: ClassMetrics::empty_histogram(),
            send_delay: ClassMetrics::empty_histogram(),
            errors: BTreeMap::new(),
            keys: 0,
            bytes: 0,
            last_answer: Duration::ZERO,
            series: TimeSeries::default(),
        }
    }
}

impl ClassMetrics {
    /// Creates empty metrics for a run of this length.
    pub fn of_window(window: Duration) -> ClassMetrics {
        ClassMetrics { series: TimeSeries::of_window(window), ..ClassMetrics::default() }
    }

    /// Returns an empty histogram of latencies in nanoseconds.
    pub(crate) fn empty_histogram() -> Histogram<u64> {
        let longest = LATENCY_MAX.as_nanos() as u64;
        Histogram::new_with_bounds(1000, longest, 3).expect("the bounds are sound")
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

    /// Adds one failed request that was due at `due`.
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

    /// Returns the number of failures for each error text.
    pub fn errors(&self) -> &BTreeMap<String, u64> {
        &self.errors
    }

    /// Returns a quantile of the latencies. A latency is the time from when a request was due to
    /// the end of its response. `None` if there are no responses.
    pub fn latency_ms(&self, quantile: f64) -> Option<f64> {
        ms(&self.latency, quantile)
    }

    /// Returns a quantile of the send delays, or `None` if there are no requests. A send delay is
    /// the time from when a request was due to when it was sent. It is the driver's own delay, and
    /// the latency includes it.
    pub fn send_delay_ms(&self, quantile: f64) -> Option<f64> {
        ms(&self.send_delay, quantile)
    }

    /// Returns the histogram of the latencies in nanoseconds.
    pub fn latency_histogram(&self) -> &Histogram<u64> {
        &self.latency
    }

    pub fn mean_latency_ms(&self) -> Option<f64> {
        (!self.latency.is_empty()).then(|| self.latency.mean() / 1e6)
    }

    /// Returns the metrics of each interval. A request is counted in the interval of its due time.
    pub fn intervals(&self) -> Vec<IntervalMetrics> {
        self.series.intervals()
    }

    /// Returns the length of an interval.
    pub fn interval(&self) -> Duration {
        self.series.interval()
    }

    /// Adds the results of another thread.
    pub fn merge(&mut self, other: &ClassMetrics) {
        // Adding cannot fail, because both histograms have the same bounds.
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

    /// Returns the time of the last successful response, since the start of the run.
    pub fn last_answer(&self) -> Duration {
        self.last_answer
    }

    /// Returns the rate of responses over the window. If the last response arrived after the
    /// window, the rate is computed over the time until that response.
    pub fn answered_per_second(&self, window: Duration) -> f64 {
        let elapsed = window.max(self.last_answer).as_secs_f64();
        if elapsed > 0.0 { self.answered() as f64 / elapsed } else { 0.0 }
    }
}

/// The metrics of a closed loop, which its clients share. Times are counted from `start`.
#[derive(Clone, Debug)]
pub(crate) struct LoopMetrics {
    pub(crate) start: Instant,
    metrics: Arc<Mutex<ClassMetrics>>,
}

impl LoopMetrics {
    pub(crate) fn start() -> LoopMetrics {
        LoopMetrics { start: Instant::now(), metrics: Arc::default() }
    }

    /// Sends a request, and adds its latency or its error. Returns false if it has failed.
    pub(crate) async fn add(&self, request: impl Future<Output = CallResult>) -> bool {
        let sent = self.start.elapsed();
        let result = request.await;
        let is_answered = result.is_ok();
        let answered = self.start.elapsed();
        self.metrics.lock().add(CompletedRequest { due: sent, sent, answered, result });
        is_answered
    }

    pub(crate) fn add_failures(&self, text: String, count: u64) {
        self.metrics.lock().add_failures(text, count);
    }

    /// Returns the metrics so far, and starts new ones.
    pub(crate) fn take(&self) -> ClassMetrics {
        std::mem::take(&mut *self.metrics.lock())
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn ms(histogram: &Histogram<u64>, quantile: f64) -> Option<f64> {
    // The maximum is also rounded to the histogram's three digits.
    (!histogram.is_empty()).then(|| histogram.value_at_quantile(quantile) as f64 / 1e6)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a request that was answered. Times are in milliseconds.
    pub(crate) fn done([due, sent, answered]: [u64; 3]) -> CompletedRequest {
        let [due, sent, answered] = [due, sent, answered].map(Duration::from_millis);
        let result = Ok(ResponseStats { keys: 3, bytes: 40 });
        CompletedRequest { due, sent, answered, result }
    }

    fn is_near(found: Option<f64>, expected: f64) -> bool {
        found.is_some_and(|found| (found / expected - 1.0).abs() < 0.002)
    }

    #[test]
    fn latencies_are_measured_from_the_time_when_requests_were_due() {
        let mut metrics = ClassMetrics::default();
        // Latencies of 1 to 1,000 ms. Each request is sent 0 to 99 ms after it was due.
        (1..=1000).for_each(|ms| metrics.add(done([500, 500 + ms % 100, 500 + ms])));
        for quantile in [0.5, 0.9, 0.99, 0.999, 1.0] {
            let found = metrics.latency_ms(quantile);
            assert!(is_near(found, quantile * 1000.0), "{quantile}: {found:?}");
        }
        assert!(is_near(metrics.send_delay_ms(1.0), 99.0), "{:?}", metrics.send_delay_ms(1.0));
        assert_eq!((metrics.answered(), metrics.failed()), (1000, 0));
        assert_eq!((metrics.keys_per_answer(), metrics.bytes_per_answer()), (3.0, 40.0));
    }

    #[test]
    fn all_requests_that_were_due_show_that_a_server_is_blocked() {
        // 100 requests a second for 5 s. The server answers no request from 2 s to 3 s.
        let mut metrics = ClassMetrics::default();
        for due in (0..5000).step_by(10) {
            let answered = if (2000..3000).contains(&due) { 3000 } else { due + 1 };
            metrics.add(done([due, due, answered]));
        }
        for (quantile, expected) in [(0.8, 1.0), (0.9, 500.0), (0.99, 950.0)] {
            let found = metrics.latency_ms(quantile);
            assert!(is_near(found, expected), "{quantile}: {found:?}");
        }
    }

    #[test]
    fn failures_are_counted_by_their_text_and_have_no_latency() {
        let mut metrics = ClassMetrics::default();
        for number in 0..100 {
            let result = Err(format!("text {number}"));
            metrics.add(CompletedRequest { result, ..done([0, 0, 10]) });
            metrics.add_failures("text 0".to_owned(), 2);
        }
        assert_eq!((metrics.answered(), metrics.failed()), (0, 300));
        assert_eq!((metrics.errors()["text 0"], metrics.errors()[OTHER_ERRORS]), (201, 80));
        assert_eq!(metrics.errors().len(), ERROR_TEXTS_MAX + 1);
        let rate = metrics.answered_per_second(Duration::from_secs(1));
        assert_eq!((metrics.latency_ms(0.5), rate), (None, 0.0));
    }

    #[test]
    fn a_late_response_lowers_the_rate() {
        let mut metrics = ClassMetrics::default();
        (0..100).for_each(|at| metrics.add(done([at, at, at])));
        assert_eq!(metrics.answered_per_second(Duration::from_secs(10)), 10.0);
        metrics.add(done([0, 0, 20_200]));
        assert_eq!(metrics.answered_per_second(Duration::from_secs(10)), 5.0);
    }
}
