//! The page of one run of `clearlane-load`, or of several runs that are compared class by class.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use hdrhistogram::Histogram;
use itertools::Itertools as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::{Section, html, unused_name};
use crate::class_metrics::ClassMetrics;
use crate::plot::{
    Axis, BarGroup, Bars, Better, Colour, Line, Plot, Scale, distinct_colours,
    latency_by_percentile, latency_histogram,
};
use crate::report::{QUANTILES, cell};
use crate::time_series::IntervalMetrics;

const NS_PER_MS: f64 = 1e6;
const OPEN_LOOP: &str = "Classes with a rate are sent in an open loop: a latency counts from when \
    the request was due, also if it was sent later. Late p99 is the generator's own delay, which \
    is part of the latency.";
const CLOSED_LOOP: &str = "Classes without a rate are sent in a closed loop: a latency counts from \
    when the request was sent, and while the server stands still, no request is sent.";
const LINES_END: &str = "A line ends at the last percentile that has ten requests above it.";
const PART_OF_ANSWERS: &str = "The part of all answers that had a latency within each column.";
const PART_OF_FEW_ANSWERS: &str = "The part of all answers that had a latency within each column. \
    There are too few answers for a plot of the percentiles.";
const BY_SECOND: &str = "By the second in which a request was due.";
const BY_SECOND_WITH_GAPS: &str =
    "By the second in which a request was due. A gap: none of them was answered.";

/// A run, as stored in a JSON report.
#[derive(Clone, Debug, Deserialize)]
pub struct RunSummary {
    /// The name of the run: an era, `etcd`, or a word that distinguishes it from the other runs.
    #[serde(skip)]
    pub name: String,
    pub endpoint: String,
    pub servers: Vec<ServerSummary>,
    /// The command that repeats the run.
    pub command: String,
    pub seconds: f64,
    /// Warnings, for example that the driver was the limit.
    pub warnings: Vec<String>,
    pub classes: Vec<ClassSummary>,
}

/// What a server has reported about itself. The product includes the era.
#[derive(Clone, Debug, Deserialize)]
pub struct ServerSummary {
    pub product: String,
    pub version: String,
    pub members: u64,
}

/// The results of one class, as stored in a JSON report.
#[derive(Clone, Debug, Deserialize)]
pub struct ClassSummary {
    pub name: String,
    /// Requests that are due per second. `None` in a closed loop.
    pub rate: Option<f64>,
    pub answered_per_second: f64,
    pub answered: u64,
    pub failed: u64,
    /// The number of failures for each error text.
    pub errors: BTreeMap<String, u64>,
    /// The latencies in nanoseconds.
    #[serde(rename = "histogram_ns", deserialize_with = "read_histogram")]
    pub histogram: Histogram<u64>,
    /// The 99th percentile of the driver's own delay. It has a meaning only in an open loop.
    pub late_p99_ms: Option<f64>,
    /// The metrics of each interval. A request is counted in the interval of its due time.
    #[serde(rename = "intervals")]
    pub series: Vec<IntervalMetrics>,
    /// The length of an interval in seconds.
    pub interval_s: u64,
}

/// A plot of a page that can also be written to a file.
#[derive(Clone, Debug)]
pub struct NamedFigure {
    /// The name of the file. All figures of a page have different names.
    pub file_name: String,
    pub svg: String,
    pub caption: String,
}

/// Reads a histogram: pairs of a latency in nanoseconds and the number of responses that had it.
fn read_histogram<'de, D: Deserializer<'de>>(pairs: D) -> Result<Histogram<u64>, D::Error> {
    let mut histogram = ClassMetrics::empty_histogram();
    for (latency, count) in Vec::<(u64, u64)>::deserialize(pairs)? {
        histogram.saturating_record_n(latency, count);
    }
    Ok(histogram)
}

impl RunSummary {
    /// Reads a run that `clearlane-load ... --json` has written. The error names the missing part.
    pub fn from_json(name: &str, value: &Value) -> Result<RunSummary, String> {
        let wrong = |error| format!("{error}; this is not a file of `clearlane-load --json`");
        let run = RunSummary::deserialize(value).map_err(wrong)?;
        Ok(RunSummary { name: name.to_owned(), ..run })
    }
}

