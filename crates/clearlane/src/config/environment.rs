//! The environment: `ETCD_` and the flag's name in capitals.
//!
//! A flag that is set on the command line, too, is refused. An empty variable is none.

use super::arguments::{FlagValues, check_value};
use super::error::ConfigError;
use super::table::{self, Flag};

const PREFIX: &str = "ETCD_";

/// Set by etcd's own tests for processors that it does not support.
const NOT_FLAGS: [&str; 1] = ["ETCD_UNSUPPORTED_ARCH"];

pub(super) fn read(
    environment: impl IntoIterator<Item = (String, String)>,
    warnings: &mut Vec<String>,
) -> Result<FlagValues, ConfigError> {
    let mut values = FlagValues::new();
    let mut unknown = Vec::new();
    for (variable, value) in environment {
        if !variable.starts_with(PREFIX) || value.is_empty() {
            continue;
        }
        match flag_of(&variable) {
            Some(flag) => {
                check_value(flag, &value, &format!("environment variable {variable}"))?;
                values.insert(flag.name, value);
            }
            None if NOT_FLAGS.contains(&variable.as_str()) => {}
            None => unknown.push(format!("unrecognized environment variable {variable}")),
        }
    }
    unknown.sort();
    warnings.extend(unknown);
    Ok(values)
}

pub(super) fn merge(
    mut flags: FlagValues,
    variables: FlagValues,
) -> Result<FlagValues, ConfigError> {
    for (name, value) in variables {
        if flags.contains_key(name) {
            let variable = table::find(name).map(Flag::variable).unwrap_or_default();
            return Err(ConfigError::fatal(format!(
                "conflicting environment variable \"{variable}\" is shadowed by corresponding \
                 command-line flag (either unset environment variable or disable flag)"
            )));
        }
        flags.insert(name, value);
    }
    Ok(flags)
}

fn flag_of(variable: &str) -> Option<&'static Flag> {
    table::all().find(|flag| flag.variable() == variable)
}
