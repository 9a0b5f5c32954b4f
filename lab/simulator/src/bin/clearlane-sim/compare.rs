//! `compare`: compares two eras.

use clap::{ArgMatches, Command};
use clearlane_simulator::compare::Comparison;
use clearlane_simulator::era::Era;

use crate::scenario_arguments::{ScenarioArguments, with_scenario};
use crate::text::print_line;

pub(crate) fn command() -> Command {
    let about = "Runs a scenario in two eras, and shows the change for each class";
    with_scenario(Command::new("compare").about(about), &[Era::V3_2, Era::Clearlane])
}

pub(crate) fn done(matches: &ArgMatches) -> Result<(), String> {
    let asked = ScenarioArguments::of(matches)?;
    let count = asked.eras.len();
    if count != 2 {
        return Err(format!("--era has {count} eras; it must have two, such as 3.2,clearlane"));
    }
    let results = asked.run()?;
    let comparison = Comparison { before: &results[0], after: &results[1] };
    if asked.as_json {
        return print_line(&format!("{:#}\n", comparison.json()));
    }
    let sentences = comparison.sentences().join("\n");
    print_line(&format!("{}\n{}\n{sentences}\n", asked.heading(), comparison.table()))
}
