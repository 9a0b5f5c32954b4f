//! `sweep`: one number is varied, and a latency is followed through the eras.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, value_parser};
use clearlane_simulator::era::Era;
use clearlane_simulator::parallel_runs::RunOutcome;
use clearlane_simulator::plot;
use clearlane_simulator::sweep::{Metric, Point, Sweep, SweepValues};

use crate::scenario_arguments::{ScenarioArguments, with_scenario};
use crate::text::{print_line, write};

const COLUMNS: usize = 64;
const ROWS: usize = 17;

pub(crate) fn command() -> Command {
    let about = "Runs a scenario again and again, with another value of one of its numbers";
    let parameter = Arg::new("parameter")
        .value_name("NAME")
        .required(true)
        .help("As for --set: cheap.rate, keys.count, model.cores");
    let range = Arg::new("range")
        .value_name("FROM..TO[:STEPS]")
        .required(true)
        .value_parser(|text: &str| text.parse::<SweepValues>().map_err(|error| error.to_string()))
        .help("1..8, or 0.5..2:4 for 4 values, or 100..6400:x2 for each twice the one before");
    let class = Arg::new("class").long("class").value_name("CLASS");
    let metric = Arg::new("metric")
        .long("metric")
        .value_name("METRIC")
        .default_value("p99")
        .value_parser(|text: &str| text.parse::<Metric>())
        .help("p50, p90, p99, p99.9 or max");
    let svg = Arg::new("svg").long("svg").value_name("FILE").value_parser(value_parser!(PathBuf));
    with_scenario(
        Command::new("sweep").about(about).args([parameter, range]),
        &[Era::V3_2, Era::V3_4, Era::Clearlane],
    )
    .args([
        class.help("Whose latency; if left out, that of the first class"),
        metric,
        svg.help("Draws it there, too"),
    ])
}

pub(crate) fn done(matches: &ArgMatches) -> Result<(), String> {
    let asked = ScenarioArguments::of(matches)?;
    let mut sweep = empty(&asked, matches)?;
    let SweepValues(values) = matches.get_one("range").expect("it is required");
    // Before the first run, which may take long: whether all can be set.
    let scenarios = values.iter().map(|value| {
        let mut scenario = asked.scenario.clone();
        let set = scenario.set(&sweep.parameter, &value.to_string());
        let set = set.and_then(|()| scenario.check());
        set.map_err(|error| asked.wrong(error)).map(|()| (*value, scenario))
    });
    let scenarios = scenarios.collect::<Result<Vec<_>, _>>()?;
    let eras = sweep.eras.clone();
    let each = scenarios.iter().flat_map(|(_, scenario)| vec![scenario; eras.len()]);
    let point = |outcome: RunOutcome| match outcome {
        Ok(results) => sweep.point(&results),
        Err(error) => Point::NotRun(error.to_string()),
    };
    let eras_of_each = eras.repeat(scenarios.len());
    let points = asked.run_each(&each.collect::<Vec<_>>(), &eras_of_each, point);
    let rows = scenarios.iter().zip(points.chunks(eras.len()));
    sweep.rows = rows.map(|((value, _), points)| (*value, points.to_vec())).collect();
    if let Some(file) = matches.get_one::<PathBuf>("svg") {
        write(file, &plot::svg(&sweep))?;
    }
    if asked.as_json {
        return print_line(&format!("{:#}\n", sweep.json()));
    }
    print_line(&format!("{}\n{}", sweep.table(), plot::terminal(&sweep, COLUMNS, ROWS)))
}

/// Before anything is run.
fn empty(asked: &ScenarioArguments, matches: &ArgMatches) -> Result<Sweep, String> {
    let parameter: &String = matches.get_one("parameter").expect("it is required");
    let metric = *matches.get_one("metric").expect("it has a default");
    let classes = &asked.scenario.workload.classes;
    let first = classes.first().map(|class| class.name.clone()).unwrap_or_default();
    let class = matches.get_one::<String>("class").cloned().unwrap_or(first);
    if classes.iter().all(|known| known.name != class) {
        let names = classes.iter().map(|class| class.name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(
            asked.wrong(format!("--class {class}: there is no such class; there are {names}"))
        );
    }
    let (parameter, eras) = (parameter.clone(), asked.eras.clone());
    Ok(Sweep { parameter, class, metric, eras, rows: Vec::new() })
}
