//! The page `docs/flags.md`, generated from the table of flags.

use std::fmt::Write as _;

use super::feature_gates;
use super::table::{Flag, SECTIONS};

pub fn page() -> String {
    let mut out = PAGE.to_owned();
    for section in SECTIONS {
        let _ = write!(out, "\n## {}\n\n| flag | default | |\n|---|---|---|\n", section.title);
        for flag in section.flags {
            let default = match flag.default {
                "" => String::new(),
                default => format!("`{default}`"),
            };
            let words = if flag.is_planned { "Not yet" } else { "Not honoured" };
            let ignored = flag.ignored.map(|why| format!(" **{words}**: {why}."));
            let ignored = ignored.unwrap_or_default();
            let help = format!("{}{}{ignored}", flag.help, allowed(flag)).replace('|', "\\|");
            let _ = writeln!(out, "| `--{}` | {default} | {help} |", flag.name);
        }
    }
    out + &feature_gates::table()
}

const PAGE: &str = "\
# Flags

Clearlane accepts each flag of etcd 3.7 and has a few flags of its own. There are three ways to set one:

- on the command line: `--name=value` or `--name value`, also with one dash. A switch takes a value only after `=`;
- in the environment: `ETCD_NAME=value`;
- in a [config file](../crates/clearlane/src/config/file.rs): `name: value`.

Durations are written as in Go: `100ms`, `1h30m`.

*Not honoured* and *not yet* mean that the flag is accepted and has no effect. A value other than the default logs a
warning.

`clearlane --help` prints this list, and `clearlane man` prints the manual page: `clearlane man | man -l -`.
`clearlane completions bash` prints a script that completes flags and their values in the shell:
`source <(clearlane completions bash)`. There are also scripts for zsh, fish, elvish and powershell.

An unknown flag and a wrong value are errors. A key that a config file has twice is also an error. An unknown key and
an unknown variable `ETCD_...` only log a warning. A misspelt name gets a suggestion. The message about a config file
starts with the file and the line. It starts with only the file if a value is out of range or contradicts another value.

This page is generated from [the table](../crates/clearlane/src/config/table.rs) of all flags. After a change of the
table, run `UPDATE_GOLDENFILES=1 cargo test -p clearlane --test program config`.
";

fn allowed(flag: &Flag) -> String {
    let words: Vec<_> = flag.words().into_iter().flatten().collect();
    match words[..] {
        [] | [_] => String::new(),
        _ => format!(" One of {}.", words.join(", ")),
    }
}
