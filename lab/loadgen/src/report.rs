//! The report of a run: as a table, as JSON, and as CSV.

use std::fmt::Write;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::class_metrics::ClassMetrics;
use crate::process::{DriverUsage, ProcessUsage};
use crate::server_info::ServerInfo;
use crate::server_latency::LatencyComparison;

/// The quantiles that are printed. The last one is the maximum.
pub const QUANTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];
const MB: f64 = 1e6;

#[derive(Clone, Debug)]
pub struct Report {
    pub endpoints: String,
    pub servers: Vec<ServerInfo>,
    pub seed: u64,
    /// How long requests were sent. In a closed loop, this includes the wait for the last response.
    pub window: Duration,
    /// If true, requests were sent when they were due, even if earlier requests were not answered.
    pub is_open_loop: bool,
    pub classes: Vec<ClassReport>,
    /// The usage of the server's process before and after the run, if it was measured.
    pub usage: Option<(ProcessUsage, ProcessUsage)>,
    /// One comparison for each type of request that both the server and the driver have measured.
    pub server_latency: Vec<LatencyComparison>,
    pub driver: DriverUsage,
    /// Problems that did not end the run.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct ClassReport {
    pub name: String,
    /// The operation, as a workload file or a closed loop names it.
    pub operation: &'static str,
    /// The planned number of requests per second. `None` in a closed loop.
    pub rate: Option<f64>,
    pub metrics: ClassMetrics,
}

/// If the driver's threads are busy for at least this share of the time, the report of a closed
/// loop warns that the driver was the limit.
const BUSY_SHARE: f64 = 0.9;
/// If the p99 of the send delay is at least this share of the p99 of the latency, the report of an
/// open loop warns that the driver was the limit.
const LATE_SHARE: f64 = 0.25;
/// Minimum p99 of the send delay for a warning. Smaller delays are normal, because a thread does
/// not wake exactly on time.
const LATE_MS: f64 = 0.5;

/// Returns a warning about a class in an open loop if the driver's own delay is a large part of the
/// latency. Otherwise returns `None`.
pub(crate) fn late_warning(name: &str, metrics: &ClassMetrics) -> Option<String> {
    let late = metrics.send_delay_ms(0.99)?;
    let latency = metrics.latency_ms(0.99).unwrap_or_default();
    (late >= LATE_MS && late >= LATE_SHARE * latency).then(|| {
        format!(
            "{name}: THE DRIVER WAS THE LIMIT. The p99 of the send delay is {late:.2} ms, of \
             a latency of {latency:.2} ms"
        )
    })
}

impl Report {
    /// Returns the report as a table. In an open loop, a latency starts when the request was due,
    /// and in a closed loop when it was sent.
    pub fn table(&self) -> String {
        let mut text = String::new();
        self.servers.iter().for_each(|server| _ = writeln!(text, "{}", server.line()));
        self.write_rows(&mut text);
        for ClassReport { name, metrics, .. } in &self.classes {
            for (error, count) in metrics.errors() {
                let _ = writeln!(text, "{name}: {count} x {error}");
            }
        }
        if let Some((before, after)) = &self.usage {
            let processor = (after.processor - before.processor).as_secs_f64();
            let (resident, peak) = (after.resident_bytes as f64 / MB, after.peak_bytes as f64 / MB);
            let _ = writeln!(
                text,
                "server: {processor:.2} s of processor time, {resident:.0} MB resident, \
                 {peak:.0} MB at its peak since it started"
            );
        }
        self.server_latency.iter().for_each(|compared| _ = writeln!(text, "{}", compared.line()));
        if let Some(processor) = self.driver.processor {
            let (seconds, answered) = (processor.as_secs_f64(), self.answered());
            let each = seconds * 1e6 / answered.max(1) as f64;
            let _ = writeln!(
                text,
                "driver: {seconds:.2} s of processor time, {each:.1} us for each of {answered} \
                 responses"
            );
        }
        self.warnings().iter().for_each(|warning| _ = writeln!(text, "WARNING: {warning}"));
        text
    }

    pub fn answered(&self) -> u64 {
        self.classes.iter().map(|class| class.metrics.answered()).sum()
    }

    fn write_rows(&self, text: &mut String) {
        let widest = self.classes.iter().map(|class| class.name.chars().count()).max();
        let name = widest.unwrap_or(0).max("class".len());
        let _ = write!(text, "{:name$} {:>9} {:>10}", "class", "asked/s", "answered/s");
        let _ = write!(text, " {:>9} {:>9}", "answered", "errors");
        for (quantile, _) in QUANTILES {
            let _ = write!(text, " {:>9}", format!("{quantile} ms"));
        }
        let _ = writeln!(text, " {:>11}", "late p99 ms");
        self.classes.iter().for_each(|class| class.write_row(text, name, self.window));
    }

