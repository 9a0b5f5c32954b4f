//! The messages between the raft loop and the apply loop.
//!
//! ```text
//!   raft loop ── ToApply: committed entries, a raft snapshot to install ──▶ apply loop
//!             ◀── ApplyReport: index, members, alarms, an installed snapshot ─
//! ```
//!
//! In both directions the messages stay in order, and none is lost. Reports may arrive late and
//! merged: [`ApplyReport::merge`].

use std::collections::VecDeque;
use std::sync::Arc;

use clearlane_raft::LogPosition;
use clearlane_wal::{ConfChange, ConfState, Entry};

use crate::alarms::Alarms;
use crate::membership::Members;

#[derive(Debug)]
pub enum ToApply {
    /// Committed entries. The first one follows the last entry that was sent before, or the
    /// position of an `Install` that was sent after that entry.
    Entries(VecDeque<Entry>),
    /// The position of a received raft snapshot, whose store replaces the current one. The log on
    /// disk has a snapshot record of the position.
    Install(LogPosition),
}

/// The progress of the apply loop since its last report.
#[derive(Debug, Default)]
pub struct ApplyReport {
    /// The index of the last applied entry. The effects of the entry are visible in the store.
    pub index: u64,
    pub term: u64,
    pub conf_changes: Vec<AppliedConfChange>,
    pub installed: Option<LogPosition>,
    /// Id and index of each applied read in mode `log`.
    pub log_reads: Vec<(u64, u64)>,
    /// The new members, if a request about members was applied or a raft snapshot was installed.
    /// Otherwise `None`.
    pub members: Option<Arc<Members>>,
    /// The alarms, if a request about alarms was applied, a raft snapshot was installed, or the
    /// alarm of a removed member was removed. Otherwise `None`.
    pub alarms: Option<Arc<Alarms>>,
    /// If true, users, roles or authentication may have changed: an entry that requests such a
    /// change was applied (even if the change was rejected), or a raft snapshot was installed.
    pub has_auth_changed: bool,
    /// The index of the last applied entry with a [cost](crate::quota::cost), or of an installed
    /// raft snapshot. It is 0 if there was neither.
    pub growth_index: u64,
    /// The index of the last applied entry that has disarmed this member's NOSPACE alarm, or 0 if
    /// there was none.
    pub disarm_index: u64,
    pub is_removed: bool,
}

#[derive(Clone, Debug)]
pub struct AppliedConfChange {
    pub index: u64,
    /// The change, or `None` if it was rejected.
    pub change: Option<ConfChange>,
    /// The members after the change. Raft must compute the same members.
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

    /// Returns whether the raft loop must get the report immediately. It must if it has to act on
    /// the report, or if the report's index has reached `awaited`, the [awaited
    /// index](super::Replica::awaited_index). Any other report can wait until the raft loop wakes
    /// for another reason.
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
