//! A run as `clearlane-load ... --json` has written it.

use hdrhistogram::Histogram;
use serde_json::Value;

use super::{ClassSummary, RunSummary};
use crate::time_series::IntervalMetrics;

/// Longer latencies are recorded as this, as in a run.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;

impl RunSummary {
    /// The error says what is missing.
    pub fn from_json(name: &str, value: &Value) -> Result<RunSummary, String> {
        let missing = |what: &str| format!("no {what}; it is no file of `clearlane-load --json`");
        let classes = value["classes"].as_array().ok_or_else(|| missing("classes"))?;
        let classes = classes.iter().map(|class| class_from_json(class).map_err(missing));
        let text = |field: &Value| field.as_str().unwrap_or_default().to_owned();
        let servers = value["servers"].as_array().map(Vec::as_slice).unwrap_or_default();
        let server = servers.iter().flat_map(|server| {
            [
                ("product", text(&server["product"])),
                ("version", text(&server["version"])),
                ("members", server["members"].to_string()),
            ]
        });
        Ok(RunSummary {
            name: name.to_owned(),
            endpoint: text(&value["endpoint"]),
            server: server.map(|(name, value)| (name.to_owned(), value)).collect(),
            command: text(&value["command"]),
            warnings: value["warnings"].as_array().into_iter().flatten().map(text).collect(),
            seconds: value["seconds"].as_f64().ok_or_else(|| missing("seconds"))?.round() as u64,
            classes: classes.collect::<Result<_, _>>()?,
        })
    }
}

fn class_from_json(value: &Value) -> Result<ClassSummary, &'static str> {
    let number = |name| value[name].as_u64().ok_or(name);
    let mut histogram =
        Histogram::new_with_bounds(1000, LATENCY_NS_MAX, 3).expect("the bounds are sound");
    for bucket in value["histogram_ns"].as_array().ok_or("histogram_ns")? {
        let (latency, count) = (bucket[0].as_u64(), bucket[1].as_u64());
        let (latency, count) = latency.zip(count).ok_or("histogram_ns")?;
        histogram.saturating_record_n(latency, count);
    }
    let errors = value["errors"].as_object().ok_or("errors")?;
    let errors = errors.iter().map(|(text, count)| (text.clone(), count.as_u64().unwrap_or(0)));
    let intervals = value["intervals"].as_array().ok_or("intervals")?;
    let interval = |value: &Value| IntervalMetrics {
        answered: value["answered"].as_u64().unwrap_or(0),
        failed: value["failed"].as_u64().unwrap_or(0),
        p50_ms: value["p50_ms"].as_f64(),
        p99_ms: value["p99_ms"].as_f64(),
        max_ms: value["max_ms"].as_f64(),
    };
    Ok(ClassSummary {
        name: value["name"].as_str().ok_or("name")?.to_owned(),
        rate: value["rate"].as_f64(),
        answered_per_second: value["answered_per_second"].as_f64().ok_or("answered_per_second")?,
        answered: number("answered")?,
        failed: number("failed")?,
        errors: errors.collect(),
        histogram,
        late_p99_ms: value["rate"].as_f64().and(value["late_p99_ms"].as_f64()),
        series: intervals.iter().map(interval).collect(),
        interval_s: number("interval_s")?.max(1),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::class_metrics::{ClassMetrics, CompletedRequest};
    use crate::process::DriverUsage;
    use crate::report::{ClassReport, Report};
    use crate::response_scanner::ResponseStats;

    #[test]
    fn a_run_is_read_as_it_was_written() {
        let mut metrics = ClassMetrics::default();
        for number in 1..=500_u64 {
            let (due, answered) = (number * 10, number * 10 + number % 7 + 1);
            let [due, answered] = [due, answered].map(Duration::from_millis);
            let result = Ok(ResponseStats::default());
            metrics.add(CompletedRequest { due, sent: due, answered, result });
        }
        metrics.add_failures("gone".to_owned(), 3);
        let (p99, name) = (metrics.latency_ms(0.99), "put".to_owned());
        let elapsed = Duration::from_secs(5);
        let report = Report {
            endpoints: "http://a:1/".to_owned(),
            servers: Vec::new(),
            seed: 1,
            window: elapsed,
            is_open_loop: true,
            classes: vec![ClassReport { name, operation: "put", rate: Some(100.0), metrics }],
            usage: None,
            server_latency: Vec::new(),
            driver: DriverUsage { processor: None, elapsed, threads: 1 },
            notes: vec!["something".to_owned()],
        };
        let run = RunSummary::from_json("mine", &report.json()).expect("it is complete");
        assert_eq!(run.warnings, ["something"]);
        let class = &run.classes[0];
        assert_eq!((class.answered, class.failed, class.series.len()), (500, 3, 6));
        assert_eq!(class.errors, [("gone".to_owned(), 3)]);
        let read = class.histogram.value_at_quantile(0.99) as f64 / 1e6;
        assert!((read / p99.unwrap_or_default() - 1.0).abs() < 0.002, "{read} {p99:?}");
        let told = RunSummary::from_json("x", &json!({})).map(drop);
        let no_file = "no classes; it is no file of `clearlane-load --json`";
        assert_eq!(told, Err(no_file.to_owned()));
    }
}
