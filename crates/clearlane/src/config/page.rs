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

Each flag of etcd 3.7 is known here, and a few are ours. A flag is written `--name=value`, `--name value`, or with
one dash; in the environment `ETCD_NAME=value`; in a [config file](../crates/clearlane/src/config/file.rs)
`name: value`. A switch takes a value only after `=`. Durations are written as in Go: `100ms`, `1h30m`.

*Not honoured* and *not yet* mean that the flag is accepted and has no effect. A value other than the default logs a
warning.

`clearlane --help` prints this list, and `clearlane man` the manual page: `clearlane man | man -l -`.
`clearlane completions bash` prints a script that completes flags and their values in the shell:
`source <(clearlane completions bash)`. There are others for zsh, fish, elvish and powershell.

An unknown flag, a wrong value, or a key that a config file has twice is an error; an unknown key or an unknown
variable `ETCD_...` logs a warning. A misspelt name gets a suggestion. For a config file the message starts with the
file and the line, or only with the file if a value is out of range or does not fit another one.

This page is printed from [the table](../crates/clearlane/src/config/table.rs) of all flags. After a change
there: `UPDATE_GOLDENFILES=1 cargo test -p clearlane --test program config`.
";

fn allowed(flag: &Flag) -> String {
    let words: Vec<_> = flag.words().into_iter().flatten().collect();
    match words[..] {
        [] | [_] => String::new(),
        _ => format!(" One of {}.", words.join(", ")),
    }
}