    /// Returns warnings about everything that makes the figures unreliable.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.notes.clone();
        if self.is_open_loop {
            let late = |class: &ClassReport| late_warning(&class.name, &class.metrics);
            warnings.extend(self.classes.iter().filter_map(late));
        } else if let Some(share) = self.driver.share().filter(|share| *share >= BUSY_SHARE) {
            let threads = self.driver.threads;
            let percent = share * 100.0;
            warnings.push(format!(
                "THE DRIVER WAS THE LIMIT. It was busy for {percent:.0} % of the time of {threads} \
                 thread(s); try more with --threads"
            ));
        }
        warnings
    }

    /// Returns a histogram of the latencies of each class.
    pub fn histograms(&self) -> String {
        let mut text = String::new();
        for ClassReport { name, metrics, .. } in &self.classes {
            if metrics.answered() > 0 {
                let _ = writeln!(text, "\n{name}: responses by latency");
                write_histogram(&mut text, metrics.latency_histogram());
            }
        }
        text
    }

    /// Returns the results of each interval, which is a second or longer.
    pub fn samples(&self) -> String {
        let mut text = String::new();
        for ClassReport { name, metrics, .. } in &self.classes {
            let _ = writeln!(
                text,
                "\n{name:12} {:>9} {:>9} {:>9} {:>9} {:>9}",
                "answered", "errors", "p50 ms", "p99 ms", "max ms"
            );
            for (number, interval) in metrics.intervals().iter().enumerate() {
                let at = number as u64 * metrics.interval().as_secs();
                let _ = write!(text, "{:>10} s", at);
                let _ = write!(text, " {:>9} {:>9}", interval.answered, interval.failed);
                for time in [interval.p50_ms, interval.p99_ms, interval.max_ms] {
                    let _ = write!(text, " {:>9}", cell(time));
                }
                text.push('\n');
            }
        }
        text
    }

    pub fn json(&self) -> Value {
        let used = self.usage.as_ref().map(|(before, after)| {
            json!({
                "processor_s": (after.processor - before.processor).as_secs_f64(),
                "resident_bytes": after.resident_bytes,
                "peak_bytes": after.peak_bytes,
                "peak_before_bytes": before.peak_bytes,
            })
        });
        json!({
            "endpoint": self.endpoints,
            "servers": self.servers,
            "seed": self.seed,
            "seconds": self.window.as_secs_f64(),
            "open_loop": self.is_open_loop,
            "classes": self.classes.iter().map(|class| class.json(self.window)).collect::<Vec<_>>(),
            "server": used,
            "server_latency": self.server_latency,
            "driver": {
                "processor_s": self.driver.processor.map(|used| used.as_secs_f64()),
                "threads": self.driver.threads,
            },
            "warnings": self.warnings(),
        })
    }

    /// Returns the report as CSV: a line for each class as a whole, and a line for each of its
    /// intervals.
    pub fn csv(&self) -> String {
        let mut text = "class,operation,from_s,seconds,asked_per_s,answered,errors,p50_ms,p90_ms,\
                        p99_ms,p99.9_ms,max_ms,late_p99_ms\n"
            .to_owned();
        let number = |number: Option<f64>| number.map_or_else(String::new, |n| format!("{n:.4}"));
        for ClassReport { name, operation, rate, metrics } in &self.classes {
            let name = quoted(name);
            let (rate, seconds) = (number(*rate), self.window.as_secs_f64());
            let _ = write!(text, "{name},{operation},total,{seconds:.3},{rate}");
            let _ = write!(text, ",{},{}", metrics.answered(), metrics.failed());
            for (_, quantile) in QUANTILES {
                let _ = write!(text, ",{}", number(metrics.latency_ms(quantile)));
            }
            let _ = writeln!(text, ",{}", number(metrics.send_delay_ms(0.99)));
            for (interval, at) in metrics.intervals().iter().zip(0_u64..) {
                let seconds = metrics.interval().as_secs();
                let _ = write!(text, "{name},{operation},{},{seconds},", at * seconds);
                let _ = write!(text, ",{},{}", interval.answered, interval.failed);
                let [p50, p99, max] = [interval.p50_ms, interval.p99_ms, interval.max_ms];
                let _ = writeln!(text, ",{},,{},,{},", number(p50), number(p99), number(max));
            }
        }
        text
    }
}

/// Returns a CSV field. It is quoted if the text contains a comma, a quote or the end of a line.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// Returns a time as a cell of a table, with two digits after the point; `-` if there is no time.
pub(crate) fn cell(time: Option<f64>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| format!("{time:.2}"))
}

const HISTOGRAM_ROWS_MAX: usize = 12;
const BAR_CHARS: f64 = 40.0;

