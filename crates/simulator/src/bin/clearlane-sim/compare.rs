//! `compare`: two eras side by side, and what the one has removed.

use clap::{ArgMatches, Command};
use clearlane_simulator::compare::Comparison;
use clearlane_simulator::era::Era;

use crate::asked::{Asked, with_scenario};
use crate::text::say;

pub(crate) fn command() -> Command {
    let about = "Runs a scenario in two eras, and says what became of whom";
    with_scenario(Command::new("compare").about(about), &[Era::V32, Era::Clearlane])
}

pub(crate) fn done(matches: &ArgMatches) -> Result<(), String> {
    let asked = Asked::of(matches)?;
    let count = asked.eras.len();
    if count != 2 {
        return Err(format!(
            "--era has {count} of them; two can be compared, such as 3.2,clearlane"
        ));
    }
    let results = asked.run()?;
    let comparison = Comparison { before: &results[0], after: &results[1] };
    if asked.as_json {
        return say(&format!("{:#}\n", comparison.json()));
    }
    say(&format!("{}\n{}\n", comparison.table(), comparison.sentences().join("\n")))
}
