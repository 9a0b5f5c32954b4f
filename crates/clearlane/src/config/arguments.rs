//! Parses a command line in the syntax of Go's package `flag`, with clap.
//!
//! | written | meaning |
//! |---|---|
//! | `-name=a`, `--name=a` | a value |
//! | `-name a`, `--name a` | the same, unless the flag is a switch |
//! | `--switch` | on; in `--switch false`, `false` is a separate word |
//! | `--` | the end of the flags |
//!
//! If a flag is repeated, its last value is used. A value may start with a dash. Each value is
//! checked when it is read, even if a later value replaces it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::{ContextKind, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

use super::error::ConfigError;
use super::suggestion::did_you_mean;
use super::table::Flag;
use super::value::{self, ValueKind};

pub(crate) type FlagValues = BTreeMap<&'static str, String>;

/// The values that were given for flags, already checked. A flag without a given value has its
/// default from `flags`.
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

    pub(crate) fn number(&self, name: &str) -> i64 {
        value::number(self.text(name)).expect("checked when it came")
    }

    pub(crate) fn path(&self, name: &str) -> Option<PathBuf> {
        Some(self.text(name)).filter(|path| !path.is_empty()).map(PathBuf::from)
    }
}

impl Flag {
    pub(crate) fn arg(&'static self) -> Arg {
        let mut arg = self.common_arg().long(self.name).overrides_with(self.name);
        if !self.short.is_empty() {
            arg = arg.visible_alias(self.short);
        }
        match self.kind {
            ValueKind::Switch => {
                arg.num_args(0..=1).require_equals(true).default_missing_value("true")
            }
            _ => arg,
        }
    }

    /// Returns clap's argument for a required word that is not a flag.
    pub(crate) fn positional_arg(&'static self) -> Arg {
        self.common_arg().value_name(self.name).required(true)
    }

    /// Returns clap's argument for any number of words that are not flags.
    pub(crate) fn words_arg(&'static self) -> Arg {
        self.common_arg().value_name(self.name).num_args(0..)
    }

    fn common_arg(&'static self) -> Arg {
        let words = if self.is_planned { "NOT YET" } else { "NOT HONOURED" };
        let ignored = self.ignored.map(|why| format!("\n{words}: {why}."));
        let arg = Arg::new(self.name)
            .value_name(self.kind.noun())
            .value_parser(FlagParser(self))
            .help(self.help.to_owned() + &ignored.unwrap_or_default());
        if self.default.is_empty() { arg } else { arg.default_value(self.default) }
    }
}

#[derive(Clone)]
struct FlagParser(&'static Flag);

impl TypedValueParser for FlagParser {
    type Value = String;

    fn parse_ref(
        &self,
        _: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        let kind = if arg.is_some_and(Arg::is_positional) { "argument " } else { "flag -" };
        check_value(self.0, value, &format!("{kind}{}", self.0.name))
            .map_err(|wrong| clap::Error::raw(ErrorKind::ValueValidation, wrong))
    }

    /// Returns the words that the help and the completions list. `None` if the flag has no fixed
    /// set of values.
    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let words = self.0.words()?;
        Some(Box::new(words.map(PossibleValue::new)))
    }
}

/// Returns the value as text, or an error if the flag does not accept it. In the error, `source`
/// names the flag, variable or key with the value.
pub(super) fn check_value(flag: &Flag, value: &OsStr, source: &str) -> Result<String, ConfigError> {
    let text = value.to_str().ok_or_else(|| "it must be UTF-8".to_owned());
    let checked = text.and_then(|text| flag.kind.check(text).map(|()| text.to_owned()));
    checked.map_err(|wrong| {
        ConfigError::usage(format!("invalid value \"{}\" for {source}: {wrong}", value.display()))
    })
}

/// Returns the values that the command line gives to flags.
pub(crate) fn given(
    matches: &ArgMatches,
    flags: impl Iterator<Item = &'static Flag>,
) -> FlagValues {
    let is_given = |name| matches.value_source(name) == Some(ValueSource::CommandLine);
    let given = flags.map(|flag| flag.name).filter(|name| is_given(name));
    given.filter_map(|name| Some((name, matches.get_one::<String>(name)?.clone()))).collect()
}

/// Converts the words to clap's syntax: `-name a` becomes `--name=a`. Also returns the subcommand
/// that the words name, or `command` if they name none.
pub(crate) fn to_clap<'c>(
    mut command: &'c Command,
    words: &[OsString],
) -> (Vec<OsString>, &'c Command) {
    let mut changed = Vec::new();
    let mut left = words.iter();
    while let Some(word) = left.next() {
        let Some(name) = flag_name(word) else {
            changed.push(word.clone());
            if word == "--" {
                changed.extend(left.cloned());
                break;
            }
            let named = word.to_str().and_then(|word| command.find_subcommand(word));
            command = named.unwrap_or(command);
            continue;
        };
        let mut flag = OsString::from("--");
        flag.push(if name == "h" { "help".as_ref() } else { name });
        if takes_next(command, name)
            && let Some(value) = left.next()
        {
            flag.push("=");
            flag.push(value);
        }
        changed.push(flag);
    }
    (changed, command)
}

/// Returns whether the value of the flag `name` is the next word.
fn takes_next(command: &Command, name: &OsStr) -> bool {
    command.get_arguments().any(|arg| {
        let mut names = arg.get_long_and_visible_aliases().into_iter().flatten();
        names.any(|long| name == long) && !arg.is_require_equals_set()
    })
}

