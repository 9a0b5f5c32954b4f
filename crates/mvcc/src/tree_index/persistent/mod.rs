//! The default era's index: a tree that is not changed where a reader could see it.
//!
//! A reader holds a pointer to a root. A change copies those nodes on its way that a snapshot has,
//! and shares all others; nodes that no snapshot has are changed in place: one key in `edit.rs`,
//! some keys in `edit_many.rs`, the keys of a range in `mark.rs`. Each child is stored with its
//! number of live keys, so counting a range at the newest revision is one way down for each of its
//! ends. At an older one a range is walked. There is no lock: the writer has the store's.
//!
//! Invariants:
//! * All leaves are at the same depth, keys rise from left to right.
//! * A child's count of live keys is what counting them would give; with a mark it is 0.
//! * No node is empty except a root without any key, no inner node has a single child.
//!
//! In etcd: `treeIndex`, see [`locked`](super::locked). See `docs/mvcc.md`, and for the shape of
//! the nodes `docs/decisions/mvcc-tree-index.md`.

mod build;
mod edit;
mod edit_many;
mod mark;
mod node;
mod slot_view;

use std::ops::ControlFlow;

use clearlane_engine::KeyRange;

use self::edit::Edit;
use self::node::Node;
use self::slot_view::SlotView;
use super::{
    ChangeVisitor, DeletedRange, IndexCompaction, IndexSnapshot, Key, KeySelection, KeyVisitor,
    SortedRun, TreeIndex, VersionVisitor,
};
use crate::key_index::{EncodedLen, KeyIndex, Version};
use crate::revision::Revision;

/// What a compaction drops here, open snapshots keep.
#[derive(Debug, Default)]
pub struct PersistentIndex {
    current: PersistentSnapshot,
}

#[derive(Clone, Debug, Default)]
pub struct PersistentSnapshot {
    root: Node,
    /// The newest main revision. At this one and later ones, the live keys are those that count.
    newest: i64,
}

impl PersistentSnapshot {
    /// Calls `visit` for `keys_max` keys from the key `from` on. Returns the next one.
    fn walk_step(
        &self,
        from: &[u8],
        keys_max: usize,
        visit: &mut dyn FnMut(SlotView<'_>),
    ) -> Option<Vec<u8>> {
        let mut left = keys_max.max(1);
        let mut next = None;
        let _ = self.root.walk(KeyRange::starting_at(from), &mut |slot| {
            if left == 0 {
                next = Some(slot.key.to_vec());
                return ControlFlow::Break(());
            }
            left -= 1;
            visit(slot);
            ControlFlow::Continue(())
        });
        next
    }

    /// Calls `visit` for the keys that have a value at the newest revision, after the first `skip`
    /// of them, until it breaks.
    pub(super) fn visit_live_after(
        &self,
        mut skip: u64,
        visit: &mut dyn FnMut(&Key) -> ControlFlow<()>,
    ) {
        let _ = self.root.walk_live_after(&mut skip, visit);
    }

    fn is_current_at(&self, at: i64) -> bool {
        at >= self.newest
    }

    fn count_live(&self, range: KeyRange<'_>) -> u64 {
        let up_to_end = range.to.map_or_else(|| self.root.live(), |to| self.root.live_below(to));
        up_to_end - self.root.live_below(range.from)
    }
}

impl IndexSnapshot for PersistentSnapshot {
    const IS_LIVE: bool = false;

    fn get(&self, key: &[u8], at: i64) -> Option<Version> {
        self.root.get(key)?.at(at)
    }

    fn walk(&self, range: KeyRange<'_>, at: i64, visit: &mut VersionVisitor<'_>) {
        if range.is_empty() {
            return;
        }
        let _ = if self.is_current_at(at) {
            self.root.walk_live(range, &mut |slot| match slot.key_index.at(at) {
                Some(found) => visit(&slot.key, found),
                None => ControlFlow::Continue(()),
            })
        } else {
            self.root.walk(range, &mut |slot| match slot.at(at) {
                Some(found) => visit(slot.key, found),
                None => ControlFlow::Continue(()),
            })
        };
    }

