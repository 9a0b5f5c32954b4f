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

use super::error::ConfigError;
use super::table::Flag;
use super::value::ValueKind;

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

/// Without the name of the program; `find` knows the flags there are.
pub(crate) fn parse(
    arguments: &[String],
    find: impl Fn(&str) -> Option<&'static Flag>,
) -> Result<CommandLine, ConfigError> {
    let mut said = CommandLine::default();
    let mut left = arguments.iter();
    while let Some(argument) = left.next() {
        let Some(name) = name_in(argument) else {
            if argument != "--" {
                said.positional.push(argument.clone());
            }
            said.positional.extend(left.cloned());
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
                said.wants_help = true;
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
        said.values.insert(flag.name, value);
    }
    Ok(said)
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

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

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

    #[test]
    fn switches_take_no_word() {
        let read = parse(&words(&["--pre-vote", "false", "--name", "a"]), table::find).unwrap();
        assert_eq!(read.values["pre-vote"], "true");
        assert_eq!(read.positional, ["false", "--name", "a"], "as in Go");
    }
}
