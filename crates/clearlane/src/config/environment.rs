//! The environment: `ETCD_` and the flag's name in capitals.
//!
//! A flag that is set on the command line, too, is refused. An empty variable is none.

use super::arguments::{FlagValues, check_value};
use super::error::ConfigError;
use super::table;

/// Set by etcd's own tests for processors that it does not support.
const NOT_A_FLAG: &str = "ETCD_UNSUPPORTED_ARCH";

/// Adds what is set here to the values of the command line.
pub(super) fn merge(
    mut flags: FlagValues,
    environment: impl IntoIterator<Item = (String, String)>,
    warnings: &mut Vec<String>,
) -> Result<FlagValues, ConfigError> {
    let (mut values, mut unknown) = (FlagValues::new(), Vec::new());
    let set = environment.into_iter().filter(|(name, value)| {
        name.starts_with("ETCD_") && name != NOT_A_FLAG && !value.is_empty()
    });
    for (variable, value) in set {
        match table::all().find(|flag| flag.variable() == variable) {
            Some(flag) => {
                check_value(flag, &value, &format!("environment variable {variable}"))?;
                values.insert(flag.name, value);
            }
            None => unknown.push(format!("unrecognized environment variable {variable}")),
        }
    }
    unknown.sort();
    warnings.extend(unknown);
    let twice = table::all()
        .filter(|flag| values.contains_key(flag.name) && flags.contains_key(flag.name))
        .min_by_key(|flag| flag.name);
    if let Some(flag) = twice {
        return Err(ConfigError::fatal(format!(
            "conflicting environment variable \"{}\" is shadowed by corresponding command-line \
             flag (either unset environment variable or disable flag)",
            flag.variable()
        )));
    }
    flags.extend(values);
    Ok(flags)
}
