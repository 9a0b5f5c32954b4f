//! Reads a run that `clearlane-load ... --json` has written.

use hdrhistogram::Histogram;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::RunSummary;

/// Maximum latency in the histogram. Longer latencies are recorded as this value, as in a run.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;

impl RunSummary {
    /// Reads a run. The error names the missing part.
    pub fn from_json(name: &str, value: &Value) -> Result<RunSummary, String> {
        let wrong = |what: String| format!("{what}; this is not a file of `clearlane-load --json`");
        let classes = Vec::deserialize(&value["classes"]);
        let seconds = value["seconds"].as_f64().ok_or_else(|| wrong("no seconds".to_owned()));
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
            seconds: seconds?.round() as u64,
            classes: classes.map_err(|error| wrong(format!("classes: {error}")))?,
        })
    }
}

/// Reads a histogram: pairs of a latency in nanoseconds and the number of responses that had it.
pub(super) fn histogram<'de, D: Deserializer<'de>>(buckets: D) -> Result<Histogram<u64>, D::Error> {
    let mut histogram =
        Histogram::new_with_bounds(1000, LATENCY_NS_MAX, 3).expect("the bounds are sound");
    for (latency, count) in Vec::<(u64, u64)>::deserialize(buckets)? {
        histogram.saturating_record_n(latency, count);
    }
    Ok(histogram)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::report::tests::report;

    #[test]
    fn a_run_is_read_as_it_was_written() {
        let run = RunSummary::from_json("mine", &report().json()).expect("it is complete");
        let [cheap, failed] = &run.classes[..] else { panic!("{run:?}") };
        assert_eq!((cheap.answered, cheap.failed, cheap.series.len()), (100, 0, 2));
        assert_eq!(failed.errors, BTreeMap::from([("Unavailable: gone".to_owned(), 7)]));
        let median = cheap.histogram.value_at_quantile(0.5) as f64 / 1e6;
        assert!((median / 50.0 - 1.0).abs() < 0.002, "{median}");
        assert_eq!(run.warnings[0], "something");
        let error = RunSummary::from_json("x", &json!({})).map(drop);
        let no_file = "no seconds; this is not a file of `clearlane-load --json`";
        assert_eq!(error, Err(no_file.to_owned()));
    }
}
