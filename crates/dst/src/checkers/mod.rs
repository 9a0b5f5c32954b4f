//! What must never happen, whatever else does. One file for each rule.
//!
//! Some look at what clients were told and at nothing else: whatever the cluster believes of itself,
//! that is what it is for. The others look inside, and find what clients would notice only much later,
//! if at all.
//!
//! | file | what breaks the rule |
//! |---|---|
//! | [`linearizability`] | a client is told what no single store could have told it |
//! | [`serializable`] | a read that may be old shows what never was |
//! | [`acknowledged`] | a write that a client was told of is gone |
//! | [`committed`] | two members apply different entries at one index, or one twice, or leave one out |
//! | [`leaders`] | two members lead in one term |
//! | [`revisions`] | a revision is left out, or comes twice |
//! | [`hashes`] | two stores that have applied the same differ |
//! | [`members`] | two members disagree which members belong to the cluster |
//! | [`leases`] | two members disagree about leases, or one ends that is kept alive |
//! | [`requests`] | a request is proposed or completed twice, or before it is applied |
//!
//! [`committed_model`] is no rule: it is what the committed entries make of a plain map, for the others to
//! compare with.

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
