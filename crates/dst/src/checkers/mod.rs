//! The rules that must hold, one file for each; `docs/dst.md` has the table.
//!
//! [`linearizability`] looks only at what clients were answered, and [`serializable`] at old reads
//! and what was committed. The others look inside of the members too, and find mistakes that
//! clients would notice much later or not at all: [`acknowledged`], [`committed`], [`leaders`],
//! [`revisions`], [`hashes`], [`members`], [`leases`], [`requests`].
//!
//! [`committed_model`] is no rule: it is what the committed entries make of a plain map, for the
//! others to compare with.

pub mod linearizability;
pub mod committed_model;
pub mod serializable;
pub mod acknowledged;
pub mod committed;
pub mod leaders;
pub mod revisions;
pub mod hashes;
pub mod members;
pub mod leases;
pub mod requests;

use std::fmt;

/// A rule that must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// See [`linearizability`].
    Linearizability,
    /// See [`serializable`].
    Serializable,
    /// See [`acknowledged`].
    Acknowledged,
    /// See [`committed`].
    Committed,
    /// See [`leaders`].
    Leaders,
    /// See [`revisions`].
    Revisions,
    /// See [`hashes`].
    Hashes,
    /// See [`members`].
    Members,
    /// See [`leases`].
    Leases,
    /// See [`requests`].
    Requests,
    /// A member stops, refuses to start, or finds that its own code is wrong.
    Running,
    /// When all faults are over, the cluster works.
    Progress,
}

/// A rule that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub rule: Rule,
    /// What was seen.
    pub description: String,
}

impl Violation {
    /// The rule does not hold: this was seen.
    pub fn new(rule: Rule, seen: impl Into<String>) -> Violation {
        Violation { rule, description: seen.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.description)
    }
}