/// Writes a row for each doubling of the latency. If there are more than 12 rows, the slowest
/// rows are combined into one row.
fn write_histogram(text: &mut String, histogram: &Histogram<u64>) {
    let mut rows: Vec<(u64, u64)> = Vec::new();
    let (least, most) = (histogram.min().max(1), histogram.max());
    let mut bound = (least.next_power_of_two() / 2).max(1);
    while bound <= most {
        // A bucket of the histogram starts at each power of two. So `last`, the value before the
        // next power of two, is the last value of a bucket, and no bucket is counted in two rows.
        let last = bound * 2 - 1;
        rows.push((last + 1, histogram.count_between(bound, last)));
        bound *= 2;
    }
    let last = (most, histogram.len());
    if rows.len() > HISTOGRAM_ROWS_MAX {
        rows.truncate(HISTOGRAM_ROWS_MAX - 1);
        let shown: u64 = rows.iter().map(|(_, count)| count).sum();
        rows.push((last.0, last.1.saturating_sub(shown)));
    }
    let highest = rows.iter().map(|(_, count)| *count).max().unwrap_or(1).max(1);
    for (upper, count) in rows {
        let bar = (count as f64 / highest as f64 * BAR_CHARS).round() as usize;
        let bar = if count > 0 { bar.max(1) } else { 0 };
        let upper = upper as f64 / 1e6;
        let _ = writeln!(text, "  up to {upper:>9.3} ms {count:>10} {}", "#".repeat(bar));
    }
}

impl ClassReport {
    fn write_row(&self, text: &mut String, width: usize, window: Duration) {
        let ClassReport { name, rate, metrics, .. } = self;
        let asked = rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate}"));
        let answered = metrics.answered_per_second(window);
        let _ = write!(text, "{name:width$} {asked:>9} {answered:>10.2}");
        let _ = write!(text, " {:>9} {:>9}", metrics.answered(), metrics.failed());
        for (_, quantile) in QUANTILES {
            let _ = write!(text, " {:>9}", cell(metrics.latency_ms(quantile)));
        }
        let late = rate.and_then(|_| metrics.send_delay_ms(0.99));
        let _ = writeln!(text, " {:>11}", cell(late));
    }

    fn json(&self, window: Duration) -> Value {
        let ClassReport { name, operation, rate, metrics } = self;
        let latency = QUANTILES.map(|(name, quantile)| (name, metrics.latency_ms(quantile)));
        let latency = Value::from_iter(latency);
        let buckets = metrics.latency_histogram().iter_recorded();
        let buckets = buckets.map(|of| json!([of.value_iterated_to(), of.count_at_value()]));
        json!({
            "name": name,
            "operation": operation,
            "rate": rate,
            "answered_per_second": metrics.answered_per_second(window),
            "answered": metrics.answered(),
            "failed": metrics.failed(),
            "errors": metrics.errors(),
            "latency_ms": latency,
            "mean_ms": metrics.mean_latency_ms(),
            "late_p99_ms": metrics.send_delay_ms(0.99),
            "keys_per_answer": metrics.keys_per_answer(),
            "bytes_per_answer": metrics.bytes_per_answer(),
            "histogram_ns": buckets.collect::<Vec<_>>(),
            "interval_s": metrics.interval().as_secs(),
            "intervals": metrics.intervals(),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::class_metrics::tests::done;
    use crate::golden;

    pub(crate) fn report() -> Report {
        let class = |name: &str, rate, metrics| ClassReport {
            name: name.to_owned(),
            operation: "delete",
            rate,
            metrics,
        };
        let mut cheap = ClassMetrics::of_window(Duration::from_secs(2));
        (1..=100).for_each(|number| cheap.add(done([number * 15, number * 15 + 1, number * 16])));
        let mut failed = ClassMetrics::default();
        failed.add_failures("Unavailable: gone".to_owned(), 7);
        let used = |processor, resident_bytes, peak_bytes| {
            let processor = Duration::from_millis(processor);
            ProcessUsage { processor, resident_bytes, peak_bytes }
        };
        let (elapsed, threads) = (Duration::from_secs(10), 2);
        Report {
            endpoints: "http://127.0.0.1:2379/".to_owned(),
            servers: Vec::new(),
            seed: 3,
            is_open_loop: true,
            window: elapsed,
            classes: vec![class("cheap", Some(10.0), cheap), class("longer, name", None, failed)],
            notes: vec!["something".to_owned()],
            driver: DriverUsage { processor: Some(Duration::from_millis(20)), elapsed, threads },
            usage: Some((used(1000, 5_000_000, 9_000_000), used(3500, 6_000_000, 9_600_000))),
            server_latency: Vec::new(),
        }
    }

    #[test]
    fn a_report_is_as_it_was_in_each_format() {
        let report = report();
        let (text, csv) = (report.table() + &report.histograms(), report.csv());
        let all = format!("{text}{}\n{csv}\n{:#}\n", report.samples(), report.json());
        golden::compare("report.txt", &all);
    }

    #[test]
    fn a_driver_that_was_late_is_reported() {
        let sent_after = |ms| {
            let mut metrics = ClassMetrics::default();
            metrics.add(done([0, ms, 8]));
            late_warning("cheap", &metrics)
        };
        assert_eq!(sent_after(1), None);
        let warning = sent_after(4).unwrap_or_default();
        assert!(warning.starts_with("cheap: THE DRIVER WAS THE LIMIT. "), "{warning}");
        assert_eq!(late_warning("cheap", &ClassMetrics::default()), None);
    }
}
