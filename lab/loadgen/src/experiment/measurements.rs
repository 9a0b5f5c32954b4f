//! The measured figures of each server, with a value for each round, and the medians of the values.
//!
//! A figure has a name such as `beside/cheap/p99`. If it is measured at several points, for example
//! for several numbers of clients, each value also has its point.

use std::collections::BTreeMap;

use serde_json::{Value, json};

#[derive(Clone, Debug, Default)]
pub struct Measurements {
    samples: Vec<Sample>,
    servers: Vec<String>,
    warnings: Vec<String>,
    /// Number of rounds in which all servers were measured.
    complete_rounds: u64,
}

#[derive(Clone, Debug)]
struct Sample {
    server: String,
    figure: String,
    /// The point of a curve. `None` if there is no curve.
    at: Option<f64>,
    value: f64,
}

impl Measurements {
    pub(super) fn new(servers: Vec<String>) -> Measurements {
        Measurements { servers, ..Measurements::default() }
    }

    /// Adds a value. `None` is a value that was not measured, and adds nothing.
    pub(super) fn add(&mut self, server: &str, figure: &str, value: impl Into<Option<f64>>) {
        self.add_at(server, figure, None, value);
    }

    /// Adds a value at a point of a curve. If `at` is `None`, this does the same as `add`.
    pub(super) fn add_at(
        &mut self,
        server: &str,
        figure: &str,
        at: impl Into<Option<f64>>,
        value: impl Into<Option<f64>>,
    ) {
        let (server, figure, at) = (server.to_owned(), figure.to_owned(), at.into());
        let sample = value.into().map(|value| Sample { server, figure, at, value });
        self.samples.extend(sample);
    }

    /// Adds a warning. The same text in several rounds is added only once.
    pub(super) fn warn(&mut self, text: String) {
        if !self.warnings.contains(&text) {
            self.warnings.push(text);
        }
    }

    /// Adds the figures and warnings of a completed run. Each run records into its own
    /// `Measurements`. So if a run is dropped, its figures are also dropped.
    pub(super) fn take(&mut self, other: Measurements) {
        self.samples.extend(other.samples);
        other.warnings.into_iter().for_each(|text| self.warn(text));
    }

    /// Counts a round in which all servers were measured.
    pub(super) fn end_round(&mut self) {
        self.complete_rounds += 1;
    }

    /// Returns the number of rounds in which all servers were measured. After an interruption, it
    /// is less than the requested number.
    pub(super) fn complete_rounds(&self) -> u64 {
        self.complete_rounds
    }

    /// Adds the figures and warnings of a second load, with its own rounds.
    pub(super) fn take_load(&mut self, other: Measurements) {
        self.complete_rounds = self.complete_rounds.min(other.complete_rounds);
        self.take(other);
    }

    /// Adds the name of a server that is measured in addition to the compared servers.
    pub(super) fn add_server(&mut self, name: &str) {
        self.servers.push(name.to_owned());
    }

    /// Returns whether this server was measured.
    pub(super) fn has(&self, server: &str) -> bool {
        self.servers.iter().any(|known| known == server)
    }

    /// Adds only the warnings. The figures must be added elsewhere, or they are lost.
    pub(super) fn take_warnings(&mut self, other: Measurements) {
        self.take(Measurements { samples: Vec::new(), ..other });
    }

    /// Adds a prefix to the names of all figures, for a second load of the same experiment.
    pub(super) fn with_prefix(mut self, prefix: &str) -> Measurements {
        self.samples.iter_mut().for_each(|sample| sample.figure.insert_str(0, prefix));
        self
    }

    /// Returns the servers in the order in which tables list them.
    pub fn servers(&self) -> &[String] {
        &self.servers
    }

    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    pub fn median(&self, server: &str, figure: &str) -> Option<f64> {
        self.median_of(server, figure, None)
    }

    /// Returns the maximum over all rounds. Use it for events that must not happen in any round.
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

    /// Returns the first of these figures, divided by the second figure if there are two. Each is
    /// `FIGURE`, `FIGURE @ POINT`, `max of FIGURE`, or a number. Returns `None` if a figure was not
    /// measured, or if the divisor is 0.
    pub(super) fn ratio(&self, server: &str, figures: &[String]) -> Option<f64> {
        let value = |figure: &String| {
            if let Some(figure) = figure.strip_prefix("max of ") {
                self.max(server, figure)
            } else if let Some((figure, at)) = figure.split_once(" @ ") {
                self.median_at(server, figure, at.parse().ok()?)
            } else {
                figure.parse().ok().or_else(|| self.median(server, figure))
            }
        };
        figures.iter().map(value).reduce(quotient).flatten()
    }

    /// Returns the points where the figure was measured, in ascending order.
    pub fn points(&self, figure: &str) -> Vec<f64> {
        let samples = self.samples.iter().filter(|sample| sample.figure == figure);
        let mut points = samples.filter_map(|sample| sample.at).collect::<Vec<_>>();
        points.sort_unstable_by(f64::total_cmp);
        points.dedup();
        points
    }

    /// Returns the medians of one server at all points.
    pub fn line(&self, server: &str, figure: &str) -> Vec<(f64, f64)> {
        let points = self.points(figure).into_iter();
        points.filter_map(|at| Some((at, self.median_at(server, figure, at)?))).collect()
    }

    /// Returns all samples of all rounds.
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

/// Returns the median. For an even number of values, it is the mean of the two values in the
/// middle.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
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
        measured.add("a", "none", None);
        assert_eq!(measured.median("a", "p99"), Some(3.0));
        assert_eq!(measured.median("b", "p99"), Some(30.0));
        assert_eq!(measured.line("a", "rate"), [(0.0, 6.0), (8.0, 3.0)]);
        assert_eq!(measured.line("b", "rate"), []);
        let ratio = |server: &str, figures: &[&str]| {
            let figures = figures.iter().map(|figure| (*figure).to_owned()).collect::<Vec<_>>();
            measured.ratio(server, &figures)
        };
        assert_eq!(ratio("a", &["p99", "calm"]), Some(2.0));
        assert_eq!((measured.median("a", "none"), ratio("b", &["p99", "calm"])), (None, None));
        assert_eq!(ratio("a", &["rate @ 0", "2.5"]), Some(2.4));
        assert_eq!((ratio("b", &["max of p99"]), ratio("b", &["max of x"])), (Some(50.0), None));
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
