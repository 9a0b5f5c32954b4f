//! The page of one run of `clearlane-load`, or of several, compared class by class.

use std::collections::BTreeSet;

use hdrhistogram::Histogram;
use itertools::Itertools as _;

use super::{Section, html, unused_name};
use crate::plot::{
    Axis, BarGroup, Bars, Better, Colour, Line, Plot, Scale, distinct_colours,
    latency_by_percentile, latency_histogram,
};
use crate::report::QUANTILES;
use crate::time_series::IntervalMetrics;

const NS_PER_MS: f64 = 1e6;
const OPEN_LOOP: &str = "Classes with a rate are sent in an open loop: a latency counts from when \
    the request was due, also if it was sent later. Late p99 is the generator's own delay, which \
    is part of the latency.";
const CLOSED_LOOP: &str = "Classes without a rate are sent in a closed loop: a latency counts from \
    when the request was sent, and while the server stands still, no request is sent.";

#[derive(Clone, Debug)]
pub struct RunSummary {
    /// An era, `etcd`, or what tells it from the other runs.
    pub name: String,
    pub endpoint: String,
    /// What the server says about itself: product, version, era, members.
    pub server: Vec<(String, String)>,
    /// Which repeats the run.
    pub command: String,
    pub seconds: u64,
    /// That the driver was the limit, for example.
    pub warnings: Vec<String>,
    pub classes: Vec<ClassSummary>,
}

#[derive(Clone, Debug)]
pub struct ClassSummary {
    pub name: String,
    /// Requests due in a second; `None` in a closed loop.
    pub rate: Option<f64>,
    pub answered_per_second: f64,
    pub answered: u64,
    pub failed: u64,
    /// The number of failures by text.
    pub errors: Vec<(String, u64)>,
    /// Of latencies, in nanoseconds.
    pub histogram: Histogram<u64>,
    /// The delay of the generator.
    pub late_p99_ms: Option<f64>,
    /// By when requests were due.
    pub series: Vec<IntervalMetrics>,
    /// The length of an interval.
    pub interval_s: u64,
}

/// A plot of a page, to be written to a file, too.
#[derive(Clone, Debug)]
pub struct NamedFigure {
    /// Different for each figure of a page.
    pub file_name: String,
    pub svg: String,
    pub caption: String,
}

/// One file of HTML.
pub fn run_page(runs: &[RunSummary]) -> String {
    let comparison = Comparison::of(runs);
    let names = runs.iter().map(|run| run.name.as_str()).join(", ");
    let mut sections = comparison.loops();
    sections.extend(comparison.warnings());
    let mut used = BTreeSet::new();
    let figure = |NamedFigure { svg, caption, .. }| Section::Figure { svg, caption };
    sections.extend(comparison.overview(&mut used).into_iter().map(figure));
    for class in comparison.classes() {
        sections.push(Section::Heading(class.to_owned()));
        sections.extend(comparison.figures(class, &mut used).into_iter().map(figure));
        sections.push(comparison.table(class));
        sections.extend(comparison.errors(class));
    }
    sections.push(Section::Heading("Servers and commands".to_owned()));
    sections.push(comparison.servers());
    for run in runs {
        sections.push(Section::Text(format!("To repeat {}:", run.name)));
        sections.push(Section::Command(run.command.clone()));
    }
    let title = if runs.is_empty() { "No runs".to_owned() } else { format!("Load: {names}") };
    html(&title, &sections)
}

/// The plots of [`run_page`], in their order.
pub fn run_figures(runs: &[RunSummary]) -> Vec<NamedFigure> {
    let comparison = Comparison::of(runs);
    let mut used = BTreeSet::new();
    let mut figures = comparison.overview(&mut used);
    for class in comparison.classes() {
        figures.extend(comparison.figures(class, &mut used));
    }
    figures
}

struct Comparison<'a> {
    runs: &'a [RunSummary],
    /// Of each run.
    colours: Vec<Colour>,
}

impl<'a> Comparison<'a> {
    fn of(runs: &'a [RunSummary]) -> Comparison<'a> {
        Comparison { runs, colours: distinct_colours(runs.iter().map(|run| run.name.as_str())) }
    }

    /// The names of all classes, in the order in which runs have them.
    fn classes(&self) -> Vec<&'a str> {
        let classes = self.runs.iter().flat_map(|run| &run.classes);
        distinct(classes.map(|class| class.name.as_str()))
    }

