//! The rules of this repository that a machine can check, as tests beside rustfmt and clippy.
//!
//! | module | what it checks |
//! |---|---|
//! | [`ladder`] | dependencies between our crates only go down |
//! | [`manifests`] | one version of a dependency; lints inherited; a crate has its folder's name |
//! | [`determinism`] | crates that must be deterministic start no thread and read no clock |
//! | [`sources`] | a doc on the first line; the length of files; no module for leftovers |
//! | [`leftovers`] | nothing unfinished; no lint switched off, no test skipped without a reason |
//! | [`links`] | links in Markdown lead somewhere |
//! | [`indexes`] | decisions, examples and benches can be found and run |
//! | [`layout`] | what is at the top level; no path of a developer's machine |
//!
//! A [`Rule`] is a function from a [`Repository`], all text files in memory, to [`Violation`]s. It
//! reads text, not syntax trees ([`rust`](mod@rust)): a renamed import can outwit it.

pub mod repository;
pub mod rust;
pub mod manifests;
pub mod ladder;
pub mod determinism;
pub mod sources;
pub mod leftovers;
pub mod links;
pub mod indexes;
pub mod layout;

use std::fmt;

pub use repository::{File, Repository};

/// A rule looks at the whole repository and reports what is wrong with it.
pub type Rule = fn(&Repository) -> Vec<Violation>;

/// All rules, by name.
pub const RULES: [(&str, Rule); 8] = [
    ("ladder", ladder::check),
    ("manifests", manifests::check),
    ("determinism", determinism::check),
    ("sources", sources::check),
    ("leftovers", leftovers::check),
    ("links", links::check),
    ("indexes", indexes::check),
    ("layout", layout::check),
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
