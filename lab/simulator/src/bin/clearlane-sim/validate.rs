//! `validate`: runs the same load on the real server and in the model, and compares the results.

use std::time::Duration;

use clap::{ArgMatches, Command};
use clearlane_loadgen::report::Report;
use clearlane_simulator::era::Era;
use clearlane_simulator::model::Model;
use clearlane_simulator::results::Results;
use clearlane_simulator::scenario::Scenario;
use clearlane_simulator::validation::{LatencyComparison, METRICS, Validation};

use crate::real::{Program, Server, arguments, cores, machine};
use crate::scenario_arguments::{ScenarioArguments, with_scenario};
use crate::text::{print_line, print_progress};

/// Length of the load before the measurement. During this time, a new server is slower than later.
const WARM_UP: Duration = Duration::from_secs(3);

const ERAS: [Era; 3] = [Era::V3_2, Era::V3_4, Era::Clearlane];

pub(crate) fn command() -> Command {
    let about = "Runs a scenario on the real server and in the model, and compares the latencies";
    with_scenario(Command::new("validate").about(about), &ERAS).args(arguments())
}

pub(crate) fn done(matches: &ArgMatches) -> Result<(), String> {
    let program = Program::of(matches)?;
    let mut asked = ScenarioArguments::of(matches)?;
    asked.scenario = on_this_machine(&asked.scenario).map_err(|error| asked.wrong(error))?;
    let (theirs, here) = (&asked.cost_file.machine, machine());
    if *theirs != here {
        print_progress(&format!(
            "the costs are of {theirs}, but this machine is {here}: use `measure` to get its costs"
        ));
    }
    // The model runs first. If the load exceeds the machine, the command fails here, before a
    // server starts.
    let predicted = asked.run()?;
    let mut found = Validation::default();
    for (era, model) in asked.eras.iter().zip(&predicted) {
        print_progress(&format!("{}: era {era}, on the real server", asked.name));
        let report = on_the_server(&program, *era, &asked.scenario);
        let report = report.map_err(|error| asked.wrong_in(*era, error))?;
        found.comparisons.extend(comparisons(*era, &report, model));
    }
    match asked.as_json {
        true => print_line(&format!("{:#}\n", found.json())),
        false => print_line(&found.table()),
    }
}

/// Adapts a scenario to this machine. The real server runs here as the only member, next to its
/// clients. So the scenario gets this machine's cores and disk, and the clients share the cores.
/// Fails if the table `[model]` has any other setting, such as several members or background work.
pub(crate) fn on_this_machine(scenario: &Scenario) -> Result<Scenario, String> {
    let model = Model {
        clients_apart: false,
        client_round_trip_ns: 0,
        sync: None,
        commit_sync: None,
        ..scenario.model.clone()
    };
    if model != Model::default() {
        return Err("its table [model] has members or background work that the real server \
                    does not have here"
            .to_owned());
    }
    if scenario.model != model || scenario.cores != cores() {
        print_progress("using the cores and disk of this machine, not of [model]");
    }
    Ok(Scenario { cores: cores(), model, ..scenario.clone() })
}

fn on_the_server(program: &Program, era: Era, scenario: &Scenario) -> Result<Report, String> {
    let server = Server::start(program, era, &scenario.workload.space)?;
    server.load(&scenario.workload, scenario.seed, WARM_UP)
}

/// Returns a comparison for each percentile of each class that has responses both on the real
/// server and in the model.
fn comparisons(era: Era, real: &Report, model: &Results) -> Vec<LatencyComparison> {
    let mut found = Vec::new();
    for (line, class) in real.classes.iter().zip(&model.classes) {
        for (metric, quantile) in METRICS {
            let times = line.metrics.latency_ms(quantile).zip(class.latency_ms(quantile));
            found.extend(times.map(|(real_ms, model_ms)| LatencyComparison {
                era,
                class: class.name.clone(),
                metric,
                real_ms,
                model_ms,
            }));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "seconds = 1\n[keys]\ncount = 10\nsize = 64\nvalue = 64\n[[class]]\n\
        name = \"read\"\noperation = \"range\"\nrate = 1\n[model]\ncores = 900\n";

    #[test]
    fn the_machine_is_this_one() {
        let here =
            |rest: &str| on_this_machine(&Scenario::parse(&format!("{TEXT}{rest}")).unwrap());
        let scenario = here("commit_sync_ms = 800\nclients_apart = true\n").unwrap();
        assert_eq!((scenario.model, scenario.cores), (Model::default(), cores()));
        for rest in ["members = 3\n", "compaction.every_s = 1\n", "auth.enabled = true\n"] {
            assert!(here(rest).unwrap_err().contains("[model]"), "{rest}");
        }
    }
}