    /// The runs that have it.
    fn class(&self, name: &str) -> Vec<(&'a str, Colour, &'a ClassSummary)> {
        let runs = self.runs.iter().zip(&self.colours);
        let of_run = |(run, colour): (&'a RunSummary, &Colour)| {
            let class = run.classes.iter().find(|class| class.name == name)?;
            Some((run.name.as_str(), *colour, class))
        };
        runs.filter_map(of_run).collect()
    }

    /// What the loops of the classes mean for their latencies.
    fn loops(&self) -> Vec<Section> {
        let rates = || self.runs.iter().flat_map(|run| &run.classes).map(|class| class.rate);
        let open = rates().any(|rate| rate.is_some()).then_some(OPEN_LOOP);
        let closed = rates().any(|rate| rate.is_none()).then_some(CLOSED_LOOP);
        [open, closed].into_iter().flatten().map(|text| Section::Text(text.to_owned())).collect()
    }

    /// Bars of all classes; one run has nothing to be compared with.
    fn overview(&self, used: &mut BTreeSet<String>) -> Vec<NamedFigure> {
        if self.runs.len() < 2 {
            return Vec::new();
        }
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
            figure(used, "p99", p99.svg(), "99 % of the answers took at most this long."),
            figure(used, "answered", answered.svg(), "Over the whole run."),
        ]
    }

    fn bars(&self, value: impl Fn(&ClassSummary) -> f64) -> Vec<BarGroup> {
        let group = |name: &str| BarGroup {
            label: name.to_owned(),
            bars: self
                .class(name)
                .into_iter()
                .map(|(run, colour, class)| (run.to_owned(), colour, value(class)))
                .collect(),
        };
        self.classes().into_iter().map(group).collect()
    }

    fn figures(&self, name: &str, used: &mut BTreeSet<String>) -> Vec<NamedFigure> {
        let class = self.class(name);
        let histograms: Vec<_> = class
            .iter()
            .map(|(run, colour, class)| ((*run).to_owned(), *colour, &class.histogram))
            .collect();
        let by_percentile =
            latency_by_percentile(&format!("{name}: latency by percentile"), &histograms);
        let histogram = latency_histogram(&format!("{name}: histogram of latencies"), &histograms);
        vec![
            figure(
                used,
                &format!("{name} latency by percentile"),
                by_percentile.svg(),
                "A line ends at the last percentile that has ten requests above it.",
            ),
            figure(
                used,
                &format!("{name} histogram"),
                histogram,
                "The part of all answers that had a latency within each column.",
            ),
            figure(
                used,
                &format!("{name} answered by second"),
                answered_by_second(name, &class).svg(),
                "By the second in which a request was due.",
            ),
            figure(
                used,
                &format!("{name} p99 by second"),
                p99_by_second(name, &class).svg(),
                "By the second in which a request was due. A gap: none of them was answered.",
            ),
        ]
    }

    /// What the figures are not about.
    fn warnings(&self) -> impl Iterator<Item = Section> {
        let of_run = |run: &'a RunSummary| {
            run.warnings.iter().map(|warning| format!("WARNING, {}: {warning}", run.name))
        };
        self.runs.iter().flat_map(of_run).map(Section::Text)
    }

    fn table(&self, name: &str) -> Section {
        let columns = ["run", "rate, requests/s", "answered, requests/s", "answered", "failed"];
        let quantiles = QUANTILES.map(|(quantile, _)| format!("{quantile}, ms"));
        let columns = columns.map(str::to_owned).into_iter().chain(quantiles);
        let row = |(run, _, class): (&str, Colour, &ClassSummary)| {
            let rate = class.rate.map_or("closed loop".to_owned(), |rate| rate.to_string());
            let mut row = vec![run.to_owned(), rate, format!("{:.2}", class.answered_per_second)];
            row.extend([class.answered.to_string(), class.failed.to_string()]);
            row.extend(QUANTILES.map(|(_, quantile)| ms(class.latency_ms(quantile))));
            row.push(ms(class.late_p99_ms));
            row
        };
        Section::Table {
            columns: columns.chain(["late p99, ms".to_owned()]).collect(),
            rows: self.class(name).into_iter().map(row).collect(),
        }
    }

    fn errors(&self, name: &str) -> Option<Section> {
        let class = self.class(name).into_iter();
        let rows = class.flat_map(|(run, _, class)| {
            let errors = class.errors.iter();
            errors.map(move |(text, count)| vec![run.to_owned(), count.to_string(), text.clone()])
        });
        let rows: Vec<Vec<String>> = rows.collect();
        let columns = ["run", "failed", "error"].map(str::to_owned).to_vec();
        (!rows.is_empty()).then_some(Section::Table { columns, rows })
    }

    /// A column for each run: there are more properties than runs.
    fn servers(&self) -> Section {
        let properties = self.runs.iter().flat_map(|run| &run.server);
        let properties = distinct(properties.map(|(property, _)| property.as_str()));
        let row = |property: &str, of: &dyn Fn(&RunSummary) -> String| {
            [property.to_owned()].into_iter().chain(self.runs.iter().map(of)).collect()
        };
        let mut rows: Vec<Vec<String>> = vec![
            row("endpoint", &|run| run.endpoint.clone()),
            row("duration, s", &|run| run.seconds.to_string()),
        ];
        rows.extend(properties.into_iter().map(|property| {
            row(property, &|run| {
                let own = run.server.iter().find(|(own, _)| own == property);
                own.map(|(_, value)| value.clone()).unwrap_or_default()
            })
        }));
        let names = self.runs.iter().map(|run| run.name.clone());
        Section::Table { columns: [String::new()].into_iter().chain(names).collect(), rows }
    }
}

