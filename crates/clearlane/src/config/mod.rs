//! Flags, environment and config file become one [`Config`]. All flags: `docs/flags.md`.
//!
//! Scripts that start etcd pass any of its flags, so all are taken, in Go's syntax. Parsers, help
//! and docs are made from one [`table`].
//!
//! ```text
//!   command line ─┐                    checked, one
//!   environment ──┼─▶ name → text ─┬─▶ by one ──────────▶ Config, with typed fields
//!   config file ──┘                └─▶ not honoured, and not the default: a warning each
//! ```
//!
//! * An error is one line that names the flag, the value, and what is allowed. No input may panic.
//! * No value is used before all were checked, and no file but the config file is read here.
//! * An unknown key of a config file is a warning; etcd ignores it.

pub mod table;
pub mod value;
pub mod address;
pub mod feature_gates;
pub mod help;
pub(crate) mod arguments;
mod environment;
mod file;
mod error;
mod security;
mod from_flags;

use std::io;
use std::path::Path;

pub use error::ConfigError;
pub use from_flags::{Config, HttpConfig, LogConfig, LogFormat, LogOutput};

#[derive(Debug)]
pub enum Invocation {
    Member(Box<Config>),
    Help,
    Version,
}

/// The command line is without the program's name. `open` reads the config file, if one is named.
pub fn read(
    arguments: &[String],
    environment: impl IntoIterator<Item = (String, String)>,
    open: &dyn Fn(&Path) -> io::Result<String>,
) -> Result<Invocation, ConfigError> {
    let command_line = arguments::parse(arguments, table::find)?;
    if command_line.wants_help {
        return Ok(Invocation::Help);
    }
    if let Some(word) = command_line.positional.first() {
        return Err(ConfigError::fatal(format!("\"{word}\" is not a valid flag")));
    }
    if command_line.values.get("version").is_some_and(|text| value::switch(text) == Some(true)) {
        return Ok(Invocation::Version);
    }
    let mut warnings = Vec::new();
    let environment: Vec<_> = environment.into_iter().collect();
    let config_file = command_line.values.get("config-file").or_else(|| {
        let mut variables = environment.iter().filter(|(name, _)| name == "ETCD_CONFIG_FILE");
        variables.next_back().map(|(_, value)| value)
    });
    let values = match config_file.filter(|path| !path.is_empty()) {
        Some(path) => {
            let text = open(Path::new(path))
                .map_err(|error| ConfigError::fatal(format!("config file {path}: {error}")))?;
            if command_line.values.len()
                > usize::from(command_line.values.contains_key("config-file"))
            {
                let only =
                    "flags and environment are not looked at, because there is a config file";
                warnings.push(only.to_owned());
            }
            file::read(&text, &mut warnings)?
        }
        None => environment::merge(command_line.values, environment, &mut warnings)?,
    };
    from_flags::config(values, warnings).map(|config| Invocation::Member(Box::new(config)))
}
