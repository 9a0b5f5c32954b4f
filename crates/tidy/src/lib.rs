//! Does the repository keep its own rules? The rules that a machine can check, as tests.
//!
//! # Why tests
//!
//! A style guide that is not enforced describes the code of two years ago. rustfmt and clippy hold
//! what is true of any Rust program; what is special to this one is held here, and `cargo test` is
//! the place where each developer looks anyway.
//!
//! # How
//!
//! A [`Repository`] is every text file below the top, in memory. A [`Rule`] is a function from a
//! repository to [`Violation`]s. `tests/repository.rs` runs the [`RULES`] on this repository. The
//! tests of a rule plant a violation in a repository of three lines, and expect to be told.
//!
//! | module | what it holds |
//! |---|---|
//! | [`ladder`] | dependencies between our crates only go down |
//! | [`manifests`] | one version of each dependency; lints inherited; the name of a crate is its directory |
//! | [`determinism`] | rungs 1 to 4 start no thread, read no clock, draw no random number |
//! | [`sources`] | a doc on the first line; at most 800 lines; no drawer for leftovers |
//! | [`leftovers`] | nothing unfinished; no lint switched off and no test skipped without a reason |
//! | [`links`] | links in Markdown lead somewhere |
//! | [`indexes`] | decisions, examples and benches can be found and run |
//! | [`layout`] | what lies at the top level; no path of a developer's machine |
//!
//! # What is left out
//!
//! The rules read text, not syntax trees: [`rust`](mod@rust) knows comments, strings and test
//! modules, and nothing more. So a rule can be outwitted, by a renamed import for instance. It is
//! there to remind, and a reviewer reads the rest.

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

/// A rule looks at the whole repository and tells what is wrong with it.
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
