//! Compares the model with the real server, under the same load with the same seed.
//!
//! A shared machine does not behave the same twice, so the criteria are coarse:
//!
//! * A [figure](LatencyComparison) is near if it is within a [`FACTOR`] of the real figure.
//! * Where one era is [`CLEARLY`] slower than another on the real server, the model must agree.

use std::fmt::Write;

use clearlane_backend::Era;
use serde_json::{Value, json};

pub const METRICS: [(&str, f64); 2] = [("p50", 0.5), ("p99", 0.99)];

/// Two figures are near if neither is more than this many times the other.
pub const FACTOR: f64 = 2.0;

/// One era is clearly slower than another if it takes more than this many times as long.
pub const CLEARLY: f64 = 1.5;

#[derive(Clone, Debug, PartialEq)]
pub struct LatencyComparison {
    pub era: Era,
    pub class: String,
    /// A name in [`METRICS`].
    pub metric: &'static str,
    pub real_ms: f64,
    pub model_ms: f64,
}

impl LatencyComparison {
    /// Returns the model's figure divided by the real one.
    pub fn times(&self) -> f64 {
        self.model_ms / self.real_ms
    }

    /// Returns whether neither figure is more than [`FACTOR`] times the other.
    pub fn is_near(&self) -> bool {
        (1.0 / FACTOR..=FACTOR).contains(&self.times())
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Validation {
    /// The comparisons by era, class and percentile.
    pub comparisons: Vec<LatencyComparison>,
}

impl Validation {
    /// Returns all pairs of figures of two eras in which the first figure is clearly slower on the
    /// real server. The last value is true if it is also slower in the model.
    pub fn orders(&self) -> Vec<(&LatencyComparison, &LatencyComparison, bool)> {
        let all = &self.comparisons;
        let pairs = all.iter().flat_map(|slow| all.iter().map(move |quick| (slow, quick)));
        let pairs = pairs.filter(|(slow, quick)| {
            let is_same = (&slow.class, slow.metric) == (&quick.class, quick.metric);
            is_same && slow.real_ms > CLEARLY * quick.real_ms
        });
        pairs.map(|(slow, quick)| (slow, quick, slow.model_ms > quick.model_ms)).collect()
    }

    /// Returns a table of all figures. After the table, lists the figures that are not near, by
    /// era, and the pairs whose order differs.
    pub fn table(&self) -> String {
        let widest = self.comparisons.iter().map(|figure| figure.class.len()).max().unwrap_or(0);
        let name = widest.max("class".len());
        let mut table = format!(
            "{:<9}  {:<name$}  {:<4} {:>9} {:>9} {:>6}\n",
            "era", "class", "", "real ms", "model ms", "times"
        );
        for figure in &self.comparisons {
            let LatencyComparison { era, class, metric, real_ms, model_ms } = figure;
            let _ = writeln!(
                table,
                "{:<9}  {class:<name$}  {metric:<4} {real_ms:>9.2} {model_ms:>9.2} {:>6.2}",
                era.name(),
                figure.times(),
            );
        }
        table.push('\n');
        let mut eras: Vec<Era> = self.comparisons.iter().map(|figure| figure.era).collect();
        eras.dedup();
        for era in eras {
            let _ = writeln!(table, "{}", self.nearness(era));
        }
        table + &self.order_lines()
    }

    /// Returns one line: the number of an era's figures that are near, and the other figures.
    fn nearness(&self, era: Era) -> String {
        let accounting: Vec<_> =
            self.comparisons.iter().filter(|figure| figure.era == era).collect();
        let far = accounting.iter().filter(|figure| !figure.is_near());
        let far = far.map(|figure| {
            format!("{} of {} is {:.2} times", figure.metric, figure.class, figure.times())
        });
        let (far, all) = (far.collect::<Vec<_>>(), accounting.len());
        let near = all - far.len();
        let line = format!("era {era}: {near} of {all} figures are within a factor of {FACTOR}");
        match far.is_empty() {
            true => line,
            false => format!("{line}; not {}", far.join(", not ")),
        }
    }

    fn order_lines(&self) -> String {
        let orders = self.orders();
        let agree = orders.iter().filter(|(.., agrees)| *agrees).count();
        let mut lines = format!(
            "the order of two eras agrees in {agree} of the {} cases in which it is clear\n",
            orders.len()
        );
        for (slow, quick, _) in orders.iter().filter(|(.., agrees)| !agrees) {
            let LatencyComparison { era, class, metric, .. } = slow;
            let _ =
                writeln!(lines, "  not {metric} of {class}: {era} is slower than {}", quick.era);
        }
        lines
    }

    pub fn json(&self) -> Value {
        let accounting = self.comparisons.iter().map(|figure| {
            json!({
                "era": figure.era.name(),
                "class": figure.class,
                "metric": figure.metric,
                "real_ms": figure.real_ms,
                "model_ms": figure.model_ms,
                "near": figure.is_near(),
            })
        });
        let orders = self.orders().into_iter().map(|(slow, quick, agrees)| {
            json!({
                "slower": slow.era.name(),
                "quicker": quick.era.name(),
                "class": slow.class,
                "metric": slow.metric,
                "agrees": agrees,
            })
        });
        json!({ "figures": accounting.collect::<Vec<_>>(), "orders": orders.collect::<Vec<_>>() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(era: Era, metric: &'static str, real_ms: f64, model_ms: f64) -> LatencyComparison {
        LatencyComparison { era, class: "cheap".to_owned(), metric, real_ms, model_ms }
    }

    #[test]
    fn near_is_within_a_factor_of_two_either_way() {
        let near = |model_ms| figure(Era::V3_2, "p50", 10.0, model_ms).is_near();
        assert_eq!([4.9, 5.0, 20.0, 20.1].map(near), [false, true, true, false]);
    }

    #[test]
    fn an_order_counts_where_it_is_clear() {
        let comparisons = vec![
            figure(Era::V3_2, "p99", 20.0, 9.0),
            figure(Era::V3_4, "p99", 14.0, 11.0),
            figure(Era::Clearlane, "p50", 400.0, 300.0),
            figure(Era::Clearlane, "p99", 5.0, 10.0),
        ];
        let validation = Validation { comparisons };
        let orders = validation.orders();
        let orders: Vec<_> =
            orders.iter().map(|(slow, quick, agrees)| (slow.era, quick.era, *agrees)).collect();
        let ours = Era::Clearlane;
        // 3.2 and 3.4 are not far enough apart to be compared.
        assert_eq!(orders, [(Era::V3_2, ours, false), (Era::V3_4, ours, true)]);
        let table = validation.table();
        for line in [
            "era 3.2: 0 of 1 figures are within a factor of 2; not p99 of cheap is 0.45 times",
            "era 3.4: 1 of 1 figures are within a factor of 2\n",
            "agrees in 1 of the 2 cases in which it is clear",
            "not p99 of cheap: 3.2 is slower than clearlane",
        ] {
            assert!(table.contains(line), "{line}:\n{table}");
        }
        assert_eq!(validation.json()["orders"][0]["agrees"], json!(false));
    }
}
