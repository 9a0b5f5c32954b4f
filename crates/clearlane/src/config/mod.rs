//! Builds one [`Config`] from flags, environment and config file. `docs/flags.md` lists all flags.
//!
//! Scripts that start etcd may pass any of etcd's flags. So all of them are accepted, in Go's
//! syntax. The parsers, the help and the documentation are generated from one [`table`].
//!
//! ```text
//!   command line ─┐                    check each value
//!   environment ──┼─▶ name → text ─┬───────────────────▶ Config, with typed fields
//!   config file ──┘                └─▶ not honoured, and not the default: a warning each
//! ```
//!
//! * An error names the flag, the value, and the allowed values. No input may cause a panic.
//! * No setting takes effect before all values are checked. This module reads only two kinds of
//!   files: the config file, and the key files that `--auth-token` names.
//! * An unknown key of a config file causes a warning. etcd ignores it.

pub mod table;
pub mod value;
pub mod address;
pub mod feature_gates;
pub mod page;
pub(crate) mod arguments;
mod suggestion;
mod environment;
mod file;
mod error;
mod auth;
mod discovery;
mod security;
mod from_flags;

use std::ffi::OsString;
use std::io;
use std::path::Path;

use arguments::FlagValues;
pub use error::ConfigError;
pub use from_flags::{Config, HttpConfig, LogConfig, LogFormat, LogOutput};

/// Reads the configuration of a member. `open` reads the config file, if one is named.
pub(crate) fn read(
    command_line: FlagValues,
    environment: &[(OsString, OsString)],
    open: &dyn Fn(&Path) -> io::Result<String>,
) -> Result<Config, ConfigError> {
    let mut warnings = Vec::new();
    let variable = environment.iter().rfind(|(name, _)| name == "ETCD_CONFIG_FILE");
    let variable = variable.map(|(_, path)| path.to_string_lossy().into_owned());
    let path = command_line.get("config-file").cloned().or(variable);
    let Some(path) = path.filter(|path| !path.is_empty()) else {
        let values = environment::merge(command_line, environment, &mut warnings)?;
        return from_flags::config(values, warnings);
    };
    let text = open(Path::new(&path))
        .map_err(|error| ConfigError::fatal(format!("config file {path}: {error}")))?;
    if command_line.keys().any(|name| *name != "config-file") {
        let only = "flags and environment variables are ignored, because there is a config file";
        warnings.push(only.to_owned());
    }
    read_file(&path, &text, warnings)
}

/// Reads the configuration from the text of a config file. `path` is used only in errors and
/// warnings.
pub fn read_file(path: &str, text: &str, mut warnings: Vec<String>) -> Result<Config, ConfigError> {
    let values = file::read(path, text, &mut warnings)?;
    from_flags::config(values, warnings).map_err(|error| error.in_file(path))
}
