//! Converts the figures of single rounds into two small tables and JSON.

use std::time::{Duration, Instant};

use clearlane_benches::store::results_directory;
use serde_json::{Map, Value, json};

use crate::cluster::{SnapshotTimes, ThirdMemberRun};
use crate::load::Phase;

type MetricList = Vec<(&'static str, f64)>;

/// One row of a table: its name, and its figures in each round.
struct Row {
    name: &'static str,
    rounds: Vec<MetricList>,
}

impl Row {
    /// Returns the median of each figure over the rounds.
    fn medians(&self) -> MetricList {
        let names = self.rounds.iter().take(1).flatten().map(|(name, _)| *name);
        names
            .enumerate()
            .map(|(at, name)| {
                let mut figures: Vec<f64> = self.rounds.iter().map(|round| round[at].1).collect();
                figures.sort_by(f64::total_cmp);
                (name, figures[figures.len() / 2])
            })
            .collect()
    }
}

#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

impl Report {
    pub(crate) fn add(
        &mut self,
        phases: &[Phase],
        came: Instant,
        visit: &ThirdMemberRun,
        copy: &SnapshotTimes,
    ) {
        for phase in phases {
            self.add_row(phase.name, phase_metrics(phase));
        }
        self.add_row("catch-up", catch_up_metrics(came, visit, copy));
    }

    fn add_row(&mut self, name: &'static str, figures: MetricList) {
        match self.rows.iter_mut().find(|row| row.name == name) {
            Some(row) => row.rounds.push(figures),
            None => self.rows.push(Row { name, rounds: vec![figures] }),
        }
    }

    /// Prints the tables and writes the JSON file.
    pub(crate) fn finish(&self, quick: bool) {
        let mut lines = Vec::new();
        for row in &self.rows {
            let medians = row.medians();
            let words: Vec<String> =
                medians.iter().map(|(name, figure)| format!("{name} {figure:.1}")).collect();
            println!("  {:10} {}", row.name, words.join("   "));
            for (number, round) in row.rounds.iter().enumerate() {
                lines.push(to_json(row.name, &format!("round {number}"), round));
            }
            lines.push(to_json(row.name, "median", &medians));
        }
        // A test run must not replace the figures of a real run.
        let name = if quick { "catch_up_test" } else { "catch_up" };
        let directory = results_directory(env!("CARGO_TARGET_TMPDIR"), name);
        let text = serde_json::to_string_pretty(&lines).expect("numbers and names are JSON");
        std::fs::write(directory.join("summary.json"), text)
            .expect("the target directory is writable");
    }
}

fn phase_metrics(phase: &Phase) -> MetricList {
    let us = |quantile| phase.latency.value_at_quantile(quantile) as f64 / 1e3;
    vec![
        ("seconds", phase.time.as_secs_f64()),
        ("puts/s", phase.answers as f64 / phase.time.as_secs_f64()),
        ("p50 µs", us(0.5)),
        ("p99 µs", us(0.99)),
        ("max µs", us(1.0)),
        ("longest gap between applies ms", ms(phase.longest.gap)),
        ("longest call of the core ms", ms(phase.longest.call)),
        ("longest write of the log ms", ms(phase.longest.write)),
    ]
}

fn catch_up_metrics(came: Instant, visit: &ThirdMemberRun, copy: &SnapshotTimes) -> MetricList {
    let (level, applied) = visit.caught_up.expect("the phase ended with it");
    let replaced = visit.installed[0];
    let copied = copy.began + copy.time;
    let megabytes = copy.bytes as f64 / 1e6;
    vec![
        ("started in ms", ms(visit.started - came)),
        ("copy begun after ms", ms(copy.began - came)),
        ("copied in ms", ms(copy.time)),
        ("MB", megabytes),
        ("MB/s", megabytes / copy.time.as_secs_f64()),
        ("installed in ms", ms(replaced.saturating_duration_since(copied))),
        ("entries behind the copy", applied.saturating_sub(copy.index) as f64),
        ("applied in ms", ms(level.saturating_duration_since(replaced))),
        ("level after ms", ms(level - came)),
        ("copy thread's processor ms", ms(copy.processor)),
        ("third core's processor ms", ms(visit.processor)),
    ]
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn to_json(name: &str, of: &str, figures: &MetricList) -> Value {
    let mut line = Map::new();
    line.insert("name".to_owned(), json!(name));
    line.insert("of".to_owned(), json!(of));
    line.extend(figures.iter().map(|(name, figure)| ((*name).to_owned(), json!(figure))));
    Value::Object(line)
}
