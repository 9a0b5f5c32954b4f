//! The rules of this repository that no lint knows, as tests beside rustfmt and clippy.
//!
//! | module | what it checks |
//! |---|---|
//! | [`ladder`] | dependencies between our crates only go down; the workspace's lints hold |
//! | [`circles`] | at most three files of a crate import each other in a circle |
//! | [`determinism`] | crates that must be deterministic start no thread and read no clock |
//! | [`layout`] | the head of a module; the length of files and lines; where `unsafe` may be |
//! | [`links`] | links in Markdown, and paths that docs name, lead somewhere |
//! | [`chapters`] | the map of the code, and the steps of a request, name what exists |
//!
//! A [`Rule`] is a function from a [`Repository`], all text files in memory, to [`Violation`]s. It
//! reads text, not syntax trees ([`rust`](mod@rust)): a renamed import is not seen.

pub mod repository;
pub mod rust;
pub mod ladder;
pub mod circles;
pub mod determinism;
pub mod layout;
pub mod links;
pub mod chapters;

use std::fmt;

pub use repository::{File, Repository};

/// A rule looks at the whole repository and reports what is wrong with it.
pub type Rule = fn(&Repository) -> Vec<Violation>;

/// All rules.
pub const RULES: [Rule; 6] = [
    ladder::check,
    circles::check,
    determinism::check,
    layout::check,
    links::check,
    chapters::check,
];

/// One place where a rule is broken. Prints as `file:line: what is wrong; what is allowed`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Relative to the top of the repository.
    pub path: String,
    /// Counted from 1. What is wrong with a whole file is said of line 1.
    pub line: usize,
    /// What is wrong, and what is allowed instead.
    pub message: String,
}

impl Violation {
    /// Something wrong at one line of a file.
    pub fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}
