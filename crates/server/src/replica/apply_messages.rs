//! What the raft loop and the apply loop say to each other.
//!
//! ```text
//!   raft loop ── ToApply: committed entries, a raft snapshot to install ──▶ apply loop
//!             ◀── ApplyReport: index, members, alarms, an installed snapshot ─
//! ```
//!
//! Both directions are in order and lose nothing. What the apply loop says may come late, and
//! then several at once: [`ApplyReport::merge`] makes one of two.

use std::collections::VecDeque;
use std::sync::Arc;

use clearlane_raft::LogPosition;
use clearlane_wal::{ConfChange, ConfState, Entry};

use crate::alarms::Alarms;
use crate::membership::Members;

/// Work for the apply loop.
#[derive(Debug)]
pub enum ToApply {
    /// Committed entries, the next ones.
    Entries(VecDeque<Entry>),
    /// The store of this position, which came with a raft snapshot, takes the place of the one at
    /// hand. The log has a record of it.
    Install(LogPosition),
}

/// What the apply loop has done since it last said so.
#[derive(Debug, Default)]
pub struct ApplyReport {
    /// The last entry that is applied: the store shows it.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// Changes of members among the entries.
    pub conf_changes: Vec<AppliedConfChange>,
    /// A raft snapshot that is the store now.
    pub installed: Option<LogPosition>,
    /// Reads in mode `log` among the entries: id and index.
    pub log_reads: Vec<(u64, u64)>,
    /// The table of members, if it has changed.
    pub members: Option<Arc<Members>>,
    /// A request about alarms was applied: these are raised now.
    pub alarms: Option<Arc<Alarms>>,
    /// This member was removed.
    pub is_removed: bool,
}

/// A change of members that is applied.
#[derive(Clone, Debug)]
pub struct AppliedConfChange {
    /// Its entry.
    pub index: u64,
    /// The change, unless it was refused.
    pub change: Option<ConfChange>,
    /// The members from here on. Raft must come to the same.
    pub conf_state: ConfState,
}

impl ApplyReport {
    /// What was said later comes on top.
    pub fn merge(&mut self, later: ApplyReport) {
        (self.index, self.term) = (later.index, later.term);
        self.conf_changes.extend(later.conf_changes);
        self.log_reads.extend(later.log_reads);
        self.installed = later.installed.or(self.installed.take());
        self.members = later.members.or(self.members.take());
        self.alarms = later.alarms.or(self.alarms.take());
        self.is_removed |= later.is_removed;
    }

    /// Whether the raft loop must get it at once: it decides something there, or has reached an
    /// index that is [awaited](super::Replica::awaited_index). Anything else can wait until it has
    /// something to do.
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
