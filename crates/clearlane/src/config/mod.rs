//! What does this member's owner want? Flags, environment and config file become one [`Config`].
//!
//! # The problem
//!
//! Scripts, systemd units and manifests that start etcd exist by the thousand, and each passes other
//! flags. A server that takes etcd's place must take all of them, in Go's syntax. It will not honour
//! all of them. The worst it could do then is to say nothing: the operator would believe that the data
//! has a quota, or that the clients' traffic is encrypted.
//!
//! # The idea
//!
//! One [`table`] of flags, and everything is made from it: what the parsers know, what the help and
//! the docs say, what is warned about.
//!
//! ```text
//!   command line ─┐                    checked, one
//!   environment ──┼─▶ name → text ─┬─▶ by one ──────────▶ Config, whose fields have types
//!   config file ──┘                └─▶ not honoured, and not the default: a warning each
//! ```
//!
//! | file | its question |
//! |---|---|
//! | [`table`] | which flags are there? |
//! | [`value`] | how are values written? |
//! | [`address`] | how are addresses written? |
//! | [`feature_gates`] | which features are on? |
//! | `arguments` | what does a command line say? |
//! | `environment` | what does the environment say? |
//! | `file` | what does a config file say? |
//! | `security` | which certificates are there, and do they fit the addresses? |
//! | `typed` | what does it all mean, and does it fit together? |
//! | [`help`] | how is it told? |
//!
//! # What holds
//!
//! * What is wrong is told in one line that names the flag, the value, and what is allowed.
//! * No value is looked at before all of it was checked; nothing here touches a disk but the config
//!   file, and that through a function that the caller gives.
//! * No input may panic.
//!
//! # What etcd does that is left out
//!
//! Unknown keys of a config file are ignored there; here they are told.

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
pub use from_flags::{
    BackgroundConfig, BootstrapConfig, Config, EraConfig, HttpConfig, LogConfig, LogFormat,
    LogOutput, RaftConfig, StoreConfig,
};

/// What is to be done.
#[derive(Debug)]
pub enum Invocation {
    /// A member is to run.
    Member(Box<Config>),
    /// The help was asked for.
    Help,
    /// The version was asked for.
    Version,
}

/// Reads all sources of settings: the command line without the program's name, and the
/// environment. `open` reads the config file, if there is to be one.
pub fn read(
    arguments: &[String],
    environment: impl IntoIterator<Item = (String, String)>,
    open: &dyn Fn(&Path) -> io::Result<String>,
) -> Result<Invocation, ConfigError> {
    let said = arguments::parse(arguments, table::find)?;
    if said.wants_help {
        return Ok(Invocation::Help);
    }
    if let Some(stranger) = said.positional.first() {
        return Err(ConfigError::fatal(format!("\"{stranger}\" is not a valid flag")));
    }
    if said.values.get("version").is_some_and(|text| value::switch(text) == Some(true)) {
        return Ok(Invocation::Version);
    }
    let mut warnings = Vec::new();
    let environment: Vec<_> = environment.into_iter().collect();
    let config_file = said.values.get("config-file").or_else(|| {
        let mut variables = environment.iter().filter(|(name, _)| name == "ETCD_CONFIG_FILE");
        variables.next_back().map(|(_, value)| value)
    });
    let values = match config_file.filter(|path| !path.is_empty()) {
        Some(path) => {
            let text = open(Path::new(path))
                .map_err(|error| ConfigError::fatal(format!("config file {path}: {error}")))?;
            if said.values.len() > usize::from(said.values.contains_key("config-file")) {
                let only =
                    "flags and environment are not looked at, because there is a config file";
                warnings.push(only.to_owned());
            }
            file::read(&text, &mut warnings)?
        }
        None => {
            let variables = environment::read(environment, &mut warnings)?;
            environment::merge(said.values, variables)?
        }
    };
    from_flags::config(&values, warnings).map(|config| Invocation::Member(Box::new(config)))
}
