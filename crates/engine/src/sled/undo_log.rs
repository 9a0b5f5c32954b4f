//! What snapshots remember: the values that later commits replaced.
//!
//! * The entries of a commit are complete before the tree changes, and stay until no snapshot older
//!   than the commit is open. So a reader that asks the tree first and this map second gets the
//!   right value: if it has read a change, the entry that undoes it is here.
//! * A snapshot is registered with the number of the last commit that completed; the entries of a
//!   commit under way are above it.
//! * The map is persistent: a reader takes its root under the lock and searches without it.

use std::collections::{BTreeMap, VecDeque};

use imbl::OrdMap;
use parking_lot::Mutex;
use sled::IVec;

use super::TreeMetadata;

/// A key's value; `None` if it has none.
pub(super) type Value = Option<IVec>;

#[derive(Default)]
pub(super) struct UndoLog {
    state: Mutex<UndoState>,
}

#[derive(Default)]
struct UndoState {
    committed: TreeMetadata,
    /// How many snapshots are open, by their commit.
    open_snapshots: BTreeMap<u64, usize>,
    /// What a key was before a commit.
    entries: OrdMap<(IVec, u64), Value>,
    /// The keys of `entries`, oldest commit first.
    keys_by_commit: VecDeque<(IVec, u64)>,
}

impl UndoLog {
    pub(super) fn new(committed: TreeMetadata) -> UndoLog {
        UndoLog { state: Mutex::new(UndoState { committed, ..UndoState::default() }) }
    }

    /// As of the last commit that completed.
    pub(super) fn committed(&self) -> TreeMetadata {
        self.state.lock().committed
    }

    pub(super) fn open_snapshot(&self) -> u64 {
        let mut state = self.state.lock();
        let commit = state.committed.commit;
        *state.open_snapshots.entry(commit).or_default() += 1;
        commit
    }

    /// Forgets, too, whatever only this snapshot could still ask for.
    pub(super) fn close_snapshot(&self, commit: u64) {
        let mut state = self.state.lock();
        let count = state.open_snapshots.get_mut(&commit).expect("only an open snapshot is closed");
        *count -= 1;
        if *count == 0 {
            state.open_snapshots.remove(&commit);
            state.drop_unneeded();
        }
    }

    /// Called for each key of a commit before the tree changes.
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

    /// What the snapshot of `commit` sees instead of what the tree had before this call.
    pub(super) fn overlay(&self, commit: u64) -> Overlay {
        Overlay { entries: self.state.lock().entries.clone(), commit }
    }
}

impl UndoState {
    /// Drops the entries of commits that every open snapshot, and every one to come, contains.
    fn drop_unneeded(&mut self) {
        let oldest = self.open_snapshots.keys().next().copied().unwrap_or(self.committed.commit);
        while let Some(key) = self.keys_by_commit.pop_front_if(|(_, commit)| *commit <= oldest) {
            self.entries.remove(&key);
        }
    }
}

/// Values that lie over the tree. Of a key's entries, the one with the smallest commit above
/// `commit` counts.
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

    /// Lays the entries of the keys from `from` on, below `to`, over the tree's records of these.
    pub(super) fn lay_over(&self, records: &mut BTreeMap<IVec, IVec>, from: &IVec, to: &IVec) {
        let entries = self.entries.range((from.clone(), 0)..(to.clone(), 0));
        // Backwards, so that of a key's entries the one that counts comes last.
        for ((key, _), value) in entries.rev().filter(|((_, commit), _)| *commit > self.commit) {
            match value {
                Some(value) => records.insert(key.clone(), value.clone()),
                None => records.remove(key),
            };
        }
    }

    /// The greatest key below `key` that has an entry of any commit.
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
