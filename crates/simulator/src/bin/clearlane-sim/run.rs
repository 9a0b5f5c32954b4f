//! `run`: a scenario, in some eras.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, value_parser};
use clearlane_simulator::era::Era;
use clearlane_simulator::results::Results;
use serde_json::Value;

use crate::scenario_arguments::{ScenarioArguments, with_scenario};
use crate::text::{print_line, write};

pub(crate) fn command() -> Command {
    let time = |name: &'static str| {
        let ms = value_parser!(u64).range(0..=86_400_000);
        Arg::new(name).long(name).value_name("MS").value_parser(ms).requires("timeline")
    };
    let command = Command::new("run").about("Runs a scenario, in each of these eras");
    with_scenario(command, &Era::ALL)
        .arg(
            Arg::new("timeline")
                .long("timeline")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("Records which thread did what into a file; of several eras, the first"),
        )
        .arg(time("from").default_value("900").help("Records from then on"))
        .arg(time("for").default_value("200").help("Records for so long"))
}

pub(crate) fn done(matches: &ArgMatches) -> Result<(), String> {
    let mut asked = ScenarioArguments::of(matches)?;
    let timeline = matches.get_one::<PathBuf>("timeline");
    let ms = |name| 1_000_000 * *matches.get_one::<u64>(name).expect("it has a default");
    asked.scenario.recorded = timeline.map(|_| (ms("from"), ms("from") + ms("for")));
    let all = asked.run()?;
    match asked.as_json {
        true => print_line(&format!("{:#}\n", all.iter().map(Results::json).collect::<Value>()))?,
        false => {
            all.iter().try_for_each(|results| print_line(&format!("{}\n", results.table())))?
        }
    }
    match (timeline, all.first()) {
        (Some(file), Some(first)) => write(file, &first.timeline.to_string()),
        _ => Ok(()),
    }
}
