//! The report of a run, as a table and as JSON.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use crate::class_metrics::ClassMetrics;
use crate::process::ProcessUsage;
use crate::workload::Class;

/// The quantiles that are printed; the last is the maximum.
pub const QUANTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];
const MB: f64 = 1e6;

#[derive(Clone, Debug)]
pub struct Report {
    pub endpoint: String,
    pub seed: u64,
    /// How long requests were due.
    pub window: Duration,
    pub classes: Vec<ClassReport>,
    /// The server's use before and after the run.
    pub usage: Option<(ProcessUsage, ProcessUsage)>,
}

#[derive(Clone, Debug)]
pub struct ClassReport {
    pub class: Class,
    pub metrics: ClassMetrics,
}

impl Report {
    /// Times are in milliseconds, from when a request was due.
    pub fn table(&self) -> String {
        let widest = self.classes.iter().map(|line| line.class.name.chars().count()).max();
        let name = widest.unwrap_or(0).max("class".len());
        let mut table = format!("{:name$} {:>9} {:>10}", "class", "rate/s", "answered/s");
        let mut row = |cells: &[String]| {
            cells.iter().for_each(|cell| _ = write!(table, " {cell:>9}"));
        };
        row(&["answered".to_owned(), "errors".to_owned()]);
        row(&QUANTILES.map(|(name, _)| name.to_owned()));
        row(&["late p99".to_owned()]);
        table.push('\n');
        self.classes.iter().for_each(|line| line.write_row(&mut table, name, self.window));
        for ClassReport { class, metrics } in &self.classes {
            for (text, count) in metrics.errors() {
                let _ = writeln!(table, "{}: {count} x {text}", class.name);
            }
        }
        if let Some((before, after)) = &self.usage {
            let processor = (after.processor - before.processor).as_secs_f64();
            let (resident, peak) = (after.resident_bytes as f64 / MB, after.peak_bytes as f64 / MB);
            let _ = writeln!(
                table,
                "server: {processor:.2} s of processor time, {resident:.0} MB resident, \
                 {peak:.0} MB at its peak since it started"
            );
        }
        table
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
            "endpoint": self.endpoint,
            "seed": self.seed,
            "seconds": self.window.as_secs(),
            "classes": self.classes.iter().map(|line| line.json(self.window)).collect::<Vec<_>>(),
            "server": used,
        })
    }
}

impl ClassReport {
    fn write_row(&self, table: &mut String, name: usize, window: Duration) {
        let ClassReport { class, metrics } = self;
        let rate = metrics.answered_per_second(window);
        let _ = write!(table, "{:name$} {:>9} {rate:>10.2}", class.name, class.rate);
        let _ = write!(table, " {:>9} {:>9}", metrics.answered(), metrics.failed());
        let times = QUANTILES.map(|(_, quantile)| metrics.latency_ms(quantile));
        for time in times.into_iter().chain([metrics.send_delay_ms(0.99)]) {
            let cell = time.map_or_else(|| "-".to_owned(), |time| format!("{time:.2}"));
            let _ = write!(table, " {cell:>9}");
        }
        table.push('\n');
    }

    fn json(&self, window: Duration) -> Value {
        let ClassReport { class, metrics } = self;
        let latency: serde_json::Map<String, Value> = QUANTILES
            .map(|(name, quantile)| (name.to_owned(), metrics.latency_ms(quantile).into()))
            .into_iter()
            .collect();
        json!({
            "name": class.name,
            "operation": class.operation.name(),
            "rate": class.rate,
            "answered_per_second": metrics.answered_per_second(window),
            "answered": metrics.answered(),
            "failed": metrics.failed(),
            "errors": metrics.errors(),
            "latency_ms": latency,
            "late_p99_ms": metrics.send_delay_ms(0.99),
            "keys_per_answer": metrics.keys_per_answer(),
            "bytes_per_answer": metrics.bytes_per_answer(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrivals::Spacing;
    use crate::class_metrics::CompletedRequest;
    use crate::response_scanner::ResponseStats;
    use crate::workload::Operation;

    fn line(name: &str, rate: f64, metrics: ClassMetrics) -> ClassReport {
        let (spacing, operation) = (Spacing::Constant, Operation::Delete { keys: 1 });
        let class =
            Class { name: name.to_owned(), index: 0, operation, rate, spacing, connections: 1 };
        ClassReport { class, metrics }
    }

    fn report() -> Report {
        let mut tally = ClassMetrics::default();
        for number in 1..=100 {
            tally.add(CompletedRequest {
                due: Duration::ZERO,
                sent: Duration::from_millis(1),
                answered: Duration::from_millis(number),
                result: Ok(ResponseStats { keys: 3, bytes: 40 }),
            });
        }
        let mut failed = ClassMetrics::default();
        failed.add_failures("Unavailable: gone".to_owned(), 7);
        let used = |processor, resident_bytes, peak_bytes| ProcessUsage {
            processor: Duration::from_millis(processor),
            resident_bytes,
            peak_bytes,
        };
        Report {
            endpoint: "http://127.0.0.1:2379/".to_owned(),
            seed: 3,
            window: Duration::from_secs(10),
            classes: vec![line("cheap", 10.0, tally), line("a-longer-name", 0.7, failed)],
            usage: Some((used(1000, 5_000_000, 9_000_000), used(3500, 6_000_000, 9_600_000))),
        }
    }

    #[test]
    fn the_table_has_a_row_per_class_and_tells_errors_and_use() {
        let expected = "\
class            rate/s answered/s  answered    errors       p50       p90       p99     p99.9       max  late p99
cheap                10      10.00       100         0     50.00     90.05     99.02    100.01    100.01      1.00
a-longer-name       0.7       0.00         0         7         -         -         -         -         -         -
a-longer-name: 7 x Unavailable: gone
server: 2.50 s of processor time, 6 MB resident, 10 MB at its peak since it started
";
        let table = report().table();
        assert_eq!(table, expected, "\n{table}");
    }

    #[test]
    fn the_json_has_the_same_figures() {
        let json = report().json();
        let cheap = &json["classes"][0];
        assert_eq!((&cheap["name"], &cheap["operation"]), (&json!("cheap"), &json!("delete")));
        assert_eq!((&cheap["answered"], &cheap["failed"]), (&json!(100), &json!(0)));
        assert_eq!(cheap["keys_per_answer"], json!(3.0));
        assert!((cheap["latency_ms"]["p50"].as_f64().unwrap_or(0.0) - 50.0).abs() < 0.1, "{cheap}");
        let failed = &json["classes"][1];
        assert_eq!(failed["errors"], json!({ "Unavailable: gone": 7 }));
        assert_eq!(failed["latency_ms"]["max"], Value::Null);
        assert_eq!(json["server"]["processor_s"], json!(2.5));
        assert_eq!(json["server"]["peak_before_bytes"], json!(9_000_000));
        assert_eq!((&json["seed"], &json["seconds"]), (&json!(3), &json!(10)));
    }
}
