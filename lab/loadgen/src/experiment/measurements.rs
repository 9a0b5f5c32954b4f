//! What was measured: figures by server, one for each round, and their medians.
//!
//! A figure has a name as `beside/cheap/p99`; one that is measured at several points, as at several
//! numbers of clients, has the point, too.

use std::collections::BTreeMap;

use serde_json::{Value, json};

#[derive(Clone, Debug, Default)]
pub struct Measurements {
    samples: Vec<Sample>,
    servers: Vec<String>,
    warnings: Vec<String>,
}

#[derive(Clone, Debug)]
struct Sample {
    server: String,
    figure: String,
    /// The point, if there are several.
    at: Option<f64>,
    value: f64,
}

impl Measurements {
    pub(super) fn new(servers: Vec<String>) -> Measurements {
        Measurements { servers, ..Measurements::default() }
    }

    pub(super) fn add(&mut self, server: &str, figure: &str, value: f64) {
        self.add_at(server, figure, None, value);
    }

    /// Without a point, the same as `add`.
    pub(super) fn add_at(
        &mut self,
        server: &str,
        figure: &str,
        at: impl Into<Option<f64>>,
        value: f64,
    ) {
        let (server, figure, at) = (server.to_owned(), figure.to_owned(), at.into());
        self.samples.push(Sample { server, figure, at, value });
    }

    /// Nothing, if it was not measured.
    pub(super) fn add_some(&mut self, server: &str, figure: &str, value: Option<f64>) {
        value.into_iter().for_each(|value| self.add(server, figure, value));
    }

    /// Said once, however many rounds have it.
    pub(super) fn warn(&mut self, text: String) {
        if !self.warnings.contains(&text) {
            self.warnings.push(text);
        }
    }

    /// For a run that is given up: its figures must not count.
    pub(super) fn take(&mut self, other: Measurements) {
        self.samples.extend(other.samples);
        other.warnings.into_iter().for_each(|text| self.warn(text));
    }

    /// One that is measured beside those that take turns.
    pub(super) fn add_server(&mut self, name: &str) {
        self.servers.push(name.to_owned());
    }

    /// Whether it is one of those that were measured.
    pub(super) fn has(&self, server: &str) -> bool {
        self.servers.iter().any(|known| known == server)
    }

    /// Its figures are kept elsewhere.
    pub(super) fn take_warnings(&mut self, other: Measurements) {
        self.take(Measurements { samples: Vec::new(), ..other });
    }

    /// For a second load of the same experiment.
    pub(super) fn with_prefix(mut self, prefix: &str) -> Measurements {
        self.samples.iter_mut().for_each(|sample| sample.figure.insert_str(0, prefix));
        self
    }

    /// In the order of tables.
    pub fn servers(&self) -> &[String] {
        &self.servers
    }

    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    pub fn median(&self, server: &str, figure: &str) -> Option<f64> {
        self.median_of(server, figure, None)
    }

    /// Of all rounds: for what must not happen in any.
    pub fn max(&self, server: &str, figure: &str) -> Option<f64> {
        let of = |sample: &&Sample| sample.server == server && sample.figure == figure;
        self.samples.iter().filter(of).map(|sample| sample.value).reduce(f64::max)
    }

    pub fn median_at(&self, server: &str, figure: &str, at: f64) -> Option<f64> {
        self.median_of(server, figure, Some(at))
    }

    fn median_of(&self, server: &str, figure: &str, at: Option<f64>) -> Option<f64> {
        let found = self
            .samples
            .iter()
            .filter(|sample| sample.server == server && sample.figure == figure && sample.at == at);
        median(found.map(|sample| sample.value).collect())
    }

    /// One median over the other.
    pub fn times(&self, server: &str, figure: &str, of: &str) -> Option<f64> {
        quotient(self.median(server, figure), self.median(server, of))
    }

    /// Where the figure was measured, ascending.
    pub fn points(&self, figure: &str) -> Vec<f64> {
        let samples = self.samples.iter().filter(|sample| sample.figure == figure);
        let mut points = samples.filter_map(|sample| sample.at).collect::<Vec<_>>();
        points.sort_unstable_by(f64::total_cmp);
        points.dedup();
        points
    }

    /// The medians of one server at all points.
    pub fn line(&self, server: &str, figure: &str) -> Vec<(f64, f64)> {
        let points = self.points(figure).into_iter();
        points.filter_map(|at| Some((at, self.median_at(server, figure, at)?))).collect()
    }

    /// All samples, of each round.
    pub fn json(&self) -> Value {
        let mut servers = BTreeMap::<_, BTreeMap<_, Vec<Value>>>::new();
        for Sample { server, figure, at, value } in &self.samples {
            let figures = servers.entry(server).or_default();
            let value = at.map_or(json!(value), |at| json!([at, value]));
            figures.entry(figure).or_default().push(value);
        }
        json!(servers)
    }
}

pub(super) fn quotient(above: Option<f64>, below: Option<f64>) -> Option<f64> {
    let (above, below) = (above?, below?);
    (below > 0.0).then(|| above / below)
}

/// Of an even number, the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let upper = values.get(values.len() / 2)?;
    let lower = values.get(values.len().saturating_sub(1) / 2)?;
    Some((lower + upper) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_of_one_server_figure_and_point() {
        let mut measured = Measurements::new(vec!["a".to_owned(), "b".to_owned()]);
        for value in [5.0, 1.0, 3.0] {
            measured.add("a", "p99", value);
            measured.add("b", "p99", value * 10.0);
            measured.add_at("a", "rate", 8.0, value);
            measured.add_at("a", "rate", 0.0, value * 2.0);
        }
        measured.add("a", "calm", 1.5);
        measured.add_some("a", "none", None);
        assert_eq!(measured.median("a", "p99"), Some(3.0));
        assert_eq!(measured.median("b", "p99"), Some(30.0));
        assert_eq!(measured.line("a", "rate"), [(0.0, 6.0), (8.0, 3.0)]);
        assert_eq!(measured.line("b", "rate"), []);
        assert_eq!(measured.times("a", "p99", "calm"), Some(2.0));
        assert_eq!(
            (measured.median("a", "none"), measured.times("b", "p99", "calm")),
            (None, None)
        );
        let json = measured.json();
        assert_eq!(json["a"]["p99"], json!([5.0, 1.0, 3.0]));
        assert_eq!(json["a"]["rate"][1], json!([0.0, 10.0]));
    }

    #[test]
    fn a_median_of_an_even_number_is_between_two() {
        assert_eq!(median(vec![4.0, 1.0, 2.0, 9.0]), Some(3.0));
        assert_eq!((median(vec![7.0]), median(Vec::new())), (Some(7.0), None));
        assert_eq!(quotient(Some(1.0), Some(0.0)), None);
    }

    #[test]
    fn a_warning_is_said_once() {
        let mut measured = Measurements::default();
        let mut other = Measurements::default();
        for _ in 0..2 {
            measured.warn("late".to_owned());
            other.warn("late".to_owned());
        }
        measured.take(other);
        assert_eq!(measured.warnings(), ["late"]);
    }
}
