//! The rules that must hold. `docs/dst.md` has a table of these rules.
//!
//! [`linearizability`] checks only replies. [`serializable`] compares old reads with the committed
//! entries. The other checkers inspect the members: [`acknowledged`], [`committed`], [`agreement`],
//! [`revisions`], [`leases`], [`requests`], [`auth`]. [`committed_model`] is not a rule: it has the
//! expected state.

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
    /// No member continues after a heartbeat has shown that it has lost acknowledged entries.
    LostLog,
    /// Every member starts, continues to run and fails no assertion, unless an injected fault stops
    /// it.
    Running,
    /// The cluster works after the end of all faults, and the run ends. A leader with a stalled
    /// disk stops leading, and stalled disks cause no other elections.
    Progress,
}

impl Rule {
    /// Returns a violation of this rule if `holds` is false. `seen` describes the observed state.
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