/// Returns the page as one HTML file.
pub fn run_page(runs: &[RunSummary]) -> String {
    let comparison = Comparison::of(runs);
    let mut sections = comparison.notes();
    for (class, figures) in comparison.all_figures() {
        sections.extend(class.map(|class| Section::Heading(class.to_owned())));
        let figure = |NamedFigure { svg, caption, .. }| Section::Figure { svg, caption };
        sections.extend(figures.into_iter().map(figure));
        sections.extend(class.map(|class| comparison.table(class)));
        sections.extend(class.and_then(|class| comparison.errors(class)));
    }
    sections.push(Section::Heading("Servers and commands".to_owned()));
    sections.push(comparison.servers());
    for run in runs {
        sections.push(Section::Text(format!("To repeat {}:", run.name)));
        sections.push(Section::Command(run.command.clone()));
    }
    let names = runs.iter().map(|run| &run.name).join(", ");
    let title = if runs.is_empty() { "No runs".to_owned() } else { format!("Load: {names}") };
    html(&title, &sections)
}

/// Returns the plots of [`run_page`], in the same order.
pub fn run_figures(runs: &[RunSummary]) -> Vec<NamedFigure> {
    Comparison::of(runs).all_figures().into_iter().flat_map(|(_, figures)| figures).collect()
}

struct Comparison<'a> {
    runs: &'a [RunSummary],
    /// The colour of each run.
    colours: Vec<Colour>,
}

/// A class of one run, with the name and colour of the run.
type ClassOfRun<'a> = (&'a str, Colour, &'a ClassSummary);

impl<'a> Comparison<'a> {
    fn of(runs: &'a [RunSummary]) -> Comparison<'a> {
        Comparison { runs, colours: distinct_colours(runs.iter().map(|run| run.name.as_str())) }
    }

    /// Returns the names of all classes, in the order of the runs.
    fn classes(&self) -> impl Iterator<Item = &'a str> {
        let classes = self.runs.iter().flat_map(|run| &run.classes);
        distinct(classes.map(|class| class.name.as_str()))
    }

