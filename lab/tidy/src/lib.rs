//! The rules of this repository that no lint knows, as tests beside rustfmt and clippy.
//!
//! | module | what it checks |
//! |---|---|
//! | [`ladder`] | dependencies between our crates only go down; the workspace's lints hold |
//! | [`circles`] | at most three files of a crate import each other in a circle |
//! | [`determinism`] | crates that must be deterministic start no thread and read no clock |
//! | [`layout`] | the head of a module; the length of files and lines; where `unsafe` may be |
//! | [`links`] | links in Markdown, and paths that docs name, lead somewhere |
//! | [`commands`] | commands in Markdown stand where CI runs them |
//! | [`chapters`] | the map of the code, and the steps of a request, name what exists |
//! | [`blocking`] | each lock, queue and thread of the product is on the page of what blocks |
//!
//! A [`Rule`] is a function from a [`Repository`], all text files in memory, to what is wrong. It
//! reads text, not syntax trees ([`rust`](mod@rust)): a renamed import is not seen.

pub mod repository;
pub mod rust;
pub mod ladder;
pub mod circles;
pub mod determinism;
pub mod layout;
pub mod links;
pub mod commands;
pub mod chapters;
pub mod blocking;

pub use repository::{File, Repository};

/// Returns one line for each violation.
pub type Rule = fn(&Repository) -> Vec<String>;

pub const RULES: [Rule; 8] = [
    ladder::check,
    circles::check,
    determinism::check,
    layout::check,
    links::check,
    commands::check,
    chapters::check,
    blocking::check,
];

/// One line of a report. Line numbers are from 1; a violation of a whole file is reported at line
/// 1.
pub(crate) fn violation(path: &str, line: usize, message: impl std::fmt::Display) -> String {
    format!("{path}:{line}: {message}")
}
