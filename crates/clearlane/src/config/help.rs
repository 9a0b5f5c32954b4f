//! The table as text: for `--help`, and for `docs/flags.md`.

use std::fmt::Write as _;

use super::feature_gates;
use super::table::{Flag, SECTIONS};
use super::value::ValueKind;

/// Printed when a flag is wrong.
pub const USAGE: &str = "\
Usage:

  clearlane [flags]
    Start a member.

  clearlane --version
    Show the version.

  clearlane -h | --help
    Show all flags.

  clearlane --config-file FILE
    Read all settings from a file; flags and environment are not looked at.

  clearlane snapshot save|status|restore, defrag, wal dump, version
    Work on data of a member; each shows its own flags with --help.
";

pub fn help() -> String {
    let mut out = USAGE.to_owned();
    for section in SECTIONS {
        let _ = write!(out, "\n{}:\n", section.title);
        for flag in section.flags {
            let noun = flag.kind.noun();
            let _ = writeln!(out, "  --{}={noun} (default '{}')", flag.name, flag.default);
            let _ = writeln!(out, "        {}{}", flag.help, allowed(flag));
            if let Some(why) = flag.ignored {
                let _ = writeln!(out, "        NOT HONOURED: {why}.");
            }
        }
    }
    out
}

/// `docs/flags.md`.
pub fn page() -> String {
    let mut out = PAGE.to_owned();
    for section in SECTIONS {
        let _ = write!(out, "\n## {}\n\n| flag | default | |\n|---|---|---|\n", section.title);
        for flag in section.flags {
            let default = match flag.default {
                "" => String::new(),
                default => format!("`{default}`"),
            };
            let ignored = flag.ignored.map(|why| format!(" **Not honoured**: {why}."));
            let ignored = ignored.unwrap_or_default();
            let help = format!("{}{}{ignored}", flag.help, allowed(flag)).replace('|', "\\|");
            let _ = writeln!(out, "| `--{}` | {default} | {help} |", flag.name);
        }
    }
    out + &feature_gates::table()
}

const PAGE: &str = "\
# Flags

Each flag of etcd 3.7 is known here, and a few are ours. Written `--name=value`, `--name value` or with
one dash; in the environment `ETCD_NAME=value`; in a [config file](../crates/clearlane/src/config/file.rs)
`name: value`. Durations are written as Go writes them: `100ms`, `1h30m`.

*Not honoured* means: the flag is taken, changes nothing, and setting it to something else than its
default is told as a warning in the log.

This page is printed from [the table](../crates/clearlane/src/config/table.rs) that the program goes
by. After a change there: `UPDATE_GOLDENFILES=1 cargo test -p clearlane --test config`.
";

fn allowed(flag: &Flag) -> String {
    match flag.kind {
        ValueKind::OneOf(words) if words.len() > 1 => {
            let words: Vec<_> = words.iter().filter(|word| !word.is_empty()).copied().collect();
            format!(" One of {}.", words.join(", "))
        }
        _ => String::new(),
    }
}
