//! What snapshots remember: the values that later commits replaced.
//!
//! One ordered map from (key, commit) to the value that the key had before that commit. A snapshot
//! of commit S sees the entry with the smallest commit above S; if there is none, the store's own
//! value.
//!
//! * The entries of a commit are complete before its first change reaches the store, and stay until
//!   no snapshot older than the commit is open. A reader that asks the store first and this map
//!   second gets the right value: if the store answered with a change, the entry that undoes it is
//!   here.
//! * A snapshot is registered with the number of the last commit that completed; the entries of a
//!   commit under way are above it.
//! * The map is persistent: a reader takes its root under the lock and searches without it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use bytes::Bytes;
use imbl::OrdMap;
use parking_lot::Mutex;

/// A key's value before a commit; `None` if it had none.
pub(super) type OldValue = Option<Bytes>;

#[derive(Debug, Default)]
pub(super) struct UndoLog {
    state: Mutex<UndoState>,
}

#[derive(Debug, Default)]
struct UndoState {
    committed: u64,
    /// How many snapshots are open, by their commit.
    open_snapshots: BTreeMap<u64, usize>,
    entries: OrdMap<(Bytes, u64), OldValue>,
    /// The keys that each commit has entries for, oldest commit first.
    keys_by_commit: VecDeque<(u64, Vec<Bytes>)>,
}

impl UndoLog {
    pub(super) fn new(committed: u64) -> UndoLog {
        UndoLog { state: Mutex::new(UndoState { committed, ..UndoState::default() }) }
    }

    pub(super) fn next_commit(&self) -> u64 {
        self.state.lock().committed + 1
    }

    pub(super) fn open_snapshot(&self) -> u64 {
        let mut state = self.state.lock();
        let commit = state.committed;
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

    /// Called before the store changes.
    pub(super) fn record(&self, commit: u64, replaced: Vec<(Bytes, OldValue)>) {
        let keys = replaced.iter().map(|(key, _)| key.clone()).collect();
        let mut state = self.state.lock();
        for (key, old) in replaced {
            state.entries.insert((key, commit), old);
        }
        state.keys_by_commit.push_back((commit, keys));
    }

    pub(super) fn complete(&self, commit: u64) {
        let mut state = self.state.lock();
        state.committed = commit;
        state.drop_unneeded();
    }

    pub(super) fn snapshot(&self, snapshot: u64) -> UndoSnapshot {
        UndoSnapshot { entries: self.state.lock().entries.clone(), commit: snapshot }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.state.lock().entries.len()
    }
}

impl UndoState {
    /// Drops the entries of commits that every open snapshot, and every one to come, contains.
    fn drop_unneeded(&mut self) {
        let oldest = self.open_snapshots.keys().next().copied().unwrap_or(self.committed);
        while self.keys_by_commit.front().is_some_and(|(commit, _)| *commit <= oldest) {
            let Some((commit, keys)) = self.keys_by_commit.pop_front() else { break };
            for key in keys {
                self.entries.remove(&(key, commit));
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct UndoSnapshot {
    entries: OrdMap<(Bytes, u64), OldValue>,
    commit: u64,
}

impl UndoSnapshot {
    /// What `key` was for the snapshot, if a later commit changed it.
    pub(super) fn get(&self, key: &Bytes) -> Option<OldValue> {
        let from = (key.clone(), self.commit + 1);
        let ((found, _), old) = self.entries.range(from..).next()?;
        (found == key).then(|| old.clone())
    }

    /// The greatest key from `from` on, below `below`, that has an entry of any commit.
    pub(super) fn last_key(&self, from: Bytes, below: Bytes) -> Option<Bytes> {
        let mut entries = self.entries.range((from, 0)..(below, 0));
        entries.next_back().map(|((key, _), _)| key.clone())
    }

    /// The keys from `from` on, up to `to`, that later commits changed, with what they were.
    pub(super) fn range(
        &self,
        from: &Bytes,
        to: Bound<&Bytes>,
    ) -> impl Iterator<Item = (Bytes, OldValue)> + '_ {
        let to = match to {
            Bound::Included(key) => Bound::Included((key.clone(), u64::MAX)),
            Bound::Excluded(key) => Bound::Excluded((key.clone(), 0)),
            Bound::Unbounded => Bound::Unbounded,
        };
        let mut last: Option<Bytes> = None;
        let entries = self.entries.range((Bound::Included((from.clone(), 0)), to));
        let later = entries.filter(|((_, commit), _)| *commit > self.commit);
        // Of a key's entries, which come in the order of commits, the first one counts.
        later.filter_map(move |((key, _), old)| {
            let first = last.as_ref() != Some(key);
            last = Some(key.clone());
            first.then(|| (key.clone(), old.clone()))
        })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::UndoLog;

    fn bytes(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    #[test]
    fn entries_go_with_the_last_snapshot_that_needs_them() {
        let undo = UndoLog::new(0);
        let first = undo.open_snapshot();
        undo.record(1, vec![(bytes("a"), None)]);
        undo.complete(1);
        let second = undo.open_snapshot();
        undo.record(2, vec![(bytes("b"), None)]);
        undo.complete(2);
        assert_eq!(undo.len(), 2);
        undo.close_snapshot(first);
        assert_eq!(undo.len(), 1);
        undo.close_snapshot(second);
        assert_eq!(undo.len(), 0);
    }

    #[test]
    fn a_commit_under_way_keeps_its_entries_for_snapshots_taken_meanwhile() {
        let undo = UndoLog::new(7);
        undo.record(8, vec![(bytes("a"), Some(bytes("old")))]);
        let during = undo.open_snapshot();
        undo.complete(8);
        assert_eq!(undo.snapshot(during).get(&bytes("a")), Some(Some(bytes("old"))));
        undo.close_snapshot(during);
        assert_eq!(undo.len(), 0);
    }
}
