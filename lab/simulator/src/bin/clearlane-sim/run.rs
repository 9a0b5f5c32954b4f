//! `run`: runs a scenario in some eras.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, value_parser};
use clearlane_simulator::era::Era;
use clearlane_simulator::recorder::Recorded;
use clearlane_simulator::results::Results;
use clearlane_simulator::show::Recording;
use clearlane_simulator::verdict;
use serde_json::Value;

use crate::scenario_arguments::{ScenarioArguments, with_scenario};
use crate::text::print_line;
use crate::timeline_files;

const NS_PER_MS: u64 = 1_000_000;

pub(crate) fn command() -> Command {
    let time = |name: &'static str| {
        let ms = value_parser!(u64).range(0..=86_400_000);
        Arg::new(name).long(name).value_name("MS").value_parser(ms).requires("timeline")
    };
    let command = Command::new("run").about("Runs a scenario in one or more eras");
    with_scenario(command, &Era::ALL)
        .arg(timeline_files::argument())
        .arg(time("from").help("Records from this time on, instead of around the longest wait"))
        .arg(time("for").default_value("200").help("With --from: the length of the recording"))
}

pub(crate) fn done(matches: &ArgMatches) -> Result<(), String> {
    let mut asked = ScenarioArguments::of(matches)?;
    let timeline = matches.get_one::<PathBuf>("timeline");
    let ns = |name| matches.get_one::<u64>(name).map(|ms| ms * NS_PER_MS);
    asked.scenario.recorded = match (timeline, ns("from")) {
        (None, _) => Recorded::Nothing,
        (Some(_), None) => Recorded::LongestWait,
        (Some(_), Some(from_ns)) => {
            Recorded::Window(from_ns, from_ns + ns("for").expect("it has a default"))
        }
    };
    let all = asked.run()?;
    let recorded: Vec<(Era, Recording)> =
        all.iter().map(|results| (results.era, recording(&asked, results))).collect();
    let files = timeline.map(|file| timeline_files::write_each(file, &recorded)).transpose()?;
    if asked.as_json {
        return print_line(&format!("{:#}\n", all.iter().map(Results::json).collect::<Value>()));
    }
    let tables: Vec<String> = all.iter().map(Results::table).collect();
    let verdict = verdict::sentences(&all).join("\n");
    let files = files.map_or_else(String::new, |lines| format!("\n{lines}"));
    print_line(&format!("{}\n{}\n{verdict}\n{files}", asked.heading(), tables.join("\n")))
}

fn recording(asked: &ScenarioArguments, results: &Results) -> Recording {
    let header = asked.timeline_header("the model", results.era);
    Recording { name: asked.title(), header, timeline: results.timeline.clone() }
}
