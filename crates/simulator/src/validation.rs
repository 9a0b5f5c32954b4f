//! Does the model say what the machine does?
//!
//! The same load runs on the real server several times, and in the model with the same seeds. What
//! counts are the medians over the runs. A machine that others use is not the same twice, so a
//! prediction also counts as right if it lies among what the real runs have shown.
//!
//! * A [figure] is near enough if it is within 25 % (p50) or 40 % (p99) of the real median, or
//!   within the spread of the real runs.
//! * A [`Ranking`] asks for each two eras which of them is slower. Where every real run of the one
//!   is slower than all of the other, and the medians are apart by more than a [`TIE`], the model
//!   must say the same.
//!
//! [figure]: LatencyComparison

use std::fmt::Write;

use serde_json::{Value, json};

use clearlane_backend::Era;

/// What is compared, and how near is near enough.
pub const METRICS: [(&str, f64, f64); 2] = [("p50", 0.5, 0.25), ("p99", 0.99, 0.40)];

/// Eras whose medians are no further apart are as quick as each other.
pub const TIE: f64 = 0.10;

/// One percentile of one class in one era.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyComparison {
    /// In which era.
    pub era: Era,
    /// Of which class.
    pub class: String,
    /// Which percentile; a place in [`METRICS`].
    pub metric: usize,
    /// What the real runs had, in milliseconds, in their order; at least one.
    pub real_ms: Vec<f64>,
    /// What the model had with the same seeds.
    pub model_ms: Vec<f64>,
}

/// The middle one; of an even number, the mean of the two in the middle.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
        _ => sorted[middle],
    }
}

fn bounds(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::INFINITY, 0.0), |(low, high), ms| (ms.min(low), ms.max(high)))
}

impl LatencyComparison {
    /// Of the real runs.
    pub fn real(&self) -> f64 {
        median(&self.real_ms)
    }

    /// Of the model.
    pub fn model(&self) -> f64 {
        median(&self.model_ms)
    }

    /// How far the model is off, as a share of the real figure.
    pub fn error(&self) -> f64 {
        self.model() / self.real() - 1.0
    }

    /// Whether it lies within what the real runs have shown.
    pub fn is_within_spread(&self) -> bool {
        let (low, high) = bounds(&self.real_ms);
        (low..=high).contains(&self.model())
    }

    /// Whether it is near enough.
    pub fn is_near(&self) -> bool {
        self.error().abs() <= METRICS[self.metric].2 || self.is_within_spread()
    }
}

/// Two eras, of which one is clearly slower in reality.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranking {
    /// The era that is slower.
    pub slower: Era,
    /// The quicker one.
    pub quicker: Era,
    /// Of which class.
    pub class: String,
    /// Which percentile.
    pub metric: usize,
    /// Whether the model has it so.
    pub is_right: bool,
}

/// What came of a scenario.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Validation {
    /// All figures, by era, class and percentile.
    pub comparisons: Vec<LatencyComparison>,
}

impl Validation {
    /// Which of two eras is slower, wherever that is clear.
    pub fn rankings(&self) -> Vec<Ranking> {
        let pairs = self.comparisons.iter().flat_map(|one| {
            let same = move |other: &&LatencyComparison| {
                one.class == other.class && one.metric == other.metric
            };
            self.comparisons.iter().filter(same).map(move |other| (one, other))
        });
        let is_clear = |(one, other): &(&LatencyComparison, &LatencyComparison)| {
            bounds(&one.real_ms).0 > bounds(&other.real_ms).1
                && one.real() > (1.0 + TIE) * other.real()
        };
        pairs
            .filter(is_clear)
            .map(|(slow, quick)| Ranking {
                slower: slow.era,
                quicker: quick.era,
                class: slow.class.clone(),
                metric: slow.metric,
                is_right: slow.model() > quick.model(),
            })
            .collect()
    }

