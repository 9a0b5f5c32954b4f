//! The command line of the program: the flags of a member, or a tool with its own flags.
//!
//! One clap command is built from the [table] of flags and from the tools. It parses the command
//! line and prints the help, the man page and the completions.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use clap::Command;
use clap::error::ErrorKind;

use crate::config::{self, Config, ConfigError, arguments, table, value};
use crate::tools::{self, ToolCall};

#[derive(Debug)]
pub enum Invocation {
    Member(Box<Config>),
    Tool(ToolCall),
    Help(String),
}

const AFTER_HELP: &str = "\
Each flag is also an environment variable: ETCD_NAME for --name. Durations: 100ms, 1h30m. \
NOT HONOURED, NOT YET: the flag is accepted and has no effect.";

pub(crate) fn command() -> Command {
    let about = "A key-value store with etcd's API; without a command, starts a member";
    let command = Command::new("clearlane")
        .bin_name("clearlane")
        .about(about)
        .override_usage("clearlane [OPTIONS]\n       clearlane <COMMAND>")
        .after_help(AFTER_HELP)
        .next_line_help(true)
        .no_binary_name(true)
        .args_conflicts_with_subcommands(true)
        .subcommands(tools::commands());
    table::SECTIONS.iter().fold(command, |command, section| {
        command.next_help_heading(section.title).args(section.flags.iter().map(table::Flag::arg))
    })
}

/// Reads a command line. `arguments` must not contain the program's name. `open` reads the config
/// file, if one is named.
pub fn read(
    arguments: &[OsString],
    environment: &[(OsString, OsString)],
    open: &dyn Fn(&Path) -> io::Result<String>,
) -> Result<Invocation, ConfigError> {
    let command = command();
    let is_proxy = tools::is_proxy(arguments);
    let arguments = match is_proxy {
        true => arguments::subcommand_first(&command, arguments),
        false => arguments.to_vec(),
    };
    let (words, named) = arguments::to_clap(&command, &arguments);
    let matches = match command.clone().try_get_matches_from(words) {
        Ok(matches) => matches,
        Err(help) if help.kind() == ErrorKind::DisplayHelp => {
            return Ok(Invocation::Help(help.to_string()));
        }
        Err(help)
            if is_proxy && help.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand =>
        {
            return Ok(Invocation::Help(help.to_string()));
        }
        Err(error) => {
            let error = arguments::to_config_error(&error, named);
            return Err(if is_proxy { ConfigError::fatal(error.to_string()) } else { error });
        }
    };
    if let Some(call) = tools::named(&matches) {
        return Ok(Invocation::Tool(call));
    }
    let given = arguments::given(&matches, table::all());
    if given.get("version").is_some_and(|text| value::switch(text) == Some(true)) {
        return Ok(Invocation::Tool(tools::version()));
    }
    Ok(Invocation::Member(Box::new(config::read(given, environment, open)?)))
}
