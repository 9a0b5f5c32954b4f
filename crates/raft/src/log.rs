//! The part of the log that raft works on, in memory.
//!
//! Raft asks for terms and entries all the time, also for those that are not on disk yet. So the
//! log is in memory from some index on, and the write-ahead log is read only at a start.
//!
//! ```text
//!   1 ... 5,000 │ 5,001 ........... 10,000 ........ 12,000
//!     released  │ first            durable        last
//!               │  └─ kept back for slow followers ─┘
//! ```
//!
//! * Indexes rise by one, terms do not fall.
//! * No entry behind the *durable* index, that of the last synced store, is released: after a crash
//!   the store begins there. (What is applied and not synced is lost.)

use std::collections::VecDeque;

use raft::eraftpb::{Entry, HardState, Snapshot, SnapshotMetadata};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

use clearlane_wal::ConfState;

use crate::convert::RaftForm as _;

/// A state of the store, by its place in the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogPosition {
    pub index: u64,
    pub term: u64,
    pub conf_state: ConfState,
}

/// The log that raft sees.
///
/// A follower that needs an entry that was released is sent the store instead, in the durable state
/// or a later one. A member that starts again also keeps what its disk has of the log before the
/// durable index: when a whole cluster starts again, some members are a few entries behind, and
/// without those entries each of them would have to be sent the whole store.
#[derive(Debug, Default)]
pub(crate) struct LogStorage {
    pub(crate) hard_state: HardState,
    /// Index and term of the entry before the first one that is kept.
    before_first: (u64, u64),
    entries: VecDeque<Entry>,
    pub(crate) durable: LogPosition,
}

impl LogStorage {
    /// A log without entries behind `before`, with a store at `durable`, there or later.
    pub(crate) fn new(before: (u64, u64), durable: LogPosition) -> LogStorage {
        LogStorage { before_first: before, durable, ..LogStorage::default() }
    }

    pub(crate) fn set_durable(&mut self, position: LogPosition) {
        if position.index >= self.durable.index {
            self.durable = position;
        }
    }

    /// Entries with the same or higher indexes are overwritten.
    pub(crate) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        let (from, to) = (self.before_first.0 + 1, self.last());
        let fits = (from..=to + 1).contains(&first.index);
        assert!(fits, "an entry at {} does not follow on {from} to {to}", first.index);
        self.entries.truncate((first.index - from) as usize);
        self.entries.extend(entries.iter().cloned());
    }

    /// The store was replaced by one at this position: everything before is dropped.
    pub(crate) fn install(&mut self, position: LogPosition) {
        self.entries.clear();
        self.before_first = (position.index, position.term);
        self.durable = position;
    }

    /// Drops the entries up to an index, but none behind the durable index.
    pub(crate) fn release(&mut self, up_to: u64) {
        let up_to = up_to.min(self.durable.index).min(self.last());
        while self.before_first.0 < up_to {
            let released = self.entries.pop_front().expect("counted above");
            self.before_first = (released.index, released.term);
        }
    }

    /// The index up to which entries must be released so that those up to `up_to` have at most this
    /// many bytes.
    pub(crate) fn release_index_for_bytes(&self, up_to: u64, bytes: u64) -> u64 {
        let known = self.count_up_to(up_to);
        let data_len = |entry: &Entry| entry.data.len() as u64;
        let kept = self.entries.range(..known).rev().take_while(fits(bytes, data_len)).count();
        self.before_first.0 + (known - kept) as u64
    }

    pub(crate) fn bytes_after(&self, index: u64) -> u64 {
        let known = self.count_up_to(index);
        self.entries.range(known..).map(|entry| entry.data.len() as u64).sum()
    }

    /// The entries that are kept, up to an index.
    fn count_up_to(&self, index: u64) -> usize {
        index.saturating_sub(self.before_first.0).min(self.entries.len() as u64) as usize
    }

    pub(crate) fn first(&self) -> u64 {
        self.before_first.0 + 1
    }

    pub(crate) fn last(&self) -> u64 {
        self.before_first.0 + self.entries.len() as u64
    }
}

/// Whether an entry, and those that were asked about before it, have at most this many bytes.
fn fits(bytes: u64, size: impl Fn(&Entry) -> u64) -> impl FnMut(&&Entry) -> bool {
    let mut left = Some(bytes);
    move |entry| {
        left = left.and_then(|left| left.checked_sub(size(entry)));
        left.is_some()
    }
}

impl Storage for LogStorage {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard_state.clone(), self.durable.conf_state.to_raft()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low < self.first() {
            return Err(StorageError::Compacted.into());
        }
        assert!(high <= self.last() + 1, "entries up to {high} of {}", self.last());
        let from = (low - self.first()) as usize;
        let wanted = self.entries.range(from..from + (high - low) as usize);
        let size = |entry: &Entry| u64::from(protobuf::Message::compute_size(entry));
        let mut fits = fits(max_size.into().unwrap_or(u64::MAX), size);
        // The first one in any case, or nothing larger than the limit would be sent.
        let sent = wanted.enumerate().take_while(|(at, entry)| fits(entry) || *at == 0);
        Ok(sent.map(|(_, entry)| entry.clone()).collect())
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.before_first.0 {
            return Ok(self.before_first.1);
        }
        if index < self.before_first.0 {
            return Err(StorageError::Compacted.into());
        }
        let entry = self.entries.get((index - self.first()) as usize);
        entry.map(|entry| entry.term).ok_or_else(|| StorageError::Unavailable.into())
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.first())
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    /// The durable state or a later one: the sender sets the position of the copy that it sends.
    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        if self.durable.index < request_index || self.durable.index == 0 {
            return Err(StorageError::SnapshotTemporarilyUnavailable.into());
        }
        Ok(self.durable.to_raft())
    }
}

impl LogPosition {
    pub(crate) fn to_raft(&self) -> Snapshot {
        let (index, term) = (self.index, self.term);
        let conf_state = Some(self.conf_state.to_raft()).into();
        let metadata = SnapshotMetadata { conf_state, index, term, ..Default::default() };
        Snapshot { metadata: Some(metadata).into(), ..Default::default() }
    }

    pub(crate) fn from_raft(metadata: &SnapshotMetadata) -> LogPosition {
        let members = ConfState::from_raft(metadata.get_conf_state());
        LogPosition { index: metadata.index, term: metadata.term, conf_state: members }
    }
}