/// Moves a subcommand in front of its flags: `gateway --endpoints=a start` becomes `gateway start
/// --endpoints=a`. The first word must name a command with subcommands. If no subcommand follows
/// the flags, returns the words unchanged.
pub(crate) fn subcommand_first(command: &Command, words: &[OsString]) -> Vec<OsString> {
    let mut changed = words.to_vec();
    let first = words.first().and_then(|word| word.to_str());
    let Some(group) = first.and_then(|word| command.find_subcommand(word)) else { return changed };
    let mut at = 1;
    while let Some(word) = words.get(at) {
        if let Some(name) = word.to_str().and_then(|word| group.find_subcommand(word)) {
            let name = OsString::from(name.get_name());
            changed.remove(at);
            changed.insert(1, name);
            break;
        }
        let Some(name) = flag_name(word) else { break };
        at += if group.get_subcommands().any(|inner| takes_next(inner, name)) { 2 } else { 1 };
    }
    changed
}

/// Returns the text after one or two leading dashes. `None` if the word is not a flag.
fn flag_name(word: &OsStr) -> Option<&OsStr> {
    let word = word.as_bytes();
    let name = word.strip_prefix(b"--").or_else(|| word.strip_prefix(b"-"))?;
    (!name.is_empty()).then(|| OsStr::from_bytes(name))
}

/// Converts an error of clap. An unknown flag gets etcd's text, and an unknown word gets a text of
/// our own. Both texts may have a suggestion. Other errors keep clap's text. `command` is the
/// command that [`to_clap`] returned.
pub(crate) fn to_config_error(error: &clap::Error, command: &Command) -> ConfigError {
    let context = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let usage = format!("{}\n\nFor more information, try '--help'.", context(ContextKind::Usage));
    let words = [ContextKind::InvalidArg, ContextKind::InvalidSubcommand].map(context);
    let word = words.concat();
    let names = command.get_subcommands().map(Command::get_name);
    match error.kind() {
        ErrorKind::UnknownArgument if word.starts_with('-') => {
            let name = word.trim_start_matches('-');
            let known = command.get_arguments().filter_map(Arg::get_long);
            let tip = did_you_mean(name, known, |known| format!("--{known}"));
            let wrong = format!("flag provided but not defined: -{name}{tip}");
            ConfigError::usage(format!("{wrong}\n{usage}"))
        }
        ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand | ErrorKind::ArgumentConflict
            if command.get_name() != word =>
        {
            let tip = did_you_mean(&word, names, str::to_owned);
            let wrong = format!("\"{word}\" is not a valid flag or command{tip}");
            ConfigError::fatal(format!("{wrong}\n{usage}"))
        }
        _ => {
            let text = error.to_string();
            ConfigError::usage(text.trim_start_matches("error: ").trim_end().to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::error::Result;
    use proptest::prelude::*;

    use super::*;
    use crate::config::table;

    fn names_and_values() -> impl Strategy<Value = Vec<(&'static Flag, String, u8)>> {
        let flags: Vec<&'static Flag> = table::all().collect();
        let one = (prop::sample::select(flags), "[-a-z=. ]{0,8}", 0..4_u8);
        prop::collection::vec(one, 0..12)
    }

    fn read(words: &[OsString]) -> Result<FlagValues> {
        let command = Command::new("test").args(table::all().map(Flag::arg)).no_binary_name(true);
        let (words, _) = to_clap(&command, words);
        Ok(given(&command.clone().try_get_matches_from(words)?, table::all()))
    }

    #[test]
    fn flags_may_precede_a_subcommand() {
        let flag = |name| Arg::new(name).long(name);
        let switch = flag("switch").num_args(0..=1).require_equals(true);
        let start = Command::new("start").arg(flag("value")).arg(switch);
        let command = Command::new("test").subcommand(Command::new("group").subcommand(start));
        for (written, wanted) in [
            ("group --value=a start", "group start --value=a"),
            ("group --value a start --switch", "group start --value a --switch"),
            ("group -value start start", "group start -value start"),
            ("group --switch start", "group start --switch"),
            ("group --help start", "group start --help"),
            ("group start --value start", "group start --value start"),
            // The words stay as they are.
            ("group", "group"),
            ("group --value", "group --value"),
            ("group --value start", "group --value start"),
            ("group --value=a stop start", "group --value=a stop start"),
            ("group -- start", "group -- start"),
            ("start --value=a group", "start --value=a group"),
        ] {
            let words: Vec<OsString> = written.split(' ').map(OsString::from).collect();
            let wanted: Vec<OsString> = wanted.split(' ').map(OsString::from).collect();
            assert_eq!(subcommand_first(&command, &words), wanted, "{written}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// The last value of a repeated flag is used, whichever way it is written.
        #[test]
        fn what_was_written_is_read(said in names_and_values()) {
            let (mut arguments, mut wanted) = (Vec::new(), FlagValues::new());
            for (flag, value, form) in said {
                let value = if flag.kind == ValueKind::Text { value } else { flag.default.to_owned() };
                let dashes = if form % 2 == 0 { "-" } else { "--" };
                if form < 2 || flag.kind == ValueKind::Switch {
                    arguments.push(format!("{dashes}{}={value}", flag.name).into());
                } else {
                    arguments.extend([format!("{dashes}{}", flag.name).into(), value.clone().into()]);
                }
                wanted.insert(flag.name, value);
            }
            prop_assert_eq!(read(&arguments).unwrap(), wanted);
        }

        #[test]
        fn nothing_panics(
            arguments in prop::collection::vec("-{0,3}[a-z=]{0,6}.{0,3}", 0..6),
            bytes in prop::collection::vec(any::<u8>(), 0..6),
        ) {
            let mut arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
            arguments.push(OsStr::from_bytes(&bytes).to_owned());
            let _ = read(&arguments);
        }
    }
}
