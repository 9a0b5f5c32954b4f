//! Converts the figures of single rounds into a line of the table and JSON.

use clearlane_benches::store::results_directory;
use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use crate::BenchConfig;

/// One measured case: its name, and the named figures of each round.
pub(crate) struct Row {
    name: String,
    rounds: Vec<Vec<(&'static str, f64)>>,
}

impl Row {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the median of a figure over the rounds, or `None` if no round has this figure.
    pub(crate) fn median(&self, name: &str) -> Option<f64> {
        let figure = |round: &Vec<(&str, f64)>| {
            round.iter().find(|(other, _)| *other == name).map(|(_, figure)| *figure)
        };
        let mut figures: Vec<f64> = self.rounds.iter().filter_map(figure).collect();
        figures.sort_by(f64::total_cmp);
        figures.get(figures.len() / 2).copied()
    }
}

/// All rows of one part.
#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

impl Report {
    pub(crate) fn add(&mut self, name: &str, figures: Vec<(&'static str, f64)>) {
        let known = self.rows.iter_mut().find(|row| row.name == name);
        match known {
            Some(row) => row.rounds.push(figures),
            None => self.rows.push(Row { name: name.to_owned(), rounds: vec![figures] }),
        }
    }

    pub(crate) fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// Prints the table and writes the JSON file. `also` adds figures that compare rows.
    pub(crate) fn finish(
        &self,
        part: &str,
        settings: &BenchConfig,
        also: impl Fn(&Report, &Row) -> Vec<(&'static str, f64)>,
    ) {
        println!("\n{part}");
        let mut lines = Vec::new();
        for row in &self.rows {
            let names = row.rounds.first().into_iter().flatten().map(|(name, _)| *name);
            let medians = names.filter_map(|name| Some((name, row.median(name)?)));
            let figures: Vec<(&str, f64)> = medians.chain(also(self, row)).collect();
            let words: Vec<String> =
                figures.iter().map(|(name, figure)| format!("{name} {}", short(*figure))).collect();
            println!("  {:34} {}", row.name, words.join("   "));
            lines.push(to_json(&row.name, &figures, row.rounds.len()));
        }
        // A test run must not replace the figures of a real run.
        let directory = if settings.quick { "mvcc_test" } else { "mvcc" };
        let directory = results_directory(env!("CARGO_TARGET_TMPDIR"), directory);
        let text = serde_json::to_string_pretty(&lines).expect("numbers and names are JSON");
        std::fs::write(directory.join(format!("{part}.json")), text)
            .expect("the target directory is writable");
    }
}

fn to_json(name: &str, figures: &[(&str, f64)], rounds: usize) -> Value {
    let mut line = Map::new();
    line.insert("name".to_owned(), json!(name));
    line.insert("rounds".to_owned(), json!(rounds));
    line.extend(figures.iter().map(|(name, figure)| ((*name).to_owned(), json!(figure))));
    Value::Object(line)
}

/// Formats a number with at least three digits, and at most two after the decimal point.
fn short(figure: f64) -> String {
    match figure.abs() {
        100.0.. => format!("{figure:.0}"),
        10.0.. => format!("{figure:.1}"),
        _ => format!("{figure:.2}"),
    }
}

/// Returns a percentile in microseconds.
pub(crate) fn us(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1e3
}
