//! etcd's index: one tree under one readers-writer lock, `treeIndex`.
//!
//! A walk holds the lock shared for its whole duration. A put takes the lock exclusively, for one
//! key. So a put waits for earlier walks, and later reads wait for the put. A walk with a limit
//! also goes to the end of its range: only the keys up to the limit are collected, and the rest is
//! counted. The tree is `imbl`'s ordered map. Since 3.4 etcd compacts over a clone, so a clone must
//! be cheap here too: see `docs/mvcc.md`.
//!
//! Invariants:
//! * A walk sees one state of the tree, because nothing changes while it holds the lock.
//! * Two calls may see different states, because a snapshot is only a handle. The result for a
//!   revision that the index has reached is changed only by a compaction above that revision. The
//!   caller can detect such a compaction
//!   ([`is_compacted_above`](IndexSnapshot::is_compacted_above)).

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use clearlane_contention::{Registry, RwLock};
use clearlane_engine::KeyRange;

use imbl::OrdMap;

use super::key::Key;
use super::{
    ChangeVisitor, IndexCompaction, IndexSnapshot, KeySelection, KeyVisitor, SortedRun, TreeIndex,
    VersionVisitor,
};
use crate::key_index::{EncodedLen, KeyIndex, Version};
use crate::revision::Revision;

pub(super) type Tree = OrdMap<Key, KeyIndex>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompactionLock {
    /// One acquisition of the lock for the whole walk, as in etcd up to 3.3.
    WholeWalk,
    /// One acquisition of the lock for each key. The walk itself visits a clone of the tree, as in
    /// etcd since 3.4.
    PerKey,
}

/// A handle on the tree under the lock, for the writer and for readers.
#[derive(Clone, Debug)]
pub struct LockedIndex {
    tree: Arc<RwLock<Tree>>,
    /// The highest revision of a started compaction. It is set before the compaction takes the
    /// lock, so a thread that has walked over a compacted tree finds this revision.
    compacted: Arc<AtomicI64>,
    compaction_lock: CompactionLock,
}

impl LockedIndex {
    pub fn new(registry: &Registry, compaction_lock: CompactionLock) -> LockedIndex {
        let tree = Arc::new(RwLock::new(registry, "treeIndex", Tree::new()));
        LockedIndex { tree, compacted: Arc::new(AtomicI64::new(0)), compaction_lock }
    }

    /// Compacts all keys under one acquisition of the lock. Returns the kept revisions.
    fn compact_whole(&self, at: i64) -> Vec<Revision> {
        let mut tree = self.tree.write();
        let kept = tree.values().filter_map(|history| history.kept_by_compaction(at)).collect();
        let shortened = tree.iter().filter(|(_, history)| history.is_shortened_by(at));
        let shortened: Vec<Key> = shortened.map(|(key, _)| key.clone()).collect();
        for key in shortened {
            compact_key(&mut tree, &key, at);
        }
        kept
    }
}

/// Compacts one key, if it still exists. Removes the key if nothing of its history is left.
fn compact_key(tree: &mut Tree, key: &[u8], at: i64) {
    if tree.get_mut(key).is_some_and(|history| !history.compact(at)) {
        tree.remove(key);
    }
}

/// Returns the keys of `range` with their histories, including keys without a value.
fn histories<'t>(
    tree: &'t Tree,
    range: KeyRange<'t>,
) -> impl Iterator<Item = (&'t [u8], &'t KeyIndex)> {
    // The map rejects a range that ends before it starts.
    let range = if range.is_empty() { KeyRange::new(&[], &[]) } else { range };
    let to = range.to.map_or(Bound::Unbounded, Bound::Excluded);
    let within = tree.range::<_, [u8]>((Bound::Included(range.from), to));
    within.map(|(key, history)| (&**key, history))
}

fn versions<'t>(
    tree: &'t Tree,
    range: KeyRange<'t>,
    at: i64,
) -> impl Iterator<Item = (&'t [u8], Version)> {
    histories(tree, range).filter_map(move |(key, history)| Some((key, history.at(at)?)))
}

impl IndexSnapshot for LockedIndex {
    const IS_LIVE: bool = true;

    fn get(&self, key: &[u8], at: i64) -> Option<Version> {
        self.tree.read().get(key)?.at(at)
    }

    fn walk(&self, range: KeyRange<'_>, at: i64, visit: &mut VersionVisitor<'_>) {
        let tree = self.tree.read();
        let _ = versions(&tree, range, at).try_for_each(|(key, version)| visit(key, version));
    }