    /// For people: each figure, and what is not as it should be.
    pub fn table(&self) -> String {
        let widest = self.comparisons.iter().map(|figure| figure.class.len()).max().unwrap_or(0);
        let name = widest.max("class".len());
        let mut table = format!(
            "{:<9}  {:<name$}  {:<6} {:>9} {:>19} {:>9} {:>7}\n",
            "era", "class", "", "real ms", "of all runs", "model ms", "off"
        );
        for figure in &self.comparisons {
            let (low, high) = bounds(&figure.real_ms);
            let verdict = match (figure.is_near(), figure.is_within_spread()) {
                (true, false) => "",
                (true, true) => "  within the runs",
                (false, _) => "  MISS",
            };
            let _ = writeln!(
                table,
                "{:<9}  {:<name$}  {:<6} {:>9.2} {:>19} {:>9.2} {:>6.0}%{verdict}",
                figure.era,
                figure.class,
                METRICS[figure.metric].0,
                figure.real(),
                format!("{low:.2} .. {high:.2}"),
                figure.model(),
                100.0 * figure.error(),
            );
        }
        let near = self.comparisons.iter().filter(|figure| figure.is_near()).count();
        let (rankings, all) = (self.rankings(), self.comparisons.len());
        let right = rankings.iter().filter(|ranking| ranking.is_right).count();
        let _ = writeln!(
            table,
            "{near} of {all} figures are near enough, {right} of {} rankings right",
            rankings.len()
        );
        for Ranking { slower, quicker, class, metric, .. } in
            rankings.iter().filter(|ranking| !ranking.is_right)
        {
            let metric = METRICS[*metric].0;
            let _ = writeln!(
                table,
                "WRONG: {metric} of {class} is higher in {slower} than in {quicker}"
            );
        }
        table
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let figures = self.comparisons.iter().map(|figure| {
            json!({
                "era": figure.era.name(),
                "class": figure.class,
                "metric": METRICS[figure.metric].0,
                "real_ms": figure.real_ms,
                "model_ms": figure.model_ms,
                "error": figure.error(),
                "near": figure.is_near(),
            })
        });
        let rankings = self.rankings().into_iter().map(|ranking| {
            json!({
                "slower": ranking.slower.name(),
                "quicker": ranking.quicker.name(),
                "class": ranking.class,
                "metric": METRICS[ranking.metric].0,
                "right": ranking.is_right,
            })
        });
        json!({
            "figures": figures.collect::<Vec<_>>(),
            "rankings": rankings.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(era: Era, metric: usize, real_ms: &[f64], model: f64) -> LatencyComparison {
        let (real_ms, model_ms) = (real_ms.to_vec(), vec![model]);
        LatencyComparison { era, class: "cheap".to_owned(), metric, real_ms, model_ms }
    }

    #[test]
    fn near_is_within_a_share_or_within_the_runs() {
        let near = |metric, model| figure(Era::V3_2, metric, &[9.0, 10.0, 10.5], model).is_near();
        assert_eq!([7.4, 7.6, 12.4, 12.6].map(|ms| near(0, ms)), [false, true, true, false]);
        assert_eq!([5.9, 6.1, 13.9, 14.1].map(|ms| near(1, ms)), [false, true, true, false]);
        let noisy = figure(Era::V3_2, 0, &[9.0, 10.0, 30.0], 29.0);
        assert!(noisy.is_near() && noisy.is_within_spread());
        assert!((noisy.error() - 1.9).abs() < 1e-9);
    }

    #[test]
    fn a_ranking_counts_where_it_is_clear() {
        let figures = vec![
            figure(Era::V3_2, 1, &[20.0, 30.0], 9.0),
            figure(Era::V3_4, 1, &[10.0, 21.0], 8.0),
            figure(Era::Clearlane, 1, &[5.0, 6.0], 10.0),
            figure(Era::Clearlane, 0, &[500.0], 600.0),
            // Apart, but as good as the same.
            figure(Era::V3_4, 0, &[520.0], 400.0),
        ];
        let validation = Validation { comparisons: figures };
        let found = validation.rankings();
        let found: Vec<_> = found.iter().map(|r| (r.slower, r.quicker, r.is_right)).collect();
        let ours = Era::Clearlane;
        assert_eq!(found, [(Era::V3_2, ours, false), (Era::V3_4, ours, false)]);
        let table = validation.table();
        assert!(table.contains("0 of 2 rankings right"), "{table}");
        assert!(
            table.contains("WRONG: p99 of cheap is higher in 3.2 than in clearlane"),
            "{table}"
        );
        assert_eq!(table.matches("MISS").count(), 3, "{table}");
        assert_eq!(validation.json()["rankings"][0]["right"], json!(false));
    }
}