impl ClassSummary {
    fn latency_ms(&self, quantile: f64) -> Option<f64> {
        let latency = || self.histogram.value_at_quantile(quantile) as f64 / NS_PER_MS;
        (!self.histogram.is_empty()).then(latency)
    }
}

fn figure(used: &mut BTreeSet<String>, name: &str, svg: String, caption: &str) -> NamedFigure {
    let file_name = format!("{}.svg", unused_name(used, name));
    NamedFigure { file_name, svg, caption: caption.to_owned() }
}

/// Each once, where it is first.
fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = BTreeSet::new();
    names.filter(|name| seen.insert(*name)).collect()
}

fn ms(latency: Option<f64>) -> String {
    latency.map_or("-".to_owned(), |ms| format!("{ms:.2}"))
}

/// A run with failures has a second line.
fn answered_by_second(name: &str, class: &[(&str, Colour, &ClassSummary)]) -> Plot {
    let mut lines = Vec::new();
    for (run, colour, class) in class {
        let interval = class.interval_s as f64;
        let answered = |of: &IntervalMetrics| of.answered as f64 / interval;
        lines.push(by_second((*run).to_owned(), *colour, class, answered));
        if class.series.iter().any(|second| second.failed > 0) {
            let failed = |of: &IntervalMetrics| of.failed as f64 / interval;
            lines.push(by_second(format!("{run}, failed"), *colour, class, failed));
        }
    }
    Plot {
        title: format!("{name}: answers by second"),
        x: Axis::new("time, s", Scale::Linear),
        y: Axis::new("answered, requests/s", Scale::Linear),
        better: Better::Higher,
        lines,
    }
}

fn p99_by_second(name: &str, class: &[(&str, Colour, &ClassSummary)]) -> Plot {
    let p99 = |second: &IntervalMetrics| second.p99_ms.unwrap_or(f64::NAN);
    let lines =
        class.iter().map(|(run, colour, class)| by_second((*run).to_owned(), *colour, class, p99));
    Plot {
        title: format!("{name}: p99 by second"),
        x: Axis::new("time, s", Scale::Linear),
        y: Axis::new("p99 of the latency, ms", Scale::Log),
        better: Better::Lower,
        lines: lines.collect(),
    }
}