    fn revisions(
        &self,
        range: KeyRange<'_>,
        at: i64,
        limit: u64,
        visit: &mut VersionVisitor<'_>,
    ) -> u64 {
        let tree = self.tree.read();
        let mut visiting = ControlFlow::Continue(());
        let mut count = 0;
        for (key, version) in versions(&tree, range, at) {
            if count < limit && visiting.is_continue() {
                visiting = visit(key, version);
            }
            count += 1;
        }
        count
    }

    fn changes_since(&self, range: KeyRange<'_>, since: i64, visit: &mut ChangeVisitor<'_>) {
        let tree = self.tree.read();
        let _ = histories(&tree, range)
            .try_for_each(|(_, history)| history.changes_since(since, visit));
    }

    fn is_compacted_above(&self, at: i64) -> bool {
        self.compacted.load(Ordering::Acquire) > at
    }

    /// Visits all keys in one walk, whatever `keys_max` is.
    fn keep(
        &self,
        at: i64,
        from: &[u8],
        _keys_max: usize,
        kept: &mut Vec<Revision>,
    ) -> Option<Vec<u8>> {
        let tree = self.tree.read();
        let histories = histories(&tree, KeyRange::starting_at(from));
        kept.extend(histories.filter_map(|(_, history)| history.kept_by_hash(at)));
        None
    }
}

impl TreeIndex for LockedIndex {
    type Snapshot = LockedIndex;

    fn snapshot(&self) -> LockedIndex {
        self.clone()
    }

    fn put(&mut self, key: &[u8], revision: Revision, encoded_len: EncodedLen) -> Version {
        let mut tree = self.tree.write();
        if let Some(history) = tree.get_mut(key) {
            return history.put(revision, encoded_len);
        }
        tree.insert(Key::new(key), KeyIndex::new(revision, encoded_len));
        Version::first(revision, encoded_len)
    }

    fn tombstone(&mut self, key: &[u8], revision: Revision) -> Option<Version> {
        self.tree.write().get_mut(key)?.tombstone(revision)
    }

    /// As in etcd, the lock is taken separately for each key. For a range, the lock is first taken
    /// for the walk that collects the keys.
    fn tombstone_all(
        &mut self,
        keys: KeySelection<'_>,
        first: Revision,
        visit: &mut KeyVisitor<'_>,
    ) {
        let mut revision = first;
        let mut tombstone = |key: &[u8]| {
            let mut tree = self.tree.write();
            let ended = tree.get_mut(key).and_then(|history| history.tombstone(revision));
            drop(tree);
            if ended.is_some() {
                revision.sub += 1;
                visit(key);
            }
        };
        match keys {
            KeySelection::Range(range) => {
                let tree = self.tree.read();
                let live = versions(&tree, range, i64::MAX);
                let keys: Vec<Key> = live.map(|(key, _)| Key::new(key)).collect();
                drop(tree);
                keys.iter().for_each(|key| tombstone(key));
            }
            KeySelection::Sorted(keys) => keys.iter().for_each(|key| tombstone(key)),
        }
    }

    fn restore(&mut self, runs: Vec<SortedRun>) {
        // The tree is built without the lock, and then swapped in.
        let restored: Tree = SortedRun::merge(runs).collect();
        let before = std::mem::replace(&mut *self.tree.write(), restored);
        assert!(before.is_empty(), "the index is not empty");
    }

    fn begin_compaction(&self, at: i64) -> IndexCompaction {
        self.compacted.fetch_max(at, Ordering::Release);
        let clone = match self.compaction_lock {
            CompactionLock::WholeWalk => None,
            CompactionLock::PerKey => Some(self.tree.write().clone()),
        };
        IndexCompaction::new(at, clone)
    }

    fn compact_step(&mut self, compaction: &mut IndexCompaction, keys_max: usize) -> bool {
        let at = compaction.at;
        let Some(from) = compaction.next.take() else { return true };
        let Some(clone) = &compaction.clone else {
            compaction.kept = self.compact_whole(at);
            return true;
        };
        let mut histories = histories(clone, KeyRange::starting_at(&from));
        for (key, history) in histories.by_ref().take(keys_max.max(1)) {
            compaction.kept.extend(history.kept_by_compaction(at));
            compact_key(&mut self.tree.write(), key, at);
        }
        compaction.next = histories.next().map(|(key, _)| key.to_vec());
        compaction.is_done()
    }
}
