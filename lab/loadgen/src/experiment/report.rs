//! Applies a plan to its measurements: tables, plots and checks.

use super::check::{Bound, Check};
use super::findings::Findings;
use super::measurements::{Measurements, quotient};
use super::number::number;
use super::plan::{CheckPlan, Column, Plan, Shown, Values};
use crate::page::Section;
use crate::plot::{Axis, BarGroup, Bars, Better, Line, Plot, Scale, era_colour};
use crate::servers::ETCD;

/// The name in a check that is replaced by each server in turn.
const EACH: &str = "each";

impl Findings {
    pub(super) fn of(plan: &Plan, values: &Values, measured: Measurements) -> Findings {
        let shown = plan.shown.iter().flat_map(|shown| sections(shown, values, &measured));
        let checks = plan.checks.iter().flat_map(|check| checks(check, values, &measured));
        Findings {
            setting: plan.setting.iter().map(|text| values.text(text)).collect(),
            shown: shown.collect(),
            checks: checks.collect(),
            measured,
        }
    }

    /// Adds the findings of the second plan of an experiment. `prefix` is added to the names of
    /// their figures.
    pub(super) fn append(&mut self, other: Findings, prefix: &str) {
        self.setting.extend(other.setting);
        self.shown.extend(other.shown);
        self.checks.extend(other.checks);
        self.measured.take_load(other.measured.with_prefix(prefix));
    }
}

fn sections(shown: &Shown, values: &Values, measured: &Measurements) -> Vec<Section> {
    let better = |is_higher: &bool| if *is_higher { Better::Higher } else { Better::Lower };
    match shown {
        Shown::Beside { classes, quantile, has_percentiles, columns } => {
            let texts = |words: &[String]| words.iter().map(|word| values.text(word)).collect();
            let classes: Vec<String> = texts(classes);
            let of_classes = classes.iter().flat_map(|class| beside_columns(class, quantile));
            let more = columns.iter().map(|column| texts(column));
            let mut sections = vec![table(measured, &of_classes.chain(more).collect::<Vec<_>>())];
            for class in &classes {
                sections.push(beside_plot(measured, class, quantile));
                if *has_percentiles {
                    let title = format!("{class}: latencies beside it, by percentile");
                    let axes = [Axis::new("percentile", Scale::Nines), axis("log latency, ms")];
                    let figure = format!("beside/{class}/latency by percentile");
                    sections.push(lines(measured, &title, axes, Better::Lower, &figure));
                }
            }
            sections
        }
        Shown::Table { columns, by: Some(by) } => vec![table_by_point(measured, by, columns)],
        Shown::Table { columns, by: None } => vec![table(measured, columns)],
        Shown::Bars { title, y, higher_is_better, bars: figures } => {
            vec![bars(measured, title, axis(y), better(higher_is_better), figures)]
        }
        Shown::Lines { title, x, y, higher_is_better, figure } => {
            vec![lines(measured, title, [axis(x), axis(y)], better(higher_is_better), figure)]
        }
    }
}

/// Returns the columns of a class: the quantile in the calm phase, in the phase `beside`, and the
/// ratio of the two.
fn beside_columns(class: &str, quantile: &str) -> [Column; 3] {
    let [calm, beside] = ["calm", "beside"].map(|phase| format!("{phase}/{class}/{quantile}"));
    let heading = |what| format!("{class} {quantile} {what}");
    [
        vec![heading("calm, ms"), calm.clone()],
        vec![heading("beside, ms"), beside.clone()],
        vec![heading("times"), beside, calm],
    ]
}

fn beside_plot(measured: &Measurements, class: &str, quantile: &str) -> Section {
    let what = if quantile == "max" { "longest" } else { quantile };
    let title = format!("{class}: {what} of its latencies, calm and beside");
    let figures =
        ["calm", "beside"].map(|phase| (phase.to_owned(), format!("{phase}/{class}/{quantile}")));
    bars(measured, &title, axis("log latency, ms"), Better::Lower, &figures)
}

fn axis(text: &str) -> Axis {
    match text.strip_prefix("log ") {
        Some(label) => Axis::new(label, Scale::Log),
        None => Axis::new(text, Scale::Linear),
    }
}

/// Returns the name of a server in tables.
fn label(server: &str) -> String {
    if server.starts_with(|first: char| first.is_ascii_digit()) {
        format!("era {server}")
    } else {
        server.to_owned()
    }
}

/// Returns a table with a row for each server.
fn table(measured: &Measurements, columns: &[Column]) -> Section {
    let headings = columns.iter().map(|column| column[0].clone());
    let row = |server: &String| {
        let cells = columns.iter().map(|column| measured.ratio(server, &column[1..]));
        [label(server)].into_iter().chain(cells.map(shown)).collect()
    };
    Section::Table {
        columns: ["server".to_owned()].into_iter().chain(headings).collect(),
        rows: measured.servers().iter().map(row).collect(),
    }
}

/// Returns a table with a row for each point of a curve. It has all columns for each server.
fn table_by_point(measured: &Measurements, point: &str, of_server: &[Column]) -> Section {
    let mut columns = vec![point.to_owned()];
    for server in measured.servers() {
        let headings = of_server.iter().map(|column| format!("{} {}", label(server), column[0]));
        columns.extend(headings);
    }
    let points = of_server.first().map_or_else(Vec::new, |column| measured.points(&column[1]));
    let row = |at: f64| {
        let mut row = vec![number(at)];
        for server in measured.servers() {
            let cells = of_server.iter().map(|column| measured.median_at(server, &column[1], at));
            row.extend(cells.map(shown));
        }
        row
    };
    Section::Table { columns, rows: points.into_iter().map(row).collect() }
}

