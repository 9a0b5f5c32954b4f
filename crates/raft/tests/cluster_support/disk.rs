//! A simulated disk and store of one member.
//!
//! The disk has a log, a hard state and the last synced store. Appends are in a queue until they
//! are written. A crash loses the queue and a store that was not synced.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use clearlane_raft::LogPosition;
use clearlane_raft::{ReadyAppend, RecoveredState};
use clearlane_wal::wire::{ConfChange, ConfChangeKind, Entry, HardState};

/// The state that the applied entries produce: a list of their indexes and data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Store {
    pub(crate) position: LogPosition,
    pub(crate) data: Vec<(u64, Bytes)>,
}

/// The data that survives a crash, and the appends that are not written yet.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    pub(crate) hard_state: HardState,
    pub(crate) entries: BTreeMap<u64, Entry>,
    pub(crate) store: Store,
    /// Appends that are not written yet, each with the store that it installs, if it installs one.
    pub(crate) queue: VecDeque<(ReadyAppend, Option<Store>)>,
}

impl Disk {
    /// Returns the disk of a member of a new cluster. Its entries add the first members, and are
    /// committed.
    pub(crate) fn first(voters: u64) -> Disk {
        let entry = |id| Entry {
            kind: clearlane_wal::wire::EntryKind::ConfChange,
            term: 1,
            index: id,
            data: encode_change(ConfChangeKind::AddNode, id),
        };
        Disk {
            hard_state: HardState { term: 1, vote: 0, commit: voters },
            entries: (1..=voters).map(|id| (id, entry(id))).collect(),
            ..Disk::default()
        }
    }

    pub(crate) fn found(&self) -> RecoveredState {
        let store = self.store.position.clone();
        let entries = self.entries.values().cloned().collect();
        RecoveredState { store_position: store, hard_state: self.hard_state, entries }
    }

    /// Writes the first append of the queue. Returns the append, and the new store if the append
    /// installs one. Returns `None` if the queue is empty.
    pub(crate) fn write(&mut self) -> Option<(ReadyAppend, Option<Store>)> {
        let (append, store) = self.queue.pop_front()?;
        if let Some(store) = &store {
            self.entries.clear();
            self.store = store.clone();
        }
        if let Some(first) = append.entries.first() {
            self.entries.split_off(&first.index);
            assert!(first.index <= self.last() + 1, "a gap before {}", first.index);
        }
        self.entries.extend(append.entries.iter().map(|entry| (entry.index, entry.clone())));
        self.hard_state = append.hard_state.unwrap_or(self.hard_state);
        Some((append, store))
    }

    /// Returns the last index on disk: of the log or of the store, whichever is larger.
    pub(crate) fn last(&self) -> u64 {
        self.entries.keys().next_back().copied().unwrap_or(0).max(self.store.position.index)
    }

    /// Returns whether an entry survives a crash, in the log or in the store.
    pub(crate) fn has(&self, index: u64, term: u64) -> bool {
        let in_log = self.entries.get(&index).is_some_and(|entry| entry.term == term);
        in_log || index <= self.store.position.index
    }
}

/// Returns etcd's bytes for a change of one member. Field 2 is the kind of the change, and field 3
/// is the member's id.
pub(crate) fn encode_change(kind: ConfChangeKind, id: u64) -> Bytes {
    Bytes::from(vec![0x10, number_of(kind), 0x18, id as u8])
}

pub(crate) fn decode_change(data: &[u8]) -> Option<ConfChange> {
    let [0x10, kind, 0x18, id] = data else { return None };
    let kinds = [
        ConfChangeKind::AddNode,
        ConfChangeKind::RemoveNode,
        ConfChangeKind::UpdateNode,
        ConfChangeKind::AddLearnerNode,
    ];
    let kind = *kinds.get(usize::from(*kind))?;
    Some(ConfChange { id: 0, kind, node_id: u64::from(*id), context: Bytes::new() })
}

fn number_of(kind: ConfChangeKind) -> u8 {
    match kind {
        ConfChangeKind::AddNode => 0,
        ConfChangeKind::RemoveNode => 1,
        ConfChangeKind::UpdateNode => 2,
        ConfChangeKind::AddLearnerNode => 3,
    }
}
