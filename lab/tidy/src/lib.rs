//! The rules of this repository that rustfmt and clippy cannot check, written as tests.
//!
//! | module | rule |
//! |---|---|
//! | [`ladder`] | dependencies between our crates only go down; all crates inherit the lints |
//! | [`circles`] | at most three files of a crate import each other in a circle |
//! | [`determinism`] | crates that must be deterministic start no thread and read no clock |
//! | [`layout`] | the head of a module; the length of files and lines; where `unsafe` may be |
//! | [`prose`] | comments in plain English: a file has few hard sentences |
//! | [`links`] | links in Markdown, and paths that docs name, lead to existing files |
//! | [`commands`] | commands in Markdown are in fences that CI runs or checks |
//! | [`chapters`] | the map of the code, and the steps of a request, name existing code |
//! | [`blocking`] | `docs/appendix-locks.md` lists each lock, queue and thread of the product |
//!
//! A [`Rule`] is a function. Its argument is a [`Repository`], which holds all files in memory, and
//! it returns the violations. Rules read text, not syntax trees ([`rust`](mod@rust)), so they do
//! not recognize a renamed import.

pub mod repository;
pub mod rust;
pub mod ladder;
pub mod circles;
pub mod determinism;
pub mod layout;
pub mod prose;
pub mod links;
pub mod commands;
pub mod chapters;
pub mod blocking;

pub use repository::{File, Repository};

/// A function that returns one line for each violation.
pub type Rule = fn(&Repository) -> Vec<String>;

pub const RULES: [Rule; 9] = [
    ladder::check,
    circles::check,
    determinism::check,
    layout::check,
    prose::check,
    links::check,
    commands::check,
    chapters::check,
    blocking::check,
];

/// One line of a report. Line numbers start at 1. A violation that belongs to no particular line is
/// reported at line 1.
pub(crate) fn violation(path: &str, line: usize, message: impl std::fmt::Display) -> String {
    format!("{path}:{line}: {message}")
}