    fn revisions(
        &self,
        range: KeyRange<'_>,
        at: i64,
        limit: u64,
        visit: &mut VersionVisitor<'_>,
    ) -> u64 {
        if range.is_empty() {
            return 0;
        }
        // At the newest revision the count is known, and the walk ends with the limit.
        let known = self.is_current_at(at).then(|| self.count_live(range));
        let mut visiting = limit > 0;
        let mut count = 0;
        if visiting || known.is_none() {
            self.walk(range, at, &mut |key, version| {
                count += 1;
                visiting = visiting && visit(key, version).is_continue() && count < limit;
                if known.is_some() && !visiting {
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            });
        }
        known.unwrap_or(count)
    }

    fn key_after(&self, range: KeyRange<'_>, keys: usize) -> Option<Vec<u8>> {
        if range.is_empty() {
            return None;
        }
        self.root.key_after(range, &mut keys.clone()).map(|key| key.to_vec())
    }

    fn changes_since(&self, range: KeyRange<'_>, since: i64, visit: &mut ChangeVisitor<'_>) {
        if range.is_empty() || self.newest < since {
            return;
        }
        let _ = self.root.walk(range, &mut |slot| slot.changes_since(since, visit));
    }

    fn is_compacted_above(&self, _at: i64) -> bool {
        false
    }

    fn keep(
        &self,
        at: i64,
        from: &[u8],
        keys_max: usize,
        kept: &mut Vec<Revision>,
    ) -> Option<Vec<u8>> {
        self.walk_step(from, keys_max, &mut |slot| kept.extend(slot.kept_by_hash(at)))
    }
}

impl PersistentIndex {
    fn advance(&mut self, revision: Revision) {
        self.current.newest = self.current.newest.max(revision.main);
    }
}

impl TreeIndex for PersistentIndex {
    type Snapshot = PersistentSnapshot;

    fn snapshot(&self) -> PersistentSnapshot {
        self.current.clone()
    }

    fn put(&mut self, key: &[u8], revision: Revision, encoded_len: EncodedLen) -> Version {
        self.advance(revision);
        let mut made = Version::first(revision, encoded_len);
        edit::edit(&mut self.current.root, key, &mut |history| match history {
            Some(history) => {
                made = history.put(revision, encoded_len);
                Edit::Keep
            }
            None => Edit::Insert(KeyIndex::new(revision, encoded_len)),
        });
        made
    }

    fn tombstone(&mut self, key: &[u8], revision: Revision) -> Option<Version> {
        // Without a look first, deleting what is absent would copy nodes for nothing.
        let ended = self.current.root.get(key)?.current()?;
        self.advance(revision);
        edit::edit(&mut self.current.root, key, &mut |history| {
            history.map(|history| history.tombstone(revision));
            Edit::Keep
        });
        Some(ended)
    }

    fn live_count(&self, range: KeyRange<'_>) -> Option<u64> {
        // Most deletions are of one key, and to find one takes less than to count.
        let mut found = 0;
        self.current.walk(range, i64::MAX, &mut |_, _| {
            found += 1;
            if found == 1 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        Some(if found < 2 { found } else { self.current.count_live(range) })
    }

    fn tombstone_all(
        &mut self,
        keys: KeySelection<'_>,
        first: Revision,
        visit: &mut KeyVisitor<'_>,
    ) {
        if keys.is_empty() {
            return;
        }
        let mut revision = first;
        let tombstoned =
            edit_many::tombstone_all(&mut self.current.root, keys, &mut |key, history| {
                history.tombstone(revision);
                revision.sub += 1;
                visit(key);
            });
        if tombstoned > 0 {
            self.advance(first);
        }
    }

    fn mark_deleted(&mut self, range: KeyRange<'_>, first: Revision) -> Option<DeletedRange> {
        if range.is_empty() {
            return Some(DeletedRange::new(PersistentSnapshot::default(), range, (0, 0), first));
        }
        let root = self.current.root.part(range);
        let before = PersistentSnapshot { root, newest: self.current.newest };
        let (skip, count) = (before.root.live_below(range.from), before.count_live(range));
        if count > 0 {
            let marked = mark::mark_range(&mut self.current.root, range, first);
            assert_eq!(marked, count, "the keys that were counted are those that are marked");
            self.advance(first);
        }
        Some(DeletedRange::new(before, range, (skip, count), first))
    }

    fn restore(&mut self, runs: Vec<SortedRun>) {
        assert_eq!(self.current.root.len(), 0, "an index is restored before anything is put");
        self.current.newest = runs.iter().map(|run| run.newest.main).max().unwrap_or(0);
        self.current.root = build::tree(SortedRun::merge(runs));
    }

    fn begin_compaction(&self, at: i64) -> IndexCompaction {
        // It walks over the current tree, in each step.
        IndexCompaction::new(at, None)
    }

    fn compact_step(&mut self, compaction: &mut IndexCompaction, keys_max: usize) -> bool {
        let Some(from) = compaction.next.take() else { return true };
        let (at, kept) = (compaction.at, &mut compaction.kept);
        let mut shortened = Vec::new();
        compaction.next = self.current.walk_step(&from, keys_max, &mut |slot| {
            kept.extend(slot.kept_by_compaction(at));
            if slot.is_shortened_by(at) {
                shortened.push(slot.key.clone());
            }
        });
        for key in &shortened {
            edit::edit(&mut self.current.root, key, &mut |history| {
                let is_left = history.is_none_or(|history| history.compact(at));
                if is_left { Edit::Keep } else { Edit::Remove }
            });
        }
        compaction.is_done()
    }
}

#[cfg(test)]
mod tests;
