//! A command line, in the syntax of Go's package `flag`.
//!
//! | written | means |
//! |---|---|
//! | `-name=a`, `--name=a` | a value |
//! | `-name a` | the same, unless the flag is a switch |
//! | `--switch` | on; `--switch false` would leave `false` over |
//! | `--` | the end of the flags |
//! | `a`, `-` | no flag: from here on nothing is one |
//!
//! A flag that is repeated has its last value. A value may begin with a dash. Each value is checked
//! when it comes, also one that a later one replaces.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::error::ConfigError;
use super::table::Flag;
use super::value::{self, ValueKind};

pub(crate) type FlagValues = BTreeMap<&'static str, String>;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CommandLine {
    /// The last of each flag.
    pub(crate) values: FlagValues,
    /// What is no flag.
    pub(crate) positional: Vec<String>,
    /// Nothing behind the flag for it was read.
    pub(crate) wants_help: bool,
}

/// Checked values, and the defaults of those that were not given.
pub(crate) struct FlagReader {
    pub(crate) values: FlagValues,
    pub(crate) flags: Vec<&'static Flag>,
}

impl FlagReader {
    pub(crate) fn text(&self, name: &str) -> &str {
        let flag = self.flags.iter().find(|flag| flag.name == name);
        let default = flag.expect("asked for by its name in the table").default;
        self.values.get(name).map_or(default, String::as_str)
    }

    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    pub(crate) fn switch(&self, name: &str) -> bool {
        value::switch(self.text(name)).expect("checked when it came")
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        value::count(self.text(name)).expect("checked when it came")
    }

    pub(crate) fn path(&self, name: &str) -> Option<PathBuf> {
        Some(self.text(name)).filter(|path| !path.is_empty()).map(PathBuf::from)
    }
}

/// Without the name of the program; `find` knows the flags there are.
pub(crate) fn parse(
    arguments: &[String],
    find: impl Fn(&str) -> Option<&'static Flag>,
) -> Result<CommandLine, ConfigError> {
    let mut parsed = CommandLine::default();
    let mut left = arguments.iter();
    while let Some(argument) = left.next() {
        let Some(name) = name_in(argument) else {
            if argument != "--" {
                parsed.positional.push(argument.clone());
            }
            parsed.positional.extend(left.cloned());
            break;
        };
        if name.is_empty() || name.starts_with(['-', '=']) {
            return Err(ConfigError::usage(format!("bad flag syntax: {argument}")));
        }
        let (name, value) = match name.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (name, None),
        };
        let Some(flag) = find(name) else {
            if matches!(name, "h" | "help") {
                parsed.wants_help = true;
                break;
            }
            return Err(ConfigError::usage(format!("flag provided but not defined: -{name}")));
        };
        let value = match (value, flag.kind) {
            (Some(value), _) => value,
            (None, ValueKind::Switch) => "true".to_owned(),
            (None, _) => match left.next() {
                Some(value) => value.clone(),
                None => return Err(ConfigError::usage(format!("flag needs an argument: -{name}"))),
            },
        };
        check_value(flag, &value, &format!("flag -{name}"))?;
        parsed.values.insert(flag.name, value);
    }
    Ok(parsed)
}

/// The name behind one dash or two; `None` if this is no flag.
fn name_in(argument: &str) -> Option<&str> {
    match argument {
        "-" | "--" => None,
        _ => argument.strip_prefix("--").or_else(|| argument.strip_prefix('-')),
    }
}

pub(super) fn check_value(flag: &Flag, value: &str, source: &str) -> Result<(), ConfigError> {
    flag.kind.check(value).map_err(|wrong| {
        ConfigError::value(format!("invalid value \"{value}\" for {source}: {wrong}"))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::table;

    fn names_and_values() -> impl Strategy<Value = Vec<(&'static Flag, String, u8)>> {
        let flags: Vec<&'static Flag> = table::all().collect();
        let one = (prop::sample::select(flags), "[-a-z=. ]{0,8}", 0..4_u8);
        prop::collection::vec(one, 0..12)
    }

    proptest! {
        /// However a value is written, the last one of a flag counts.
        #[test]
        fn what_was_written_is_read(said in names_and_values()) {
            let (mut arguments, mut wanted) = (Vec::new(), FlagValues::new());
            for (flag, value, form) in said {
                let value = if flag.kind == ValueKind::Text { value } else { flag.default.to_owned() };
                let dashes = if form % 2 == 0 { "-" } else { "--" };
                if form < 2 || flag.kind == ValueKind::Switch {
                    arguments.push(format!("{dashes}{}={value}", flag.name))
                } else {
                    arguments.extend([format!("{dashes}{}", flag.name), value.clone()])
                }
                wanted.insert(flag.name, value);
            }
            let read = parse(&arguments, table::find).unwrap();
            prop_assert_eq!(read, CommandLine { values: wanted, ..CommandLine::default() });
        }

        #[test]
        fn nothing_panics(arguments in prop::collection::vec("-{0,3}[a-z=]{0,6}.{0,3}", 0..6)) {
            let _ = parse(&arguments, table::find);
        }
    }
}
