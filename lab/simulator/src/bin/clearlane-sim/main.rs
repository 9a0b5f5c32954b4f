//! The program `clearlane-sim`. Each subcommand has a file with its arguments and its actions.

mod scenario_arguments;
mod compare;
mod list;
mod measure;
mod real;
mod record;
mod run;
mod show;
mod text;
mod timeline_files;
mod validate;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{ArgMatches, Command};

/// The arguments of a subcommand, and the function that runs it.
type Subcommand = (fn() -> Command, fn(&ArgMatches) -> Result<(), String>);

const SUBCOMMANDS: [Subcommand; 7] = [
    (run::command, run::done),
    (compare::command, compare::done),
    (record::command, record::done),
    (show::command, show::done),
    (measure::command, measure::done),
    (validate::command, validate::done),
    (list::command, list::done),
];

fn command() -> Command {
    Command::new("clearlane-sim")
        .about("Models etcd's read path in virtual time, and shows which request waits for which")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(SUBCOMMANDS.map(|(command, _)| command()))
}

fn main() -> ExitCode {
    let matches = match command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    let (name, asked) = matches.subcommand().expect("clap asks for one");
    let its = |(command, _): &&Subcommand| command().get_name() == name;
    let (_, done) = SUBCOMMANDS.iter().find(its).expect("clap knows no others");
    match done(asked) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "clearlane-sim: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_arguments_is_sound() {
        command().debug_assert();
    }
}
