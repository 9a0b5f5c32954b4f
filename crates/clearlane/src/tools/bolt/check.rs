//! `bolt check`: checks all pages of a file.

use std::io::Write;

use clearlane_engine::bolt_file::{BoltFile, Checksums};

use super::{Action, BoxError, FILE, FlagReader, Tool, open};

pub(crate) const TOOL: Tool = Tool {
    name: &["bolt", "check"],
    about: "Check all pages of a file, and print all problems",
    positional: &[FILE],
    words: None,
    flags: &[],
    action: Action::Print(check),
};

fn check(flags: &FlagReader, _: &[String], out: &mut dyn Write) -> Result<(), BoxError> {
    let file = open(flags)?;
    let survey = file.survey()?;
    writeln!(out, "{}", checksums(&file))?;
    for problem in &survey.problems {
        writeln!(out, "{problem}")?;
    }
    match survey.problems.len() {
        0 => Ok(writeln!(out, "OK")?),
        1 => Err(format!("{}: 1 problem found", file.path().display()).into()),
        count => Err(format!("{}: {count} problems found", file.path().display()).into()),
    }
}

fn checksums(file: &BoltFile) -> &'static str {
    match file.checksums() {
        Checksums::Present => "checksums: present, compared with every page",
        Checksums::Missing => "checksums: missing, as in a file that bbolt or etcd has written",
        Checksums::Old => "checksums: old, another program has written since",
        Checksums::Damaged(_) => "checksums: damaged",
    }
}
