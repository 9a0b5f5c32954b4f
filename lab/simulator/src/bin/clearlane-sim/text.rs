//! Reads and writes text.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Arg, value_parser};

/// Returns a required argument with the path of a file.
pub(crate) fn file(name: &'static str) -> Arg {
    Arg::new(name).required(true).value_name("FILE").value_parser(value_parser!(PathBuf))
}

/// Returns the flag `--NAME VALUE`, whose value is a path.
pub(crate) fn path_flag(name: &'static str, value: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).value_parser(value_parser!(PathBuf))
}

pub(crate) fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

pub(crate) fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

pub(crate) fn print_line(text: &str) -> Result<(), String> {
    let mut out = io::stdout().lock();
    let said = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    said.map_err(|error| format!("cannot write the results: {error}"))
}

/// Prints a line about the progress to standard error.
pub(crate) fn print_progress(text: &str) {
    let _ = writeln!(io::stderr(), "clearlane-sim: {text}");
}