fn by_second(
    label: String,
    colour: Colour,
    class: &ClassSummary,
    value: impl Fn(&IntervalMetrics) -> f64,
) -> Line {
    let at = |number: u64| (number * class.interval_s) as f64;
    let points = class.series.iter().zip(0_u64..);
    let points = points.map(|(second, number)| (at(number), value(second))).collect();
    Line { label, colour, points }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::plot::well_formed;

    /// 1,000 requests a second, for as many seconds; each latency is `base_us` and more, and those
    /// of second 3 wait for its end.
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
            errors: Vec::new(),
            histogram,
            late_p99_ms: Some(0.08),
            series,
            interval_s: 1,
        }
    }

    fn run(name: &str, classes: Vec<ClassSummary>) -> RunSummary {
        let said = [("product", "clearlane 0.9"), ("etcd version", "3.7.1"), ("era", name)];
        RunSummary {
            name: name.to_owned(),
            endpoint: "http://127.0.0.1:2379".to_owned(),
            server: said.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec(),
            command: "clearlane-load run reads-and-puts --seconds 10".to_owned(),
            seconds: 10,
            warnings: Vec::new(),
            classes,
        }
    }

    fn two_runs() -> Vec<RunSummary> {
        let old = run("3.2", vec![class("cheap", 10, 900, true), class("puts", 10, 4000, true)]);
        let mut puts = class("puts", 10, 2500, false);
        (puts.failed, puts.errors) = (2, vec![("Unavailable: <gone>".to_owned(), 2)]);
        (puts.series[4].answered, puts.series[4].failed) = (998, 2);
        let mut closed = class("loop", 5, 300, false);
        (closed.rate, closed.late_p99_ms) = (None, None);
        let mut new = run("clearlane", vec![class("cheap", 10, 400, false), puts, closed]);
        new.server.push(("members".to_owned(), "3".to_owned()));
        vec![old, new]
    }

    fn compare(name: &str, text: &str) {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
        if std::env::var_os("UPDATE_GOLDENFILES").is_some() {
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("written");
            std::fs::write(&path, text).expect("written");
        }
        let expected = std::fs::read_to_string(&path).expect("a golden file");
        assert!(text == expected, "{name} differs: UPDATE_GOLDENFILES=1, then read the difference");
    }

    #[test]
    fn the_page_of_two_runs_is_as_it_was() {
        let page = run_page(&two_runs());
        assert_eq!(well_formed::check(&page), Ok(()));
        compare("run_page.html", &page);
    }

    #[test]
    fn the_page_says_all_that_a_run_has() {
        let page = run_page(&two_runs());
        for expected in [
            "<h1>Load: 3.2, clearlane</h1>",
            "<td>closed loop</td>",
            "<td>Unavailable: &lt;gone&gt;</td>",
            "<td>members</td>",
            "clearlane-load run reads-and-puts --seconds 10",
            "cheap: latency by percentile",
            ">clearlane, failed</text>",
            "latency, ms (log scale, lower is better)",
        ] {
            assert!(page.contains(expected), "{expected}");
        }
        assert!(!page.contains("NaN") && !page.contains("WARNING"), "{page}");
    }

    #[test]
    fn each_plot_has_a_file_of_its_own() {
        let figures = run_figures(&two_runs());
        assert_eq!(figures.len(), 2 + 3 * 4);
        let names: BTreeSet<&str> =
            figures.iter().map(|figure| figure.file_name.as_str()).collect();
        assert_eq!(names.len(), figures.len());
        assert_eq!(figures[2].file_name, "cheap-latency-by-percentile.svg");
        for figure in &figures {
            assert_eq!(well_formed::check(&figure.svg), Ok(()), "{}", figure.file_name);
        }
        assert_eq!(run_figures(&two_runs()[..1]).len(), 2 * 4);
    }

    #[test]
    fn a_generator_that_was_the_limit_is_told() {
        let mut runs = two_runs();
        runs[0].warnings = vec!["THE DRIVER WAS THE LIMIT".to_owned()];
        let page = run_page(&runs);
        assert!(page.contains("WARNING, 3.2: THE DRIVER WAS THE LIMIT"), "{page}");
    }

    #[test]
    fn runs_without_answers_have_a_page() {
        let mut empty = class("cheap", 0, 0, false);
        empty.series = vec![IntervalMetrics {
            answered: 0,
            failed: 3,
            p50_ms: None,
            p99_ms: None,
            max_ms: None,
        }];
        for runs in [vec![], vec![run("etcd", vec![])], vec![run("a", vec![empty.clone()]); 2]] {
            let page = run_page(&runs);
            assert_eq!(well_formed::check(&page), Ok(()));
            assert!(!page.contains("NaN"), "{page}");
        }
    }
}
