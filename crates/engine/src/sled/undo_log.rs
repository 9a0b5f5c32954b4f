//! The values that later commits have replaced, kept for the open snapshots.
//!
//! * All entries of a commit exist before the tree changes. They stay until no snapshot older than
//!   the commit is open. So a reader that reads first the tree and then this map gets the right
//!   value: if it has read a later change, the map has the entry that undoes the change.
//! * A snapshot is registered under the number of the last completed commit. The entries of a
//!   commit in progress have a larger number.
//! * The map is persistent: a reader copies its root under the lock and searches it without the
//!   lock.

use std::collections::{BTreeMap, VecDeque};

use imbl::OrdMap;
use parking_lot::Mutex;
use sled::IVec;

use super::TreeMetadata;

/// The value of a key, or `None` if the key does not exist.
pub(super) type Value = Option<IVec>;

#[derive(Default)]
pub(super) struct UndoLog {
    state: Mutex<UndoState>,
}

#[derive(Default)]
struct UndoState {
    committed: TreeMetadata,
    /// The number of open snapshots for each commit.
    open_snapshots: BTreeMap<u64, usize>,
    /// The value that a key had before a commit, by key and commit.
    entries: OrdMap<(IVec, u64), Value>,
    /// The keys of `entries`, with the oldest commit first.
    keys_by_commit: VecDeque<(IVec, u64)>,
}

impl UndoLog {
    pub(super) fn new(committed: TreeMetadata) -> UndoLog {
        UndoLog { state: Mutex::new(UndoState { committed, ..UndoState::default() }) }
    }

    /// Returns the state as of the last completed commit.
    pub(super) fn committed(&self) -> TreeMetadata {
        self.state.lock().committed
    }

    pub(super) fn open_snapshot(&self) -> u64 {
        let mut state = self.state.lock();
        let commit = state.committed.commit;
        *state.open_snapshots.entry(commit).or_default() += 1;
        commit
    }

    /// Closes a snapshot, and drops the entries that only this snapshot needed.
    pub(super) fn close_snapshot(&self, commit: u64) {
        let mut state = self.state.lock();
        let count = state.open_snapshots.get_mut(&commit).expect("only an open snapshot is closed");
        *count -= 1;
        if *count == 0 {
            state.open_snapshots.remove(&commit);
            state.drop_unneeded();
        }
    }

    /// Records the value that `commit` replaces. Must be called for each key before the tree
    /// changes.
    pub(super) fn record(&self, commit: u64, key: IVec, old: Value) {
        let mut state = self.state.lock();
        state.keys_by_commit.push_back((key.clone(), commit));
        state.entries.insert((key, commit), old);
    }

    pub(super) fn complete(&self, committed: TreeMetadata) {
        let mut state = self.state.lock();
        state.committed = committed;
        state.drop_unneeded();
    }

    /// Returns the overlay with which the snapshot of `commit` corrects records that it read before
    /// this call.
    pub(super) fn overlay(&self, commit: u64) -> Overlay {
        Overlay { entries: self.state.lock().entries.clone(), commit }
    }
}

impl UndoState {
    /// Drops the entries of each commit that is contained in all open and all future snapshots.
    fn drop_unneeded(&mut self) {
        let oldest = self.open_snapshots.keys().next().copied().unwrap_or(self.committed.commit);
        while let Some(key) = self.keys_by_commit.pop_front_if(|(_, commit)| *commit <= oldest) {
            self.entries.remove(&key);
        }
    }
}

/// Values that replace values of the tree. If a key has several entries, the entry with the
/// smallest commit above `commit` is valid.
#[derive(Clone, Debug, Default)]
pub(super) struct Overlay {
    pub(super) entries: OrdMap<(IVec, u64), Value>,
    pub(super) commit: u64,
}

impl Overlay {
    pub(super) fn get(&self, key: &IVec) -> Option<Value> {
        let from = (key.clone(), self.commit + 1);
        let ((found, _), value) = self.entries.range(from..).next()?;
        (found == key).then(|| value.clone())
    }

    /// Corrects `records`, the tree's records in `from..to`, with the entries of the same keys.
    pub(super) fn lay_over(&self, records: &mut BTreeMap<IVec, IVec>, from: &IVec, to: &IVec) {
        let entries = self.entries.range((from.clone(), 0)..(to.clone(), 0));
        // The entries are visited backwards, so the valid entry of a key is applied last.
        for ((key, _), value) in entries.rev().filter(|((_, commit), _)| *commit > self.commit) {
            match value {
                Some(value) => records.insert(key.clone(), value.clone()),
                None => records.remove(key),
            };
        }
    }

    /// Returns the largest key below `key` that has an entry of any commit, or `None` if there is
    /// no such key.
    pub(super) fn key_below(&self, key: &IVec) -> Option<IVec> {
        let mut entries = self.entries.range(..(key.clone(), 0));
        entries.next_back().map(|((key, _), _)| key.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::{TreeMetadata, UndoLog};

    #[test]
    fn entries_go_with_the_last_snapshot_that_needs_them() {
        let undo = UndoLog::default();
        let snapshot_during = |commit| {
            undo.record(commit, "key".into(), None);
            let snapshot = undo.open_snapshot();
            undo.complete(TreeMetadata { commit, size_in_use: 0 });
            snapshot
        };
        let snapshots = [1, 2].map(snapshot_during);
        let entries_after = |snapshot| {
            undo.close_snapshot(snapshot);
            undo.state.lock().entries.len()
        };
        assert_eq!(snapshots.map(entries_after), [1, 0]);
    }
}
