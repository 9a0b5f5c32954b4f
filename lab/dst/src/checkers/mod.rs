//! The rules that must hold; `docs/dst.md` has the table.
//!
//! [`linearizability`] looks only at replies, and [`serializable`] at old reads and what was
//! committed. The others look inside of the members: [`acknowledged`], [`committed`],
//! [`agreement`], [`revisions`], [`leases`], [`requests`], [`auth`]. [`committed_model`] is no
//! rule, but what they compare with.

pub mod linearizability;
pub mod committed_model;
pub mod serializable;
pub mod acknowledged;
pub mod committed;
pub mod agreement;
pub mod revisions;
pub mod leases;
pub mod requests;
pub mod auth;

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    Linearizability,
    Serializable,
    Acknowledged,
    Committed,
    Leaders,
    Revisions,
    Hashes,
    Members,
    Leases,
    Requests,
    AuthState,
    Permissions,
    Revocation,
    Tokens,
    /// A member that has lost acknowledged entries serves on although a leader counts on them.
    LostLog,
    /// A member stops, refuses to start, or fails an assertion.
    Running,
    /// The cluster works after the end of all faults.
    Progress,
}

impl Rule {
    /// If the rule does not hold, `seen` describes what was seen instead.
    pub fn check(self, holds: bool, seen: impl FnOnce() -> String) -> CheckResult {
        if holds { Ok(()) } else { Err(Violation::new(self, seen())) }
    }
}

pub type CheckResult = Result<(), Violation>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    pub description: String,
}

impl Violation {
    pub fn new(rule: Rule, seen: impl Into<String>) -> Violation {
        Violation { rule, description: seen.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.description)
    }
}