    /// Returns this class of each run that has it.
    fn class(&self, name: &str) -> Vec<ClassOfRun<'a>> {
        let of_run = |(run, colour): (&'a RunSummary, &Colour)| {
            let class = run.classes.iter().find(|class| class.name == name)?;
            Some((run.name.as_str(), *colour, class))
        };
        self.runs.iter().zip(&self.colours).filter_map(of_run).collect()
    }

    /// Returns notes about what an open or closed loop means for the latencies, and the warnings of
    /// the runs.
    fn notes(&self) -> Vec<Section> {
        let mut rates = self.runs.iter().flat_map(|run| &run.classes).map(|class| class.rate);
        let open = rates.clone().any(|rate| rate.is_some()).then_some(OPEN_LOOP);
        let closed = rates.any(|rate| rate.is_none()).then_some(CLOSED_LOOP);
        let loops = open.into_iter().chain(closed).map(str::to_owned);
        let warnings = self.runs.iter().flat_map(|RunSummary { name, warnings, .. }| {
            warnings.iter().map(move |warning| format!("WARNING, {name}: {warning}"))
        });
        loops.chain(warnings).map(Section::Text).collect()
    }

    /// Returns the figures that compare all classes, and the figures of each class.
    fn all_figures(&self) -> Vec<(Option<&'a str>, Vec<NamedFigure>)> {
        // A single run has nothing to be compared with.
        let overview = if self.runs.len() < 2 { Vec::new() } else { self.overview() };
        let mut figures = vec![(None, overview)];
        figures.extend(self.classes().map(|class| (Some(class), self.figures(class))));
        let mut used = BTreeSet::new();
        for figure in figures.iter_mut().flat_map(|(_, figures)| figures) {
            figure.file_name = format!("{}.svg", unused_name(&mut used, &figure.file_name));
        }
        figures
    }

    /// Returns bar charts of all classes.
    fn overview(&self) -> Vec<NamedFigure> {
        let p99 = Bars {
            title: "p99 of each class".to_owned(),
            y: Axis::new("latency, ms", Scale::Log),
            better: Better::Lower,
            groups: self.bars(|class| class.latency_ms(0.99).unwrap_or(f64::NAN)),
        };
        let answered = Bars {
            title: "Answers of each class".to_owned(),
            y: Axis::new("answered, requests/s", Scale::Linear),
            better: Better::Higher,
            groups: self.bars(|class| class.answered_per_second),
        };
        vec![
            figure("p99", p99.svg(), "99 % of the answers took at most this long."),
            figure("answered", answered.svg(), "Over the whole run."),
        ]
    }

    fn bars(&self, value: fn(&ClassSummary) -> f64) -> Vec<BarGroup> {
        let bar = |(run, colour, class): ClassOfRun<'_>| (run.to_owned(), colour, value(class));
        let group = |name: &str| BarGroup {
            label: name.to_owned(),
            bars: self.class(name).into_iter().map(bar).collect(),
        };
        self.classes().map(group).collect()
    }

    fn figures(&self, name: &str) -> Vec<NamedFigure> {
        let class = self.class(name);
        let latencies: Vec<_> = class
            .iter()
            .map(|(run, colour, of)| (run.to_string(), *colour, &of.histogram))
            .collect();
        let title = |what: &str| format!("{name}: {what}");
        let by_second = |what: &str, y, better, lines| {
            let x = Axis::new("time, s", Scale::Linear);
            Plot { title: title(&format!("{what} by second")), x, y, better, lines }
        };
        let by_percentile = latency_by_percentile(&title("latency by percentile"), &latencies);
        let histogram = latency_histogram(&title("histogram of latencies"), &latencies);
        let answered = Axis::new("answered, requests/s", Scale::Linear);
        let answered = by_second("answers", answered, Better::Higher, lines_of_answers(&class));
        let p99 = Axis::new("p99 of the latency, ms", Scale::Log);
        let p99 = by_second("p99", p99, Better::Lower, lines_of_p99(&class));
        let figure = |what: &str, svg, caption| figure(&format!("{name} {what}"), svg, caption);
        let of_histogram = match by_percentile {
            Some(_) => PART_OF_ANSWERS,
            None => PART_OF_FEW_ANSWERS,
        };
        let by_percentile =
            by_percentile.map(|plot| figure("latency by percentile", plot.svg(), LINES_END));
        let figures = [
            figure("histogram", histogram, of_histogram),
            figure("answered by second", answered.svg(), BY_SECOND),
            figure("p99 by second", p99.svg(), BY_SECOND_WITH_GAPS),
        ];
        by_percentile.into_iter().chain(figures).collect()
    }

    fn table(&self, name: &str) -> Section {
        let columns = ["run", "rate, requests/s", "answered, requests/s", "answered", "failed"];
        let quantiles = QUANTILES.map(|(quantile, _)| format!("{quantile}, ms"));
        let columns = columns.map(str::to_owned).into_iter().chain(quantiles);
        let row = |(run, _, class): ClassOfRun<'_>| {
            let rate = class.rate.map_or("closed loop".to_owned(), |rate| rate.to_string());
            let mut row = vec![run.to_owned(), rate, format!("{:.2}", class.answered_per_second)];
            row.extend([class.answered.to_string(), class.failed.to_string()]);
            row.extend(QUANTILES.map(|(_, quantile)| cell(class.latency_ms(quantile))));
            row.push(cell(class.rate.and(class.late_p99_ms)));
            row
        };
        Section::Table {
            columns: columns.chain(["late p99, ms".to_owned()]).collect(),
            rows: self.class(name).into_iter().map(row).collect(),
        }
    }

    fn errors(&self, name: &str) -> Option<Section> {
        let rows = self.class(name).into_iter().flat_map(|(run, _, class)| {
            let errors = class.errors.iter();
            errors.map(move |(text, count)| vec![run.to_owned(), count.to_string(), text.clone()])
        });
        let rows: Vec<Vec<String>> = rows.collect();
        let columns = ["run", "failed", "error"].map(str::to_owned).to_vec();
        (!rows.is_empty()).then_some(Section::Table { columns, rows })
    }

    /// Returns a table of the servers. It has a column for each run and a row for each property,
    /// because there are more properties than runs. If a run has several servers, the table shows
    /// only the first server.
    fn servers(&self) -> Section {
        let row = |property: &str, of: &dyn Fn(&RunSummary) -> String| -> Vec<String> {
            iter::once(property.to_owned()).chain(self.runs.iter().map(of)).collect()
        };
        let of_server = |property: &str, of: &dyn Fn(&ServerSummary) -> String| {
            row(property, &|run| run.servers.first().map(of).unwrap_or_default())
        };
        let rows = vec![
            row("endpoint", &|run| run.endpoint.clone()),
            row("duration, s", &|run| format!("{:.0}", run.seconds)),
            of_server("product", &|server| server.product.clone()),
            of_server("version", &|server| server.version.clone()),
            of_server("members", &|server| server.members.to_string()),
        ];
        Section::Table { columns: row("", &|run| run.name.clone()), rows }
    }
}

