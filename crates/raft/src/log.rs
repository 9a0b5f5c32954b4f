//! The in-memory part of the log, from which raft reads.
//!
//! Raft reads terms and entries all the time, including entries that are not on disk yet. So all
//! entries from some index on are kept in memory, and the write-ahead log is read only at startup.
//!
//! ```text
//!   1 ... 5,000 │ 5,001 ................... 10,000 ................ 12,000
//!     released  │ first                     durable                 last
//!               │   └─ for slow followers ────┘└─ missing in durable store ─┘
//! ```
//!
//! * From one entry to the next, the index rises by one and the term never falls.
//! * The *durable* index is the index of the last entry that the store on disk includes. Entries
//!   above the durable index stay in memory: a follower that receives the store, in the durable
//!   state or a later one, needs the entries after it. (After a crash the store restarts at the
//!   durable index. It lacks the effects of later entries, which are applied again from the
//!   write-ahead log.)

use std::collections::VecDeque;

use raft::eraftpb::{Entry, HardState, Snapshot, SnapshotMetadata};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

use clearlane_wal::ConfState;

use crate::convert::RaftForm as _;

/// Identifies a state of the store: the last entry that it contains, and the members as of that
/// entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogPosition {
    pub index: u64,
    pub term: u64,
    pub conf_state: ConfState,
}

/// The log that raft reads through the trait `Storage`.
///
/// A follower that needs a released entry receives the store instead, in the durable state or a
/// later one. After a restart, the log also has older entries from the disk, at or below the
/// durable index. When a whole cluster restarts, some members lag by a few entries. Without the
/// older entries each of them would need the whole store.
#[derive(Debug, Default)]
pub(crate) struct LogStorage {
    pub(crate) hard_state: HardState,
    /// Index and term of the entry before the first kept entry.
    before_first: (u64, u64),
    entries: VecDeque<Entry>,
    pub(crate) durable: LogPosition,
}

impl LogStorage {
    /// Creates a log without entries. The first entry to append follows `before`. The store on disk
    /// is at `durable`, which is `before` or later.
    pub(crate) fn new(before: (u64, u64), durable: LogPosition) -> LogStorage {
        LogStorage { before_first: before, durable, ..LogStorage::default() }
    }

    pub(crate) fn set_durable(&mut self, position: LogPosition) {
        if position.index >= self.durable.index {
            self.durable = position;
        }
    }

    /// Appends entries. Existing entries with the same or higher indexes are removed first.
    pub(crate) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        let (from, to) = (self.before_first.0 + 1, self.last());
        let fits = (from..=to + 1).contains(&first.index);
        assert!(fits, "an entry at {} does not follow on {from} to {to}", first.index);
        self.entries.truncate((first.index - from) as usize);
        self.entries.extend(entries.iter().cloned());
    }

    /// Records that a received store at this position replaces this member's store. Drops all
    /// entries.
    pub(crate) fn install(&mut self, position: LogPosition) {
        self.entries.clear();
        self.before_first = (position.index, position.term);
        self.durable = position;
    }

    /// Drops the entries up to an index, but none above the durable index.
    pub(crate) fn release(&mut self, up_to: u64) {
        let up_to = up_to.min(self.durable.index).min(self.last());
        while self.before_first.0 < up_to {
            let released = self.entries.pop_front().expect("counted above");
            self.before_first = (released.index, released.term);
        }
    }

    /// Returns the index up to which entries must be released. After that, the data of the kept
    /// entries up to `up_to` has at most `bytes` bytes.
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

    /// Returns the number of kept entries up to an index.
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

/// Returns a predicate that adds up the sizes of the entries passed to it. The predicate is true
/// while the sum is at most `bytes`. It is false for the first entry that exceeds this limit, and
/// for all later entries.
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
        // The first entry is always returned. Otherwise an entry larger than the limit would never
        // be sent or applied.
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

    /// Returns the position of the durable store. Fails if there is no durable store, or if its
    /// index is below `request_index`.
    ///
    /// Raft puts the returned position into a snapshot message. The owner may send a newer state of
    /// the store, and then changes the position in the message.
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
