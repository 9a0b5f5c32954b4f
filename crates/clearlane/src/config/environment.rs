//! Environment variables: the name is `ETCD_` and the flag's name in upper case.
//!
//! It is an error if a variable sets a flag that is also set on the command line. An empty variable
//! is treated as if it were not set. If there is a config file, all variables except
//! `ETCD_CONFIG_FILE` are ignored. `ETCD_CONFIG_FILE` is also ignored if `--config-file` names a
//! file.

use std::ffi::OsString;

use super::arguments::{FlagValues, check_value};
use super::error::ConfigError;
use super::suggestion::did_you_mean;
use super::table;

/// Variables that do not name a flag. etcd requires the first one on processors that it does not
/// support, and etcd's own tests set it. Images and install scripts set the second one.
const NOT_FLAGS: [&str; 2] = ["ETCD_UNSUPPORTED_ARCH", "ETCD_VERSION"];

fn variable(flag: &str) -> String {
    format!("ETCD_{}", flag.to_uppercase().replace('-', "_"))
}

/// Adds the values of environment variables to the values of the command line.
pub(super) fn merge(
    mut flags: FlagValues,
    environment: &[(OsString, OsString)],
    warnings: &mut Vec<String>,
) -> Result<FlagValues, ConfigError> {
    let (mut values, mut unknown) = (FlagValues::new(), Vec::new());
    for (set, value) in environment.iter().filter(|(_, value)| !value.is_empty()) {
        let set = set.to_string_lossy();
        let Some(name) = set.strip_prefix("ETCD_").filter(|_| !NOT_FLAGS.contains(&&*set)) else {
            continue;
        };
        match table::all().find(|flag| variable(flag.name) == set) {
            Some(flag) => {
                let value = check_value(flag, value, &format!("environment variable {set}"))?;
                values.insert(flag.name, value);
            }
            None => {
                let name = name.to_lowercase().replace('_', "-");
                let tip = did_you_mean(&name, table::all().map(|flag| flag.name), variable);
                unknown.push(format!("unrecognized environment variable {set}{tip}"));
            }
        }
    }
    unknown.sort();
    warnings.extend(unknown);
    if let Some(name) = values.keys().find(|name| flags.contains_key(*name)) {
        return Err(ConfigError::fatal(format!(
            "conflicting environment variable \"{}\" is shadowed by corresponding command-line \
             flag (either unset environment variable or disable flag)",
            variable(name)
        )));
    }
    flags.extend(values);
    Ok(flags)
}
