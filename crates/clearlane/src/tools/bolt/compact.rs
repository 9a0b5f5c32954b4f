//! `bolt compact`: a copy without what is free.

use std::io::Write;
use std::path::Path;

use super::{Action, BoxError, FILE, FlagReader, Tool, open};
use crate::config::table::flag;
use crate::config::value::ValueKind::{Count, Text};

pub(crate) const TOOL: Tool = Tool {
    name: &["bolt", "compact"],
    about: "Copy a file with all of its buckets, without the pages that are free",
    positional: &[FILE],
    words: None,
    flags: &[
        flag("output", Text, "").short("o").help("File to be made."),
        flag("tx-max-size", Count, "65536").help(
            "Bytes of records that are written at a time (minimum: 64 pages; 0: a bucket at a time).",
        ),
    ],
    action: Action::Print(compact),
};

fn compact(flags: &FlagReader, _: &[String], out: &mut dyn Write) -> Result<(), BoxError> {
    let to = flags.text("output");
    if to.is_empty() {
        return Err("bolt compact takes -o FILE, the file to be made".into());
    }
    let to = Path::new(to);
    let file = open(flags)?;
    if to.symlink_metadata().is_ok() {
        return Err(format!("{}: it is there already, and is not replaced", to.display()).into());
    }
    let before = file.bytes();
    let part_bytes = usize::try_from(flags.count("tx-max-size"))?;
    let after = file.compact(to, part_bytes)?;
    let gain = before as f64 / after as f64;
    Ok(writeln!(out, "{before} -> {after} bytes (gain={gain:.2}x)")?)
}
