//! The index of the default era: a tree whose nodes do not change while a reader can see them.
//!
//! A reader holds a pointer to a root. If a snapshot shares nodes on the path of a change, the
//! change copies these nodes; all other nodes stay shared. Nodes that no snapshot shares are
//! changed in place, except that a node that gains or loses an item is built again. There are three
//! kinds of changes: one key in `edit.rs`, several keys or a small range in `edit_many.rs`, and the
//! keys of a large range in `mark.rs`.
//!
//! Each child is stored with its number of live keys. So counting a range at the newest revision
//! takes one path down for each end of the range. At an older revision the range is walked. There
//! is no lock here: the writer holds the store's lock.
//!
//! Invariants:
//! * All leaves are at the same depth, and keys are in ascending order from left to right.
//! * A child's count of live keys is correct if no mark is above the child. Below a mark, it is the
//!   count before the deletion. A child with a mark has no live keys.
//! * No node is empty except a root without any key. No inner node has a single child.
//!
//! In etcd: `treeIndex`, see [`locked`](super::locked). See also `docs/mvcc.md`, and for the shape
//! of the nodes `docs/decisions/mvcc-tree-index.md`.

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

/// The writer's side of the index. After a compaction, open snapshots still have everything that
/// the compaction has dropped from the index.
#[derive(Debug, Default)]
pub struct PersistentIndex {
    current: PersistentSnapshot,
}

#[derive(Clone, Debug, Default)]
pub struct PersistentSnapshot {
    root: Node,
    /// The newest main revision. At this and later revisions, exactly the live keys have a value.
    newest: i64,
}

impl PersistentSnapshot {
    /// Calls `visit` for up to `keys_max` keys, but at least one, from the key `from` on. Returns
    /// the next key, or `None` at the end.
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

    /// Skips the first `skip` keys that have a value at the newest revision, and calls `visit` for
    /// the following ones until `visit` breaks.
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
        // At the newest revision the count is known, so the walk ends at the limit.
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
        // Without this check, deleting an absent key would copy nodes unnecessarily.
        let ended = self.current.root.get(key)?.current()?;
        self.advance(revision);
        edit::edit(&mut self.current.root, key, &mut |history| {
            history.map(|history| history.tombstone(revision));
            Edit::Keep
        });
        Some(ended)
    }

    fn live_count(&self, range: KeyRange<'_>) -> Option<u64> {
        // Most deletions delete only one key, and finding one key takes less time than counting.
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
            assert_eq!(marked, count, "the marked keys must be the counted keys");
            self.advance(first);
        }
        Some(DeletedRange::new(before, range, (skip, count), first))
    }

    fn restore(&mut self, runs: Vec<SortedRun>) {
        assert_eq!(self.current.root.len(), 0, "the index is not empty");
        self.current.newest = runs.iter().map(|run| run.newest.main).max().unwrap_or(0);
        self.current.root = build::tree(SortedRun::merge(runs));
    }

    fn begin_compaction(&self, at: i64) -> IndexCompaction {
        // Each step walks over the current tree.
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
