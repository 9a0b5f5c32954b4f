//! The form that many experiments have: cheap requests at their own times, calm and then beside
//! something else, at a server that is started for it.

use super::charts::{Column, bars, log, table};
use super::context::{Context, PREFIX, Running, Subject};
use super::load::{self, Phase};
use super::measurements::Measurements;
use crate::Result;
use crate::page::Section;
use crate::plot::Better;
use crate::run::WindowBegin;
use crate::servers::ClusterOptions;
use crate::workload::Workload;

/// The names of the two phases.
pub(super) const CALM: &str = "calm";
pub(super) const BESIDE: &str = "beside";

/// Small keys, which are read and written one by one: `get` and `put`.
pub(super) fn probes(seconds: u64, gets: u64, puts: u64) -> Result<Workload> {
    Workload::parse(&format!(
        "seconds = {seconds}
        [keys]
        count = 1000
        size = 40
        value = 64
        prefix = '{PREFIX}probes/'
        [[class]]
        name = 'get'
        operation = 'range'
        rate = {gets}
        arrivals = 'poisson'
        [[class]]
        name = 'put'
        operation = 'put'
        rate = {puts}
        arrivals = 'poisson'
        "
    ))
}

/// As many keys, beside those of the probes, as the part `[keys]` of a workload.
pub(super) fn data_keys(count: u64, key_size: u64, value: &str) -> String {
    format!(
        "[keys]\ncount = {count}\nsize = {key_size}\nvalue = {value}\nprefix = '{PREFIX}data/'\n"
    )
}

/// A workload of a class that is not sent by itself: its keys are what is meant.
pub(super) fn data(count: u64, key_size: u64, value: u64) -> Result<Workload> {
    let keys = data_keys(count, key_size, &value.to_string());
    Workload::parse(&format!(
        "seconds = 1\n{keys}\n[[class]]\nname = 'put'\noperation = 'put'\nrate = 1\n"
    ))
}

/// Only these classes of it.
pub(super) fn only(workload: &Workload, classes: &[&str]) -> Result<Workload> {
    let names = workload.classes.iter().map(|class| class.name.clone());
    let others = names.filter(|name| !classes.contains(&name.as_str())).collect::<Vec<_>>();
    if others.is_empty() { Ok(workload.clone()) } else { workload.clone().without(&others) }
}

/// A server with the keys of these workloads.
pub(super) async fn filled(
    context: &Context,
    subject: &Subject,
    options: ClusterOptions,
    workloads: &[&Workload],
    seed: u64,
) -> Result<Running> {
    let running = context.start(subject, options).await?;
    for workload in workloads {
        load::fill(context, &running.endpoint(), &workload.space, seed).await?;
    }
    Ok(running)
}

/// At the first endpoint, without a user.
pub(super) fn phase<'a>(
    name: &'a str,
    endpoint: &'a str,
    workload: &'a Workload,
    seed: u64,
) -> Phase<'a> {
    Phase { name, endpoint, workload, user: None, seed, begin: WindowBegin::default() }
}

/// `CLASS p99`, calm, beside and how many times as long, for each class; `more` behind them.
pub(super) fn table_of_p99(
    measured: &Measurements,
    classes: &[&str],
    more: &[Column<'_>],
) -> Section {
    table_of(measured, classes, "p99", more)
}

/// The same of the longest request: for what happens once in a phase.
pub(super) fn table_of_longest(
    measured: &Measurements,
    classes: &[&str],
    more: &[Column<'_>],
) -> Section {
    table_of(measured, classes, "max", more)
}

fn table_of(
    measured: &Measurements,
    classes: &[&str],
    quantile: &str,
    more: &[Column<'_>],
) -> Section {
    let texts = classes.iter().map(|class| {
        let figure = |phase| format!("{phase}/{class}/{quantile}");
        let heading = |what| format!("{class} {quantile} {what}");
        let headings = [heading("calm, ms"), heading("beside, ms"), heading("times")];
        (headings, figure(CALM), figure(BESIDE))
    });
    let texts = texts.collect::<Vec<_>>();
    let mut columns = Vec::new();
    for ([calm_heading, beside_heading, times_heading], calm, beside) in &texts {
        columns.push(Column::median(calm_heading, calm));
        columns.push(Column::median(beside_heading, beside));
        columns.push(Column::times(times_heading, beside, calm));
    }
    columns.extend(more.iter().copied());
    table(measured, &columns)
}

/// A figure of one class: `p99` or `max`, calm and beside.
pub(super) fn plot_of(measured: &Measurements, class: &str, quantile: &str) -> Section {
    let (calm, beside) =
        (format!("{CALM}/{class}/{quantile}"), format!("{BESIDE}/{class}/{quantile}"));
    let what = if quantile == "max" { "longest" } else { quantile };
    let title = format!("{class}: {what} of its latencies, calm and beside");
    let figures = [(CALM, calm.as_str()), (BESIDE, beside.as_str())];
    bars(measured, &title, log("latency, ms"), Better::Lower, &figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workloads_are_right() {
        let probes = probes(3, 200, 100).expect("it is right");
        assert_eq!((probes.seconds, probes.classes.len()), (3, 2));
        let gets = only(&probes, &["get"]).expect("it has that class");
        assert_eq!((gets.classes.len(), gets.classes[0].name.as_str()), (1, "get"));
        assert_eq!(only(&probes, &["get", "put"]).as_ref(), Ok(&probes));
        let data = data(50_000, 64, 1024).expect("it is right");
        assert_eq!(data.space.count, 50_000);
    }

    #[test]
    fn the_table_has_three_columns_for_each_class() {
        let mut measured = Measurements::new(vec!["etcd".to_owned()]);
        measured.add("etcd", "calm/get/p99", 2.0);
        measured.add("etcd", "beside/get/p99", 5.0);
        measured.add("etcd", "x", 7.0);
        let table = table_of_p99(&measured, &["get"], &[Column::median("x, s", "x")]);
        let Section::Table { columns, rows } = table else { panic!() };
        let expected =
            ["server", "get p99 calm, ms", "get p99 beside, ms", "get p99 times", "x, s"];
        assert_eq!(columns, expected);
        assert_eq!(rows, [["etcd", "2", "5", "2.50", "7"]]);
    }
}
