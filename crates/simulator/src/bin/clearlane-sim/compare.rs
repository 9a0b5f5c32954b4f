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
    let [before, after] = asked.eras[..] else {
        let count = asked.eras.len();
        return Err(format!(
            "--era has {count} of them; two can be compared, such as 3.2,clearlane"
        ));
    };
    let run = |era| asked.run(era).map_err(|error| asked.wrong(format!("era {era}: {error}")));
    let (before, after) = (run(before)?, run(after)?);
    let comparison = Comparison { before: &before, after: &after };
    if asked.as_json {
        return say(&format!("{:#}\n", comparison.json()));
    }
    say(&format!("{}\n{}\n", comparison.table(), comparison.sentences().join("\n")))
}