/// Returns a figure whose file is named with these words.
fn figure(words: &str, svg: String, caption: &str) -> NamedFigure {
    NamedFigure { file_name: words.to_owned(), svg, caption: caption.to_owned() }
}

/// Returns each name once, at its first position.
fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
    let mut seen = BTreeSet::new();
    names.filter(move |name| seen.insert(*name))
}

impl ClassSummary {
    fn latency_ms(&self, quantile: f64) -> Option<f64> {
        let latency = || self.histogram.value_at_quantile(quantile) as f64 / NS_PER_MS;
        (!self.histogram.is_empty()).then(latency)
    }

    fn line(&self, label: String, colour: Colour, y: impl Fn(&IntervalMetrics) -> f64) -> Line {
        let seconds = (0_u64..).map(|number| (number * self.interval_s) as f64);
        Line { label, colour, points: seconds.zip(self.series.iter().map(y)).collect() }
    }
}

/// Returns a line for each run, with its responses per second. A run with failures has a second
/// line, with its failures per second.
fn lines_of_answers(class: &[ClassOfRun<'_>]) -> Vec<Line> {
    let mut lines = Vec::new();
    for (run, colour, class) in class {
        let per_second = |count: u64| count as f64 / class.interval_s as f64;
        lines.push(class.line(run.to_string(), *colour, |of| per_second(of.answered)));
        if class.series.iter().any(|interval| interval.failed > 0) {
            let label = format!("{run}, failed");
            lines.push(class.line(label, *colour, |of| per_second(of.failed)));
        }
    }
    lines
}

fn lines_of_p99(class: &[ClassOfRun<'_>]) -> Vec<Line> {
    let p99 = |of: &IntervalMetrics| of.p99_ms.unwrap_or(f64::NAN);
    class.iter().map(|(run, colour, class)| class.line(run.to_string(), *colour, p99)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;
    use crate::report::tests::report;

    /// Returns a class with 1,000 requests a second for `seconds` seconds. A latency is one to two
    /// times `base_us`, and ten times `base_us` for one request in a hundred. If `stalls` is set,
    /// the requests of second 3 also wait until that second ends.
    fn class(name: &str, seconds: u64, base_us: u64, stalls: bool) -> ClassSummary {
        let mut histogram = Histogram::new(3).expect("three digits");
        let mut series = Vec::new();
        for second in 0..seconds {
            let mut of_second = Histogram::<u64>::new(3).expect("three digits");
            for request in 0..1000 {
                let slower_us =
                    if request % 100 == 99 { base_us * 9 } else { request * base_us / 999 };
                let waits_us = if stalls && second == 3 { (1000 - request) * 1000 } else { 0 };
                of_second.record((base_us + slower_us + waits_us) * 1000).expect("it grows");
            }
            let ms = |quantile| Some(of_second.value_at_quantile(quantile) as f64 / NS_PER_MS);
            let (p50_ms, p99_ms, max_ms) = (ms(0.5), ms(0.99), ms(1.0));
            series.push(IntervalMetrics { answered: 1000, failed: 0, p50_ms, p99_ms, max_ms });
            histogram.add(of_second).expect("it grows");
        }
        ClassSummary {
            name: name.to_owned(),
            rate: Some(1000.0),
            answered_per_second: 1000.0,
            answered: histogram.len(),
            failed: 0,
            errors: BTreeMap::new(),
            histogram,
            late_p99_ms: Some(0.08),
            series,
            interval_s: 1,
        }
    }

    fn run(name: &str, classes: Vec<ClassSummary>) -> RunSummary {
        let server = ServerSummary {
            product: format!("Clearlane, era {name}"),
            version: "3.7.1".to_owned(),
            members: 1,
        };
        RunSummary {
            name: name.to_owned(),
            endpoint: "http://127.0.0.1:2379".to_owned(),
            servers: vec![server],
            command: "clearlane-load run reads-and-puts --seconds 10".to_owned(),
            seconds: 10.0,
            warnings: Vec::new(),
            classes,
        }
    }

    fn two_runs() -> Vec<RunSummary> {
        let old = run("3.2", vec![class("cheap", 10, 900, true), class("puts", 10, 4000, true)]);
        let mut puts = class("puts", 10, 2500, false);
        (puts.failed, puts.errors) = (2, BTreeMap::from([("Unavailable: <gone>".to_owned(), 2)]));
        (puts.series[4].answered, puts.series[4].failed) = (998, 2);
        let mut closed = class("loop", 5, 300, false);
        (closed.rate, closed.late_p99_ms) = (None, None);
        let mut new = run("clearlane", vec![class("cheap", 10, 400, false), puts, closed]);
        new.servers[0].members = 3;
        vec![old, new]
    }

    #[test]
    fn the_page_of_two_runs_is_as_it_was() {
        golden::compare("run_page.html", &run_page(&two_runs()));
    }

    #[test]
    fn each_plot_has_a_separate_file() {
        let figures = run_figures(&two_runs());
        let names: BTreeSet<&str> = figures.iter().map(|of| of.file_name.as_str()).collect();
        assert_eq!((figures.len(), names.len()), (2 + 3 * 4, 2 + 3 * 4));
        assert_eq!(figures[2].file_name, "cheap-latency-by-percentile.svg");
        assert_eq!(run_figures(&two_runs()[..1]).len(), 2 * 4);
    }

    /// A class of one request per second has no percentiles after ten seconds. The page then starts
    /// with the histogram, and not with an empty plot.
    #[test]
    fn few_requests_have_no_plot_of_percentiles() {
        let mut expensive = class("expensive", 0, 0, false);
        (1..=10).for_each(|ms| expensive.histogram.record(ms * 1_000_000).expect("it grows"));
        let figures = run_figures(&[run("3.2", vec![expensive])]);
        let names: Vec<&str> = figures.iter().map(|of| of.file_name.as_str()).collect();
        assert_eq!(names[0], "expensive-histogram.svg");
        assert_eq!((names.len(), figures[0].caption.as_str()), (3, PART_OF_FEW_ANSWERS));
    }

    #[test]
    fn runs_without_responses_have_a_page() {
        let mut empty = class("cheap", 0, 0, false);
        empty.series = vec![IntervalMetrics { failed: 3, ..IntervalMetrics::default() }];
        let mut warned = run("a", vec![empty]);
        warned.warnings = vec!["THE DRIVER WAS THE LIMIT".to_owned()];
        golden::compare("empty_runs.html", &run_page(&[warned, run("etcd", vec![])]));
    }
    #[test]
    fn a_run_is_read_as_it_was_written() {
        let mut json = report().json();
        let error = RunSummary::from_json("mine", &json).map(drop);
        let missing = "missing field `command`; this is not a file of `clearlane-load --json`";
        assert_eq!(error, Err(missing.to_owned()));
        json["command"] = "clearlane-load put".into();
        let run = RunSummary::from_json("mine", &json).expect("it is complete");
        let [cheap, failed] = &run.classes[..] else { panic!("{run:?}") };
        assert_eq!((cheap.answered, cheap.failed, cheap.series.len()), (100, 0, 2));
        assert_eq!(failed.errors, BTreeMap::from([("Unavailable: gone".to_owned(), 7)]));
        let median = cheap.latency_ms(0.5).unwrap_or_default();
        assert!((median / 50.0 - 1.0).abs() < 0.002, "{median}");
        assert_eq!((run.warnings[0].as_str(), run.name.as_str()), ("something", "mine"));
    }
}