fn shown(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), number)
}

/// Returns a bar chart with a group for each server, and a bar for each `(label, figure)`.
fn bars(
    measured: &Measurements,
    title: &str,
    y: Axis,
    better: Better,
    figures: &[(String, String)],
) -> Section {
    let group = |server: &String| {
        let bar = |(label, figure): &(String, String)| {
            let value = measured.median(server, figure)?;
            Some((label.clone(), era_colour(server), value))
        };
        BarGroup { label: label(server), bars: figures.iter().filter_map(bar).collect() }
    };
    let groups = measured.servers().iter().map(group).collect();
    let svg = Bars { title: title.to_owned(), y, better, groups }.svg();
    Section::Figure { svg, caption: title.to_owned() }
}

/// Returns a plot with a line for each server, over the points of the figure.
fn lines(
    measured: &Measurements,
    title: &str,
    [x, y]: [Axis; 2],
    better: Better,
    figure: &str,
) -> Section {
    let line = |server: &String| Line {
        label: label(server),
        colour: era_colour(server),
        points: measured.line(server, figure),
    };
    let lines = measured.servers().iter().map(line).filter(|line| !line.points.is_empty());
    let (title, lines) = (title.to_owned(), lines.collect());
    let svg = Plot { title: title.clone(), x, y, better, lines }.svg();
    Section::Figure { svg, caption: title }
}

/// Returns a check for each bound and server. Checks of etcd are omitted if etcd was not measured.
fn checks(plan: &CheckPlan, values: &Values, measured: &Measurements) -> Vec<Check> {
    let has_each = plan.servers.iter().any(|name| name == EACH);
    let is_free = |server: &&String| has_each && !plan.servers.contains(server);
    let mut servers =
        measured.servers().iter().filter(is_free).map(String::as_str).collect::<Vec<_>>();
    if !has_each {
        servers.push("");
    }
    let mut checks = Vec::new();
    for server in servers {
        let names = plan.servers.iter().map(|name| if name == EACH { server } else { name });
        let names = names.collect::<Vec<_>>();
        if names.contains(&ETCD) && !measured.has(ETCD) {
            continue;
        }
        let figures = plan.figures.iter().map(|figure| values.text(figure)).collect::<Vec<_>>();
        let value = names.iter().map(|name| measured.ratio(name, &figures));
        let value = value.reduce(quotient).flatten();
        let values = values.with("server", server).with("label", label(server));
        let claim = values.text(&plan.claim);
        let bounds = [plan.at_least.map(Bound::AtLeast), plan.at_most.map(Bound::AtMost)];
        let check = |bound| Check::new(&claim, value, bound, plan.is_bar);
        checks.extend(bounds.into_iter().flatten().map(check));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::check::Verdict;
    use crate::golden;
    use crate::page::html;

    fn measured() -> Measurements {
        let mut measured = Measurements::new(["3.2", "etcd"].map(str::to_owned).to_vec());
        measured.add("3.2", "beside/get/p99", 12.0);
        measured.add("3.2", "calm/get/p99", 2.0);
        measured.add("etcd", "calm/get/p99", 2.0);
        measured.add("etcd", "beside/get/p99", 5.0);
        measured.add("etcd", "x", 7.0);
        for at in [0.5, 10.0, 1000.0] {
            measured.add_at("etcd", "rate", at, 8.0 * at);
        }
        measured.add_at("3.2", "rate", 10.0, 7.0);
        measured
    }

    #[test]
    fn tables_and_plots_are_as_they_were() {
        let plan: Plan = toml::from_str(
            "shown = [
                { classes = ['get'], quantile = 'p99', has_percentiles = true, columns = [['x, s', 'x']] },
                { columns = [['puts/s', 'rate']], by = 'clients' },
                { title = 'Puts', x = 'clients', y = 'log puts/s', higher_is_better = true, figure = 'rate' },
                { title = 'x', y = 'x, s', bars = [['calm', 'calm/get/p99'], ['x', 'x']] },
            ]",
        )
        .expect("it is right");
        let findings = Findings::of(&plan, &Values::default(), measured());
        golden::compare("findings.html", &html("Findings", &findings.shown));
    }

    #[test]
    fn checks_are_of_one_server_of_two_or_of_each() {
        let found = |text: &str| {
            let plan = toml::from_str(text).expect("it is right");
            let checks = checks(&plan, &Values::default(), &measured());
            let line = |check: &Check| (check.claim.clone(), check.measured.clone(), check.verdict);
            checks.iter().map(line).collect::<Vec<_>>()
        };
        let times = "figures = ['beside/get/p99', 'calm/get/p99']\n";
        let line =
            |claim: &str, measured: &str, verdict| (claim.to_owned(), measured.to_owned(), verdict);
        assert_eq!(
            found(&format!("{times}claim = '{{label}}'\nservers = ['each']\nat_least = 3")),
            [
                line("era 3.2: at least 3", "6", Verdict::Holds),
                line("etcd: at least 3", "2.50", Verdict::Fails)
            ]
        );
        assert_eq!(
            found(&format!(
                "{times}claim = 'a'\nservers = ['3.2', 'etcd']\nat_most = 1\nis_bar = true"
            )),
            [line("a: at most 1", "2.40", Verdict::BarMissed)]
        );
        assert_eq!(
            found("figures = ['x']\nclaim = '{server}'\nservers = ['each', 'etcd']\nat_most = 1"),
            [line("3.2: at most 1", "not measured", Verdict::NotMeasured)]
        );
    }
}
