//! The results of a row of expensive requests.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use super::Row;
use crate::class_metrics::ClassMetrics;
use crate::named::Named;

#[derive(Clone, Debug)]
pub struct StallReport {
    pub row: Row,
    /// Number of keys in the space that is read.
    pub keys: u64,
    /// The time from the start of the window to its end, or until the last request was answered or
    /// given up if that is later.
    pub elapsed: Duration,
    /// The processor time that the server has used during the row, if it is known.
    pub processor: Option<Duration>,
    pub metrics: ClassMetrics,
}

impl StallReport {
    /// Returns the result as one line.
    pub fn line(&self) -> String {
        let StallReport { row, elapsed, metrics, .. } = self;
        let (answered, failed) = (metrics.answered(), metrics.failed());
        let (seconds, rate) = (elapsed.as_secs_f64(), self.per_second());
        let row = row.name();
        let mut line =
            format!("{row}: {answered} answers in {seconds:.1} s ({rate:.1}/s), {failed} errors");
        if let (Some(median), Some(most)) = (metrics.latency_ms(0.5), metrics.latency_ms(1.0)) {
            let mb = metrics.bytes_per_answer() / 1e6;
            let _ = write!(line, ", p50 {median:.1} ms, max {most:.1} ms, {mb:.3} MB each");
        }
        if let Some(each) = self.processor_ms_each() {
            let _ = write!(line, ", {each:.1} ms of processor time each");
        }
        for (text, count) in metrics.errors() {
            let _ = write!(line, "; {count} x {text}");
        }
        line
    }

    /// Returns the rate of responses up to the last response. A server that has started all
    /// requests at the same time also answers them at almost the same time, and then answers none
    /// for a while. So the time after the last response is not counted.
    fn per_second(&self) -> f64 {
        self.metrics.answered_per_second(Duration::ZERO)
    }

    fn processor_ms_each(&self) -> Option<f64> {
        let cores_used = self.processor?.as_secs_f64() / self.elapsed.as_secs_f64();
        (self.metrics.answered() > 0).then(|| cores_used * 1e3 / self.per_second())
    }

    pub fn json(&self) -> Value {
        let StallReport { row, keys, elapsed, metrics, .. } = self;
        json!({
            "row": row.name(),
            "keys": keys,
            "seconds": elapsed.as_secs_f64(),
            "answered": metrics.answered(),
            "per_second": self.per_second(),
            "processor_ms_each": self.processor_ms_each(),
            "failed": metrics.failed(),
            "errors": metrics.errors(),
            "duration_ms": {"p50": metrics.latency_ms(0.5), "max": metrics.latency_ms(1.0)},
            "bytes_per_answer": metrics.bytes_per_answer(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class_metrics::tests::done;

    #[test]
    fn a_line_has_counts_durations_and_errors() {
        let report = |metrics| {
            let [elapsed, processor] = [2500, 80].map(Duration::from_millis);
            StallReport {
                row: Row::RangeOld,
                keys: 5,
                elapsed,
                processor: Some(processor),
                metrics,
            }
        };
        let mut metrics = ClassMetrics::default();
        metrics.add_failures("Unavailable: gone".to_owned(), 2);
        let line = report(metrics.clone()).line();
        assert_eq!(line, "range-old: 0 answers in 2.5 s (0.0/s), 2 errors; 2 x Unavailable: gone");
        metrics.add(done([1900, 1900, 2000]));
        let report = report(metrics);
        let expected = "range-old: 1 answers in 2.5 s (0.5/s), 2 errors, p50 100.0 ms, \
                        max 100.0 ms, 0.000 MB each, 64.0 ms of processor time each; \
                        2 x Unavailable: gone";
        assert_eq!(report.line(), expected);
        let json = report.json();
        assert_eq!((&json["answered"], &json["bytes_per_answer"]), (&1.into(), &40.0.into()));
    }
}
