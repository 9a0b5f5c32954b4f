//! The messages between the raft loop and the apply loop.
//!
//! ```text
//!   raft loop ── ToApply: committed entries, a raft snapshot to install ──▶ apply loop
//!             ◀── ApplyReport: index, members, alarms, an installed snapshot ─
//! ```
//!
//! Both directions are in order and lose nothing. Reports may come late and merged:
//! [`ApplyReport::merge`].

use std::collections::VecDeque;
use std::sync::Arc;

use clearlane_raft::LogPosition;
use clearlane_wal::{ConfChange, ConfState, Entry};

use crate::alarms::Alarms;
use crate::membership::Members;

#[derive(Debug)]
pub enum ToApply {
    /// Committed entries that follow those sent before.
    Entries(VecDeque<Entry>),
    /// A raft snapshot that replaces the store; the log has a record of it.
    Install(LogPosition),
}

/// What the apply loop has done since its last report.
#[derive(Debug, Default)]
pub struct ApplyReport {
    /// The last applied entry; the store shows its effects.
    pub index: u64,
    pub term: u64,
    pub conf_changes: Vec<AppliedConfChange>,
    pub installed: Option<LogPosition>,
    /// Id and index of each applied read in mode `log`.
    pub log_reads: Vec<(u64, u64)>,
    /// If the members have changed.
    pub members: Option<Arc<Members>>,
    /// If a request about alarms was applied.
    pub alarms: Option<Arc<Alarms>>,
    /// Users or roles have changed, or whether they count.
    pub has_auth_changed: bool,
    /// The last applied entry that [costs](crate::quota::cost) something; 0 if there was none.
    pub growth_index: u64,
    /// The last applied entry that has disarmed NOSPACE of this member; 0 if there was none.
    pub disarm_index: u64,
    pub is_removed: bool,
}

#[derive(Clone, Debug)]
pub struct AppliedConfChange {
    pub index: u64,
    /// `None` if the change was refused.
    pub change: Option<ConfChange>,
    /// The members after the change; raft must come to the same.
    pub conf_state: ConfState,
}

impl ApplyReport {
    pub fn merge(&mut self, later: ApplyReport) {
        (self.index, self.term) = (later.index, later.term);
        self.conf_changes.extend(later.conf_changes);
        self.log_reads.extend(later.log_reads);
        self.installed = later.installed.or(self.installed.take());
        self.members = later.members.or(self.members.take());
        self.alarms = later.alarms.or(self.alarms.take());
        self.has_auth_changed |= later.has_auth_changed;
        self.growth_index = later.growth_index.max(self.growth_index);
        self.disarm_index = later.disarm_index.max(self.disarm_index);
        self.is_removed |= later.is_removed;
    }

    /// Whether the raft loop must get the report at once: it has to act on it, or the index is
    /// [awaited](super::Replica::awaited_index). Any other report can wait until the loop is awake.
    pub fn is_urgent(&self, awaited: u64) -> bool {
        self.index >= awaited
            || self.installed.is_some()
            || self.members.is_some()
            || self.alarms.is_some()
            || self.is_removed
            || !self.conf_changes.is_empty()
            || !self.log_reads.is_empty()
    }
}
